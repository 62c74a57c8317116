"""Slow and failed brokers, which the choice of a queue avoids for a while (Java: MQFaultStrategy,
LatencyFaultToleranceImpl; behaviour sheet, A6)."""

from __future__ import annotations

from bisect import bisect_right

from attrs import frozen

from rmqkit.errors import ClientError

#: The latency that a failed attempt counts as.
ISOLATED_LATENCY_MS = 10_000


@frozen
class LatencySteps:
    """How long a broker is avoided after an attempt, by its latency (Java: latencyMax, notAvailableDuration).
    Raises ClientError for arrays that do not match.

    from_ms  latencies from which each step applies, ascending
    avoid_ms duration of each step
    """

    from_ms: tuple[int, ...] = (50, 100, 550, 1800, 3000, 5000, 15_000)
    avoid_ms: tuple[int, ...] = (0, 0, 2000, 5000, 6000, 10_000, 30_000)

    def __attrs_post_init__(self) -> None:
        if len(self.from_ms) != len(self.avoid_ms) or list(self.from_ms) != sorted(self.from_ms):
            raise ClientError("latency steps need ascending latencies, and one duration for each of them")

    def avoided_ms(self, latency_ms: float) -> int:
        """The duration of the largest step that the latency reaches, 0 below the first."""
        step = bisect_right(self.from_ms, latency_ms)
        return self.avoid_ms[step - 1] if step else 0


class LatencyFaults:
    """The brokers that a producer avoids, and until when. It has no clock: callers pass the time, in seconds.

    unreachable brokers whose last answer was an error; of several that are to be avoided, the others are
                chosen first
    """

    def __init__(self, steps: LatencySteps) -> None:
        self.unreachable: set[str] = set()
        self._steps = steps
        self._until_s: dict[str, float] = {}

    def answered(self, broker: str, latency_s: float, now_s: float) -> None:
        """Record an answer. An earlier and longer avoidance remains, as in Java."""
        self._avoid(broker, latency_s * 1000, now_s)
        self.unreachable.discard(broker)

    def failed(self, broker: str, now_s: float, *, refused: bool) -> None:
        """Record an attempt that counts as `ISOLATED_LATENCY_MS`: an error code (`refused`), no answer in
        time, or no connection."""
        self._avoid(broker, ISOLATED_LATENCY_MS, now_s)
        (self.unreachable.add if refused else self.unreachable.discard)(broker)

    def avoided(self, now_s: float) -> set[str]:
        """The brokers to avoid at this time."""
        return {broker for broker, until_s in self._until_s.items() if now_s < until_s}

    def _avoid(self, broker: str, latency_ms: float, now_s: float) -> None:
        avoided_ms = self._steps.avoided_ms(latency_ms)
        if avoided_ms:
            self._until_s[broker] = max(now_s + avoided_ms / 1000, self._until_s.get(broker, now_s))
