"""Requests of clients and of mqadmin about routes, clusters and topics (behaviour sheet, D5 and D6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from rmqkit.errors import RequestRefused
from rmqkit.model.route import TopicList
from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    WritePermRequestHeader,
)
from rmqkit.protocol.headers.base import Header
from rmqkit_namesrv.changes import Change, in_one_slice
from rmqkit_namesrv.kv import ORDER_TOPIC_NAMESPACE
from rmqkit_namesrv.state import Handler, NameServerState, json_body
from rmqkit_namesrv.tables import UNIT, UNIT_SUB


class WipeWritePermResponseHeader(Header, kw_only=True):
    wipe_topic_count: int


class AddWritePermResponseHeader(Header, kw_only=True):
    add_topic_count: int


class BrokerMemberGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """Java: BrokerMemberGroup."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}


class RouteRequests:
    def __init__(self, state: NameServerState) -> None:
        self._state = state

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self.topics_by_flag, UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(self.topics_by_flag, UNIT_SUB, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(self.topics_by_flag, UNIT_SUB, UNIT),
        }

    def changes(self) -> Mapping[int, Change]:
        return {
            RequestCode.DELETE_TOPIC_IN_NAMESRV: in_one_slice(self.delete_topic),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: in_one_slice(self.wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: in_one_slice(self.add_write_perm),
        }

    def route(self, request: Command, peer: Peer) -> Outcome:
        """Strict JSON for clients from 4.9.4 on and for those that request it; bare integer keys for the
        others. Includes the order of a topic when `orderMessageEnable` is set."""
        header = request.header(GetRouteInfoRequestHeader)
        route = self._state.tables.route(header.topic)
        if route is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}",
            )
        if self._state.settings.order_message_enable:
            route.order_topic_conf = self._state.kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
        strict = request.version >= VERSION_STANDARD_JSON or header.accept_standard_json_only is True
        return answer(request, body=json_body(route, raw_keys=not strict))

    def cluster_info(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, body=json_body(self._state.tables.cluster_info(), raw_keys=True))

    def member_group(self, request: Command, peer: Peer) -> Outcome:
        """All addresses of one broker name; none for an unknown one."""
        header = request.header(GetBrokerMemberGroupRequestHeader)
        group = BrokerMemberGroup(cluster=header.cluster_name, broker_name=header.broker_name)
        broker = self._state.tables.broker(header.broker_name)
        if broker is not None and broker.cluster == header.cluster_name:
            group.broker_addrs = broker.broker_addrs
        return answer(request, body=json_body({"brokerMemberGroup": group}, raw_keys=True))

    def all_topics(self, request: Command, peer: Peer) -> Outcome:
        if not self._state.settings.enable_all_topic_list:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disable: enableAllTopicList is off")
        return _topic_list(request, self._state.tables.all_topics())

    def topics_of_cluster(self, request: Command, peer: Peer) -> Outcome:
        return _topic_list(
            request, self._state.tables.topics_of_cluster(request.header(ClusterRequestHeader).cluster)
        )

    def system_topics(self, request: Command, peer: Peer) -> Outcome:
        """The topics named after clusters and brokers, with the address of a broker that knows the other
        system topics."""
        tables = self._state.tables
        names = [name for cluster, members in tables.clusters.items() for name in (cluster, *sorted(members))]
        address = next(
            (address for broker in tables.brokers.values() for address in broker.broker_addrs.values()), None
        )
        return _topic_list(request, names, address)

    def topics_by_flag(self, wanted: int, unwanted: int, request: Command, peer: Peer) -> Outcome:
        return _topic_list(request, self._state.tables.topics_by_flag(wanted, unwanted))

    def delete_topic(self, request: Command, peer: Peer) -> Command:
        header = request.header(DeleteTopicFromNamesrvRequestHeader)
        self._state.tables.delete_topic(header.topic, header.cluster_name or None)
        return answer(request)

    def wipe_write_perm(self, request: Command, peer: Peer) -> Command:
        count = self._state.tables.wipe_write_perm(request.header(WritePermRequestHeader).broker_name)
        return answer(request, header=WipeWritePermResponseHeader(wipe_topic_count=count))

    def add_write_perm(self, request: Command, peer: Peer) -> Command:
        count = self._state.tables.add_write_perm(request.header(WritePermRequestHeader).broker_name)
        return answer(request, header=AddWritePermResponseHeader(add_topic_count=count))


def _topic_list(request: Command, topics: Iterable[str], broker_address: str | None = None) -> Command:
    return answer(request, body=json_body(TopicList(topic_list=list(topics), broker_addr=broker_address)))
