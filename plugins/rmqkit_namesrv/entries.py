"""Values of the name server's tables (behaviour sheet, D2 and D3)."""

from __future__ import annotations

from typing import NamedTuple

from attrs import Factory, define, frozen

from rmqkit.model.route import QueueData
from rmqkit.model.topic import DataVersion

#: Time to live of an entry without a heartbeat, unless the broker requests another (Java:
#: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME).
DEFAULT_TIMEOUT_MS = 120_000


class BrokerKey(NamedTuple):
    """Key of `live` and `filter_servers` (Java: BrokerAddrInfo). `address` is `ip:port`."""

    cluster: str
    address: str


@define
class LiveBroker:
    """A registered broker (Java: BrokerLiveInfo). `connection` is the one it registered over, compared by
    identity."""

    key: BrokerKey
    broker_name: str
    last_update_ms: int
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    connection: object | None


@frozen(kw_only=True)
class Registration:
    """One REGISTER_BROKER. `enable_acting_master` is None from brokers before 5.0; with `filter_servers` None
    the registered ones stay unchanged. `topics` is by name, and belongs to the tables once registered."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    enable_acting_master: bool | None = None
    topics: dict[str, QueueData] = Factory(dict)
    data_version: DataVersion = Factory(DataVersion)
    filter_servers: list[str] | None = None
    connection: object | None = None

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


class Registered(NamedTuple):
    """Outcome of `register`. A slave gets its master and the master's replication address. Not `accepted`: an
    older address conflicts. `replaced` is the address of another live broker that had the name and id before.
    """

    accepted: bool
    master_address: str | None = None
    ha_address: str | None = None
    replaced: str | None = None
