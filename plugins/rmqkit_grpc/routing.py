"""QueryRoute: the queues of a topic, at the endpoints which the client has used (gRPC sheet, section 7.1).

Every queue is at one broker, so a route has one entry for each queue, with the broker's name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.model.message_type import TopicMessageType, declared_type
from rmqkit.model.route import QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_READ, PERM_RW, PERM_WRITE
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Steps, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok

_Response = V2.messages["QueryRouteResponse"]
_Queue = V2.messages["MessageQueue"]
_Endpoints = V2.messages["Endpoints"]
_PERMISSIONS = V2.enums["Permission"]
_SCHEMES = V2.enums["AddressScheme"]
_TYPES = V2.enums["MessageType"]
_MIXED = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
_BY_PERM = {
    0: _PERMISSIONS["NONE"],
    PERM_READ: _PERMISSIONS["READ"],
    PERM_WRITE: _PERMISSIONS["WRITE"],
    PERM_RW: _PERMISSIONS["READ_WRITE"],
}


def query_route(exchange: Exchange, asked: Any) -> Steps:
    """QueryRoute."""
    topic = topic_of(asked.topic)
    route = yield from route_of(exchange, topic)
    endpoints = asked.endpoints if asked.endpoints.addresses else own_endpoints(exchange)
    response = _Response(status=ok())
    for each in route.queue_datas:
        for at in range(max(each.read_queue_nums, each.write_queue_nums, 1)):
            response.message_queues.append(queue_of(exchange, asked.topic, topic, each, at, endpoints))
    return response


def route_of(exchange: Exchange, topic: str) -> Steps:
    """The TopicRouteData of a topic, with its brokers in order. Raises Refusal."""
    header = GetRouteInfoRequestHeader(topic=topic)
    (found,) = yield [exchange.command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)]
    try:
        route = checked(found).decode_body(TopicRouteData)
    except msgspec.ValidationError as error:
        raise Refusal(Code.TOPIC_NOT_FOUND, f"the route of topic {topic} cannot be read") from error
    if not route.queue_datas:
        raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} has no queues")
    route.queue_datas.sort(key=lambda each: each.broker_name)
    return route


def queue_of(exchange: Exchange, resource: Any, topic: str, data: QueueData, at: int, endpoints: Any) -> Any:
    """A queue of a topic as clients get it; -1 stands for any queue of the broker."""
    perm = data.perm
    if at >= data.read_queue_nums:
        perm &= ~PERM_READ
    if at >= data.write_queue_nums:
        perm &= ~PERM_WRITE
    queue = _Queue(topic=resource, id=at, permission=_BY_PERM[perm & PERM_RW])
    queue.broker.name = data.broker_name
    queue.broker.endpoints.CopyFrom(endpoints)
    queue.accept_message_types.extend(accepted_types(exchange.backend.topic(topic)))
    return queue


def accepted_types(topic: TopicConfig | None) -> list[int]:
    """The types of messages that a topic takes: what its attribute says, else all."""
    kind = TopicMessageType.MIXED if topic is None else declared_type(topic.attributes)
    if kind is TopicMessageType.MIXED:
        return [_TYPES[name] for name in _MIXED]
    return [_TYPES.get(kind, 0)]


def own_endpoints(exchange: Exchange) -> Any:
    """The endpoints of `:authority`, for a client that names none."""
    host, colon, port = exchange.metadata.get(":authority", "").rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        host, port = exchange.metadata.get(":authority", ""), "443"
    host = host.strip("[]")
    is_v4 = host.count(".") == 3 and host.replace(".", "").isdigit()
    scheme = _SCHEMES["IPv6" if ":" in host else "IPv4" if is_v4 else "DOMAIN_NAME"]
    endpoints = _Endpoints(scheme=scheme)
    endpoints.addresses.add(host=host, port=int(port) & 0xFFFF)
    return endpoints


__all__ = [
    "accepted_types", "own_endpoints", "query_route", "queue_of", "route_of",
]  # fmt: skip
