"""Authentication: certificates of servers and clients, the application protocol, and invalid settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from aioquic.quic.configuration import QuicConfiguration
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from trio.testing import MockClock

from rmqkit.errors import ConfigError
from rmqkit.toolkit.certificate_files import Changes, Hashes
from rmqkit_transport_quic import dialer, listener
from rmqkit_transport_quic.credentials import ServerCredentials, client_configuration, server_credentials
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.transport import QuicTransport
from tests.transports.quic import kit

# --- servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signer", "names", "expired", "reason"),
    [
        ("good", kit.NAMES, True, "no longer valid.*needs a new certificate"),
        (
            "good",
            ("elsewhere.example", "10.0.0.8"),
            False,
            "doesn't match.*by a name that its certificate carries",
        ),
        ("stranger", kit.NAMES, False, r"unable to get local issuer certificate.*tls\.client\.trustCertPath"),
    ],
    ids=["expired", "wrong name", "untrusted"],
)
async def test_a_client_refuses_a_bad_server(
    signer: str, names: tuple[str, ...], expired: bool, reason: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The client raises an OSError with reason and remedy at once, and the server keeps no state. With checks
    disabled it connects."""
    bad = kit.identity(tmp_path, "server", signer, names, expired=expired)
    async with kit.served(tmp_path, **bad) as pair:
        with trio.fail_after(1), pytest.raises(OSError, match=reason):
            await pair.connect()
        assert not pair.network.sockets.keys() - {(kit.SERVER.host, kit.SERVER.port)}
        await trio.sleep(2)
        assert not pair.listener.routes
        for careless in ({"tls.client.authServer": False}, {"tls.test.mode.enable": True}):
            blind = QuicTransport(kit.config(tmp_path, **bad, **careless), QuicSettings(), pair.network)
            await (await blind.connect(kit.SERVER, 1_000)).aclose()


async def test_without_a_list_of_its_own_a_client_trusts_what_the_system_trusts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The system's authorities do not contain that of the tests."""
    async with kit.served(tmp_path) as pair:
        client = QuicTransport(
            kit.config(tmp_path, **{"tls.client.trustCertPath": ""}), QuicSettings(), pair.network
        )
        with pytest.raises(OSError, match="issuer"):
            await client.connect(kit.SERVER, 1_000)


