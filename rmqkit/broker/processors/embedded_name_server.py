"""Answers requests for name servers on the broker's additional listeners, as if this broker were the only
one.

A name server identifies brokers by `host:port`, so it cannot refer a client to a unix socket or another
scheme. A client that uses such a listener as its name server gets a route to this broker only, at that
address.
"""

from __future__ import annotations

from attrs import evolve

from rmqkit.errors import RequestRefused
from rmqkit.model.route import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData, compact
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.role import Role
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import DeleteTopicFromNamesrvRequestHeader, GetRouteInfoRequestHeader

_ANY_HOST = ("0.0.0.0", "::")


class EmbeddedNameServer(EachRequest):
    """`address` is the listener's address; if it means every address of the machine, clients get the one
    that routes contain."""

    def __init__(self, broker: RequestBroker, address: Address) -> None:
        self._broker = broker
        self._address = str(
            evolve(address, host=broker.config.advertised_host) if address.host in _ANY_HOST else address
        )
        self._handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
        }

    def codes(self) -> list[int]:
        return [int(code) for code in self._handlers]

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return self._handlers[RequestCode(request.code)](request)

    def _route(self, request: Command) -> Command:
        name = request.header(GetRouteInfoRequestHeader).topic
        topic = self._broker.topics.get(name)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"this broker has no topic {name}, and no other one is asked on this listener",
            )
        queues = QueueData(
            broker_name=self._broker.config.broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm & self._broker.config.broker_permission,
            topic_sys_flag=topic.topic_sys_flag,
        )
        return answer(
            request, body=compact(TopicRouteData(broker_datas=[self._itself()], queue_datas=[queues]))
        )

    def _cluster_info(self, request: Command) -> Command:
        itself = self._itself()
        info = ClusterInfo(
            broker_addr_table={itself.broker_name: itself},
            cluster_addr_table={itself.cluster: [itself.broker_name]},
        )
        return answer(request, body=compact(info))

    def _topics(self, request: Command) -> Command:
        return answer(request, body=compact(TopicList(topic_list=sorted(self._broker.topics.configs))))

    def _delete_topic(self, request: Command) -> Command:
        """A client deletes a topic on the brokers first, then on the name servers, so the topic is already
        gone. Refused while the broker has it."""
        name = request.header(DeleteTopicFromNamesrvRequestHeader).topic
        if self._broker.topics.get(name) is not None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker has topic {name}: delete it there (DELETE_TOPIC_IN_BROKER)",
            )
        return answer(request)

    def _itself(self) -> BrokerData:
        config, group = self._broker.config, self._broker.replication.group
        is_slave = self._broker.role.current is not Role.MASTER
        broker_id = group.broker_id if group is not None and is_slave else config.broker_id
        return BrokerData(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_addrs={broker_id: self._address},
        )
