"""Bytes per second, for statistics."""

from __future__ import annotations

from rmqkit.plugin.clock import Clock

_WINDOW_MS = 1_000


class Meter:
    """Counts bytes; `per_second` is the rate of the last complete second or longer."""

    def __init__(self, clock: Clock) -> None:
        self.total = 0
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._counted = 0
        self._rate = 0

    def add(self, count: int) -> None:
        self.total += count
        self._turn()

    @property
    def per_second(self) -> int:
        self._turn()
        return self._rate

    def _turn(self) -> None:
        elapsed_ms = self._clock.now_ms() - self._since_ms
        if not 0 <= elapsed_ms < _WINDOW_MS:
            self._rate = (self.total - self._counted) * 1000 // max(elapsed_ms, _WINDOW_MS)
            self._counted = self.total
            self._since_ms = self._clock.now_ms()
