"""The system calls behind which a disk is full or fails. A store gets one `Disk`; tests hand it one that fails on purpose."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from rmqkit.abc import Buffer
from rmqkit.errors import StoreNotWritable

_ZERO_CHUNK_BYTES = 1024 * 1024


class Disk:
    """All offsets and lengths in bytes. Errors are OSError as the system gives them."""

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Give a range real blocks, so that writing it cannot find the disk full."""
        os.posix_fallocate(fd, offset, length)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts one behind the other with one call (joining them first measured faster than pwritev for parts of 1 KiB)."""
        data = memoryview(b"".join(parts))
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            more = os.pwrite(fd, data[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the device took no bytes")
            written += more

    def sync(self, fd: int) -> None:
        """Bring a file's data to the device."""
        os.fdatasync(fd)

    def sync_path(self, path: Path) -> None:
        """The same by name, for files and directories; a file that is gone needs nothing."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            if path.is_dir():
                os.fsync(fd)
            else:
                self.sync(fd)
        finally:
            os.close(fd)


def create_file(path: Path, size_bytes: int) -> int:
    """Open a file for reading and writing, made at full length if it is new; returns the descriptor. Raises OSError, and then nothing is open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(fd).st_size != size_bytes:
            os.ftruncate(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def zero_range(fd: int, start: int, stop: int) -> bool:
    """Make every byte of [start, stop) zero; holes stay holes. Returns whether there was anything else. Raises OSError."""
    found = False
    at = start
    while at < stop:
        try:
            at = max(at, os.lseek(fd, at, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        data = os.pread(fd, min(_ZERO_CHUNK_BYTES, stop - at), at) if at < stop else b""
        if not data:
            break
        if data.count(0) != len(data):
            found = True
            os.pwrite(fd, bytes(len(data)), at)
        at += len(data)
    return found


def not_writable(what: str, error: OSError) -> StoreNotWritable:
    """The refusal a failed system call turns into; names what was attempted and the system's reason."""
    return StoreNotWritable(f"{what}: {error.strerror or error}")
