"""The clock of servers outside tests."""

from __future__ import annotations

from time import time


class SystemClock:
    """Wall-clock time."""

    def now_ms(self) -> int:
        return int(time() * 1000)
