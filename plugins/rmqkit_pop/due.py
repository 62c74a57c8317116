"""What is due at a time, cheap to add, to move and to remove: for a million leases that mostly end early."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")
#: Times are kept to this precision; nothing is due early.
STEP_MS = 32


class DueTimes(Generic[T]):
    """Values with times in ms, each at one time. The costs of all calls do not depend on their number."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[T, None]] = {}
        self._order: list[int] = []

    def add(self, value: T, time_ms: int) -> None:
        """Add a value that is not in it."""
        step = _step(time_ms)
        values = self._steps.get(step)
        if values is None:
            values = self._steps[step] = {}
            heappush(self._order, step)
        values[value] = None

    def remove(self, value: T, time_ms: int) -> None:
        """Remove a value, which was added with this time; one that is not there is ignored."""
        values = self._steps.get(_step(time_ms))
        if values is not None:
            values.pop(value, None)

    def next_ms(self) -> int | None:
        """When the next value is due; None when there is none."""
        while self._order and not self._steps[self._order[0]]:
            del self._steps[heappop(self._order)]
        return self._order[0] * STEP_MS if self._order else None

    def take(self, now_ms: int) -> Iterator[T]:
        """Remove the values that are due, one after the other, earlier ones first."""
        while (due := self.next_ms()) is not None and due <= now_ms:
            value = next(iter(self._steps[self._order[0]]))
            del self._steps[self._order[0]][value]
            yield value

    def clear(self) -> None:
        self._steps.clear()
        self._order.clear()


def _step(time_ms: int) -> int:
    return -(-time_ms // STEP_MS)


__all__ = ["STEP_MS", "DueTimes"]
