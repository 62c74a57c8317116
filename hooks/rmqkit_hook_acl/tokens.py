"""JSON Web Tokens of OpenID Connect issuers as proof of a user (entry point `jwt` of `rmqkit.tokens`).

The keys come from a key set (JWKS), a file or a URL, or from what the issuer says at its well-known address.
They are fetched by a thread, never in the event loop: at the start, when a token names a key that is not
there, and every ten minutes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rmqkit.config import Config
from rmqkit.errors import ConfigError, MissingExtra, RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.access import TokenVerifier
from rmqkit.protocol.codes import ResponseCode
from rmqkit_hook_acl.settings import AclOptions, options

_log = limited_logger(__name__)
_FETCH_TIMEOUT_S = 5
_REFRESH_S = 600
#: Shortest time between two fetches: tokens of strangers name keys that nobody has.
_PAUSE_S = 10
_MAX_KEYS_BYTES = 1024 * 1024
_MAX_TOKEN_CHARS = 16 * 1024
_KEPT_TOKENS = 4096
_LEEWAY_S = 30
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class JwtTokens(TokenVerifier):
    """Verifies signature, issuer, audience and times of tokens."""

    def __init__(
        self, given: AclOptions, fetch: Callable[[str], bytes], now_s: Callable[[], float] = time.time
    ) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise MissingExtra("tokens are verified with PyJWT", "acl") from error
        self._jwt = jwt
        self._given = given
        self._fetch = fetch
        self._now_s = now_s
        self._keys: Mapping[str, Any] = {}
        self._fetched_s = 0.0
        self._fetching = threading.Lock()
        #: Token -> user and end of validity.
        self._kept: dict[str, tuple[str, float]] = {}

    @classmethod
    def of(cls, config: Config) -> JwtTokens:
        """The verifier of the settings; the keys of a file are there at once. Raises ConfigError."""
        given = options(config)
        if not given.jwt_issuer:
            raise ConfigError("plugins.acl.jwtIssuer is empty: it says whose tokens are accepted")
        made = cls(given, fetched)
        if given.jwt_keys and "://" not in given.jwt_keys:
            made.refresh()
            if not made._keys:
                raise ConfigError(f"plugins.acl.jwtKeys: {given.jwt_keys} has no keys that can be read")
        elif _is_remote(given.jwt_keys or given.jwt_issuer):
            made.refresh_soon()
        else:
            raise ConfigError(
                "plugins.acl.jwtKeys: give a file or an https:// address with the key set, or an issuer that"
                " is an"
                " https:// address"
            )
        return made

    def principal(self, token: str) -> str | None:
        """The user of a token; None for a text that is none."""
        kept = self._kept.get(token)
        if kept is not None and kept[1] > self._now_s():
            return kept[0]
        if len(token) > _MAX_TOKEN_CHARS or token.count(".") != 2:
            return None
        if self._now_s() - self._fetched_s > _REFRESH_S:
            self.refresh_soon()
        try:
            key = self._key_of(token)
            claims = self._jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                issuer=self._given.jwt_issuer,
                audience=self._given.jwt_audience or None,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss"], "verify_aud": bool(self._given.jwt_audience)},
            )
        except self._jwt.PyJWTError as error:
            raise _refused(f"the token is not valid: {error}") from None
        user = claims.get(self._given.jwt_user_claim)
        if not isinstance(user, str) or not user:
            raise _refused(f"the token has no claim {self._given.jwt_user_claim!r} with a name")
        if len(self._kept) >= _KEPT_TOKENS:
            self._kept.clear()
        self._kept[token] = user, float(claims["exp"])
        return user

    def _key_of(self, token: str) -> Any:
        """The key that the header of a token names; the only one when it names none."""
        name = self._jwt.get_unverified_header(token).get("kid")
        found = self._keys.get(name) if isinstance(name, str) else None
        if found is None and name is None and len(self._keys) == 1:
            (found,) = self._keys.values()
        if found is None:
            self.refresh_soon()
            raise _refused("the token is signed with a key that is not in the key set; send again soon")
        return found

    # --- keys -----------------------------------------------------------------------------------------------

    def refresh_soon(self) -> None:
        """Fetch the keys in a thread, unless that is under way or was done just now."""
        if self._now_s() - self._fetched_s < _PAUSE_S or self._fetching.locked():
            return
        threading.Thread(target=self.refresh, name="rmqkit keys of tokens", daemon=True).start()

    def refresh(self) -> None:
        """Fetch the keys, blocking; a failure is logged and leaves them as they are."""
        with self._fetching:
            self._fetched_s = self._now_s()
            try:
                keys = self._read(self._fetch(self._key_set()))
            except (OSError, ValueError, KeyError, self._jwt.PyJWTError) as error:
                _log.error("the keys of %s cannot be fetched: %s", self._given.jwt_issuer, error)
                return
            self._keys, self._kept = keys, {}

    def _key_set(self) -> str:
        if self._given.jwt_keys:
            return self._given.jwt_keys
        where = f"{self._given.jwt_issuer.rstrip('/')}/.well-known/openid-configuration"
        found = json.loads(self._fetch(where))
        if found["issuer"] != self._given.jwt_issuer:
            raise ValueError(f"{where} is of another issuer")
        return str(found["jwks_uri"])

    def _read(self, data: bytes) -> dict[str, Any]:
        """The keys by their names; a shared secret is not a key for a server that others trust, too."""
        found = {}
        for each in self._jwt.PyJWKSet.from_dict(json.loads(data)).keys:
            if each.key_type != "oct":
                found[each.key_id or ""] = each.key
        return found


def _refused(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, text)


def _is_remote(text: str) -> bool:
    """Whether an address is one from which keys may come: unencrypted only from this machine."""
    parts = urlsplit(text)
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
    )


def fetched(where: str) -> bytes:
    """The content of a file or an address. Raises OSError, ValueError."""
    if "://" not in where:
        return Path(where).read_bytes()
    if not _is_remote(where):
        raise ValueError(f"{where} is not encrypted")
    with urlopen(Request(where), timeout=_FETCH_TIMEOUT_S) as answer:
        data: bytes = answer.read(_MAX_KEYS_BYTES + 1)
    if len(data) > _MAX_KEYS_BYTES:
        raise ValueError(f"{where} has more than {_MAX_KEYS_BYTES} bytes")
    return data


__all__ = ["JwtTokens", "fetched"]
