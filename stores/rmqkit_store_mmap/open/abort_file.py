"""The file `abort` of a store directory (store-format sheet, section 5.3)."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from rmqkit_store_mmap.log.disk import Disk


class AbortMark:
    """The file `abort`, which exists from before the first write until everything is flushed. A start that
    finds the file follows a crash."""

    def __init__(self, root: Path) -> None:
        self._path = root / "abort"

    def present(self) -> bool:
        return self._path.exists()

    def set(self, disk: Disk) -> None:
        """Create and flush the file before any other write: without it a crash of the machine would look like
        a clean stop. On a full disk the file remains empty, which is sufficient. Raises OSError."""
        self._path.touch()
        try:
            self._path.write_text(str(os.getpid()))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        disk.sync_path(self._path)
        disk.sync_path(self._path.parent)

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
