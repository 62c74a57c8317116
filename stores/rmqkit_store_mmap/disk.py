"""The system calls behind which a disk is full or fails. A store gets one `Disk`; tests hand it one that fails on purpose."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rmqkit.abc import Buffer
from rmqkit.errors import StoreNotWritable

_log = logging.getLogger(__name__)

_DESCRIPTOR_WAIT_S = 0.1
_ZERO_CHUNK_BYTES = 1024 * 1024
#: Buffers that one call takes (Linux: UIO_MAXIOV).
_IOV_MAX = 1024


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

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """The same for a worker thread: with as few calls as it takes, and without joining, during which the loop would stand still."""
        for at in range(0, len(parts), _IOV_MAX):
            group = parts[at : at + _IOV_MAX]
            size = sum(map(len, group))
            written = os.pwritev(fd, group, offset)
            if written < size:
                self.write(fd, [memoryview(b"".join(group))[written:]], offset + written)
            offset += size

    def sync(self, fd: int) -> None:
        """Bring a file's data to the device."""
        os.fdatasync(fd)

    def sync_path(self, path: Path) -> None:
        """The same by name, for files and directories; a file that is gone needs nothing."""
        try:
            fd = _open_when_possible(path)
        except FileNotFoundError:
            return
        try:
            if path.is_dir():
                os.fsync(fd)
            else:
                self.sync(fd)
        finally:
            os.close(fd)


def delete_file(path: Path, directory_fd: int | None = None) -> int:
    """Delete a file and return the bytes its blocks take; 0 when it is gone already. Raises OSError.

    With `directory_fd` only the last part of the path counts, and the file is looked for in that directory, even if another one has its name by now.
    """
    name = path if directory_fd is None else path.name
    try:
        taken = os.stat(name, dir_fd=directory_fd).st_blocks * 512
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return 0
    return taken


def _open_when_possible(path: Path) -> int:
    """Open for reading. When connections have taken the last descriptor, wait in this thread until one comes back: that is no fault of the device,
    and a store that took it for one would take no message any more. Raises OSError."""
    waiting = False
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not waiting:
                _log.warning("%s cannot be flushed until there are free file descriptors", path)
        waiting = True
        time.sleep(_DESCRIPTOR_WAIT_S)


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
        if at >= stop:
            break
        data = os.pread(fd, min(_ZERO_CHUNK_BYTES, stop - at, os.lseek(fd, at, os.SEEK_HOLE) - at), at)
        if not data:
            break
        if data != bytes(len(data)):
            found = True
            os.pwrite(fd, bytes(len(data)), at)
        at += len(data)
    return found


def not_writable(what: str, error: OSError) -> StoreNotWritable:
    """The refusal a failed system call turns into; names what was attempted and the system's reason."""
    return StoreNotWritable(f"{what}: {error.strerror or error}")
