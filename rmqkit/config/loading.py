"""Loads settings from a file, the environment and the command line; later sources override earlier ones.

A file is TOML or Java properties, depending on its ending. Environment variables have the upper form of a key
with a prefix (`RMQKIT_FLUSH_DISK_TYPE`). Unknown keys are kept in `Config.unknown`: plugins own some
(`rmqkit.config.owned`), `rmqkit.rocketmq_settings` covers RocketMQ's other ones, the rest cause a warning.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from rmqkit import rocketmq_settings
from rmqkit.config import tables
from rmqkit.config import tls as tls_settings
from rmqkit.config.java_properties import decoded_properties, parse_properties
from rmqkit.config.schema import FIELDS, KEYS, Config
from rmqkit.config.value_faults import value_faults
from rmqkit.config.values import typed
from rmqkit.errors import ConfigError, Fault, did_you_mean
from rmqkit.rocketmq_settings import bare

_ALIASES = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
#: Unsupported encryption settings, which would make connections less secure than expected. Recognised in any
#: spelling, see `bare`.
_SECURITY_KEYS: dict[str, set[str]] = {
    "tls.config.file": set(),
    "tls.ciphers": set(),
    "tls.protocols": set(),
    "useTLS": {"false"},
}
_ENV_PREFIX = "RMQKIT_"
#: Variables with the prefix that are not settings: see `rmqkit.speedups`, `rmqkit.log_lines`,
#: `rmqkit.cli.acl`.
_OTHER_VARIABLES = frozenset(
    {"RMQKIT_PURE", "RMQKIT_COMPILED", "RMQKIT_LOG_LEVEL", "RMQKIT_LOG_FORMAT", "RMQKIT_USER_PASSWORD"}
)
#: The variable with which RocketMQ's own tools find name servers.
NAMESRV_VARIABLE = "NAMESRV_ADDR"

_BARE_TLS_KEYS = {bare(key): key for key in KEYS if key.startswith("tls.")}
_BARE_SECURITY_KEYS = {bare(key): key for key in _SECURITY_KEYS}
_BARE_KEYS = {bare(key): key for key in KEYS}
#: How the warning of a key begins that nothing reads.
UNKNOWN_SETTING = "unknown setting"
#: Required similarity (0 to 1) for suggesting a setting in place of an unknown key.
_NEAR = 0.8


def load(
    file: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
) -> Config:
    """Read and check all settings; `flags` come from the command line. Raises ConfigError with each key, its
    source and the fault."""
    config, faults = examine(file, environ=environ, flags=flags)
    if faults:
        raise ConfigError.of(faults)
    return config


def examine(
    file: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
) -> tuple[Config, list[Fault]]:
    """The settings as far as they can be read, and all their faults. Settings with faults may only be used
    for further checks.

    Raises ConfigError where nothing can be read.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    given = [
        (name, value, f"file {file}")
        for name, value in _with_dotted_keys(read_file(file) if file is not None else {})
    ]
    given += _from_environment(os.environ if environ is None else environ)
    given += [(name, value, "command line") for name, value in dict(flags).items()]
    for name, value, source in tables.fold(given):
        key = _ALIASES.get(name, name)
        # Later values are last, the order in which `described` and faults list them.
        values.pop(key, None)
        values[key] = value
        sources[key] = source
    config, faults = _build(values, sources)
    return (config if file is None else msgspec.structs.replace(config, file=str(file))), faults


