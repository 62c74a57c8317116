"""The files `lock` and `abort` of a store directory (store-format sheet, sections 5.2 and 5.3)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from rmqkit.errors import StoreInUse

#: Directories held by this process, by device and inode: a record lock does not keep out its own process, and closing any descriptor of the
#: lock file would give the lock away.
_held: set[tuple[int, int]] = set()


class DirectoryLock:
    """The right to a store directory: an exclusive POSIX record lock on byte 0 of `lock`, as Java takes it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def take(self) -> None:
        """Make the directory and take the lock. Raises StoreInUse naming the directory, and then nothing is held; OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        status = self._root.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in _held:
            raise StoreInUse(f"the store directory {self._root} is already open in this process")
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(fd, b"lock", 0)
        except BlockingIOError as error:
            os.close(fd)
            raise StoreInUse(f"another process holds the store directory {self._root}") from error
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._identity = fd, identity
        _held.add(identity)

    def release(self) -> None:
        """Give the directory back; a second call does nothing."""
        if self._identity is not None:
            _held.discard(self._identity)
            self._identity = None
            os.close(self._fd)


class AbortMark:
    """The file `abort`: there from before the first write until everything is flushed. Found at a start it means a crash."""

    def __init__(self, root: Path) -> None:
        self._path = root / "abort"

    def present(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        """Raises OSError."""
        self._path.write_text(str(os.getpid()))

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
