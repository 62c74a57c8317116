"""Counts over the last minute, hour and day (Java: StatsItem, StatsItemSet).

An item records its value at the first change in a new sampling interval, so unchanged items need no sampling,
and the cost of counting does not depend on the number of items. Intervals are 10 seconds for the minute, 10
minutes for the hour, an hour for the day.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

TICK_MS = 10_000
#: Number of oldest items checked before one in use is evicted.
_EVICTION_LOOKS = 8
#: Items unchanged for this many ticks (an hour) are evicted first.
_IDLE_TICKS = 360


class Span(NamedTuple):
    """A window of `intervals` of `ticks` each."""

    ticks: int
    intervals: int


MINUTE = Span(1, 6)
HOUR = Span(60, 6)
DAY = Span(360, 24)
SPANS = (MINUTE, HOUR, DAY)


class Ticks:
    """The time shared by all items of a broker, which never decreases."""

    __slots__ = ("now", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.now = now_ms // TICK_MS

    def advance(self, now_ms: int) -> None:
        """Set the time to `now_ms`."""
        self.now_ms = max(self.now_ms, now_ms)
        self.now = self.now_ms // TICK_MS


class Change(NamedTuple):
    """Counts within a window: messages, their bytes, number of countings, and the length of the window so
    far."""

    messages: int
    size_bytes: int
    times: int
    elapsed_ms: int

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.messages * 1000 / self.elapsed_ms


class StatsItem:
    """Messages, bytes and countings under one name; `of_system` when it is the name of a system topic."""

    __slots__ = ("_born_ms", "_marks", "_tick", "_ticks", "count", "of_system", "size_bytes", "times")

    def __init__(self, ticks: Ticks, of_system: bool = False) -> None:
        self.of_system = of_system
        self.count = 0
        self.size_bytes = 0
        self.times = 0
        self._ticks = ticks
        self._tick = ticks.now
        self._born_ms = ticks.now_ms
        #: For each span, (interval, count, bytes, times) at the start of intervals; created when the first
        #: one ends.
        self._marks: tuple[list[tuple[int, int, int, int]], ...] = ()

    @property
    def idle(self) -> bool:
        """Whether it has been unchanged for an hour."""
        return self._ticks.now - self._tick > _IDLE_TICKS

    def add(self, count: int, size_bytes: int = 0) -> None:
        """Count messages that arrived together."""
        if self._tick != self._ticks.now:
            self._mark()
        self.count += count
        self.size_bytes += size_bytes
        self.times += 1

    def _mark(self) -> None:
        now = self._ticks.now
        if not self._marks:
            self._marks = tuple([] for _ in SPANS)
        for span, marks in zip(SPANS, self._marks, strict=True):
            before = self._tick // span.ticks
            if now // span.ticks != before:
                marks.append((before + 1, self.count, self.size_bytes, self.times))
                del marks[: -span.intervals - 1]
        self._tick = now

    def change(self, span: Span) -> Change:
        """The counts within a window that ends now."""
        now_ms = self._ticks.now_ms
        start = self._ticks.now // span.ticks - span.intervals
        elapsed_ms = max(now_ms - max(start * span.ticks * TICK_MS, self._born_ms), TICK_MS)
        if self._tick // span.ticks < start:
            return Change(0, 0, 0, elapsed_ms)
        count = size_bytes = times = 0
        if self._marks:
            for interval, *values in reversed(self._marks[SPANS.index(span)]):
                if interval <= start:
                    count, size_bytes, times = values
                    break
        return Change(self.count - count, self.size_bytes - size_bytes, self.times - times, elapsed_ms)


class StatsSet(dict[K, StatsItem]):
    """At most `limit` items by key, created when they are first counted; `get` creates none. Items unchanged
    for an hour are evicted first and counted in `evicted`."""

    def __init__(self, ticks: Ticks, limit: int, of_system: Callable[[K], bool]) -> None:
        super().__init__()
        self._ticks = ticks
        self._limit = limit
        self._of_system = of_system
        self.evicted = 0

    def __missing__(self, key: K) -> StatsItem:
        if len(self) >= self._limit:
            self._evict()
        item = self[key] = StatsItem(self._ticks, self._of_system(key))
        return item

    def count(self, key: K) -> int:
        """Messages counted under a key; 0 if there are none."""
        found = self.get(key)
        return 0 if found is None else found.count

    def per_second(self, key: K) -> float:
        """Messages per second within the last minute."""
        found = self.get(key)
        return 0.0 if found is None else found.change(MINUTE).per_second

    def forget(self, gone: Callable[[K], bool]) -> None:
        """Topics or groups were deleted."""
        for key in [key for key in self if gone(key)]:
            del self[key]

    def _evict(self) -> None:
        """Remove the oldest idle item; items in use that are checked on the way become the newest."""
        for _ in range(_EVICTION_LOOKS):
            key = next(iter(self))
            item = self.pop(key)
            if item.idle:
                break
            self[key] = item
        else:
            del self[next(iter(self))]
        self.evicted += 1
