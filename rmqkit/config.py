"""Settings: defaults < file < environment < command line; the later wins and every value knows where it came from.

Keys are broker.conf's own names (`flushDiskType`), attributes their snake_case form (`flush_disk_type`), environment variables the upper
form with a prefix (`RMQKIT_FLUSH_DISK_TYPE`). A file is TOML or Java properties, told apart by its ending. An unknown key warns and is kept
in `unknown` for plugins; a security key that nothing here honours stops the start.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rmqkit import plugin_settings, tls_settings
from rmqkit.errors import ConfigError, DecodeError, Fault
from rmqkit.model.names import group_fault, topic_fault
from rmqkit.model.sysflag import PERM_RW
from rmqkit.protocol.message_id import pack_host

#: Names in the setting `dispatchers`: what a store builds by itself, always in this order, and all dispatchers of plugins that are not listed.
CONSUME_QUEUE, INDEX = STORE_DISPATCHERS = ("consume-queue", "index")
ALL_DISPATCHERS = "*"
S = TypeVar("S", bound=msgspec.Struct)
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """All settings of a process. Sizes in bytes, times in ms unless RocketMQ's own name says otherwise."""

    # Who the broker is and where it listens.
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    bind_address: str = "127.0.0.1"
    listen_port: int = 10911
    broker_ip1: str = msgspec.field(name="brokerIP1", default="")
    namesrv_addr: str = ""
    namesrv_listen: str = "127.0.0.1:9876"
    listeners: tuple[str, ...] = ()
    unix_socket_mode: str = "0600"
    broker_permission: int = PERM_RW
    region_id: str = "DefaultRegion"
    # TLS: RocketMQ's own keys, which have dots. What they mean together: rmqkit.tls_settings.
    tls_enable: bool = msgspec.field(name="tls.enable", default=False)
    tls_test_mode_enable: bool = msgspec.field(name="tls.test.mode.enable", default=False)
    tls_server_mode: str = msgspec.field(name="tls.server.mode", default="")
    tls_server_cert_path: str = msgspec.field(name="tls.server.certPath", default="")
    tls_server_key_path: str = msgspec.field(name="tls.server.keyPath", default="")
    tls_server_key_password: str = msgspec.field(name="tls.server.keyPassword", default="")
    tls_server_trust_cert_path: str = msgspec.field(name="tls.server.trustCertPath", default="")
    tls_server_auth_client: bool = msgspec.field(name="tls.server.authClient", default=True)
    tls_server_need_client_auth: str = msgspec.field(name="tls.server.need.client.auth", default="none")
    tls_client_cert_path: str = msgspec.field(name="tls.client.certPath", default="")
    tls_client_key_path: str = msgspec.field(name="tls.client.keyPath", default="")
    tls_client_key_password: str = msgspec.field(name="tls.client.keyPassword", default="")
    tls_client_trust_cert_path: str = msgspec.field(name="tls.client.trustCertPath", default="")
    tls_client_auth_server: bool = msgspec.field(name="tls.client.authServer", default=True)
    # Topics and groups.
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    trace_on: bool = True
    notify_consumer_ids_changed_enable: bool = True
    reject_transaction_message: bool = False
    # Pulling.
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_filter_message_size: int = 16_000
    # Timers.
    flush_consumer_offset_interval: int = 5_000
    flush_delay_offset_interval: int = 10_000
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    channel_expired_timeout: int = 120_000
    message_delay_level: str = DELAY_LEVELS
    # Store.
    store: str = "mmap"
    store_path_root_dir: str = "rmqkit-data"
    store_path_commit_log: str = ""
    mapped_file_size_commit_log: int = 1_073_741_824
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    max_message_size: int = 4_194_304
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    sync_flush_timeout: int = 5_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    # Clean-up.
    file_reserved_time: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    delete_file_batch_max: int = 10
    # Name server.
    scan_not_active_broker_interval: int = 5_000
    kv_config_path: str = ""
    order_message_enable: bool = False
    enable_all_topic_list: bool = True
    return_order_topic_config_to_broker: bool = True
    # Metrics, when its plugin is on: see `hooks_on`.
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: int = 5557
    metrics_label: str = ""
    # Plugins.
    hooks: tuple[str, ...] = ()
    dispatchers: tuple[str, ...] = (*STORE_DISPATCHERS, ALL_DISPATCHERS)
    disabled_plugins: tuple[str, ...] = ()
    disabled_services: tuple[str, ...] = ()

    #: Key -> "default", "file NAME", "environment NAME" or "command line".
    sources: dict[str, str] = {}
    #: Keys no setting has; plugins may read them.
    unknown: dict[str, Any] = {}
    #: What to tell the user at start.
    warnings: tuple[str, ...] = ()
    #: Plugin -> its table, as it was written; read it through `plugin_settings`.
    plugins: dict[str, dict[str, Any]] = {}

    @property
    def commit_log_path(self) -> Path:
        return Path(self.store_path_commit_log) if self.store_path_commit_log else self.root_path / "commitlog"

    @property
    def root_path(self) -> Path:
        return Path(self.store_path_root_dir)

    @property
    def flush_policy(self) -> str:
        """Name of the flush policy: flushDiskType, with the commit buffer where that is asked for and means something."""
        buffered = self.transient_store_pool_enable and self.flush_disk_type == "ASYNC_FLUSH"
        return "ASYNC_FLUSH_BUFFERED" if buffered else self.flush_disk_type

    @property
    def hooks_on(self) -> tuple[str, ...]:
        """The plugins of entry-point group rmqkit.hooks that are used: those `hooks` names, and metrics where RocketMQ's own key asks for it."""
        metrics = self.metrics_exporter_type == "PROM" and "metrics" not in self.hooks
        return (*self.hooks, "metrics") if metrics else self.hooks

    def plugin_settings(self, name: str, kind: type[S]) -> S:
        """The table [plugins.NAME] as the plugin's struct; what is not given has the struct's default. Raises ConfigError."""
        return plugin_settings.convert(name, self.plugins.get(name, {}), lambda key: self.sources[f"plugins.{name}.{key}"], kind)

    @property
    def config_path(self) -> Path:
        """Where the JSON tables are."""
        return self.root_path / "config"

    @property
    def advertised_host(self) -> str:
        """The host clients are told: brokerIP1, else the bind address."""
        return self.broker_ip1 or self.bind_address

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    def described(self) -> list[tuple[str, Any, str]]:
        """(key, value, source) of every setting, sorted by key; what is secret is masked."""
        rows = []
        for attribute, key in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            if attribute not in _BOOKKEEPING:
                rows.append((key, _masked(key, getattr(self, attribute)), self.sources.get(key, "default")))
        rows += [(key, _masked(key, value), self.sources.get(key, "default") + " (unknown key)") for key, value in self.unknown.items()]
        for plugin, table in self.plugins.items():
            keys = {key: f"plugins.{plugin}.{key}" for key in table}
            rows += [(whole, _masked(whole, table[key]), self.sources.get(whole, "default")) for key, whole in keys.items()]
        return sorted(rows, key=lambda row: row[0])

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value, source in self.described() if source != 'default')})"

    def with_values(self, **values: Any) -> Config:
        """A checked copy with some attributes replaced, as if given on the command line."""
        keys = dict(zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True))
        copy = msgspec.structs.replace(self, **values, sources=self.sources | {keys[name]: "command line" for name in values})
        _check(copy)
        return copy


