"""A clock that moves only when told."""

from __future__ import annotations


class FakeClock:
    """`rmqkit.abc.Clock` for tests. Times in ms since the epoch."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move on; a negative number sets the clock back."""
        self._now_ms += ms
