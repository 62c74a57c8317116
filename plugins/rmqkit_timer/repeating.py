"""Messages that are delivered again and again, by a schedule (`rmqkit_timer.schedules`).

A repeating message waits like any timed message. With each delivery the same message is put to wait for the
next time: both are stored or none. Nothing else is kept, so that a restart or a successor of the broker goes
on from the log. If a broker was down at several times, one delivery makes up for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.toolkit.restored import restored
from rmqkit_timer.messages import victim_key
from rmqkit_timer.schedules import HOP_MS, MOST_MS, MOST_TIMES, Interval, Schedule, parse, schedule
from rmqkit_timer.times import ASKING, asked_ms, number, slot_before

#: Repeating messages of a broker, as far as it knows them: those taken or delivered since its start.
MAX_REPEATING: Final = 100_000
#: How long after its time a message that was not delivered is remembered.
_FORGOTTEN_MS: Final = 2 * HOP_MS
#: Of a message that waits once; the next wait has its own.
_OF_ONE_WAIT: Final = frozenset(
    {*ASKING, props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS, props.TIMER_ROLL_TIMES}
)


class Firing(NamedTuple):
    """What becomes of a repeating message that has waited.

    messages  are put together or not at all: its delivery, if its time has come, and the message itself,
              which waits for the next time, if there is one. None when it was recalled, or a copy of it
              was delivered
    key       topic and id of the message
    due_ms    the time for which it has waited
    """

    messages: list[PutMessage]
    key: str
    due_ms: int


class Repeating:
    """The repeating messages that this process has seen, by topic and id."""

    def __init__(self) -> None:
        #: The last time that has passed for each.
        self._passed: dict[str, int] = {}
        #: Those that were recalled, and the last time for which one of them may still wait.
        self._ended: dict[str, int] = {}

    def begin(self, message: PutMessage, now_ms: int) -> int:
        """Give a new message its first time, which is returned, in ms. Raises DecodeError, which says what is
        wrong with its properties, and MessageIllegal."""
        properties = message.properties
        rule = parse(properties[props.REPEAT])
        times = _number(properties, props.REPEAT_TIMES)
        if times is not None and not 1 <= times <= MOST_TIMES:
            raise DecodeError(f"{props.REPEAT_TIMES} is {times}, and may be 1 to {MOST_TIMES}")
        first_ms = _first_ms(properties, rule, now_ms)
        stop_ms = Schedule(rule, first_ms).stop_after(now_ms)
        if stop_ms is None:
            raise DecodeError(f"{properties[props.REPEAT]!r} has no time in the next fifty years")
        key = victim_key(properties, message.topic)
        if key not in self._passed and not self._has_room(now_ms):
            raise DecodeError(f"the broker has {MAX_REPEATING} repeating messages already; recall some")
        kept = {name: value for name, value in properties.items() if name not in ASKING}
        own = {
            props.REPEAT_FROM: str(first_ms),
            props.REPEAT_NUMBER: "0",
            props.TIMER_DELIVER_MS: str(stop_ms),
        }
        message.set_properties(kept | own)
        self._passed[key] = now_ms
        return stop_ms

    def fire(self, stored: StoredMessage, delivery: PutMessage, precision_ms: int, now_ms: int) -> Firing:
        """What is put when a message has waited; `delivery` is the message in its topic. Raises DecodeError
        for a record that no broker has made, or whose schedule cannot be read here, and MessageIllegal."""
        properties = stored.properties
        times = schedule(properties[props.REPEAT], properties.get(props.REPEAT_FROM, ""))
        due_ms, count = _number(properties, props.TIMER_DELIVER_MS), _number(properties, props.REPEAT_NUMBER)
        if due_ms is None or count is None:
            raise DecodeError("a repeating message has no time or no number")
        key = victim_key(properties, delivery.topic)
        if max(self._ended.get(key, -1), self._passed.get(key, -1)) >= due_ms:
            return Firing([], key, due_ms)
        messages = []
        if times.has_between(due_ms, max(due_ms, now_ms)):
            count += 1
            own = {props.REPEAT_NUMBER: str(count)}
            delivery.properties |= own
            delivery.properties_bytes = props.edited(delivery.properties_bytes, (), own)
            messages.append(delivery)
        most = _number(properties, props.REPEAT_TIMES)
        stop_ms = None if most is not None and count >= most else times.stop_after(max(due_ms, now_ms))
        if stop_ms is not None:
            messages.append(_waiting(stored, count, stop_ms, precision_ms))
        return Firing(messages, key, due_ms)

    def fired(self, firing: Firing, now_ms: int) -> None:
        """The messages of a firing were stored."""
        self._passed.pop(firing.key, None)
        if firing.messages[-1].topic == names.TIMER_TOPIC and self._has_room(now_ms):
            self._passed[firing.key] = firing.due_ms

    def end(self, key: str, until_ms: int, now_ms: int) -> None:
        """A message was recalled: what waits for this time or an earlier one is not delivered."""
        if len(self._ended) >= MAX_REPEATING:
            self._ended = _younger(self._ended, now_ms)
        self._ended[key] = until_ms
        self._passed.pop(key, None)

    def _has_room(self, now_ms: int) -> bool:
        """Whether one more can be noted; those whose time is long over were recalled."""
        if len(self._passed) >= MAX_REPEATING:
            self._passed = _younger(self._passed, now_ms)
        return len(self._passed) < MAX_REPEATING


def _younger(times: Mapping[str, int], now_ms: int) -> dict[str, int]:
    return {key: time_ms for key, time_ms in times.items() if time_ms > now_ms - _FORGOTTEN_MS}


def _waiting(stored: StoredMessage, count: int, stop_ms: int, precision_ms: int) -> PutMessage:
    """The message of a record, in the topic of timers until a time. Raises MessageIllegal."""
    message = restored(stored, names.TIMER_TOPIC, 0, wait=False)
    kept = {name: value for name, value in stored.properties.items() if name not in _OF_ONE_WAIT}
    own = {
        props.REPEAT_NUMBER: str(count),
        props.TIMER_DELIVER_MS: str(stop_ms),
        props.TIMER_OUT_MS: str(slot_before(stop_ms, precision_ms)),
    }
    message.set_properties(kept | own)
    return message


def _first_ms(properties: Mapping[str, str], rule: object, now_ms: int) -> int:
    """The first time that the sender asks for, or the first by the rule. Raises DecodeError."""
    try:
        asked = asked_ms(properties, now_ms)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    first_ms = asked
    if first_ms is None:
        first_ms = now_ms + rule.every_ms if isinstance(rule, Interval) else now_ms
    if not 0 <= first_ms - now_ms <= MOST_MS:
        raise DecodeError(f"the first time is {first_ms - now_ms} ms ahead; it may be 0 to {MOST_MS}")
    return first_ms


def _number(properties: Mapping[str, str], name: str) -> int | None:
    """A property that is a number; None without it. Raises DecodeError."""
    text = properties.get(name)
    try:
        return None if text is None else number(text)
    except ValueError as error:
        raise DecodeError(f"the property {name}: {error}") from None


__all__ = ["MAX_REPEATING", "Firing", "Repeating"]
