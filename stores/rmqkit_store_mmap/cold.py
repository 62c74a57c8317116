"""Data that is only on the device, and reading it into memory in worker threads."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import field, frozen

_CHUNK_BYTES = 256 * 1024


class Cold(ABC):
    """One item of `NotInMemory.cold`. The methods wait for the device and are for worker threads. They raise
    OSError."""

    @property
    @abstractmethod
    def path(self) -> Path: ...

    @abstractmethod
    def advise(self, fd: int) -> None:
        """Ask the device to start reading."""

    @abstractmethod
    def read(self, fd: int) -> None:
        """Read everything into memory."""


@frozen
class FileRange(Cold):
    """Bytes [start, stop) of a file, and `ahead_bytes` after them that the reader probably needs next."""

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
    """Ask the device for all pieces, then wait for them. Errors, such as a missing file or a failing device,
    are ignored here: the reader meets them again."""
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
