"""Values of settings: conversion from text, secrets, and marks on the fields of settings."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec

from rmqkit.errors import ConfigError, Fault

T = TypeVar("T")
#: Mark of a setting that is read each time it is needed, so a request may change it (UPDATE_BROKER_CONFIG).
#: All others take effect at the start only. `Live[int]` is an `int` with this mark.
LIVE: Final = msgspec.Meta(extra={"live": True})
Live = Annotated[T, LIVE]
#: Mark of a port: several brokers of one machine get different ones (`serve --brokers N`).
PORT: Final = msgspec.Meta(ge=0, le=65_535, extra={"port": True})
DAY_MS: Final = 86_400_000
#: A time in ms between two rounds of work, or one that something is waited for: a program cannot do without
#: the first, and nobody waits for more than a day.
IntervalMs = Annotated[int, msgspec.Meta(ge=1, le=DAY_MS)]
#: A pause in ms, which may be left out.
PauseMs = Annotated[int, msgspec.Meta(ge=0, le=DAY_MS)]
#: A time in ms for which something is kept.
KeptMs = Annotated[int, msgspec.Meta(ge=0, le=3_650 * DAY_MS)]
_SECRET = re.compile(r"password|secret|credential|token|initAuthenticationUser|exporterHeader", re.IGNORECASE)
_MASK = "***"


def has_mark(kind: Any, mark: msgspec.Meta) -> bool:
    """Whether a field's type has a mark."""
    wanted = mark.extra or {}
    given = [meta.extra or {} for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
    return any(wanted.items() <= extra.items() for extra in given)


def is_secret(key: str) -> bool:
    """Whether the name of a setting says that its value is a secret, or has one in it."""
    return _SECRET.search(key) is not None


def masked(key: str, value: Any) -> Any:
    """The value for display: secrets are replaced."""
    if isinstance(value, dict):
        return {name: masked(name, item) for name, item in value.items()}
    return _MASK if value and is_secret(key) else value


def typed(key: str, value: Any, kind: Any, source: str) -> Any:
    """The value as `kind`, which may have marks. Raises ConfigError with key, value and source."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is tuple and isinstance(value, str):
        value = [part.strip() for part in re.split(r"[,;]", value) if part.strip()]
    elif plain is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        text = f"setting {key} = {masked(key, value)!r} ({source}): {error}"
        raise ConfigError(text, [Fault(key, text)]) from error
