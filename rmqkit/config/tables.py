"""Settings of plugins: tables `[plugins.NAME]` of the configuration, read as a plugin's own typed struct.

    [plugins.audit]                     plugins.audit.maxBytes=1000000
                                        RMQKIT_PLUGINS__AUDIT__MAX_BYTES=1000000
    maxBytes = 1_000_000                (broker.conf, --set)                  (environment)

A plugin declares its settings as a frozen `msgspec.Struct` with `rename="camel"` and reads them with
`Config.plugin_settings("audit", AuditSettings)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, get_origin

import msgspec
from msgspec.structs import FieldInfo

from rmqkit.errors import ConfigError, Fault, did_you_mean
from rmqkit.rocketmq_settings import bare

TABLE = "plugins"
_ENVIRONMENT = "RMQKIT_PLUGINS__"
S = TypeVar("S", bound=msgspec.Struct)
Given = tuple[str, Any, str]


@cache
def struct_fields(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """The fields of a struct of settings. Evaluating its annotations takes a tenth of a broker's start."""
    return msgspec.structs.fields(kind)


def fold(given: Iterable[Given]) -> list[Given]:
    """(key, value, source) triples with everything about plugins taken apart into keys `plugins.NAME.KEY`.
    Raises ConfigError."""
    folded: list[Given] = []
    for name, value, source in given:
        if name == TABLE:
            folded += _of_table(value, source)
        elif name.startswith(_ENVIRONMENT):
            plugin, separator, key = name[len(_ENVIRONMENT) :].partition("__")
            if not separator:
                raise ConfigError(f"{name} ({source}): write {_ENVIRONMENT}PLUGIN__KEY")
            folded.append((f"{TABLE}.{plugin.lower()}.{key}", value, source))
        else:
            folded.append((name, value, source))
    return folded


def _of_table(tables: object, source: str) -> Iterable[Given]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(
            f"setting {TABLE} ({source}): it holds one table for each plugin, as in [plugins.audit]"
        )
    return [
        (f"{TABLE}.{plugin}.{key}", value, source)
        for plugin, table in tables.items()
        for key, value in table.items()
    ]


def take(values: dict[str, Any], sources: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Move the keys `plugins.NAME.KEY` out of `values` into one table per plugin; of two spellings of a key
    the later one is kept."""
    tables: dict[str, dict[str, Any]] = {}
    for name in [name for name in values if name.startswith(f"{TABLE}.")]:
        _, plugin, key = [*name.split(".", 2), "", ""][:3]
        if not key:
            raise ConfigError(f"setting {name} ({sources[name]}): write {TABLE}.PLUGIN.KEY")
        tables.setdefault(plugin, {})[key] = values.pop(name)
    return tables


def convert(plugin: str, table: Mapping[str, Any], source_of: Callable[[str], str], kind: type[S]) -> S:
    """One plugin's settings. Raises ConfigError with the key, its source and, for an unknown key, the nearest
    known one."""
    fields = {field.encode_name: field for field in struct_fields(kind)}
    spelled = {bare(key): key for key in fields}
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for given, value in table.items():
        source = source_of(given)
        # Only the environment uses other spellings.
        key = spelled.get(bare(given), given) if source.startswith("environment ") else given
        where = f"setting {TABLE}.{plugin}.{given} ({source})"
        if key not in fields:
            hint = did_you_mean(given, fields, ".", 0.5)
            there = ", ".join(sorted(fields)) or "none"
            text = f"{where}: plugin {plugin!r} has no such setting{hint} It has: {there}"
            faults.append(Fault(f"{TABLE}.{plugin}.{given}", text))
            continue
        try:
            found[fields[key].name] = _typed(value, fields[key].type)
        except msgspec.ValidationError as error:
            faults.append(Fault(f"{TABLE}.{plugin}.{given}", f"{where}: {error}"))
    if faults:
        raise ConfigError.of(faults)
    try:
        return kind(**found)
    except ValueError as error:
        text = f"settings of plugin {plugin!r}: {error}"
        raise ConfigError(text, [Fault(f"{TABLE}.{plugin}", text)]) from error


def _typed(value: Any, kind: Any) -> Any:
    if isinstance(value, str) and get_origin(kind) is tuple:
        value = [part.strip() for part in re.split(r"[,;]", value) if part.strip()]
    return msgspec.convert(value, kind, strict=False)
