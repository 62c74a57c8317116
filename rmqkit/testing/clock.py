"""Clocks for tests."""

from __future__ import annotations

import trio


class FakeClock:
    """A clock that tests move by hand: `rmqkit.plugin.clock.Clock` for tests. Times in ms since the epoch."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock; a negative number sets it back."""
        self._now_ms += ms


class LoopClock:
    """`rmqkit.plugin.clock.Clock` that follows the clock of the trio loop, for tests in which that clock
    jumps: held pulls and delays then end when the test's sleeps do."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._start_s = trio.current_time()

    def now_ms(self) -> int:
        return self._start_ms + int((trio.current_time() - self._start_s) * 1000)
