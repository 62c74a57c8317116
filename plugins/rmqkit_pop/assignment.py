"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE (Java: QueryAssignmentProcessor).

A Java consumer with setClientRebalance(false) asks a broker for its queues instead of computing them, and for
the way to read them: to pull them, or to pop. In mode POP a queue is read by several members; the number -1
stands for all queues of a broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import trio

from rmqkit.errors import DecodeError, RequestRefused, RmqError
from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import TopicRouteData
from rmqkit.model.subscription import BROADCASTING
from rmqkit.model.sysflag import PERM_READ
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_pop.limits import MAX_REQUEST_MODES
from rmqkit_pop.settings import PopSettings

PULL, POP = "PULL", "POP"
#: Time limit for the name servers together; clients wait 3 s for the answer.
ROUTE_TIMEOUT_MS = 2_000


class QueryAssignmentRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class SetMessageRequestModeRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """`pop_share_queue_num`: how many members behind a client get its queues as well; 0 or less means all."""

    topic: str
    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: int = 0


class RequestModeFile(msgspec.Struct, kw_only=True, rename="camel"):
    """messageRequestMode.json: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}


class RequestModes:
    """The modes that were set, kept in a file."""

    def __init__(self, broker: RequestBroker) -> None:
        """Read the modes. Raises ConfigError when the file cannot be read."""
        self._file = JsonFile(broker.config.config_path / "messageRequestMode.json", RequestModeFile)
        self._table = self._file.load() or RequestModeFile()
        self._writing = trio.Lock()

    def get(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self._table.message_request_mode_map.get(topic, {}).get(group)

    async def put(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set a mode, and write it through to the device. Raises RequestRefused, without effect."""
        modes = self._table.message_request_mode_map
        async with self._writing:
            old = self.get(mode.topic, mode.consumer_group)
            if old is None and sum(map(len, modes.values())) >= MAX_REQUEST_MODES:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"this broker has {MAX_REQUEST_MODES} request modes, the most that it keeps",
                )
            of_topic = dict(modes.get(mode.topic, {}))
            of_topic[mode.consumer_group] = mode
            table = RequestModeFile(message_request_mode_map=modes | {mode.topic: of_topic})
            try:
                await trio.to_thread.run_sync(self._file.write, [self._file.encode(table)])
            except OSError as error:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"the mode cannot be written to the disk: {error.strerror}"
                ) from error
            self._table = table


class AssignmentProcessor(EachRequest):
    """Shares the queues of a topic among the members of a group, on their behalf."""

    def __init__(self, broker: RequestBroker) -> None:
        """A processor with the modes of a broker. Raises ConfigError when they cannot be read."""
        self._broker = broker
        self._modes = RequestModes(broker)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        setting = request.code == RequestCode.SET_MESSAGE_REQUEST_MODE
        return peer.answer_async(request, partial(self._set_mode if setting else self._assignment, request))

    async def _set_mode(self, request: Command) -> Command:
        body = request.decode_body(SetMessageRequestModeRequestBody)
        if body.topic.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.topic not in self._broker.topics.configs:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if await self._broker.groups.ensure(body.consumer_group) is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {body.consumer_group!r} does not exist, and its first use may not create it:"
                " create it first",
            )
        if body.mode not in (PULL, POP):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the mode of a group is {PULL} or {POP}, not {body.mode[:30]!r}",
            )
        await self._modes.put(body)
        return answer(request)

    def _mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        found = self._modes.get(topic, group)
        if found is not None:
            return found
        settings = self._broker.config.owned(PopSettings)
        mode = PULL if topic.startswith(names.RETRY_PREFIX) else settings.default_message_request_mode
        return SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=mode,
            pop_share_queue_num=settings.default_pop_share_queue_num,
        )

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
        mode = self._mode(body.topic, body.consumer_group)
        if group is not None and body.message_model != BROADCASTING:
            members = sorted(set(group.client_ids()))
            if mode.mode == POP:
                queues = _shared(strategy, body, queues, members, mode.pop_share_queue_num)
            else:
                queues = strategy.allocate(body.consumer_group, body.client_id, queues, members)
        assignments = [{"messageQueue": queue, "mode": mode.mode} for queue in queues]
        return json_answer(request, {"messageQueueAssignments": assignments})

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """The readable queues of all brokers, sorted; None when no name server knows the topic or answers. A
        broker without name servers knows its own."""
        if not self._broker.name_servers.addresses:
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
        addresses = self._broker.name_servers.addresses
        for address in addresses:
            try:
                found = await self._broker.pool.call(address, command, ROUTE_TIMEOUT_MS // len(addresses))
                if found.code == ResponseCode.SUCCESS:
                    return found.decode_body(TopicRouteData)
            except (RmqError, DecodeError):
                continue
        return None


def _shared(
    strategy: AllocationStrategy,
    body: QueryAssignmentRequestBody,
    queues: list[MessageQueue],
    members: Sequence[str],
    share: int,
) -> list[MessageQueue]:
    """The queues that a client pops: its own and those of the `share` members behind it; all queues of all
    brokers, which have the number -1, if these are all members."""
    if share <= 0 or share >= len(members) - 1:
        every = [MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues]
        return list(dict.fromkeys(every))
    if body.client_id not in members:
        return []
    at = members.index(body.client_id)
    if len(members) > len(queues):
        return [queues[at % len(queues)]]
    clients = [members[(at + step) % len(members)] for step in range(share + 1)]
    found = [strategy.allocate(body.consumer_group, client, queues, members) for client in clients]
    return list(dict.fromkeys(queue for each in found for queue in each))


__all__ = ["AssignmentProcessor", "RequestModes"]
