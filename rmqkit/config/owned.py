"""Settings with RocketMQ's own names that belong to plugins, read as a typed struct.

A plugin registers a frozen `msgspec.Struct` with `rename="camel"` (hook `rmqkit_register_settings`) and reads
it with `Config.owned`:

    class DelaySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
        message_delay_level: str = "1s 5s 10s"
        flush_delay_offset_interval: Live[int] = 10_000

Settings without a RocketMQ name belong into the plugin's own table (`rmqkit.config.tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import FieldInfo

from rmqkit.config.tables import struct_fields
from rmqkit.config.values import LIVE, has_mark, typed
from rmqkit.errors import ConfigError, Fault
from rmqkit.rocketmq_settings import bare

S = TypeVar("S", bound=msgspec.Struct)
SettingsType = type[msgspec.Struct]
Kinds = Iterable[SettingsType]


def fields(kinds: Kinds) -> dict[str, FieldInfo]:
    """Key -> field, of all structs."""
    return {field.encode_name: field for kind in kinds for field in struct_fields(kind)}


def live_keys(kinds: Kinds) -> list[str]:
    """Keys of settings that are read at each use."""
    return [key for key, field in fields(kinds).items() if has_mark(field.type, LIVE)]


def spellings(given: Iterable[str], key: str) -> list[str]:
    """The given keys that mean `key`: a key is taken in any spelling, as the environment has them."""
    wanted = bare(key)
    return [name for name in given if bare(name) == wanted]


def convert(kind: type[S], given: Mapping[str, Any], sources: Mapping[str, str]) -> S:
    """The struct with the given values and defaults for the rest; of two spellings of a key the later counts.
    Raises ConfigError with all faults."""
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    spelled = {bare(name): name for name in given}
    for key, field in fields([kind]).items():
        name = spelled.get(bare(key))
        if name is None:
            continue
        try:
            found[field.name] = typed(key, given[name], field.type, sources.get(name, "default"))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError.of(faults)
    try:
        return kind(**found)
    except ValueError as error:
        raise ConfigError(str(error)) from error
