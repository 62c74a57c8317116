"""Counters and histograms. They start at 0 with the broker; those of deleted topics and groups are
removed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from rmqkit.model.run import looks
from rmqkit.plugin.store import Appended

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Upper bounds for bytes and for milliseconds (Java: BrokerMetricsManager.registerMetricsView,
#: RemotingMetricsManager).
SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
CREATE_BOUNDS = (10, 100, 1000, 3000, 5000)
RPC_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)


class Histogram:
    """Counts by upper bounds, with one more bucket for larger values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_times(self, value: float, times: int) -> None:
        """Add one value this many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add_between(self, smallest: float, largest: float, total: float, count: int) -> bool:
        """Add values of which the extremes, the sum and the number are known. Returns False, and adds
        nothing, when they fall into different buckets."""
        bucket = bisect_left(self.bounds, smallest)
        if bucket != bisect_left(self.bounds, largest):
            return False
        self.counts[bucket] += count
        self.sum += total
        return True


class Series(dict[K, V], Generic[K, V]):
    """Label values -> number or histogram, created on first use."""

    def __init__(self, make: Callable[[], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        made = self[key] = self._make()
        return made

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Remove all other label values."""
        for key in [key for key in self if not wanted(key)]:
            del self[key]


class Traffic:
    """Messages and bytes in one direction."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0


class Incoming:
    """Messages stored for clients. `sizes` counts them by the sizes of their records."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        self.sizes = Histogram(SIZE_BOUNDS)

    def add(self, results: Sequence[Appended]) -> None:
        """Count messages by their places, at least one."""
        smallest, largest, total = looks.size_range_of(results)
        if not self.sizes.add_between(smallest, largest, total, len(results)):
            for at in results:
                self.sizes.add(at.size_bytes)

    @property
    def messages(self) -> int:
        return sum(self.sizes.counts)

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.sum)


class Counts:
    """All counters.

    incoming     (topic, message type) -> messages stored
    outgoing     (topic, group) -> messages delivered to consumers
    pulled       (group, topic, queue id) -> the next offset after the group's last pull
    topics       (status, is_system) -> ms of each request that creates or changes a topic
    groups       (status,) -> the same for groups
    requests     (is_long_polling, request code, response code) -> ms of each request
    """

    def __init__(self) -> None:
        self.incoming: Series[tuple[str, str], Incoming] = Series(Incoming)
        self.outgoing: Series[tuple[str, str], Traffic] = Series(Traffic)
        self.pulled: dict[tuple[str, str, int], int] = {}
        self.topics: Series[tuple[str, str], Histogram] = Series(lambda: Histogram(CREATE_BOUNDS))
        self.groups: Series[tuple[str], Histogram] = Series(lambda: Histogram(CREATE_BOUNDS))
        self.requests: Series[tuple[str, str, str], Histogram] = Series(lambda: Histogram(RPC_BOUNDS))
