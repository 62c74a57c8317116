"""The limits of what is pulled ahead."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.client import Prefetch
from rmqkit.client.consumer.process_queue import ProcessQueue
from tests.client.consumer.messages import message


def filled(count: int, size: int = 1, step: int = 1) -> ProcessQueue:
    queue = ProcessQueue(0)
    queue.put([message(number * step, size) for number in range(count)], (count - 1) * step + 1)
    return queue


@pytest.mark.row("S190", "S191")
@pytest.mark.parametrize(
    ("queue", "limits", "ordered", "expected"),
    [
        (filled(3), Prefetch(messages=3), False, None),
        (filled(4), Prefetch(messages=3), False, "messages"),
        (filled(4), Prefetch(messages=3), True, "messages"),
        (filled(1, 1 << 20), Prefetch(mib=1), False, None),
        (filled(2, (1 << 19) + 1), Prefetch(mib=1), False, "mib"),
        (filled(2, 1, 10), Prefetch(span=10), False, None),
        (filled(2, 1, 11), Prefetch(span=10), False, "span"),
        (filled(2, 1, 11), Prefetch(span=10), True, None),
    ],
)
def test_a_queue_beyond_a_limit_is_not_pulled(
    queue: ProcessQueue, limits: Prefetch, ordered: bool, expected: str | None
) -> None:
    """A queue at its limit is still pulled; ordered queues have no limit of the span."""
    assert limits.exceeded_by(queue, ordered=ordered) == expected


@pytest.mark.parametrize("wrong", [{"messages": 0}, {"messages": 65_536}, {"mib": 1025}, {"span": 0}])
def test_limits_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """Java's ranges hold."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Prefetch(**wrong)
