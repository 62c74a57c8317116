"""Signing of what is sent."""

from __future__ import annotations

import pytest

from rmqkit.errors import ConfigError
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.toolkit.signing import Credentials, SignCalls


def test_a_request_is_signed_with_all_its_fields() -> None:
    """Access key, token and the fields of the header are covered; a second pass changes nothing."""
    command = request(105, GetRouteInfoRequestHeader(topic="TopicTest"), b"body")
    hook = SignCalls(Credentials("ak", "sk", "tok"))
    hook.before_call(command, "127.0.0.1:9876")
    fields = dict(command.fields())
    assert fields["AccessKey"] == "ak"
    assert fields["SecurityToken"] == "tok"
    hook.before_call(command, "127.0.0.1:9876")
    assert command.fields() == fields


def test_a_token_alone_is_sent_without_a_signature() -> None:
    """Whoever has no password has nothing to sign with."""
    command = Command(105, ext={"topic": "T"})
    SignCalls(Credentials(security_token="tok")).before_call(command, "")
    assert command.fields() == {"topic": "T", "SecurityToken": "tok"}


@pytest.mark.parametrize("given", [("ak", ""), ("", "sk")])
def test_half_of_the_credentials_is_an_error(given: tuple[str, str]) -> None:
    """A name without a password, and the reverse, are refused instead of sending unsigned requests."""
    with pytest.raises(ConfigError, match="with both or none"):
        Credentials(*given)


def test_the_text_has_no_secret() -> None:
    """What is logged of credentials shows the name alone."""
    given = Credentials("ak", "sk-secret", "tok-secret")
    assert "ak" in repr(given)
    assert "secret" not in repr(given).replace("secret_key", "").replace("security_token", "")
    assert given
    assert not Credentials()
