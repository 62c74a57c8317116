"""The progress bar."""

from __future__ import annotations

import sys
import time

_BAR_WIDTH = 30
_BAR_EVERY_S = 0.1


class ProgressBar:
    """One line on standard error that is drawn over; nothing when that is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = self._drawn = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._drawn >= _BAR_EVERY_S:
            self._drawn = now
            part = done / max(total, 1)
            bar = "#" * int(part * _BAR_WIDTH)
            sys.stderr.write(f"\r[{bar:{_BAR_WIDTH}}] {part:4.0%} {done / 1e6 / (now - self._began):.0f} MB/s ")
            sys.stderr.flush()

    def end(self) -> None:
        """Wipe the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
