"""The kernel's settings.

Keys are broker.conf's own names (`flushDiskType`), attributes their snake_case form (`flush_disk_type`).
Priorities: defaults < file < environment < command line; the source of every value is recorded. Settings of
features belong to their plugins (`rmqkit.config.owned`, `rmqkit.config.tables`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec

from rmqkit.config import owned as owned_settings
from rmqkit.config import tables
from rmqkit.config.owned import Kinds
from rmqkit.config.values import IntervalMs, Live, masked
from rmqkit.limits import MAX_RECORD_REST_BYTES
from rmqkit.model.sysflag import PERM_RW

S = TypeVar("S", bound=msgspec.Struct)
#: Names in the setting `dispatchers`: what a store builds by itself, always in this order, and all
#: dispatchers of plugins that are not listed.
CONSUME_QUEUE, INDEX = STORE_DISPATCHERS = ("consume-queue", "index")
ALL_DISPATCHERS = "*"


class Config(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", dict=True
):
    """All settings of a process. Sizes in bytes, times in ms unless RocketMQ's own name says otherwise."""

    # Identity and addresses of the broker.
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    bind_address: str = "127.0.0.1"
    listen_port: int = 10911
    broker_ip1: str = msgspec.field(name="brokerIP1", default="")
    namesrv_addr: str = ""
    namesrv_listen: str = "127.0.0.1:9876"
    listeners: tuple[str, ...] = ()
    broker_permission: Live[int] = PERM_RW
    region_id: str = "DefaultRegion"
    # TLS: RocketMQ's own keys, which contain dots; see rmqkit.config.tls for their combined meaning.
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
    # With what clients sign, see rmqkit.toolkit.signing; servers have innerClientAuthenticationCredentials.
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    # Topics and groups.
    auto_create_topic_enable: Live[bool] = True
    auto_create_subscription_group: Live[bool] = True
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    trace_on: bool = True
    notify_consumer_ids_changed_enable: Live[bool] = True
    enable_mixed_message_type: Live[bool] = False
    use_server_side_reset_offset: Live[bool] = True
    config_black_list: str = "configBlackList;brokerConfigPath"
    # Pulling.
    long_polling_enable: Live[bool] = True
    short_polling_time_mills: Live[IntervalMs] = 1000
    max_transfer_bytes_on_message_in_memory: Live[int] = 262_144
    max_transfer_count_on_message_in_memory: Live[int] = 32
    max_transfer_bytes_on_sequential_pull: Live[int] = 4_194_304
    max_transfer_bytes_on_message_in_disk: Live[int] = 65_536
    max_transfer_count_on_message_in_disk: Live[int] = 8
    access_message_in_memory_max_ratio: Live[int] = 40
    max_filter_message_size: Live[int] = 16_000
    slave_read_enable: Live[bool] = False
    # Timers.
    flush_consumer_offset_interval: Live[IntervalMs] = 5_000
    channel_expired_timeout: Live[IntervalMs] = 120_000
    server_channel_max_idle_time_seconds: Annotated[int, msgspec.Meta(ge=1, le=30 * 86_400)] = 120
    # Store.
    store: str = "mmap"
    store_path_root_dir: str = "rmqkit-data"
    store_path_commit_log: str = ""
    file_umask: Annotated[str, msgspec.Meta(pattern="^0?[0-7]{3}$")] = "077"
    mapped_file_size_commit_log: int = 1_073_741_824
    message_index_enable: bool = True
    unindexed_topics: tuple[str, ...] = ()
    max_message_size: Live[int] = 4_194_304
    flush_disk_type: str = "ASYNC_FLUSH"
    sync_flush_timeout: IntervalMs = 5_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    # Plugins.
    hooks: tuple[str, ...] = ()
    dispatchers: tuple[str, ...] = (*STORE_DISPATCHERS, ALL_DISPATCHERS)
    disabled_plugins: tuple[str, ...] = ()
    disabled_services: tuple[str, ...] = ()

    #: The configuration file, "" when there is none.
    file: str = ""
    #: Key -> "default", "file NAME", "environment NAME" or "command line".
    sources: dict[str, str] = {}
    #: Keys that are not settings of the kernel: plugins own some, the others have no effect.
    unknown: dict[str, Any] = {}
    #: Warnings to log at the start.
    warnings: tuple[str, ...] = ()
    #: Plugin -> its table as it was written; read it with `plugin_settings`.
    plugins: dict[str, dict[str, Any]] = {}

    @property
    def commit_log_path(self) -> Path:
        return (
            Path(self.store_path_commit_log) if self.store_path_commit_log else self.root_path / "commitlog"
        )

    @property
    def root_path(self) -> Path:
        return Path(self.store_path_root_dir)

    @property
    def largest_body_bytes(self) -> int:
        """The size up to which every record fits into a file of the log. `max_message_size` is for clients:
        what the broker moves itself may have been stored under another one."""
        return self.mapped_file_size_commit_log - MAX_RECORD_REST_BYTES

    @property
    def flush_policy(self) -> str:
        """Name of the flush policy: flushDiskType, with the commit buffer where that is asked for and
        means something."""
        buffered = self.transient_store_pool_enable and self.flush_disk_type == "ASYNC_FLUSH"
        return "ASYNC_FLUSH_BUFFERED" if buffered else self.flush_disk_type

    def plugin_settings(self, name: str, kind: type[S]) -> S:
        """The table [plugins.NAME] as the plugin's struct; keys that are not set have the struct's default.
        Raises ConfigError."""
        return tables.convert(
            name, self.plugins.get(name, {}), lambda key: self.sources[f"plugins.{name}.{key}"], kind
        )

    def owned(self, kind: type[S]) -> S:
        """The settings under RocketMQ's names that a plugin owns (`rmqkit.config.owned`), read once. Raises
        ConfigError."""
        known: dict[type[msgspec.Struct], Any] = self.__dict__.setdefault("owned_settings", {})
        found = known.get(kind)
        if found is None:
            found = known[kind] = owned_settings.convert(kind, self.unknown, self.sources)
        return cast(S, found)

    @property
    def config_path(self) -> Path:
        """Directory of the JSON tables."""
        return self.root_path / "config"

    @property
    def advertised_host(self) -> str:
        """The host given to clients: brokerIP1, else the bind address."""
        return self.broker_ip1 or self.bind_address

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    def described(self, kinds: Kinds = ()) -> list[tuple[str, Any, str]]:
        """(key, value, source) of every setting, sorted by key; what is secret is masked. `kinds` are the
        structs of plugins that own settings. Raises ConfigError when theirs cannot be read."""
        values = {key: getattr(self, attribute) for key, attribute in KEYS.items()}
        rest, sources = dict(self.unknown), dict(self.sources)
        for kind in kinds:
            settings = self.owned(kind)
            for key, field in owned_settings.fields([kind]).items():
                values[key] = getattr(settings, field.name)
                for name in owned_settings.spellings(self.unknown, key):
                    rest.pop(name)
                    sources[key] = self.sources.get(name, "default")
        rows = [(key, masked(key, value), sources.get(key, "default")) for key, value in values.items()]
        for key, value in rest.items():
            rows.append((key, masked(key, value), sources.get(key, "default") + " (unknown key)"))
        for plugin, table in self.plugins.items():
            for key, value in table.items():
                whole = f"plugins.{plugin}.{key}"
                rows.append((whole, masked(whole, value), sources.get(whole, "default")))
        return sorted(rows, key=lambda row: row[0])

    def __repr__(self) -> str:
        given = (f"{key}={value!r}" for key, value, source in self.described() if source != "default")
        return f"Config({', '.join(given)})"

    @staticmethod
    def has_setting(key: str) -> bool:
        """Whether a key is one of the kernel's settings."""
        return key in KEYS

    def setting(self, key: str, kinds: Kinds = ()) -> Any:
        """The value of a setting by its key. Raises KeyError, ConfigError."""
        for kind in kinds:
            field = owned_settings.fields([kind]).get(key)
            if field is not None:
                return getattr(self.owned(kind), field.name)
        return getattr(self, KEYS[key])


#: The source of a port that the system has chosen.
FREE_PORT = "a free port"
_BOOKKEEPING = frozenset({"file", "sources", "unknown", "warnings", "plugins"})
#: Key -> field, of the kernel's settings.
FIELDS = {
    field.encode_name: field for field in msgspec.structs.fields(Config) if field.name not in _BOOKKEEPING
}
#: Key -> attribute.
KEYS = {key: field.name for key, field in FIELDS.items()}
