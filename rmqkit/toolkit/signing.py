"""Signs the requests that a client, or a server as a client of another one, sends."""

from __future__ import annotations

from attrs import field, frozen

from rmqkit.errors import ConfigError
from rmqkit.plugin.request_hooks import CallHook
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Secret, content_of


@frozen
class Credentials:
    """Who signs, and with what; the text of it has no secret (Java: SessionCredentials).

    access_key      name of the user, empty for a token alone
    secret_key      the user's password
    security_token  sent and signed, too, where a server asks for one
    """

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)

    def __attrs_post_init__(self) -> None:
        """Check them. Raises ConfigError."""
        if bool(self.access_key) != bool(self.secret_key):
            missing, given = ("secretKey", "accessKey") if self.access_key else ("accessKey", "secretKey")
            raise ConfigError(f"{given} is given without {missing}: requests are signed with both or none")

    def __bool__(self) -> bool:
        return bool(self.access_key or self.security_token)


class SignCalls(CallHook):
    """Adds the access key, the token and the signature to each request (Java: AclClientRPCHook). To be the
    last hook: a field that is added later is not signed, and servers refuse the request."""

    def __init__(self, credentials: Credentials) -> None:
        self._given = credentials
        self._secret = Secret(credentials.secret_key)

    def before_call(self, request: Command, address: str) -> None:
        given, fields = self._given, request.fields()
        if given.security_token:
            fields[SECURITY_TOKEN] = given.security_token
        if given.access_key:
            fields[ACCESS_KEY] = given.access_key
            fields[SIGNATURE] = self._secret.sign(content_of(fields, request.body)).decode()


__all__ = ["Credentials", "SignCalls"]