_BOOKKEEPING = frozenset({"sources", "unknown", "warnings", "plugins"})
_KEYS = {
    key: attribute
    for attribute, key in zip(Config.__struct_fields__, Config.__struct_encode_fields__, strict=True)
    if attribute not in _BOOKKEEPING
}
_ALIASES = {"mapedFileSizeCommitLog": "mappedFileSizeCommitLog", "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue"}
#: Asking for one of these and not getting it would leave a server open that its owner believes closed. Found in any spelling, see `_bare`.
_SECURITY_KEYS: dict[str, set[str]] = {
    "aclEnable": {"false"},
    "authenticationEnabled": {"false"},
    "authorizationEnabled": {"false"},
    "tls.config.file": set(),
    "tls.ciphers": set(),
    "tls.protocols": set(),
}
_SECRET = re.compile(r"password|secret", re.IGNORECASE)
_MASK = "***"
#: RocketMQ's own settings that mean nothing here; they are taken without a warning because they cannot change what users see.
_HARMLESS = re.compile(r".*(ThreadPool|Threads|QueueCapacity|RocketmqHome|rocketmqHome|transferMsgByHeap|useEpollNativeSelector).*")
_ENV_PREFIX = "RMQKIT_"


def _bare(key: str) -> str:
    """A key without case, dots and underscores, to recognise it in another spelling (TOML dots, environment names)."""
    return re.sub(r"[._-]", "", key).lower()


def _masked(key: str, value: Any) -> Any:
    """The value as it may be shown."""
    if isinstance(value, dict):
        return {name: _masked(name, item) for name, item in value.items()}
    return _MASK if value and _SECRET.search(key) else value


_BARE_TLS_KEYS = {_bare(key): key for key in _KEYS if key.startswith("tls.")}
_BARE_SECURITY_KEYS = {_bare(key): key for key in _SECURITY_KEYS}
_BARE_KEYS = {_bare(key): key for key in _KEYS}
#: How alike (0 to 1) an unknown key and a setting must be for the setting to be what was meant.
_NEAR = 0.8


