"""Texts for people and JSON for programs that several verbs print: times, messages."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rmqkit.model.spans import span_ms

if TYPE_CHECKING:
    from rmqkit.client import MessageQueue, ReceivedMessage


def moment(text: str) -> int:
    """An argparse type for a point in time, in ms since 1970: an age (90s, 10m, 2h, 3d ago), an ISO 8601 time
    (local unless it has a zone), or ms since 1970."""
    if text.isdecimal():
        return int(text)
    age_ms = span_ms(text)
    try:
        if age_ms is not None:
            return int((datetime.now(UTC) - timedelta(milliseconds=age_ms)).timestamp() * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is no time: give an age (90s, 10m, 2h, 3d), an ISO time (2026-05-01T10:00,"
            " 2026-05-01T08:00:00Z), or milliseconds since 1970"
        ) from None


def span(text: str) -> int:
    """An argparse type for a time that passes, in ms: 500ms, 90s, 10m, 2h, 3d."""
    found_ms = span_ms(text)
    if found_ms is None:
        raise ArgumentTypeError(f"{text!r} is no time that passes: write 500ms, 90s, 10m, 2h or 3d")
    return found_ms


def time_text(timestamp_ms: int) -> str:
    """A time as UTC with milliseconds; `-` for 0."""
    if timestamp_ms <= 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def span_text(span_ms: int | None) -> str:
    """A span in its two largest units: 2d 3h, 5m 1s, 1.234s; `-` when it is unknown."""
    if span_ms is None:
        return "-"
    if span_ms < 60_000:
        return f"{span_ms / 1000:g}s"
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


def queue_text(queue: MessageQueue) -> str:
    """`BROKER:ID`, as options take it."""
    return f"{queue.broker_name}:{queue.queue_id}"


def queue_dict(queue: MessageQueue) -> dict[str, Any]:
    """The members of a queue in JSON."""
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


def message_text(message: ReceivedMessage) -> str:
    """One line for a message."""
    tag = f" [{message.tag}]" if message.tag else ""
    fault = f" cannot be decoded ({message.fault}):" if message.fault is not None else ""
    return (
        f"{time_text(message.store_timestamp_ms)} {message.queue} offset {message.queue_offset}{tag}{fault}"
        f" {message.body.decode('utf-8', 'backslashreplace')}"
    )


def message_dict(message: ReceivedMessage) -> dict[str, Any]:
    """A message in JSON, with the members of `rmqkit store export`: `fault` if it cannot be decoded; if it
    can, `rmqkit send --json-lines` accepts it."""
    try:
        body: dict[str, Any] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyHex": message.body.hex()}
    return {
        **queue_dict(message.queue),
        "topic": message.topic,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "storeTimestamp": message.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        **({} if message.fault is None else {"fault": message.fault}),
        **body,
    }