async def test_the_test_mode_makes_a_certificate(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The certificate is valid for this start; clients in the same mode accept it, others do not."""
    none: dict[str, Any] = {"tls.server.certPath": "", "tls.server.keyPath": "", "tls.test.mode.enable": True}
    async with kit.served(tmp_path, **none) as pair:
        await pair.accepted(await pair.connect())
        strict = QuicTransport(kit.config(tmp_path), QuicSettings(), pair.network)
        with pytest.raises(OSError, match="certificate"):
            await strict.connect(kit.SERVER, 1_000)


# --- clients ------------------------------------------------------------------------------------------------


def wanting(directory: Path, how: str = "require") -> dict[str, Any]:
    """A server that requests client certificates of the good authority."""
    return kit.trust(directory, "server") | {"tls.server.need.client.auth": how}


@pytest.mark.parametrize("how", ["require", "required", "optional"])
async def test_a_client_with_a_good_certificate_is_let_in(
    how: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The client connects, and both sides can send."""
    async with kit.served(tmp_path, **wanting(tmp_path, how), **kit.identity(tmp_path, "client")) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        await server.send_all(b"welcome")
        assert await kit.read(client, 7) == b"welcome"
        assert server.transport.is_encrypted
        assert server.transport.certificate is not None


async def test_a_client_without_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The client connects if a certificate is optional. If it is required, its first lane ends with the
    reason, and its data is never read."""
    async with kit.served(tmp_path, **wanting(tmp_path, "optional")) as pair:
        await pair.accepted(await pair.connect())
    async with kit.served(tmp_path, **wanting(tmp_path)) as pair:
        await refused(pair, "a client certificate is required")


@pytest.mark.parametrize(
    ("signer", "expired", "reason"),
    [("stranger", False, "issuer"), ("good", True, "no longer valid")],
    ids=["untrusted", "expired"],
)
@pytest.mark.parametrize("how", ["require", "optional"])
async def test_a_client_with_a_bad_certificate(
    how: str, signer: str, expired: bool, reason: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The client is rejected, even where a certificate is optional."""
    bad = kit.identity(tmp_path, "client", signer, expired=expired)
    async with kit.served(tmp_path, **wanting(tmp_path, how), **bad) as pair:
        await refused(pair, f"the client's certificate is not accepted: .*{reason}")


async def test_a_certificate_for_servers_only(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A certificate restricted to servers is not accepted from clients."""
    cert = kit.server_only(tmp_path)
    async with kit.served(tmp_path, **wanting(tmp_path), **cert) as pair:
        await refused(pair, "not one for clients")


async def test_a_stolen_certificate_is_of_no_use_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The client has to sign with the key."""
    good, other = kit.identity(tmp_path, "client"), kit.leaf("stranger", ("thief",))

    def thief(*arguments: Any) -> QuicConfiguration:
        configuration = client_configuration(*arguments)
        configuration.private_key = load_pem_private_key(other.private_key_pem.bytes(), None)
        return configuration

    monkeypatch.setattr(dialer, "client_configuration", thief)
    async with kit.served(tmp_path, **wanting(tmp_path), **good) as pair:
        await refused(pair, "decrypt_error")


async def refused(pair: kit.Pair, reason: str) -> None:
    """The client's handshake is complete before the server checks its certificate, so the rejection appears
    at the first use."""
    client = await pair.connect()
    await client.send(b"let me in")
    with pytest.raises(anyio.BrokenResourceError, match=reason):
        await client.receive()
    with trio.move_on_after(1) as waited:
        await pair.listener.accept()
    assert waited.cancelled_caught
    assert not pair.listener.handshakes
    await trio.sleep(2)
    assert not pair.listener.routes


async def test_both_ends_speak_rocketmq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A client with another application protocol, or with none, is rejected in the handshake."""

    def speaking(protocols: list[str] | None) -> Any:
        def make(*arguments: Any) -> QuicConfiguration:
            configuration = client_configuration(*arguments)
            configuration.alpn_protocols = protocols
            return configuration

        return make

    for protocols in (["h3"], None):
        monkeypatch.setattr(dialer, "client_configuration", speaking(protocols))
        async with kit.served(tmp_path) as pair:
            with pytest.raises(OSError, match="no_application_protocol"):
                await pair.connect()


async def test_a_server_that_speaks_something_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A client leaves a server that ignores the application protocol."""

    def silent(*arguments: Any) -> ServerCredentials:
        made = server_credentials(*arguments)
        made.configuration.alpn_protocols = None
        return made

    monkeypatch.setattr(listener, "server_credentials", silent)
    async with kit.served(tmp_path) as pair:
        with pytest.raises(OSError, match=r"no_application_protocol .* is that a RocketMQ server\?"):
            await pair.connect()


# --- files that change --------------------------------------------------------------------------------------


class Looks:
    """Counts the checks of the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._taken = trio.Event()
        noticed = Changes.noticed

        def counting(changes: Changes, now: Hashes) -> bool:
            event, self._taken = self._taken, trio.Event()
            event.set()
            return noticed(changes, now)

        monkeypatch.setattr(Changes, "noticed", counting)

    async def one_more(self) -> None:
        """Wait for a check that began after this call."""
        for _ in range(2):
            await self._taken.wait()
        await trio.testing.wait_all_tasks_blocked()


def put(path: str, data: bytes) -> None:
    """Replace a file as a whole."""
    new = Path(path).with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


async def test_new_certificates_are_used_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """New files are used when certificate and key have both changed; open connections stay, and invalid files
    have no effect."""
    looks, files, other = (
        Looks(monkeypatch),
        kit.identity(tmp_path, "server"),
        kit.leaf("stranger", kit.NAMES),
    )
    cert, key = files["tls.server.certPath"], files["tls.server.keyPath"]
    async with kit.served(tmp_path, **files) as pair:
        before = await pair.connect()
        server = await pair.accepted(before)
        put(cert, b"nonsense")
        put(key, b"nonsense")
        await looks.one_more()
        await pair.accepted(await pair.connect())
        put(cert, other.cert_chain_pems[0].bytes())
        await looks.one_more()
        await pair.accepted(await pair.connect())
        put(key, other.private_key_pem.bytes())
        await looks.one_more()
        with pytest.raises(OSError, match="issuer"):
            await pair.connect()
        await before.send(b"still here")
        assert await kit.read(server, 10) == b"still here"


async def test_a_new_list_of_authorities_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The new list is used by the next handshake."""
    looks, wanted = Looks(monkeypatch), wanting(tmp_path)
    async with kit.served(tmp_path, **wanted, **kit.identity(tmp_path, "client")) as pair:
        await pair.accepted(await pair.connect())
        put(wanted["tls.server.trustCertPath"], kit.authority("stranger").cert_pem.bytes())
        await looks.one_more()
        client = await pair.connect()
        await client.send(b"let me in")
        with pytest.raises(anyio.BrokenResourceError, match="issuer"):
            await client.receive()


# --- settings -----------------------------------------------------------------------------------------------


def encrypted(directory: Path, password: str) -> dict[str, Any]:
    """The server's identity with an encrypted key."""
    made = kit.identity(directory, "server")
    path = Path(made["tls.server.keyPath"])
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    )
    return made


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    """The given password appears in no error."""
    made = encrypted(tmp_path, "right horse")
    server_credentials(
        QuicSettings(), kit.config(tmp_path, **made, **{"tls.server.keyPassword": "right horse"})
    )
    made = encrypted(tmp_path, "right horse")
    for wrong in ("wrong horse", ""):
        with pytest.raises(ConfigError, match=r"tls\.server\.keyPassword") as error:
            server_credentials(
                QuicSettings(), kit.config(tmp_path, **made, **{"tls.server.keyPassword": wrong})
            )
        assert "horse" not in str(error.value)
        assert error.value.__cause__ is None


def test_a_key_may_stand_beside_its_certificate(tmp_path: Path) -> None:
    """Certificate and key can be in one file, as PKCS#8."""
    made = kit.identity(tmp_path, "server")
    key = load_pem_private_key(Path(made["tls.server.keyPath"]).read_bytes(), None)
    with Path(made["tls.server.certPath"]).open("ab") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    server_credentials(QuicSettings(), kit.config(tmp_path, **made | {"tls.server.keyPath": ""}))


def test_files_that_will_not_do(tmp_path: Path) -> None:
    """Each error names its setting and its file."""
    good = kit.identity(tmp_path, "server")
    other = tmp_path / "other.key"
    other.write_bytes(kit.leaf("good", ("other",)).private_key_pem.bytes())
    text = tmp_path / "text.pem"
    text.write_text("nothing secret")

    def fault(**keys: str) -> str:
        with pytest.raises(ConfigError) as error:
            server_credentials(
                QuicSettings(),
                kit.config(
                    tmp_path, **good | {name.replace("_", "."): value for name, value in keys.items()}
                ),
            )
        return str(error.value)

    assert "quic needs a certificate" in fault(tls_server_certPath="", tls_server_keyPath="")
    assert "gone.pem: No such file" in fault(tls_server_certPath=str(tmp_path / "gone.pem"))
    assert "gone.key: No such file" in fault(tls_server_keyPath=str(tmp_path / "gone.key"))
    assert "the key does not belong to the certificate" in fault(tls_server_keyPath=str(other))
    assert "there is no key" in fault(tls_server_keyPath="")
    assert "cannot be read" in fault(tls_server_certPath=str(text))
    assert "cannot be read" in fault(tls_server_keyPath=str(text))
    for wrong, reason in ((text, "PEM file of certificates"), (tmp_path / "gone.pem", "No such file")):
        with pytest.raises(ConfigError, match=f"tls.client.trustCertPath = .*{reason}"):
            client_configuration(
                kit.config(tmp_path, **{"tls.client.trustCertPath": str(wrong)}), QuicSettings(), "localhost"
            )


async def test_a_server_without_a_certificate_does_not_start(tmp_path: Path) -> None:
    """QUIC requires TLS, so the start fails; unreadable authorities also stop it."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls.server.certPath": "", "tls.server.keyPath": ""}, "quic needs a certificate"),
        (
            {
                "tls.server.need.client.auth": "require",
                "tls.server.trustCertPath": str(tmp_path / "gone.pem"),
            },
            "gone.pem: No such file",
        ),
    ]
    for keys, reason in cases:
        with pytest.raises(ConfigError, match=reason):
            await kit.transport(tmp_path, **keys).listen(kit.SERVER)


def test_settings_are_checked() -> None:
    """Unusable values are refused."""
    for wrong in ({"idle_timeout_ms": 999}, {"datagram_bytes": 1_199}, {"datagram_bytes": 70_000}):
        with pytest.raises(ValueError, match="must be"):
            QuicSettings(**wrong)  # type: ignore[arg-type]


async def test_a_client_takes_its_new_files_with_the_next_connection(tmp_path: Path) -> None:
    """A new trust file is used by itself; while it is invalid, the old one stays in use."""
    path = trio.Path(tmp_path / "client-trusts.pem")
    async with kit.served(tmp_path) as pair:
        await (await pair.connect()).aclose()
        kit.trust(tmp_path, "client", "stranger")
        with pytest.raises(OSError, match=r"tls\.client\.trustCertPath"):
            await pair.connect()
        await path.write_text("half a file")
        with pytest.raises(OSError, match=r"tls\.client\.trustCertPath"):
            await pair.connect()
        kit.trust(tmp_path, "client")
        await (await pair.connect()).aclose()
