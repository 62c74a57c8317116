"""Routes and the data that brokers register (wire-protocol sheet, sections 4.2 and 4.3)."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.model.topic import TopicConfigAndMappingTable

MASTER_ID = 0


class QueueData(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """How many queues of a topic one broker has (Java: QueueData)."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """Addresses of one broker name by broker id; id 0 is the master (Java: BrokerData)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


class TopicRouteData(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """Answer to GET_ROUTEINFO_BY_TOPIC (Java: TopicRouteData). Members that are None are left out by
    `compact`."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str] | None] = {}
    order_topic_conf: str | None = None


class ClusterInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer to GET_BROKER_CLUSTER_INFO (Java: ClusterInfo)."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=False):
    """Java: TopicList."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KVTable(msgspec.Struct, kw_only=True):
    """Java: KVTable."""

    table: dict[str, str] = {}


class RegisterBrokerBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of REGISTER_BROKER (Java: RegisterBrokerBody)."""

    topic_config_serialize_wrapper: TopicConfigAndMappingTable = msgspec.field(
        default_factory=TopicConfigAndMappingTable
    )
    filter_server_list: list[str] | None = []


def compact(value: object) -> bytes:
    """JSON bytes without null members, at every depth: all of Java's readers accept a missing member, but not
    all accept null."""
    return msgspec.json.encode(_without_none(msgspec.to_builtins(value)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
