"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE (Java: QueryAssignmentProcessor).

A Java consumer with setClientRebalance(false) asks a broker for its queues instead of computing them. All are
to be pulled: this broker has no pop consumption.
"""

from __future__ import annotations

import msgspec

from rmqkit.broker.processors.by_code import ProcessorByCode
from rmqkit.errors import DecodeError, RequestRefused, RmqError
from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import TopicRouteData
from rmqkit.model.subscription import BROADCASTING
from rmqkit.model.sysflag import PERM_READ
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader

PULL = "PULL"
#: Time limit for the name servers together; clients wait 3 s for the answer.
ROUTE_TIMEOUT_MS = 2_000


class QueryAssignmentRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    mode: str = PULL


class AssignmentProcessor(ProcessorByCode):
    """Shares the queues of a topic among the members of a group, on their behalf."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._handlers = {RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode}
        self._tasks = {RequestCode.QUERY_ASSIGNMENT: self._assignment}

    def _set_mode(self, request: Command) -> Command:
        """PULL is what all groups have; nothing needs to be kept."""
        body = request.decode_body(SetMessageRequestModeRequestBody)
        if body.topic.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.topic not in self._broker.topics.configs:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if body.consumer_group not in self._broker.groups.configs:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {body.consumer_group!r} does not exist: create it first",
            )
        if body.mode != PULL:
            raise RequestRefused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"this broker does not support pop consumption: the mode of a group is {PULL} alone, not"
                f" {body.mode}",
            )
        return answer(request)

    async def _assignment(self, request: Command) -> Command:
        """The queues of one client. An answer without a list lets the client keep what it has: the route or
        the members are not known now."""
        body = request.decode_body(QueryAssignmentRequestBody)
        strategies = self._broker.registry.allocation_strategies
        strategy = strategies.get(body.strategy_name)
        if strategy is None:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"this broker has no allocation strategy {body.strategy_name!r}: use one of"
                f" {', '.join(sorted(strategies))}, or let the client compute its queues",
            )
        queues = await self._queues(body.topic)
        group = self._broker.clients.consumers.get(body.consumer_group)
        if queues is None or (group is None and body.message_model != BROADCASTING):
            return json_answer(request, {})
        if group is not None and body.message_model != BROADCASTING:
            queues = strategy.allocate(
                body.consumer_group, body.client_id, queues, sorted(set(group.client_ids()))
            )
        assignments = [{"messageQueue": queue, "mode": PULL} for queue in queues]
        return json_answer(request, {"messageQueueAssignments": assignments})

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """The readable queues of all brokers, sorted; None when no name server knows the topic or answers. A
        broker without name servers knows its own."""
        if not self._broker.config.name_servers:
            config = self._broker.topics.get(topic)
            readable = config.read_queue_nums if config is not None and config.readable else 0
            name = self._broker.config.broker_name
            return [MessageQueue(topic, name, queue_id) for queue_id in range(readable)] or None
        route = await self._route(topic)
        if route is None:
            return None
        queues = [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        ]
        return sorted(queues) or None

    async def _route(self, topic: str) -> TopicRouteData | None:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        addresses = list(dict.fromkeys(self._broker.config.name_servers))
        for address in addresses:
            try:
                found = await self._broker.pool.call(address, command, ROUTE_TIMEOUT_MS // len(addresses))
                if found.code == ResponseCode.SUCCESS:
                    return found.decode_body(TopicRouteData)
            except (RmqError, DecodeError):
                continue
        return None
