"""Changed settings: checked copies of a `Config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rmqkit.config import owned as owned_settings
from rmqkit.config.owned import Kinds
from rmqkit.config.schema import FIELDS, KEYS, Config
from rmqkit.config.value_faults import value_faults
from rmqkit.config.values import typed
from rmqkit.errors import ConfigError


def with_texts(
    config: Config, texts: Mapping[str, Any], sources: Mapping[str, str], kinds: Kinds = ()
) -> Config:
    """A checked copy with some settings replaced, given as text by their keys, and their sources. `kinds` are
    the structs of plugins that own settings. Raises ConfigError."""
    theirs = {key: text for key, text in texts.items() if key not in KEYS}
    replaced = {name for key in theirs for name in owned_settings.spellings(config.unknown, key)}
    values = {
        KEYS[key]: typed(key, text, FIELDS[key].type, sources[key])
        for key, text in texts.items()
        if key in KEYS
    }
    copy = msgspec.structs.replace(
        config,
        **values,
        unknown={name: value for name, value in config.unknown.items() if name not in replaced} | theirs,
        sources={name: source for name, source in config.sources.items() if name not in replaced}
        | dict(sources),
    )
    _check(copy)
    for kind in kinds:
        copy.owned(kind)
    return copy


def with_values(config: Config, **values: Any) -> Config:
    """A checked copy with some attributes replaced, as if given on the command line. Raises ConfigError."""
    keys = dict(zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True))
    copy = msgspec.structs.replace(
        config, **values, sources=config.sources | {keys[name]: "command line" for name in values}
    )
    _check(copy)
    return copy


def with_tables(config: Config, tables: Mapping[str, Mapping[str, Any]], source: str) -> Config:
    """A copy with some keys of the tables [plugins.NAME] replaced, and their source."""
    changed = {name: config.plugins.get(name, {}) | dict(keys) for name, keys in tables.items()}
    plugins = config.plugins | changed
    keys = [f"plugins.{name}.{key}" for name, table in tables.items() for key in table]
    return msgspec.structs.replace(
        config, plugins=plugins, sources=config.sources | dict.fromkeys(keys, source)
    )


def _check(config: Config) -> None:
    """Check changed settings as a whole. Raises ConfigError for values of the right type that cannot work."""
    faults = value_faults(config)
    if faults:
        raise ConfigError.of(faults)
