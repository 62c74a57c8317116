"""What labels say about the message of a task."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rmqkit.client import Message
from rmqkit.errors import ClientError
from rmqkit_taskiq.labels import message_of

MIDNIGHT = datetime(2027, 1, 1, tzinfo=UTC)
MIDNIGHT_MS = str(round(MIDNIGHT.timestamp() * 1000))


def message(**labels: Any) -> Message:
    """The message of a task with these labels."""
    return message_of("jobs", b"{}", "task-1", labels)


def test_a_task_without_labels_is_a_plain_message() -> None:
    """Its id is its key; labels that mean nothing here stay with taskiq."""
    assert message(retry_on_error=True) == Message("jobs", b"{}", keys=["task-1"])


@pytest.mark.parametrize(
    ("labels", "properties"),
    [
        ({"delay": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"delay": "2"}, {"TIMER_DELAY_MS": "2000"}),
        ({"deliver_at": MIDNIGHT}, {"TIMER_DELIVER_MS": MIDNIGHT_MS}),
        ({"deliver_at": MIDNIGHT.isoformat()}, {"TIMER_DELIVER_MS": MIDNIGHT_MS}),
        ({"deliver_at": MIDNIGHT.timestamp()}, {"TIMER_DELIVER_MS": MIDNIGHT_MS}),
        ({"deliver_at": "12.5"}, {"TIMER_DELIVER_MS": "12500"}),
    ],
)
def test_a_time_becomes_a_timer(labels: dict[str, Any], properties: dict[str, str]) -> None:
    """Relative and absolute times, as values and as the texts that a repeated task has."""
    assert dict(message(**labels).properties) == properties


def test_a_priority_and_an_ordering_key() -> None:
    """They are those of the message."""
    found = message(priority="3", ordering_key=7)
    assert (found.priority, found.ordering_key) == (3, "7")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"delay": -1}, "delay = -1 must be a number from 0 on"),
        ({"delay": "soon"}, "delay = 'soon' must be a number"),
        ({"delay": float("inf")}, "delay = inf must be a number"),
        ({"deliver_at": "tomorrow"}, "deliver_at = 'tomorrow' must be a number"),
        ({"deliver_at": datetime(2027, 1, 1)}, "has no time zone; add one"),
        ({"delay": 1, "deliver_at": 2}, "one of the labels delay and deliver_at, not both"),
        ({"priority": "high"}, "priority = 'high' must be a number"),
    ],
)
def test_a_wrong_label_is_refused(labels: dict[str, Any], reason: str) -> None:
    """The error names the label and its value."""
    with pytest.raises(ClientError, match=reason.replace("(", "\\(")):
        message(**labels)
