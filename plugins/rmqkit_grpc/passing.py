"""The requests of a proxy's clients, passed on to the brokers that they are for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import trio

from rmqkit.errors import RequestRefused, RmqError
from rmqkit.model import properties as props
from rmqkit.model.route import compact
from rmqkit.model.subscription import HeartbeatData
from rmqkit.plugin.request import Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import (
    ChangeInvisibleTimeRequestHeader,
    GetRouteInfoRequestHeader,
    GroupRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
    PullMessageRequestHeader,
)
from rmqkit_grpc.cluster import ClusterBackend
from rmqkit_grpc.handles import delivered, lite_delivered
from rmqkit_grpc.limits import PASSING_TIMEOUT_MS
from rmqkit_grpc.members import Members
from rmqkit_grpc.names import PROTOCOL

if TYPE_CHECKING:
    from rmqkit.client import Relay

#: What is passed on as it is.
PASSED = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.POP_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    # Of the Admin service.
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.QUERY_MESSAGE,
)
_Answering = Callable[[Command, Peer], Awaitable[Command]]
_FOR_GRPC = "this is a proxy for clients of gRPC: clients of remoting connect to name servers and brokers"
_POPS = (RequestCode.POP_MESSAGE, RequestCode.POP_LITE_MESSAGE)
_HELD = (*_POPS, RequestCode.PULL_MESSAGE)


class Passing(RequestProcessor):
    """Answers the requests that calls become, while `run` runs."""

    def __init__(self, relay: Relay, cluster: ClusterBackend, members: Members) -> None:
        self._relay = relay
        self._cluster = cluster
        self._members = members
        self._nursery: trio.Nursery | None = None
        self._own: dict[int, _Answering] = {int(code): self._pass for code in PASSED}
        self._own |= {
            int(RequestCode.GET_ROUTEINFO_BY_TOPIC): self._route,
            int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG): self._group,
            int(RequestCode.HEART_BEAT): self._beat,
            int(RequestCode.UNREGISTER_CLIENT): self._unregister,
        }

    @property
    def codes(self) -> Sequence[int]:
        """The codes of these requests."""
        return list(self._own)

    async def run(self, scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        """Run what waits for brokers, until `scope` is cancelled."""
        with scope:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        if peer.protocol != PROTOCOL:
            refusal = RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _FOR_GRPC)
            return [error_answer(command, refusal) for command in requests]
        assert self._nursery is not None, "requests come while it runs"
        for command in requests:
            ticket = peer.postpone([command], held=command.code in _HELD)
            self._nursery.start_soon(self._answer, command, peer, ticket.complete)
            outcomes.append(ticket)
        return outcomes

    async def _answer(
        self, command: Command, peer: Peer, complete: Callable[[Sequence[Outcome]], None]
    ) -> None:
        try:
            outcome = await self._own[command.code](command, peer)
        except RmqError as error:
            outcome = error_answer(command, error)
        complete([outcome])

    async def _pass(self, command: Command, peer: Peer) -> Command:
        broker = getattr(command.typed, "bname", None) or command.fields().get("bname")
        if not broker:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the request names no broker")
        answered = await self._relay.call(broker, command, PASSING_TIMEOUT_MS + _held_ms(command))
        if command.code in _POPS and peer.closed and not answered.code:
            await self._give_back(command, answered)
        answered.opaque = command.opaque
        return answered

    async def _give_back(self, command: Command, popped: Command) -> None:
        """Let messages be delivered to others whose receive was given up meanwhile."""
        is_lite = command.code == RequestCode.POP_LITE_MESSAGE
        asked: PopLiteMessageRequestHeader | PopMessageRequestHeader
        if is_lite:
            asked = command.header(PopLiteMessageRequestHeader)
            found = lite_delivered(popped, asked.bname or "")
        else:
            asked = command.header(PopMessageRequestHeader)
            found = delivered(popped, asked.bname or "")
        for handle, stored in found:
            if handle.offset is None:
                continue
            header = ChangeInvisibleTimeRequestHeader(
                consumer_group=asked.consumer_group,
                topic=handle.topic(asked.topic, asked.consumer_group),
                queue_id=handle.queue_id,
                extra_info=handle.text,
                offset=handle.offset,
                invisible_time=0,
                lite_topic=stored.properties.get(props.LITE_TOPIC) if is_lite else None,
                suspend=True,
            )
            again = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
            await self._relay.call(handle.broker_name, again)

    async def _route(self, command: Command, peer: Peer) -> Command:
        route = await self._cluster.route(command.header(GetRouteInfoRequestHeader).topic)
        return answer(command, body=compact(route))

    async def _group(self, command: Command, peer: Peer) -> Command:
        await self._cluster.learn_group(command.header(GroupRequestHeader).group)
        return answer(command)

    async def _beat(self, command: Command, peer: Peer) -> Command:
        self._members.beat(peer, command.decode_body(HeartbeatData))
        return answer(command)

    async def _unregister(self, command: Command, peer: Peer) -> Command:
        self._members.forget(peer)
        return answer(command)


def _held_ms(command: Command) -> int:
    """How long a broker may hold a request."""
    if command.code == RequestCode.POP_MESSAGE:
        return command.header(PopMessageRequestHeader).poll_time
    if command.code == RequestCode.POP_LITE_MESSAGE:
        return command.header(PopLiteMessageRequestHeader).poll_time
    if command.code == RequestCode.PULL_MESSAGE:
        return command.header(PullMessageRequestHeader).suspend_timeout_millis
    return 0


__all__ = ["Passing"]
