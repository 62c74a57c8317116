"""JSON Web Tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from rmqkit import config as settings
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.tokens import check_token_verifier
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.model import User
from rmqkit_hook_acl.settings import AclOptions
from rmqkit_hook_acl.tokens import JwtTokens, fetched
from tests.hooks.acl.kit import access_of, policies

ISSUER = "https://login.example"
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("k1", "k2")}


def key_set(*names: str) -> bytes:
    """The public halves of some keys."""
    return json.dumps(
        {
            "keys": [
                json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key())) | {"kid": name}
                for name in names
            ]
        }
    ).encode()


def token(name: str = "k1", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    given = {"iss": ISSUER, "sub": "alice", "aud": "rocketmq", "exp": time.time() + 600} | claims
    return jwt.encode(
        {key: value for key, value in given.items() if value is not None},
        KEYS[name],
        "ES256",
        {"kid": name} if headers is None else headers,
    )


def verifier(data: bytes = b"", **options: str) -> JwtTokens:
    given = AclOptions(**{"jwt_issuer": ISSUER, "jwt_audience": "rocketmq", "jwt_keys": "keys"} | options)  # type: ignore[arg-type]
    made = JwtTokens(given, lambda where: data or key_set("k1", "k2"))
    made.refresh()
    return made


def test_contract() -> None:
    """The verifier keeps the rules of all of them."""
    check_token_verifier(
        verifier(), valid={token(): "alice", token("k2", sub="bob"): "bob"}, invalid=[token(aud="other")]
    )


def test_a_valid_token_names_its_user() -> None:
    """By the claim that the settings name; the second look comes from memory."""
    made = verifier()
    assert made.principal(token()) == "alice"
    text = token("k2", email="alice@example")
    assert verifier(jwt_user_claim="email").principal(text) == "alice@example"
    assert made.principal(text) == made.principal(text) == "alice"
    assert verifier(key_set("k1")).principal(token(headers={})) == "alice"


def test_what_is_no_token_is_left_to_others() -> None:
    """A text of another kind is not a refusal."""
    for text in ("", "secret", "a.b", "a.b.c.d", "x" * 20_000):
        assert verifier().principal(text) is None


@pytest.mark.parametrize(
    "text",
    [
        token(iss="https://other.example"),
        token(aud="other"),
        token(aud=None),
        token(exp=time.time() - 3600),
        token(exp=None),
        token(nbf=time.time() + 3600),
        token(sub=None),
        token(sub=""),
        token(headers={"kid": "k2"}),
        token(headers={"kid": "k9"}),
        token()[:-4],
        token().rpartition(".")[0] + ".",
        "a.b.c",
        jwt.encode({"iss": ISSUER, "sub": "alice", "aud": "rocketmq", "exp": 4e9}, "", "none"),
        jwt.encode(
            {"iss": ISSUER, "sub": "alice", "aud": "rocketmq", "exp": 4e9}, "k" * 32, "HS256", {"kid": "k1"}
        ),
    ],
)
def test_a_token_that_is_not_valid_is_refused(text: str) -> None:
    """Of another issuer, for others, too old, without what it needs, with another key, unsigned, cut off; the
    refusal does not show it."""
    with pytest.raises(RequestRefused) as caught:
        verifier().principal(text)
    assert text not in str(caught.value)


def test_a_token_is_valid_to_its_end() -> None:
    """What is remembered of a token ends with it."""
    now = [time.time()]
    made = JwtTokens(
        AclOptions(jwt_issuer=ISSUER, jwt_keys="keys"), lambda where: key_set("k1"), lambda: now[0]
    )
    made.refresh()
    text = token(exp=now[0] - 1)
    assert made.principal(text) == "alice", "within the leeway"
    now[0] += 10
    assert text in made._kept
    with pytest.raises(RequestRefused):
        made.principal(token(exp=time.time() - 600))


def test_keys_that_are_replaced() -> None:
    """A token of a removed key is refused once keys were fetched again; a failed fetch changes nothing."""
    data = [key_set("k1")]

    def fetch(where: str) -> bytes:
        if not data:
            raise OSError("not there")
        return data[0]

    made = JwtTokens(AclOptions(jwt_issuer=ISSUER, jwt_audience="rocketmq", jwt_keys="keys"), fetch)
    made.refresh()
    text = token()
    assert made.principal(text) == "alice"
    kept = data.pop()
    made.refresh()
    assert made.principal(text) == "alice"
    data.append(key_set("k2"))
    made.refresh()
    with pytest.raises(RequestRefused, match="not in the key set"):
        made.principal(text)
    assert kept


def test_the_keys_of_an_issuer() -> None:
    """The well-known address says where they are, and has to be of the same issuer."""
    asked = []
    document = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}

    def fetch(where: str) -> bytes:
        asked.append(where)
        return json.dumps(document).encode() if where.endswith("configuration") else key_set("k1")

    made = JwtTokens(AclOptions(jwt_issuer=ISSUER, jwt_audience="rocketmq"), fetch)
    made.refresh()
    assert asked == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]
    assert made.principal(token()) == "alice"
    document["issuer"] = "https://other.example"
    other = JwtTokens(AclOptions(jwt_issuer=ISSUER), fetch)
    other.refresh()
    with pytest.raises(RequestRefused):
        other.principal(token())


def test_shared_secrets_are_no_keys() -> None:
    """A key set with a symmetric key would let every server that has it make tokens."""
    secret = {"kty": "oct", "k": "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5", "kid": "k1", "alg": "HS256"}
    made = verifier(json.dumps({"keys": [secret]}).encode())
    with pytest.raises(RequestRefused):
        made.principal(token())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "jwtIssuer is empty"),
        ({"plugins.acl.jwtIssuer": "example"}, "an https:// address"),
        ({"plugins.acl.jwtIssuer": "http://login.example"}, "an https:// address"),
        ({"plugins.acl.jwtIssuer": ISSUER, "plugins.acl.jwtKeys": "missing.json"}, "no keys"),
    ],
)
def test_settings_that_stop_the_start(flags: dict[str, str], said: str) -> None:
    """Keys come from a file, or encrypted."""
    with pytest.raises(ConfigError, match=said):
        JwtTokens.of(settings.load(environ={}, flags=flags))


def test_fetching(tmp_path: Path) -> None:
    """A file is read; an address without encryption is not asked."""
    (tmp_path / "keys.json").write_bytes(b"{}")
    assert fetched(str(tmp_path / "keys.json")) == b"{}"
    with pytest.raises(ValueError, match="not encrypted"):
        fetched("http://login.example/keys")


def test_a_request_with_a_token(tmp_path: Path) -> None:
    """The token takes the place of the signature; its user has to be one that is known here, and policies
    decide."""
    (tmp_path / "keys.json").write_bytes(key_set("k1"))
    hook = AccessHook(
        access_of(
            tmp_path,
            [User("alice", "unused-password")],
            {"alice": policies(["Topic:T Pub Allow"])},
            **{
                "plugins.acl.tokens": "jwt",
                "plugins.acl.jwtIssuer": ISSUER,
                "plugins.acl.jwtAudience": "rocketmq",
                "plugins.acl.jwtKeys": str(tmp_path / "keys.json"),
            },
        )
    )

    def send(topic: str, text: str) -> Command:
        return Command(RequestCode.SEND_MESSAGE, ext={"topic": topic, "SecurityToken": text})

    peer = FakePeer()
    assert not hook.before([send("T", token())], peer)
    assert peer.attributes[PRINCIPAL] == "alice"
    for command in (
        send("Other", token()),
        send("T", token(sub="bob")),
        send("T", "other"),
        send("T", "a.b.c"),
    ):
        assert isinstance((hook.before([command], peer) or {})[0], RequestRefused)
