"""The progress of a replication, as in the answer to GET_BROKER_HA_STATUS (wire-protocol sheet, section 4.3;
Java: HARuntimeInfo)."""

from __future__ import annotations

import msgspec


class SlaveStatus(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False, frozen=True):
    """A slave as its master sees it. Offsets are physical. `diff` is the distance to the end of the master's
    log in bytes. `lag_ms`, which Apache's brokers do not give, is the age of the oldest message that the
    slave does not have."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    lag_ms: int | None = None


class MasterStatus(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False, frozen=True):
    """A master as its slave sees it. `master_addr` is the replication address, empty while the slave is not
    connected; timestamps are of the last read and the last write, in ms."""

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


class ReplicationStatus(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False, frozen=True):
    """The replication of one broker: the slaves of a master, or the master of a slave."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[SlaveStatus] = []
    ha_client_runtime_info: MasterStatus = MasterStatus()
