"""How much a micro-batch takes and when it comes: limits, their division among queues, and clocks. Time is passed in, in seconds that never go back."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from pyspark_rocketmq.source import QueueKey

#: Queue -> how many messages.
Counts = Mapping[QueueKey, int]


@frozen(kw_only=True)
class Limits:
    """Bounds of a micro-batch, None for no bound.

    max_records   messages at most, save that each queue with something new gives at least one
    max_bytes     bytes at most, by the mean length of each queue's records
    min_records   messages to wait for
    max_delay_ms  how long after the last batch to wait for min_records
    """

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int = 15 * 60 * 1000


def share(available: Counts, mean_bytes: Mapping[QueueKey, int], limits: Limits) -> Counts:
    """How many of the available messages a batch takes from each queue.

    All queues give the same part of what they have, so that a long queue does not starve the short ones, and every queue that has something gives at least
    one message (as Kafka's connector for Spark divides maxOffsetsPerTrigger). `mean_bytes` needs the queues only if there is a limit of bytes.
    """
    part, whole = 1, 1
    if limits.max_records is not None:
        part, whole = _smaller((part, whole), (limits.max_records, sum(available.values())))
    if limits.max_bytes is not None:
        size = sum(count * mean_bytes[queue] for queue, count in available.items() if count)
        part, whole = _smaller((part, whole), (limits.max_bytes, size))
    return {queue: min(count, max(1, count * part // whole)) for queue, count in available.items()}


def _smaller(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The smaller of two fractions; something by nothing is no bound."""
    return other if other[0] * one[1] < one[0] * other[1] else one


@define
class Trigger:
    """Holds a batch back until there is enough for it, but not for ever. The first batch of a run is not held back."""

    _last: float | None = field(default=None, init=False)

    def due(self, available: int, limits: Limits, now: float) -> bool:
        """Whether a batch may start with this many new messages. Counts from the last time the answer was yes."""
        enough = limits.min_records is None or available >= limits.min_records
        if not enough and self._last is not None and now - self._last < limits.max_delay_ms / 1000:
            return False
        self._last = now
        return True


#: Times as long as a question took that no other is asked: many topics are many requests, and brokers have other work.
_REST = 3


@define
class Throttle:
    """Keeps questions that had no answer apart: Spark asks for new messages some 35 times a second, and a broker need not hear all of that."""

    interval_ms: int
    _next: float = field(default=0.0, init=False)

    def wait_s(self, now: float) -> float:
        """Seconds to wait before asking again; 0 unless the last question found nothing."""
        return max(0.0, self._next - now)

    def found_nothing(self, asked: float, answered: float) -> None:
        """Wait until the interval is over since this question, and longer after one that took long."""
        self._next = max(asked + self.interval_ms / 1000, answered + _REST * (answered - asked))

    def found_something(self) -> None:
        self._next = 0.0
