"""Data that is on the device alone: noticing it when a file is read, and bringing it into memory in worker threads."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import field, frozen

_CHUNK_BYTES = 256 * 1024


class Cold(ABC):
    """A piece of what `NotInMemory.cold` names. The methods wait for the device, so they are for worker threads. They raise OSError."""

    @property
    @abstractmethod
    def path(self) -> Path: ...

    @abstractmethod
    def advise(self, fd: int) -> None:
        """Have the device begin."""

    @abstractmethod
    def read(self, fd: int) -> None:
        """Bring everything into memory."""


@frozen
class FileRange(Cold):
    """Bytes [start, stop) of a file. `ahead_bytes` behind them are worth having too, for somebody who goes on there."""

    path: Path
    start: int
    stop: int
    ahead_bytes: int = field(default=0, eq=False)

    def advise(self, fd: int) -> None:
        os.posix_fadvise(fd, self.start, self.stop - self.start + self.ahead_bytes, os.POSIX_FADV_WILLNEED)

    def read(self, fd: int) -> None:
        buffer = bytearray(min(_CHUNK_BYTES, self.stop - self.start))
        for at in range(self.start, self.stop, _CHUNK_BYTES):
            os.preadv(fd, [memoryview(buffer)[: min(_CHUNK_BYTES, self.stop - at)]], at)


def bring_in(pieces: Iterable[object]) -> None:
    """The device is told of all pieces before the first is waited for. Errors are left to who touches the data: a file that is gone, a device that fails."""
    with contextlib.ExitStack() as stack:
        told: list[tuple[Cold, int]] = []
        for piece in pieces:
            if isinstance(piece, Cold):
                with contextlib.suppress(OSError):
                    fd = stack.enter_context(_opened(piece.path))
                    piece.advise(fd)
                    told.append((piece, fd))
        for piece, fd in told:
            with contextlib.suppress(OSError):
                piece.read(fd)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def read_in_memory(fd: int, start: int, stop: int) -> bytes | bytearray | None:
    """Bytes of a file without waiting for the device, None when that is not possible; a file system that cannot say what is in memory is waited for.
    Raises OSError."""
    data = bytearray(stop - start)
    try:
        if os.preadv(fd, [data], start, os.RWF_NOWAIT) == len(data):
            return data
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return os.pread(fd, len(data), start)
        if error.errno != errno.EAGAIN:
            raise
    return None
