"""The file `abort` of a store directory (store-format sheet, section 5.3)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rmqkit_store_mmap.disk import Disk


class AbortMark:
    """The file `abort`: there from before the first write until everything is flushed. Found at a start it means a crash."""

    def __init__(self, root: Path) -> None:
        self._path = root / "abort"

    def present(self) -> bool:
        return self._path.exists()

    def set(self, disk: Disk) -> None:
        """Make the file, on the device before anything that needs it: without it a crash of the machine would pass for a clean stop. Raises OSError."""
        self._path.write_text(str(os.getpid()))
        disk.sync_path(self._path)
        disk.sync_path(self._path.parent)

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
