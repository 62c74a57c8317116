"""What is counted as it happens. Numbers begin at 0 when the broker starts; those of topics and groups that are gone are forgotten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Bytes, and milliseconds (Java: BrokerMetricsManager.registerMetricsView, RemotingMetricsManager).
SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
CREATE_BOUNDS = (10, 100, 1000, 3000, 5000)
RPC_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)


class Histogram:
    """Counts by upper bounds, one more for what is above them all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_times(self, value: float, times: int) -> None:
        """One value so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add_many(self, values: Sequence[float]) -> None:
        """The same for each, quickly when they are of a size."""
        bucket = bisect_left(self.bounds, min(values))
        if bucket == bisect_left(self.bounds, max(values)):
            self.counts[bucket] += len(values)
            self.sum += sum(values)
            return
        for value in values:
            self.add(value)


class Series(dict[K, V], Generic[K, V]):
    """Label values -> number or histogram, made when first needed."""

    def __init__(self, make: Callable[[], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        made = self[key] = self._make()
        return made

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Forget the others."""
        for key in [key for key in self if not wanted(key)]:
            del self[key]


class Traffic:
    """Messages and bytes that went one way."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0


class Incoming(Traffic):
    """Messages stored for clients, with their sizes as records."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Histogram(SIZE_BOUNDS)


class Counts:
    """Everything that is counted.

    incoming     (topic, message type) -> messages stored
    outgoing     (topic, group) -> messages given to consumers
    pulled       (group, topic, queue id) -> the offset at which the group's last pull left off
    topics       (status, is_system) -> ms of each request that makes or changes a topic
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
