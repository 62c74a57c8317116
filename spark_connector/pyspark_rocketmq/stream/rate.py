"""Size and time of a micro-batch: limits, their division among queues, and timing. Time is passed in, in
seconds of a monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from pyspark_rocketmq.read.source import QueueKey

#: Queue -> number of messages.
Counts = Mapping[QueueKey, int]


@frozen(kw_only=True)
class Limits:
    """Limits of a micro-batch; None for no limit.

    max_records   maximum number of messages, except that each queue with new messages gives at least one
    max_bytes     maximum number of bytes, by the mean length of each queue's records
    min_records   number of messages to wait for
    max_delay_ms  how long after the last batch to wait for min_records
    """

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int = 15 * 60 * 1000


def share(available: Counts, mean_bytes: Mapping[QueueKey, int], limits: Limits) -> Counts:
    """How many of the available messages a batch takes from each queue.

    All queues give the same fraction of their messages, so that a long queue does not starve short ones, and
    every queue that has messages gives at least one (as Kafka's connector for Spark divides
    maxOffsetsPerTrigger). `mean_bytes` must contain the queues only if there is a limit in bytes.
    """
    part, whole = 1, 1
    if limits.max_records is not None:
        part, whole = _smaller((part, whole), (limits.max_records, sum(available.values())))
    if limits.max_bytes is not None:
        size = sum(count * mean_bytes[queue] for queue, count in available.items() if count)
        part, whole = _smaller((part, whole), (limits.max_bytes, size))
    return {queue: min(count, max(1, count * part // whole)) for queue, count in available.items()}


def _smaller(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The smaller of two fractions; a fraction with denominator 0 means no limit."""
    return other if other[0] * one[1] < one[0] * other[1] else one


@define
class Trigger:
    """Delays a batch until there are enough messages or the maximum delay has passed. The first batch of a
    run is not delayed."""

    _last: float | None = field(default=None, init=False)

    def due(self, available: int, limits: Limits, now: float) -> bool:
        """Whether a batch may start with this many new messages. The delay counts from the last batch that
        was allowed."""
        enough = limits.min_records is None or available >= limits.min_records
        if not enough and self._last is not None and now - self._last < limits.max_delay_ms / 1000:
            return False
        self._last = now
        return True


#: After a query of the source, no other is made for this multiple of its duration: many topics mean many
#: requests, and brokers have other work.
_REST = 3


@define
class Throttle:
    """Limits the rate of queries that find nothing: Spark asks for new messages some 35 times a second, which
    brokers should not see."""

    interval_ms: int
    _next: float = field(default=0.0, init=False)

    def wait_s(self, now: float) -> float:
        """Seconds to wait before the next query; 0 unless the last query found nothing."""
        return max(0.0, self._next - now)

    def found_nothing(self, asked: float, answered: float) -> None:
        """Delay the next query by the interval since this one, and longer after one that took long."""
        self._next = max(asked + self.interval_ms / 1000, answered + _REST * (answered - asked))

    def found_something(self) -> None:
        self._next = 0.0
