"""What is delivered for a record of the timer topic (store-format sheet, section 10.5; Java:
TimerMessageStore.convert)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.toolkit.restored import real_place, restored
from rmqkit_timer.times import number

#: TIMER_ENQUEUE_MS of a message that never waited.
AT_ONCE: Final = 2**63 - 1
_UNSEEN: Final = frozenset({*props.TIMER_INPUTS, props.DELAY})


def due_ms(properties: Mapping[str, str]) -> int:
    """The slot for which a record of the timer topic waits. Raises DecodeError."""
    text = properties.get(props.TIMER_OUT_MS)
    try:
        return number(text or "")
    except ValueError as error:
        raise DecodeError(f"it has the {props.TIMER_OUT_MS} {text!r}") from error


def delete_key(properties: Mapping[str, str], topic: str) -> str | None:
    """Topic and unique key of the message that a record deletes; None when it deletes none. A record deletes
    messages of its own topic alone; old clients write the unique key without the topic."""
    text = properties.get(props.TIMER_DEL_UNIQKEY)
    if text is None or text.startswith(f"{topic}+"):
        return text
    return f"{topic}+{text}"


def victim_key(properties: Mapping[str, str], topic: str) -> str:
    """What deletes a record."""
    return f"{topic}+{properties.get(props.UNIQ_KEY, '')}"


def delivered(stored: StoredMessage, entered_ms: int, now_ms: int) -> PutMessage:
    """The message of a record in its own topic. Raises DecodeError when it has none, MessageIllegal."""
    _check(stored)
    return _restored(stored, *real_place(stored), entered_ms, now_ms, {})


def rolled(stored: StoredMessage, entered_ms: int, now_ms: int) -> PutMessage:
    """The record once more, to wait on. Raises DecodeError, MessageIllegal."""
    try:
        times = number(stored.properties.get(props.TIMER_ROLL_TIMES, "0"))
    except ValueError:
        times = 0
    _check(stored)
    added = {props.TIMER_ROLL_TIMES: str(times + 1)}
    return _restored(stored, names.TIMER_TOPIC, 0, entered_ms, now_ms, added)


def _check(stored: StoredMessage) -> None:
    """Raise DecodeError for a record of another topic."""
    if stored.topic != names.TIMER_TOPIC:
        raise DecodeError(f"its topic is {stored.topic!r}")


def _restored(
    stored: StoredMessage, topic: str, queue_id: int, entered_ms: int, now_ms: int, added: Mapping[str, str]
) -> PutMessage:
    added = {props.TIMER_ENQUEUE_MS: str(entered_ms), props.TIMER_DEQUEUE_MS: str(now_ms), **added}
    message = restored(stored, topic, queue_id, unseen=_UNSEEN, wait=False)
    if added.keys().isdisjoint(stored.properties):
        message.properties_bytes = props.extended(stored.properties_bytes, added)
    else:
        message.properties_bytes = props.edited(stored.properties_bytes, (), added)
    message.properties |= added
    return message
