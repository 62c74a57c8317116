"""What is counted in a run, how much may still be sent, and the report that comes of it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.frames import FIRST_OPAQUE

KEPT_ERRORS = 5


@dataclass
class Tally:
    """Counts of one run. `latencies` holds one figure in seconds for every request that was answered with
    success; `decoded` counts the responses whose header was decoded in full, because their form was not yet
    known or is not one that can be compared."""

    latencies: array[float] = field(default_factory=lambda: array("d"))
    requests: int = 0
    decoded: int = 0
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Count one error and keep the text of the first few."""
        self.errors += 1
        if len(self.first_errors) < KEPT_ERRORS:
            self.first_errors.append(text)


@dataclass
class Budget:
    """How many requests may still be issued: a number, and a point on time.perf_counter() after which
    there are none."""

    requests: int
    deadline: float
    next_opaque: int = FIRST_OPAQUE + 1

    def take(self, wanted: int, now: float) -> list[bytes]:
        """Up to `wanted` fresh opaques, as the ten digits that go on the wire."""
        if now >= self.deadline:
            return []
        count = wanted if wanted < self.requests else self.requests
        self.requests -= count
        first = self.next_opaque
        self.next_opaque = first + count
        return [b"%d" % first] if count == 1 else [b"%d" % opaque for opaque in range(first, first + count)]


def percentiles_ms(latencies: Sequence[float]) -> dict[str, float]:
    """Exact percentiles of all samples (nearest rank), in milliseconds; empty without samples."""
    ordered = sorted(latencies)
    if not ordered:
        return {}
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in names.items()}
    return {name: round(value * 1000, 4) for name, value in {**found, "max": ordered[-1]}.items()}


def report(
    mode: str, tally: Tally, messages: int, size: float, seconds: float, cpu_s: float
) -> dict[str, Any]:
    """The JSON object of one run; `messages` counts only what was confirmed, `size` is the mean body size in
    bytes, and `cpu_s` the processor time of the generator."""
    rate = messages / seconds if seconds > 0 else 0.0
    return {
        "mode": mode,
        "messages": messages,
        "requests": tally.requests,
        "seconds": round(seconds, 6),
        "messages_per_s": round(rate, 1),
        "mb_per_s": round(rate * size / 1e6, 3),
        "latency_ms": percentiles_ms(tally.latencies),
        "generator_busy": round(cpu_s / seconds, 3) if seconds > 0 else 0.0,
        "generator_cpu_us_per_message": round(cpu_s * 1e6 / messages, 3) if messages else 0.0,
        "decoded_in_full": tally.decoded,
        "errors": tally.errors,
        "first_errors": tally.first_errors,
    }
