"""A master whose disk hangs must lose its role: it renews its lease only while the disk takes writes."""

from __future__ import annotations

import logging
import os
from math import inf
from pathlib import Path

import trio

_log = logging.getLogger(__name__)


class DiskProbe:
    """Writes a few bytes to the disk of a directory, again and again. `wrote` is set by the first write."""

    def __init__(self, directory: Path, period_s: float) -> None:
        self.wrote = trio.Event()
        self.path = directory / "failover.probe"
        self._period_s = period_s
        self._wrote_s = -inf

    def wrote_since(self, moment_s: float) -> bool:
        """Whether a write that began after a moment, as `trio.current_time`, has reached the disk."""
        return self._wrote_s >= moment_s

    async def run(self) -> None:
        """Until cancelled, which does not wait for a disk that hangs."""
        try:
            while True:
                began_s = trio.current_time()
                try:
                    await trio.to_thread.run_sync(self._write, abandon_on_cancel=True)
                    self._wrote_s = began_s
                    self.wrote.set()
                except OSError as error:
                    _log.error("failover: the disk takes no write, so the role of master ends: %s", error)
                await trio.sleep(self._period_s)
        finally:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("wb") as file:
            file.write(b"rmqkit")
            file.flush()
            os.fsync(file.fileno())
