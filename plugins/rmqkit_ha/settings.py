"""Settings of the replication: RocketMQ's own, and the table [plugins.ha]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rmqkit.config import Config, IntervalMs, Live
from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address
from rmqkit_ha.limits import MAX_NAME_CHARS

Positive = Annotated[int, msgspec.Meta(gt=0)]
Copies = Annotated[int, msgspec.Meta(ge=1, le=64)]

SYNC_MASTER = "SYNC_MASTER"
SLAVE = "SLAVE"
#: Copies before SEND_OK under SYNC_MASTER, unless inSyncReplicas says otherwise. Apache's brokers of 3.x and
#: 4.x behave so; those of 5.x have one, the master's own.
DEFAULT_COPIES = 2


class HaSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RocketMQ's settings. Times in ms. Counts of replicas include the master."""

    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] | None = None
    broker_ip2: str = msgspec.field(name="brokerIP2", default="")
    #: None: one above listenPort.
    ha_listen_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    ha_master_address: str = ""
    ha_send_heartbeat_interval: IntervalMs = 5_000
    ha_housekeeping_interval: IntervalMs = 20_000
    ha_transfer_batch_size: Positive = 32_768
    ha_max_gap_not_in_sync: Live[Positive] = 268_435_456
    ha_flow_control_enable: Live[bool] = False
    max_ha_transfer_byte_in_second: Live[Positive] = 104_857_600
    slave_timeout: IntervalMs = 3_000
    in_sync_replicas: Copies | None = None
    min_in_sync_replicas: Copies = 1
    total_replicas: Copies | None = None
    sync_from_last_file: bool = False

    def __post_init__(self) -> None:
        """Check the settings as a whole. Raises ValueError for settings that contradict each other."""
        if (self.in_sync_replicas or 1) > 1 and self.broker_role not in (SYNC_MASTER, SLAVE):
            raise ValueError(
                f"inSyncReplicas = {self.in_sync_replicas}: only brokerRole = {SYNC_MASTER} waits for slaves"
                " before SEND_OK"
            )
        if self.broker_role != SLAVE and self.min_in_sync_replicas > self.copies:
            raise ValueError(
                f"minInSyncReplicas = {self.min_in_sync_replicas}: that many copies are never awaited, with"
                f" brokerRole = {self.broker_role or 'ASYNC_MASTER'} and inSyncReplicas = {self.copies}"
            )
        if self.total_replicas is not None and self.copies > self.total_replicas:
            raise ValueError(
                f"totalReplicas = {self.total_replicas}: SEND_OK would need {self.copies} copies"
                f" (brokerRole = {SYNC_MASTER}, inSyncReplicas)"
            )

    @property
    def copies(self) -> int:
        """Number of copies, the master's included, that SEND_OK promises."""
        if self.broker_role != SYNC_MASTER:
            return 1
        return DEFAULT_COPIES if self.in_sync_replicas is None else self.in_sync_replicas


class HaOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.ha]

    listen            address of the master's replication listener, in place of bindAddress:haListenPort; may
                      have another scheme, as in `tls://10.0.0.5:10912`
    masterAddress     the master's address for clients, from which a slave copies the tables, in place of the
                      one that the name server knows
    tablesIntervalMs  time between two copies of the master's tables; by default 10 000, in an elected
                      group 1 000: the next master has what was copied last
    pinLimitBytes     length of the log that is kept for a connected slave that is behind
    retryIntervalMs   time between two attempts of a slave to connect
    elected           whether an elector says who the master is: the broker starts fenced and waits for it
    memberName        the name of the broker in an elected group, in place of its address for clients
    introduce         whether a slave that signs its requests says at first who it is; false for Apache's
                      masters,
                      which understand nothing of it
    """

    listen: str = ""
    master_address: str = ""
    tables_interval_ms: IntervalMs | None = None
    pin_limit_bytes: Positive = 8 * 1024 * 1024 * 1024
    retry_interval_ms: IntervalMs = 5_000
    elected: bool = False
    member_name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""
    introduce: bool = True

    @property
    def tables_every_ms(self) -> int:
        return self.tables_interval_ms or (1_000 if self.elected else 10_000)


def options(config: Config) -> HaOptions:
    """The table [plugins.ha]. Raises ConfigError."""
    return config.plugin_settings("ha", HaOptions)


def check(config: Config) -> None:
    """Check the table [plugins.ha] against the settings of the broker. Raises ConfigError when the table
    [plugins.ha] has no address, or contradicts the settings. Invalid values of the settings are left to the
    check of a start, which reports them all."""
    given = options(config)
    try:
        if given.listen:
            Address.parse(given.listen)
    except ValueError as error:
        raise ConfigError(f"plugins.ha.listen: {error}") from error
    try:
        role = config.owned(HaSettings).broker_role
    except ConfigError:
        return
    if given.elected and role != SYNC_MASTER:
        raise ConfigError(f"plugins.ha.elected: set brokerRole = {SYNC_MASTER} on every member of the group")


def is_replicating(config: Config) -> bool:
    """Whether the broker is part of a group of replicas: a setting says so. Others need no listener."""
    given = config.owned(HaSettings)
    return bool(given.broker_role is not None or given.ha_listen_port is not None or options(config).listen)