def load(
    file: str | Path | None = None, *, environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
) -> Config:
    """Read and check all settings; `flags` are the command line's. Raises ConfigError that names each key, its source and the fault."""
    config, faults = examine(file, environ=environ, flags=flags)
    if faults:
        raise ConfigError.of(faults)
    return config


def examine(
    file: str | Path | None = None, *, environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
) -> tuple[Config, list[Fault]]:
    """The settings as far as they can be read, and all that is wrong with them: with faults they are only good for looking further.

    Raises ConfigError where nothing can be read.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    given = [(name, value, f"file {file}") for name, value in _with_dotted_keys(read_file(file) if file is not None else {})]
    given += _from_environment(os.environ if environ is None else environ)
    given += [(name, value, "command line") for name, value in dict(flags).items()]
    for name, value, source in plugin_settings.fold(given):
        key = _ALIASES.get(name, name)
        # What was given last stands last.
        values.pop(key, None)
        values[key] = value
        sources[key] = source
    return _build(values, sources)


def _build(values: dict[str, Any], sources: dict[str, str]) -> tuple[Config, list[Fault]]:
    faults = list(_security_faults(values, sources))
    plugins = plugin_settings.take(values, sources)
    attributes: dict[str, Any] = {}
    for key in _KEYS.keys() & values.keys():
        try:
            attributes[_KEYS[key]] = _typed(key, values[key], sources[key])
        except ConfigError as error:
            faults += error.faults
    unknown = {key: value for key, value in values.items() if key not in _KEYS}
    warnings = tuple(
        f"unknown setting {key!r} ({sources[key]}) is kept but has no effect here{_suggestion(key)}"
        for key in unknown
        if not _HARMLESS.fullmatch(key) and not isinstance(unknown[key], dict) and _security_key(key) is None
    )
    config = Config(**attributes, sources=sources, unknown=unknown, warnings=warnings, plugins=plugins)
    faults += _faults(config)
    given = list(values)
    faults.sort(key=lambda fault: given.index(fault.key) if fault.key in given else len(given))
    config = msgspec.structs.replace(config, warnings=(*warnings, *tls_settings.warnings(config)))
    if config.transient_store_pool_enable and config.flush_policy == config.flush_disk_type:
        ignored = f"transientStorePoolEnable has no effect with flushDiskType = {config.flush_disk_type}, only with ASYNC_FLUSH"
        config = msgspec.structs.replace(config, warnings=(*config.warnings, ignored))
    return config, faults


_FIELD_TYPES = {field.encode_name: field.type for field in msgspec.structs.fields(Config)}


def _typed(key: str, value: Any, source: str) -> Any:
    kind = _FIELD_TYPES[key]
    if kind == tuple[str, ...] and isinstance(value, str):
        value = [part.strip() for part in re.split(r"[,;]", value) if part.strip()]
    elif kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        text = f"setting {key} = {_masked(key, value)!r} ({source}): {error}"
        raise ConfigError(text, [Fault(key, text)]) from error


def _with_dotted_keys(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A file's settings; of TOML's tables those that hold settings are opened up, since RocketMQ's keys may have dots. The others are plugins'."""
    for name, value in values.items():
        leaves = list(_leaves(name, value))
        yield from leaves if any(key in _KEYS for key, _ in leaves) else [(name, value)]


