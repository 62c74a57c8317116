"""Disks of the mmap store that several tests use."""

from __future__ import annotations

from pathlib import Path

from rmqkit_store_mmap.log.disk import Disk


class Forgetful(Disk):
    """Flushes nothing, for tests that simulate no power failure, and are faster that way."""

    def sync(self, fd: int) -> None:
        return

    def sync_path(self, path: Path) -> None:
        return
