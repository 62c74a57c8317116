"""Parks a message that asks for a time of delivery (store-format sheet, section 10.2; Java:
HookUtils.transformTimerMessage)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rmqkit.config import Config
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.plugin.later import Due, LaterDelivery, Level
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit_timer.repeating import Repeating
from rmqkit_timer.settings import NO_LIMIT, TimerSettings
from rmqkit_timer.times import ASKING, asked_ms, slot_before

#: What a message has that was parked before.
_TRACES = frozenset(
    {*(props.REAL_TOPIC, props.REAL_QUEUE_ID, props.DELAY), *(*props.TIMER_INPUTS, *props.TIMER_TRACES)}
)
_NOT_QUEUED = frozenset({TRANSACTION_PREPARED, TRANSACTION_ROLLBACK})


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class ParkTimed(EachPutHook, LaterDelivery, NeedsBroker):
    """Changes the topic to that of timers and the queue to 0, and stores the original ones in REAL_TOPIC and
    REAL_QID, the slot in which it waits in TIMER_OUT_MS.

    now_ms      the clock; the broker's own once there is one
    slot_count  the number of messages that wait in the slot of a time; None while no timers run
    repeating   the repeating messages; the broker's once there is one
    """

    wants = claims = frozenset({*props.TIMER_INPUTS, props.REPEAT})

    def __init__(self, config: Config, now_ms: Callable[[], int] = _system_ms) -> None:
        self._config: Callable[[], Config] = lambda: config
        self._now_ms = now_ms
        self.slot_count: Callable[[int], int] | None = None
        self.repeating = Repeating()

    def open(self, broker: RequestBroker) -> None:
        self._now_ms, self._config = broker.clock.now_ms, lambda: broker.config

    @property
    def _given(self) -> TimerSettings:
        return self._config().owned(TimerSettings)

    def mark(self, message: PutMessage, due: Due, now_ms: int) -> bool:
        given = self._given
        if isinstance(due, Level) or not given.timer_wheel_enable:
            return False
        if due.time_ms - now_ms > given.timer_max_delay_sec * 1_000:
            return False
        kept = {name: value for name, value in message.properties.items() if name not in _TRACES}
        message.set_properties(kept | {props.TIMER_DELIVER_MS: str(due.time_ms)})
        return True

    def before_each(self, message: PutMessage) -> None:
        if message.topic == names.TIMER_TOPIC or message.sys_flag & TRANSACTION_MASK in _NOT_QUEUED:
            return
        properties = message.properties
        repeats = props.REPEAT in properties and props.TIMER_OUT_MS not in properties
        if _has_level(properties.get(props.DELAY)):
            if repeats:
                raise _illegal("a repeating message has no delay level; give it a time of delivery")
            # The level wins, as in Java.
            kept = {name: value for name, value in properties.items() if name not in ASKING}
            message.set_properties(kept)
            return
        if props.TIMER_OUT_MS in properties:
            return
        given, now_ms = self._given, self._now_ms()
        if not given.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        due_ms = self._begun(message, now_ms) if repeats else _asked(properties, now_ms)
        if repeats or due_ms > now_ms:
            self._park(message, due_ms, now_ms, given)
        elif props.TIMER_DEL_UNIQKEY in properties:
            raise _illegal(f"the message that it deletes was due {now_ms - due_ms} ms ago")

    def _begun(self, message: PutMessage, now_ms: int) -> int:
        """Let a message repeat; returns its first time. Raises RequestRefused."""
        try:
            return self.repeating.begin(message, now_ms)
        except DecodeError as error:
            raise _illegal(str(error)) from None

    def _park(self, message: PutMessage, due_ms: int, now_ms: int, given: TimerSettings) -> None:
        if due_ms - now_ms > given.timer_max_delay_sec * 1_000:
            raise _illegal(
                f"the delay time of {due_ms - now_ms} ms is bigger than the max delay"
                f" {given.timer_max_delay_sec * 1_000}ms (timerMaxDelaySec)"
            )
        slot_ms = slot_before(due_ms, given.timer_precision_ms)
        self._check_congestion(slot_ms, given.timer_congest_num_each_slot)
        place = {
            props.TIMER_OUT_MS: str(slot_ms),
            props.REAL_TOPIC: message.topic,
            props.REAL_QUEUE_ID: str(message.queue_id),
        }
        if place.keys().isdisjoint(message.properties):
            message.properties_bytes = props.extended(message.properties_bytes, place)
            message.properties |= place
        else:
            message.set_properties(message.properties | place)
        message.topic, message.queue_id = names.TIMER_TOPIC, 0

    def _check_congestion(self, slot_ms: int, limit: int) -> None:
        """Refuse a message for a slot with more messages than the limit: a part of them, up to twice the
        limit, so that senders spread theirs (Java: isReject)."""
        if limit == NO_LIMIT or self.slot_count is None or (count := self.slot_count(slot_ms)) <= limit:
            return
        if count >= 2 * limit or random.random() < 1 - (count - limit) / limit:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: {count} messages wait for the same time, more than"
                f" {limit} (timerCongestNumEachSlot)",
            )


def _has_level(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and int(text) > 0


def _asked(properties: dict[str, str], now_ms: int) -> int:
    """The time that a message asks for. Raises RequestRefused when it cannot be read or is missing."""
    try:
        due_ms = asked_ms(properties, now_ms)
    except ValueError as error:
        raise _illegal(str(error)) from None
    if due_ms is None:
        raise _illegal(f"{props.TIMER_DEL_UNIQKEY} needs the time of the message that it deletes")
    return due_ms


def _illegal(why: str) -> RequestRefused:
    """Java: WHEEL_TIMER_MSG_ILLEGAL."""
    return RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {why}")
