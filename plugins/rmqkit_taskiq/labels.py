"""What labels of a task say about its message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Final

from rmqkit.client import Message
from rmqkit.errors import ClientError
from rmqkit.model import properties as props

#: Seconds until a task may run, and the time from which on it may: a `datetime` with a time zone, its text in
#: ISO 8601, or seconds since 1970.
DELAY: Final = "delay"
DELIVER_AT: Final = "deliver_at"
PRIORITY: Final = "priority"
ORDERING_KEY: Final = "ordering_key"


def message_of(topic: str, body: bytes, task_id: str, labels: Mapping[str, Any]) -> Message:
    """The message of a task, which is found by the task's id as its key. Raises ClientError for a label with
    a wrong value."""
    priority = labels.get(PRIORITY)
    ordering_key = labels.get(ORDERING_KEY)
    return Message(
        topic,
        body,
        keys=[task_id],
        properties=_timed(labels),
        priority=None if priority is None else round(_number(PRIORITY, priority)),
        ordering_key=None if ordering_key is None else str(ordering_key),
    )


def _timed(labels: Mapping[str, Any]) -> dict[str, str]:
    at, delay = labels.get(DELIVER_AT), labels.get(DELAY)
    if at is not None and delay is not None:
        raise ClientError(f"a task has one of the labels {DELAY} and {DELIVER_AT}, not both")
    if at is not None:
        return {props.TIMER_DELIVER_MS: str(round(_time_s(at) * 1000))}
    if delay is not None:
        return {props.TIMER_DELAY_MS: str(round(_number(DELAY, delay) * 1000))}
    return {}


def _time_s(value: Any) -> float:
    """A time in seconds since 1970."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return _number(DELIVER_AT, value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ClientError(f"the label {DELIVER_AT} = {value} has no time zone; add one")
        return value.timestamp()
    return _number(DELIVER_AT, value)


def _number(label: str, value: Any) -> float:
    """A label as a number; labels arrive as texts when a task is sent again."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number) or number < 0:
        raise ClientError(f"the label {label} = {value!r} must be a number from 0 on")
    return number


__all__ = ["message_of"]
