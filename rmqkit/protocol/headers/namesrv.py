"""Name server (wire-protocol sheet, section 3.9)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class GetRouteInfoRequestHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """REGISTER_BROKER (103): id 0 is the master; the body's CRC-32 is masked to 31 bits, 0 disables the
    check."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class UnregisterBrokerRequestHeader(Header, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class BrokerHeartbeatRequestHeader(Header, kw_only=True):
    """BROKER_HEARTBEAT (904). Java's time-out field is spelled heartbeatTimeoutMills here."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None


class QueryDataVersionRequestHeader(Header, kw_only=True):
    """QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class RegisterTopicRequestHeader(Header, kw_only=True):
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class DeleteTopicFromNamesrvRequestHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class ClusterRequestHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class WritePermRequestHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class PutKvConfigRequestHeader(Header, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KvConfigRequestHeader(Header, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KvNamespaceRequestHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class GetBrokerMemberGroupRequestHeader(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str
