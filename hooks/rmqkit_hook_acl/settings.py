"""Settings of access control: RocketMQ's own (Java: AuthConfig), and the table [plugins.acl]."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from rmqkit.config import Config
from rmqkit.errors import ConfigError, Fault
from rmqkit.toolkit.signing import Credentials
from rmqkit_hook_acl.model import SUPER, User

PLUGIN = "acl"
T = TypeVar("T", bound=msgspec.Struct)
_AUTH = "org.apache.rocketmq.auth."
_PROVIDER = Literal["", "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"]
_USERS = Literal["", "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"]
_STRATEGY = Literal["", "org.apache.rocketmq.auth.authentication.strategy.StatelessAuthenticationStrategy"]
_DECIDER = Literal["", "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider"]
_POLICIES = Literal["", "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"]
_CACHING = Literal[
    "",
    "org.apache.rocketmq.auth.authorization.strategy.StatelessAuthorizationStrategy",
    "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy",
]


class AclSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RocketMQ's settings. The classes are Apache's own, whose behaviour this plugin has; others do not exist
    here.

    authentication_enabled, authorization_enabled   check who sends each request, and what that user may do
    authentication_whitelist, ..._whitelist         request codes, joined by commas, that are not checked
    init_authentication_user                        JSON {"username", "password"}: the first super user
    inner_client_authentication_credentials         JSON {"accessKey", "secretKey"}: with what this server
                                                    signs
                                                    its requests to others; a super user here
    auth_config_path                                directory of acl.json; default: the config directory below
                                                    storePathRootDir
    acl_enable                                      check by the accounts of plain_acl.yml (RocketMQ 4)
    """

    authentication_enabled: bool = False
    authorization_enabled: bool = False
    authentication_whitelist: str = ""
    authorization_whitelist: str = ""
    init_authentication_user: str = ""
    inner_client_authentication_credentials: str = ""
    auth_config_path: str = ""
    acl_enable: bool = False
    authentication_provider: _PROVIDER = ""
    authentication_metadata_provider: _USERS = ""
    authentication_strategy: _STRATEGY = ""
    authorization_provider: _DECIDER = ""
    authorization_metadata_provider: _POLICIES = ""
    authorization_strategy: _CACHING = ""
    migrate_auth_from_v1_enabled: Literal[False] = msgspec.field(
        name="migrateAuthFromV1Enabled", default=False
    )
    stateful_authorization_cache_max_num: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000

    def __post_init__(self) -> None:
        """Check the settings as a whole. Raises ValueError."""
        if self.authorization_enabled and not (self.authentication_enabled or self.acl_enable):
            raise ValueError(
                "authorizationEnabled = true needs authenticationEnabled = true: a user that nobody has"
                " checked"
                " may do nothing"
            )
        for key, codes in (
            ("authenticationWhitelist", self.authentication_whitelist),
            ("authorizationWhitelist", self.authorization_whitelist),
        ):
            try:
                codes_of(codes)
            except ValueError:
                raise ValueError(f"{key}: {codes!r} has something else than request codes") from None
        try:
            self.super_users()
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @property
    def checks(self) -> bool:
        """Whether requests are checked."""
        return self.authentication_enabled or self.acl_enable

    @property
    def decides(self) -> bool:
        """Whether it is checked what users may do."""
        return self.authorization_enabled or self.acl_enable

    def credentials(self) -> Credentials | None:
        """With what this server signs its requests to others; None for not at all. Raises ConfigError."""
        given = _json(
            "innerClientAuthenticationCredentials", self.inner_client_authentication_credentials, _Inner
        )
        return (
            None if given is None else Credentials(given.access_key, given.secret_key, given.security_token)
        )

    def super_users(self) -> dict[str, User]:
        """The users that the settings name. Raises ConfigError."""
        found = {}
        first = _json("initAuthenticationUser", self.init_authentication_user, _First)
        if first is not None:
            found[first.username] = User(first.username, first.password, SUPER)
        inner = self.credentials()
        if inner is not None:
            found.setdefault(inner.access_key, User(inner.access_key, inner.secret_key, SUPER))
        return found


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _First(msgspec.Struct):
    username: _Text
    password: _Text


class _Inner(msgspec.Struct, rename="camel"):
    access_key: _Text
    secret_key: _Text
    security_token: str = ""


def _json(key: str, text: str, kind: type[T]) -> T | None:
    """A setting whose value is JSON. Raises ConfigError, whose text has nothing of the value."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        what = "; ".join(f'"{name}"' for name in kind.__struct_encode_fields__[:2])
        wrong = f": {error}" if isinstance(error, msgspec.ValidationError) else ""
        text = f"{key} is not a JSON object with {what}{wrong}"
        raise ConfigError(text, [Fault(key, text)]) from None


def codes_of(text: str) -> frozenset[int]:
    """Request codes, joined by commas. Raises ValueError."""
    return frozenset(int(part) for part in text.split(",") if part.strip())


class AclOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.acl]

    certificates     whether the common name in the certificate of a TLS connection is the user of its
                     requests
                     that have no access key
    allow            functions that decide before the policies, entry points of the group rmqkit.allow
    tokens           verifiers of security tokens, entry points of the group rmqkit.tokens
    jwtIssuer        of the verifier jwt: who issues the tokens, as their claim `iss` says
    jwtAudience      for whom they are, as their claim `aud` says; empty: whoever it is
    jwtKeys          file or address of the key set; empty: the one that the issuer, an https:// address,
                     names
    jwtUserClaim     the claim with the name of the user
    plainAcl         plain_acl.yml, or a directory of such files; default plain_acl.yml beside acl.json
    lookIntervalMs   time between two looks for changes of the files
    """

    certificates: bool = False
    allow: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_keys: str = ""
    jwt_user_claim: str = "sub"
    plain_acl: str = ""
    look_interval_ms: Annotated[int, msgspec.Meta(ge=100, le=3_600_000)] = 1_000


def options(config: Config) -> AclOptions:
    """The table [plugins.acl]. Raises ConfigError."""
    return config.plugin_settings(PLUGIN, AclOptions)


def directory_of(config: Config) -> Path:
    """The directory of acl.json."""
    given = config.owned(AclSettings).auth_config_path
    return Path(given) if given else config.config_path
