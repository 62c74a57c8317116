"""Figures of timers for operators: rates, and how many messages wait for which time (Java: TimerMetrics,
PerfCounter)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import trio

from rmqkit_timer.counts import DISTANCES_S
from rmqkit_timer.timers import Timers

_EVERY_S: Final = 1.0
#: Rates are those of this time.
_RATE_S: Final = 10
#: Rounds between two counts of what waits.
_COUNT_EVERY: Final = 10
#: Slots that are counted between two turns of others.
_STEP_SLOTS: Final = 2_000


class Figures:
    """What has happened in the last seconds, and what waits.

    entered, delivered  numbers of messages since the start; the owner adds to them
    """

    def __init__(self, timers: Timers) -> None:
        self.entered = self.delivered = 0
        self._timers = timers
        self._samples: deque[tuple[int, int]] = deque([(0, 0)], _RATE_S + 1)
        self._waiting = dict.fromkeys(DISTANCES_S, 0)

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await self.count()
            for _ in range(_COUNT_EVERY):
                await trio.sleep(_EVERY_S)
                self._samples.append((self.entered, self.delivered))

    def rates(self) -> tuple[float, float]:
        """Messages a second that began to wait, and that were delivered."""
        (entered, delivered), rounds = self._samples[0], max(len(self._samples) - 1, 1)
        last = self._samples[-1]
        return (last[0] - entered) / rounds, (last[1] - delivered) / rounds

    def waiting(self) -> Mapping[int, int]:
        """Seconds -> messages that are due within them but not within the distance before, at the last
        count."""
        return self._waiting

    async def count(self) -> None:
        """Count what waits. The wheel may change meanwhile. Cancelled: the last count stays."""
        timers, counts, since_s = self._timers, dict[int, int](), 0
        start_ms, precision_ms = timers.write_time_ms, timers.wheel.precision_ms
        for distance_s in DISTANCES_S:
            total, at_ms = 0, start_ms + since_s * 1_000
            end_ms = start_ms + distance_s * 1_000
            while (at_ms := timers.wheel.next_used(at_ms, end_ms)) < end_ms:
                stop_ms = min(at_ms + _STEP_SLOTS * precision_ms, end_ms)
                total += timers.wheel.count(at_ms, stop_ms)
                at_ms = stop_ms
                await trio.lowlevel.checkpoint()
            counts[distance_s], since_s = max(total, 0), distance_s
        self._waiting = counts
