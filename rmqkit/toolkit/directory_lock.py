"""The file `lock` of a store directory: one process at a time, for whatever store is in it (store-format
sheet, section 5.2)."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from rmqkit.errors import StoreError, StoreInUse

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where clients load the stores
    fcntl = None  # type: ignore[assignment]

#: Directories held by this process, by device and inode: a record lock does not keep out its own process, and
#: closing any descriptor of the lock file would give the lock away.
_held: set[tuple[int, int]] = set()
#: Linux's struct flock: type, whence, start, length, process.
_FLOCK = Struct("hhqqi4x")


class DirectoryLock:
    """The lock of a store directory: an exclusive POSIX record lock on byte 0 of the file `lock`, as in
    Java."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def take(self) -> None:
        """Create the directory and take the lock. Raises StoreInUse with the directory, StoreError where the
        system has no such locks, OSError; then nothing is locked."""
        if fcntl is None:
            raise StoreError("this system has no locks such as stores on disk need: brokers do not run here")
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
        """Release the lock; a second call does nothing."""
        if self._identity is not None:
            _held.discard(self._identity)
            self._identity = None
            os.close(self._fd)


def lock_holder(root: Path) -> int | None:
    """The process that holds the lock of a directory; None when there is none (or `lock` is not readable).
    The lock is not changed.

    A number of 0 or less is that of a process that is not visible here, for example in another container.
    """
    try:
        status = root.stat()
        if (status.st_dev, status.st_ino) in _held:
            return os.getpid()
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(process)