def _security_faults(values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[Fault]:
    for given, whole in values.items():
        for name, value in _leaves(given, whole):
            meant = _BARE_TLS_KEYS.get(_bare(name.removeprefix(_ENV_PREFIX)))
            if meant is not None and name != meant:
                yield Fault(name, f"setting {name} ({sources[given]}) is not read in this spelling: write {meant}")
            key = _security_key(name)
            if key is not None and str(value).strip().lower() not in _SECURITY_KEYS[key]:
                yield Fault(
                    name,
                    f"setting {name} = {value!r} ({sources[given]}) asks for protection that this version does not have; "
                    f"remove it only if the listeners are protected in another way",
                )


def _security_key(name: str) -> str | None:
    return _BARE_SECURITY_KEYS.get(_bare(name.removeprefix(_ENV_PREFIX)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What stands under a key, with TOML's tables as dotted keys: unquoted, `tls.server.mode` is three tables deep there."""
    if isinstance(value, dict):
        for member, item in value.items():
            yield from _leaves(f"{name}.{member}", item)
    else:
        yield name, value


def _suggestion(key: str) -> str:
    near = get_close_matches(_bare(key.removeprefix(_ENV_PREFIX)), _BARE_KEYS, 1, _NEAR)
    return f"; did you mean {_BARE_KEYS[near[0]]!r}?" if near else ""


def _check(config: Config) -> None:
    faults = _faults(config)
    if faults:
        raise ConfigError.of(faults)


def _faults(config: Config) -> list[Fault]:
    """What is wrong with values of the right type."""
    faults: list[tuple[str, str]] = []
    for key in ("listenPort", "metricsPromExporterPort"):
        if not 0 <= getattr(config, _KEYS[key]) <= 65_535:
            faults.append((key, "must be between 0 and 65535"))
    if config.metrics_exporter_type not in ("DISABLE", "PROM"):
        faults.append(("metricsExporterType", "is DISABLE or PROM"))
    if not re.fullmatch("0?[0-7]{3}", config.unix_socket_mode):
        faults.append(("unixSocketMode", "is three octal digits, as in 0660"))
    if config.broker_id != 0:
        faults.append(("brokerId", "other than 0 makes a slave, and this version has no replication"))
    if config.mapped_file_size_commit_log < config.max_message_size + 65_536:
        faults.append(("mappedFileSizeCommitLog", "must hold the largest message: maxMessageSize plus 64 KiB"))
    for key, fault in (("brokerName", topic_fault(config.broker_name)), ("brokerClusterName", group_fault(config.broker_cluster_name))):
        if fault:
            faults.append((key, fault))
    positive: tuple[str, ...] = (
        "mappedFileSizeConsumeQueue",
        "maxMessageSize",
        "maxHashSlotNum",
        "flushConsumerOffsetInterval",
        "cleanResourceInterval",
    )
    positive += ("transientStorePoolSize", "commitIntervalCommitLog")
    faults += [(key, "must be positive") for key in positive if getattr(config, _KEYS[key]) <= 0]
    if config.file_reserved_time < 0:
        faults.append(("fileReservedTime", "must not be negative"))
    if config.max_index_num < 2:
        faults.append(("maxIndexNum", "must be at least 2"))
    faults += tls_settings.faults(config)
    own = [name for name in STORE_DISPATCHERS if name in config.dispatchers]
    if len(set(config.dispatchers)) < len(config.dispatchers):
        faults.append(("dispatchers", "names one twice"))
    elif list(config.dispatchers[: len(own)]) != own:
        faults.append(("dispatchers", f"must begin with {', '.join(own)}: the store does these with the append, before all others"))
    where = {key: f"setting {key} = {getattr(config, _KEYS[key])!r} ({config.sources.get(key, 'default')})" for key, _ in faults}
    return [Fault(key, f"{where[key]}: {fault}") for key, fault in faults]


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(key, value, source) of NAMESRV_ADDR and of everything with our prefix; a name that is no setting stays as it is, to be warned of."""
    by_name = {_ENV_PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\.", "_", key).upper(): key for key in _KEYS}
    names = sorted(name for name in environ if name.startswith(_ENV_PREFIX))
    if "NAMESRV_ADDR" in environ:
        names.insert(0, "NAMESRV_ADDR")
    return [(by_name.get(name, "namesrvAddr" if name == "NAMESRV_ADDR" else name), environ[name], f"environment {name}") for name in names]


def read_file(path: str | Path) -> dict[str, Any]:
    """Settings of a TOML file (ending .toml) or of Java properties. Raises ConfigError naming the file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    if path.suffix.lower() != ".toml":
        return dict(parse_properties(text))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


_LINE_END = re.compile(r"\r\n|\r|\n")
_PROPERTY = re.compile(r"((?:\\.|[^\\=: \t])*)[ \t]*[=: \t]?[ \t]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Java's Properties format: comments, `=`, `:` or blank between key and value, backslash escapes and continued lines."""
    result: dict[str, str] = {}
    lines = iter(_LINE_END.split(text))
    for line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        pieces = [logical]
        while _ends_with_escape(pieces[-1]):
            pieces[-1] = pieces[-1][:-1]
            pieces.append(next(lines, "").lstrip())
        match = _PROPERTY.fullmatch("".join(pieces))
        if match:
            result[_unescape(match.group(1))] = _unescape(match.group(2)).strip()
    return result


def _ends_with_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        what = match.group(1)
        return chr(int(what[1:], 16)) if len(what) == 5 else _ESCAPED.get(what, what)

    # Two escapes may make one character beyond the basic plane; half of one is nothing that could be written anywhere.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def properties_text(config: Config) -> str:
    """All settings but those of plugins as `key=value` lines, unescaped, as GET_BROKER_CONFIG answers: what plugins keep secret nobody knows."""
    rows = config.described()
    return "".join(f"{key}={_property(value)}\n" for key, value, _ in rows if not key.startswith("plugins."))


def _property(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def store_host(config: Config) -> bytes:
    """Host and port that clients are told, packed (8 or 20 bytes): what stores write into records and message ids. A name is resolved once.

    Raises ConfigError when it has no address.
    """
    host = config.advertised_host
    try:
        return pack_host(host, config.listen_port)
    except DecodeError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"the host {host!r} that clients are told has no address: {error}; set brokerIP1 to an IP address") from error
    return pack_host(str(found[0][4][0]), config.listen_port)
