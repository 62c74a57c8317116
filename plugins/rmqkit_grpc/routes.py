"""Routes for clients of gRPC, which know no name server."""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.model.route import BrokerData, QueueData, TopicRouteData, compact
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.protocol.headers.send import TEMPLATE_TOPIC
from rmqkit.toolkit.unsaved import when_saved
from rmqkit_grpc.names import PROTOCOL

#: Of a topic that is created for a client.
_QUEUES = 4


class RouteProcessor(EachRequest):
    """GET_ROUTEINFO_BY_TOPIC of clients that came by one protocol, gRPC, who know no name server. A topic
    that the broker may create is created: these clients ask for a route before they send."""

    def __init__(self, broker: RequestBroker, protocol: str = PROTOCOL) -> None:
        self._broker = broker
        self._protocol = protocol

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if peer.protocol != self._protocol:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "a broker answers no questions for routes: ask a name server",
            )
        return when_saved(lambda: self._route(request), request, peer)

    def _route(self, request: Command) -> Command:
        broker, name = self._broker, request.header(GetRouteInfoRequestHeader).topic
        topic = broker.topics.settled(name)
        if topic is None:
            broker.topics.auto_create(name, TEMPLATE_TOPIC, _QUEUES)
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"broker {broker.config.broker_name} has no topic {name}, and may not create it; create it,"
                f" for example with: rmqkit topic create {name}",
            )
        queues = QueueData(
            broker_name=broker.config.broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm & broker.config.broker_permission,
            topic_sys_flag=topic.topic_sys_flag,
        )
        itself = BrokerData(
            cluster=broker.config.broker_cluster_name,
            broker_name=broker.config.broker_name,
            broker_addrs={0: broker.address},
        )
        return answer(request, body=compact(TopicRouteData(broker_datas=[itself], queue_datas=[queues])))


__all__ = ["RouteProcessor"]
