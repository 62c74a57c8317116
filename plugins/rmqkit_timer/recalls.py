"""RECALL_MESSAGE: a message that waits is not delivered (wire-protocol sheet, section 3.1; Java:
RecallMessageProcessor).

A record that names the message is put into the slot in which the message waits; both are gone when the slot
is over. Whether there is such a message is not looked at. A repeating message waits for its next time,
whatever the time in its handle: the record is put for each of its times in the next seconds, one of which the
message reaches.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import BORN_HOST_V6, PERM_WRITE, STORE_HOST_V6
from rmqkit.plugin.acks import STORED
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Ticket
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.protocol.recall_handle import RecallHandle, decode_handle, repeats_of
from rmqkit.protocol.tags import tags_code
from rmqkit_timer.repeating import Repeating
from rmqkit_timer.schedules import schedule
from rmqkit_timer.settings import TimerSettings

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
#: How far ahead the times of a repeating message are closed, at least two of them: while the record is put,
#: the message may come to wait for the next one.
_AHEAD_MS: Final = 10_000
_LEAST_TIMES: Final = 2


class RecallProcessor(EachRequest):
    """Answers as Apache's, and says in the remark what to do."""

    def __init__(self, broker: RequestBroker, repeating: Repeating) -> None:
        self._broker = broker
        self._repeating = repeating
        self._v6_bit = STORE_HOST_V6 if len(broker.store_host) > 8 else 0

    def handle(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(RecallMessageRequestHeader)
        self._check_permission()
        handle = self._checked(header)
        now_ms = self._broker.clock.now_ms()
        times = self._times(handle, now_ms)
        run = MessageRun(
            [self._record(handle, time_ms, header.producer_group, peer, now_ms) for time_ms in times],
            [0] * len(times),
        )
        put = self._broker.appender.append_durably(run)
        key = _key(handle)
        if not run.refused and handle.repeats:
            self._repeating.end(key, times[-1], now_ms)
        ticket = peer.postpone([request])
        put.when_settled(partial(self._settled, request, ticket, handle))
        return ticket

    def _check_permission(self) -> None:
        config = self._broker.config
        settings = config.owned(TimerSettings)
        if not settings.recall_message_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: set recallMessageEnable = true at the broker",
            )
        if not config.broker_permission & PERM_WRITE and not settings.allow_recall_when_broker_not_writeable:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"recall failed, broker service not available: {config.broker_name} takes no messages now",
            )

    def _checked(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """What the handle names. Raises RequestRefused when it is not one of a message to this topic at this
        broker."""
        if self._broker.topics.get(header.topic) is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = decode_handle(header.recall_handle)
        except DecodeError as error:
            raise _illegal(f"{error}: pass the handle as the answer to the send had it") from error
        if handle.topic != header.topic:
            raise _illegal(f"recall failed, topic not match: the handle is of a message to {handle.topic}")
        own = self._broker.config.broker_name
        if handle.broker_name != own:
            raise _illegal(
                f"recall failed, broker service not available: {handle.broker_name} keeps the message,"
                f" this is {own}"
            )
        return handle

    def _times(self, handle: RecallHandle, now_ms: int) -> list[int]:
        """The times for which the message may wait. Raises RequestRefused when all are over, or too far."""
        if handle.repeats:
            return self._times_of_repeats(handle, now_ms)
        left_ms = handle.deliver_ms - now_ms
        most_ms = self._broker.config.owned(TimerSettings).timer_max_delay_sec * 1000
        if not 0 < left_ms < most_ms:
            why = "the message was delivered, or is about to be" if left_ms <= 0 else "it is too far ahead"
            raise _illegal(f"recall failed, timestamp invalid: {why}")
        return [handle.deliver_ms]

    def _times_of_repeats(self, handle: RecallHandle, now_ms: int) -> list[int]:
        try:
            found = schedule(*repeats_of(handle.repeats))
        except DecodeError as error:
            raise _illegal(f"recall handle is invalid: {error}") from error
        times: list[int] = []
        stop_ms = found.stop_after(now_ms)
        while stop_ms is not None and (len(times) < _LEAST_TIMES or stop_ms <= now_ms + _AHEAD_MS):
            times.append(stop_ms)
            stop_ms = found.stop_after(stop_ms)
        if not times:
            raise _illegal("recall failed, timestamp invalid: the message was delivered for the last time")
        return times

    def _record(
        self, handle: RecallHandle, time_ms: int, group: str | None, peer: Peer, now_ms: int
    ) -> PutMessage:
        """The record that deletes the message from the slot of a time. Raises RequestRefused."""
        properties = {
            props.TAGS: _TAG,
            props.TIMER_DEL_UNIQKEY: _key(handle),
            props.UNIQ_KEY: handle.message_id,
            props.TIMER_DELIVER_MS: str(time_ms),
            props.BORN_TIMESTAMP: str(now_ms),
            props.PRODUCER_GROUP: group or "",
        }
        try:
            stored = props.encode(properties).encode()
        except (MessageIllegal, UnicodeEncodeError) as error:
            raise _illegal(f"recall handle is invalid: {error}") from error
        born_host = peer.remote_host
        return PutMessage(
            topic=handle.topic,
            queue_id=0,
            body=_BODY,
            properties={name: value for name, value in properties.items() if value},
            properties_bytes=stored,
            sys_flag=self._v6_bit | (BORN_HOST_V6 if len(born_host) > 8 else 0),
            born_timestamp_ms=now_ms,
            born_host=born_host,
            tags_code=tags_code(_TAG),
        )

    def _settled(
        self, request: Command, ticket: Ticket, handle: RecallHandle, result: int | RequestRefused
    ) -> None:
        """Answer when the record is as safe as an acknowledged message."""
        if isinstance(result, RequestRefused):
            refusal = result
            if result.code == ResponseCode.MESSAGE_ILLEGAL:
                # The hook of timers refuses it: its time has come meanwhile.
                refusal = _illegal(f"recall failed, timestamp invalid: {result.remark}")
            ticket.complete([error_answer(request, refusal)])
            return
        assert result == ResponseCode.SUCCESS or result in STORED
        header = RecallMessageResponseHeader(
            msg_id=handle.message_id, region_id=self._broker.config.region_id
        )
        ticket.complete([answer(request, header=header)])


def _key(handle: RecallHandle) -> str:
    """How the record names the message that it deletes (Java: TimerMessageStore.buildDeleteKey)."""
    return f"{handle.topic}+{handle.message_id}"


def _illegal(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)


__all__ = ["RecallProcessor"]