def _build(values: dict[str, Any], sources: dict[str, str]) -> tuple[Config, list[Fault]]:
    faults = list(_security_faults(values, sources))
    plugins = tables.take(values, sources)
    attributes: dict[str, Any] = {}
    for key in KEYS.keys() & values.keys():
        try:
            attributes[KEYS[key]] = typed(key, values[key], FIELDS[key].type, sources[key])
        except ConfigError as error:
            faults += error.faults
    unknown = {key: value for key, value in values.items() if key not in KEYS}
    warnings = tuple(
        f"{UNKNOWN_SETTING} {key!r} ({sources[key]}) is kept but has no effect here{_suggestion(key)}"
        for key in unknown
        if rocketmq_settings.key_of(key) is None
        and not isinstance(unknown[key], dict)
        and _security_key(key) is None
    )
    config = Config(**attributes, sources=sources, unknown=unknown, warnings=warnings, plugins=plugins)
    faults += value_faults(config)
    given = list(values)
    faults.sort(key=lambda fault: given.index(fault.key) if fault.key in given else len(given))
    config = msgspec.structs.replace(config, warnings=(*warnings, *tls_settings.warnings(config)))
    if config.transient_store_pool_enable and config.flush_policy == config.flush_disk_type:
        ignored = (
            f"transientStorePoolEnable has no effect with flushDiskType = {config.flush_disk_type}, only with"
            " ASYNC_FLUSH"
        )
        config = msgspec.structs.replace(config, warnings=(*config.warnings, ignored))
    return config, faults


def _with_dotted_keys(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A file's settings. TOML tables that contain settings are expanded, because RocketMQ's keys may have
    dots; the others belong to plugins."""
    for name, value in values.items():
        leaves = list(_leaves(name, value))
        yield from leaves if any(key in KEYS for key, _ in leaves) else [(name, value)]


def _security_faults(values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[Fault]:
    for given, whole in values.items():
        for name, value in _leaves(given, whole):
            meant = _BARE_TLS_KEYS.get(bare(name.removeprefix(_ENV_PREFIX)))
            if meant is not None and name != meant:
                yield Fault(
                    name, f"setting {name} ({sources[given]}) is not read in this spelling: write {meant}"
                )
            key = _security_key(name)
            if key is not None and str(value).strip().lower() not in _SECURITY_KEYS[key]:
                yield Fault(
                    name,
                    f"setting {name} = {value!r} ({sources[given]}) asks for protection that this version"
                    " does not have; remove it only if the listeners are protected in another way",
                )


def _security_key(name: str) -> str | None:
    return _BARE_SECURITY_KEYS.get(bare(name.removeprefix(_ENV_PREFIX)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values under a key, with TOML tables as dotted keys: unquoted, `tls.server.mode` is three nested
    tables."""
    if isinstance(value, dict):
        for member, item in value.items():
            yield from _leaves(f"{name}.{member}", item)
    else:
        yield name, value


def _suggestion(key: str) -> str:
    if key.startswith(_ENV_PREFIX):
        return did_you_mean(key, (*_keys_by_variable(), *_OTHER_VARIABLES), cutoff=_NEAR)
    known = rocketmq_settings.KEYS | _BARE_KEYS
    return did_you_mean(key, known.values(), cutoff=_NEAR)


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(key, value, source) of NAMESRV_ADDR and of everything with rmqkit's prefix; unknown names are kept for
    a warning."""
    by_name = _keys_by_variable()
    names = sorted(name for name in environ if name.startswith(_ENV_PREFIX) and name not in _OTHER_VARIABLES)
    if NAMESRV_VARIABLE in environ:
        names.insert(0, NAMESRV_VARIABLE)
    return [(by_name.get(name, name), environ[name], f"environment {name}") for name in names]


@cache
def _keys_by_variable() -> Mapping[str, str]:
    keys = (*rocketmq_settings.KEYS.values(), *KEYS)
    by_name = {_ENV_PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\.", "_", key).upper(): key for key in keys}
    return by_name | {NAMESRV_VARIABLE: "namesrvAddr"}


def read_file(path: str | Path) -> dict[str, Any]:
    """Settings of a TOML file (ending .toml) or of Java properties. Raises ConfigError with the file."""
    path = Path(path)
    text = file_text(path)
    if path.suffix.lower() != ".toml":
        return dict(parse_properties(text))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def file_text(path: Path) -> str:
    """The text of a configuration file: TOML is UTF-8, properties may have another encoding. Raises
    ConfigError with the file."""
    try:
        data = path.read_bytes()
        return data.decode() if path.suffix.lower() == ".toml" else decoded_properties(data)[0]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML, which is UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
