"""What several verbs take and print: times, queues, messages."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from rmqkit.client.cluster.message_views import message_dict, queue_dict, queue_text
from rmqkit.model.spans import span_ms
from rmqkit.toolkit.times import moment_ms, span_text, time_text

if TYPE_CHECKING:
    from rmqkit.client import ReceivedMessage


def moment(text: str) -> int:
    """An argparse type for a point in time, as `moment_ms`."""
    try:
        return moment_ms(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def span(text: str) -> int:
    """An argparse type for a time that passes, in ms: 500ms, 90s, 10m, 2h, 3d."""
    found_ms = span_ms(text)
    if found_ms is None:
        raise ArgumentTypeError(f"{text!r} is not a time that passes: write 500ms, 90s, 10m, 2h or 3d")
    return found_ms


def message_text(message: ReceivedMessage) -> str:
    """One line for a message."""
    tag = f" [{message.tag}]" if message.tag else ""
    fault = f" cannot be decoded ({message.fault}):" if message.fault is not None else ""
    return (
        f"{time_text(message.store_timestamp_ms)} {message.queue} offset {message.queue_offset}{tag}{fault}"
        f" {message.body.decode('utf-8', 'backslashreplace')}"
    )


__all__ = [
    "message_dict",
    "message_text",
    "moment",
    "queue_dict",
    "queue_text",
    "span",
    "span_text",
    "time_text",
]
