"""Requests of servers to a client, passed to the group that they address (Java: ClientRemotingProcessor)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from rmqkit.client.consumer.received import ReceivedMessage, received
from rmqkit.client.thread_dump import thread_dump
from rmqkit.errors import ClientError, DecodeError
from rmqkit.model import properties as props
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import ConsumerData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer

log = logging.getLogger(__name__)


#: An answer, now or later; None for a request that wants none.
Outcome = Command | Awaitable[Command | None] | None


class GroupMember(Protocol):
    """A consumer of this client as seen by brokers. The plain methods must not block."""

    def describe(self) -> ConsumerData:
        """The group's entry in heartbeats."""

    def ids_changed(self) -> None:
        """Called when members have joined or left the group (NOTIFY_CONSUMER_IDS_CHANGED)."""

    def running_info(self) -> dict[str, Any]:
        """The body of an answer to GET_CONSUMER_RUNNING_INFO (Java: ConsumerRunningInfo), with queues as
        keys."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """The offset where it continues in each queue of a topic that it reads."""

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets. Raises RmqError when it cannot."""

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Handle one message, which stays where it is, and return the body of the answer (Java:
        ConsumeMessageDirectlyResult). Raises ClientError when it has no handler."""


#: Answers a request of the broker at an address; must not block.
Handler = Callable[[Command, str], Outcome]
#: Answers CHECK_TRANSACTION_STATE for a producer group: gets the request, the half message as it is stored,
#: and the broker's address.
CheckHandler = Callable[[Command, ReceivedMessage, str], Awaitable[Command | None]]


class ServerRequests:
    """The registry of what answers requests of servers to this client, and of its groups. What nobody answers
    is refused.

    producers  producer groups with what answers CHECK_TRANSACTION_STATE; None: they send no transactions
    consumers  members by consumer group, to which the requests about consumers go
    """

    def __init__(self) -> None:
        self.producers: dict[str, CheckHandler | None] = {}
        self.consumers: dict[str, GroupMember] = {}
        self._handlers: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction}
        for code, handler in {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }.items():
            self.add(code, partial(self._by_member, handler))

    @property
    def check_transactions(self) -> bool:
        """Whether any producer of this client answers questions for transactions."""
        return any(check is not None for check in self.producers.values())

    def add(self, code: int, handler: Handler) -> None:
        """Let `handler` answer the requests with a code. Raises ClientError when the code has a handler."""
        if code in self._handlers:
            raise ClientError(f"requests with code {code} have a handler; remove it before, or use that one")
        self._handlers[code] = handler

    def remove(self, code: int) -> None:
        """Refuse the requests with a code from now on."""
        self._handlers.pop(code, None)

    def join_producer(self, group: str, check: CheckHandler | None = None) -> None:
        """Enter a producer group; `check` answers the questions of brokers for its transactions. Raises
        ClientError when this client already has a producer of the group."""
        if group in self.producers:
            raise ClientError(
                f"this client already has a producer of group {group!r}; use that one, or another client"
            )
        self.producers[group] = check

    def join_consumer(self, group: str, member: GroupMember) -> None:
        """Enter a consumer group. Raises ClientError when this client already has a consumer of the group."""
        if group in self.consumers:
            raise ClientError(
                f"this client already has a consumer of group {group!r}; use that one, or another client"
            )
        self.consumers[group] = member

    def serve(self, command: Command, address: str) -> Outcome:
        """The answer to a request of the broker at `address`. An error becomes an answer with its code and
        text, or is logged when the request wants no answer."""
        handler = self._handlers.get(command.code)
        if handler is not None:
            return handler(command, address)
        return answer(
            command,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request code {command.code} is not served by this client",
        )

    # --- producers ------------------------------------------------------------------------------------------

    def _check_transaction(self, command: Command, address: str) -> Outcome:
        """A broker asks a producer group for the outcome of a half message (behaviour sheet, A14)."""
        if self.check_transactions:
            return self._check_of_group(command, address)
        return _no_transactions(command, address)

    async def _check_of_group(self, command: Command, address: str) -> Command | None:
        """Java reads the group from the half message, as the header does not have it."""
        messages = (await received(command.body, command.fields().get("bname", ""))).messages
        if len(messages) != 1 or messages[0].fault is not None:
            fault = messages[0].fault if len(messages) == 1 else f"{len(messages)} messages instead of one"
            raise DecodeError(f"the half message of a question for its transaction cannot be read: {fault}")
        check = self.producers.get(messages[0].properties.get(props.PRODUCER_GROUP, ""))
        if check is None:
            return _no_transactions(command, address)
        return await check(command, messages[0], address)

    # --- consumers ------------------------------------------------------------------------------------------

    def _by_member(
        self, handler: Callable[[Command, GroupMember], Outcome], command: Command, address: str
    ) -> Outcome:
        """The answer of the consumer group that the request names."""
        fields = command.fields()
        group = fields.get("consumerGroup") or fields.get("group") or ""
        member = self.consumers.get(group)
        if member is not None:
            return handler(command, member)
        log.info(
            "%s asks for consumer group %r (request code %d), of which this client has no member",
            address,
            group,
            command.code,
        )
        if command.is_oneway:
            return None
        return answer(command, ResponseCode.SYSTEM_ERROR, f"this client has no consumer of group {group!r}")

    def _ids_changed(self, command: Command, member: GroupMember) -> None:
        member.ids_changed()

    def _running_info(self, command: Command, member: GroupMember) -> Command:
        info = member.running_info()
        if command.fields().get("jstackEnable") == "true":
            info["jstack"] = thread_dump()
        return answer(command, body=loose_json.dumps(info, raw_keys=True))

    def _status(self, command: Command, member: GroupMember) -> Command:
        offsets = member.offsets(command.fields().get("topic", ""))
        return answer(
            command,
            body=loose_json.dumps({"consumerTable": {}, "messageQueueTable": dict(offsets)}, raw_keys=True),
        )

    def _reset_offsets(self, command: Command, member: GroupMember) -> Command:
        offsets = reset_offsets_of(command)
        log.info("a broker resets offsets of group %r: %s", command.fields().get("group"), offsets)
        member.reset_offsets(offsets)
        return answer(command)

    async def _consume_directly(self, command: Command, member: GroupMember) -> Command:
        messages = (await received(command.body, command.fields().get("brokerName", ""))).messages
        if len(messages) != 1:
            raise DecodeError(f"one message is expected to be consumed directly, not {len(messages)}")
        return answer(command, body=msgspec.json.encode(await member.consume_directly(messages[0])))


def _no_transactions(command: Command, address: str) -> Command | None:
    """The question, which brokers send one way, stays unanswered, and the broker asks another producer of the
    group later."""
    log.info(
        "%s asks for the outcome of transaction %s; producers of this client have no transactions",
        address,
        command.fields().get("transactionId", ""),
    )
    if command.is_oneway:
        return None
    return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this producer has no transactions")


def reset_offsets_of(command: Command) -> dict[MessageQueue, int]:
    """The body of RESET_CONSUMER_CLIENT_OFFSET: a table with queues as keys (Java: ResetOffsetBody) or a
    list (ResetOffsetBodyForC). Raises DecodeError."""
    body = loose_json.loads(command.body)
    table = body.get("offsetTable") if isinstance(body, dict) else None
    try:
        if isinstance(table, dict):
            return {
                msgspec.json.decode(key, type=MessageQueue): msgspec.convert(offset, int)
                for key, offset in table.items()
            }
        rows = table if isinstance(table, list) else []
        return {msgspec.convert(row, MessageQueue): msgspec.convert(row.get("offset"), int) for row in rows}
    except (msgspec.DecodeError, AttributeError) as error:
        raise DecodeError(f"the offsets to go on at cannot be read: {error}") from error
