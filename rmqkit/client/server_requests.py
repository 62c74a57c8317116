"""Requests of brokers to a client, passed to the group member that they address (Java:
ClientRemotingProcessor)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from rmqkit.client.consumer.received import ReceivedMessage, received
from rmqkit.client.thread_dump import thread_dump
from rmqkit.errors import DecodeError
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


class ServerRequests:
    """Answers requests of brokers; `members` are the consumers by group."""

    def __init__(self, members: Mapping[str, GroupMember]) -> None:
        self._members = members
        self._handlers: dict[int, Callable[[Command, GroupMember], Outcome]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def serve(self, command: Command, address: str) -> Outcome:
        """The answer to a request of the broker at `address`. An error becomes an answer with its code and
        text, or is logged when the request wants no answer."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._check_transaction(command, address)
        handler = self._handlers.get(command.code)
        if handler is None:
            return answer(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {command.code} is not served by this client",
            )
        fields = command.fields()
        group = fields.get("consumerGroup") or fields.get("group") or ""
        member = self._members.get(group)
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

    def _check_transaction(self, command: Command, address: str) -> Outcome:
        """A broker asks a producer group for the outcome of a half message (behaviour sheet, A14).

        The producers of this client send no transactions, so none of them knows it: the question, which
        brokers send one way, stays unanswered, and the broker asks another producer of the group later.
        """
        log.info(
            "%s asks for the outcome of transaction %s; producers of this client have no transactions",
            address,
            command.fields().get("transactionId", ""),
        )
        if command.is_oneway:
            return None
        return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this producer has no transactions")

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
