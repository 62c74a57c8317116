"""Values of the name server's tables (behaviour sheet, D2 and D3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from attrs import Factory, define, frozen

from rmqkit.model.topic import DataVersion, TopicConfig

#: Without a word from its broker an entry lives this long, unless the broker asks otherwise (Java: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME).
DEFAULT_TIMEOUT_MS = 120_000


class BrokerKey(NamedTuple):
    """Key of `live` and `filter_servers` (Java: BrokerAddrInfo). `address` is `ip:port`."""

    cluster: str
    address: str


@define
class LiveBroker:
    """A broker that was heard of (Java: BrokerLiveInfo). `connection` is what it registered over, compared by identity."""

    key: BrokerKey
    broker_name: str
    last_update_ms: int
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    connection: object | None


@frozen(kw_only=True)
class Registration:
    """One REGISTER_BROKER. `enable_acting_master` is None from brokers before 5.0; `filter_servers` None leaves what is known."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    enable_acting_master: bool | None = None
    topics: Iterable[TopicConfig] = ()
    data_version: DataVersion = Factory(DataVersion)
    filter_servers: list[str] | None = None
    connection: object | None = None

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


class Registered(NamedTuple):
    """Outcome of `register`: a slave learns its master and the master's replication address. Not `accepted`: an older address conflict."""

    accepted: bool
    master_address: str | None = None
    ha_address: str | None = None
