"""Users that certificates name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from rmqkit.client import BrokerError, Client
from rmqkit.errors import RequestRefused
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.plugin.transport import Address, TransportInfo
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_acl.certificates import common_name
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.model import User
from tests.hooks.acl.kit import access_of, policies, signed


def certificate(*names: str) -> bytes:
    """A certificate in DER form with these common names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("names", "found"), [(("alice",), "alice"), ((), None), (("alice", "root"), None), (("é",), "é")]
)
def test_the_name_in_a_certificate(names: tuple[str, ...], found: str | None) -> None:
    """Exactly one common name is a user's; several are none."""
    assert common_name(certificate(*names)) == found


def test_what_is_no_certificate() -> None:
    """Bytes that cannot be read name nobody."""
    assert common_name(b"no certificate") is None


def peer_of(der: bytes | None) -> FakePeer:
    info = TransportInfo(Address("tls", "127.0.0.1", 10_911), is_encrypted=True, certificate=der)
    return FakePeer(transport=info)


def test_a_certificate_is_proof(tmp_path: Path) -> None:
    """Requests without an access key are those of the user that the certificate names, as far as the settings
    say so; an access key counts before it."""
    rules = {"alice": policies(["Topic:T Pub Allow"])}
    users = [User("alice", "alice-secret"), User("bob", "bob-secret")]
    hook = AccessHook(access_of(tmp_path, users, rules, **{"plugins.acl.certificates": True}))

    def send(topic: str = "T") -> Command:
        return Command(RequestCode.SEND_MESSAGE, ext={"topic": topic})

    peer = peer_of(certificate("alice"))
    hook.connected(peer)
    assert peer.attributes[PRINCIPAL] == "alice"
    assert not hook.before([send()], peer)
    assert hook.before([send("Other"), signed(send(), "bob", "bob-secret")], peer).keys() == {0, 1}  # type: ignore[union-attr]
    for der in (None, certificate("eve"), certificate("alice", "root")):
        stranger = peer_of(der)
        hook.connected(stranger)
        assert isinstance((hook.before([send()], stranger) or {})[0], RequestRefused)
    off = AccessHook(access_of(tmp_path, users, rules))
    peer = peer_of(certificate("alice"))
    off.connected(peer)
    assert off.before([send()], peer)


async def test_over_tls(tmp_path: Path) -> None:
    """A client with a certificate needs no access key; one without is refused by the same broker."""
    from rmqkit import config as settings
    from rmqkit.testing.broker import running_broker
    from tests.hooks.acl.kit import CHECKED
    from tests.transports.tls import certs

    issued = certs.authority().issue_cert("127.0.0.1", common_name="alice")
    (tmp_path / "alice.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "alice.key").write_bytes(issued.private_key_pem.bytes())
    server = certs.write(tmp_path) | certs.trust(tmp_path, "server")
    keys = {
        **CHECKED,
        **server,
        "tls.server.need.client.auth": "optional",
        "plugins.acl.certificates": "true",
    }
    trusted = certs.trust(tmp_path)
    own = {
        "tls.client.certPath": str(tmp_path / "alice.pem"),
        "tls.client.keyPath": str(tmp_path / "alice.key"),
    }
    async with running_broker(tmp_path / "data", scheme="tls", **keys) as broker:
        for extra in (own, {}):
            config = settings.load(environ={}, flags=trusted | extra)
            async with Client(str(broker.address), config=config) as client:
                with pytest.raises(BrokerError) as caught:
                    await client.admin.topic_stats_of(str(broker.address), "T")
                assert ("alice" in str(caught.value)) is bool(extra), caught.value
