"""System calls that may fail or block on a disk. A store gets one `Disk`; tests pass one that fails
intentionally."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rmqkit.errors import StoreNotWritable
from rmqkit.model.buffer import Buffer

_log = logging.getLogger(__name__)

_DESCRIPTOR_WAIT_S = 0.1
_ZERO_CHUNK_BYTES = 1024 * 1024
#: Maximum number of buffers per call (Linux: UIO_MAXIOV).
_IOV_MAX = 1024
#: linux/falloc.h: FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE, which it requires.
_PUNCH_HOLE = 0x02 | 0x01
#: The flag for a file without a name (open(2)), and the errors where there are no such files or no /proc.
_UNNAMED = getattr(os, "O_TMPFILE", 0)
_UNNAMED_IMPOSSIBLE = frozenset(
    (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.EPERM)
)


def _system_call(name: str, *arguments: type) -> ctypes._NamedFuncPointer | None:
    """A system call that Python does not have; None if the system has none."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


_fallocate = _system_call("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_syncfs = _system_call("syncfs", ctypes.c_int)
#: Number of files from which on file systems are flushed as a whole: each flush of a new file or directory is
#: a commit of the file system's journal.
MANY_FILES = 256
#: The first Linux whose syncfs reports failed writes.
_SYNCFS_REPORTS = (5, 8)


class Disk:
    """All offsets and lengths in bytes. Errors are the OSError of the system call.

    `reads_block`: reads wait for the device; otherwise they return None for data that is not in memory.
    """

    reads_block = False

    @contextlib.contextmanager
    def blocking_reads(self) -> Iterator[None]:
        """Set `reads_block` within the context."""
        before, self.reads_block = self.reads_block, True
        try:
            yield
        finally:
            self.reads_block = before

    def read(self, fd: int, start: int, stop: int) -> bytes | bytearray | None:
        """Bytes [start, stop) of a file; None when they are not in memory and reads must not block. Blocks
        on file systems that cannot report what is in memory."""
        if self.reads_block:
            return os.pread(fd, stop - start, start)
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

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Allocate real blocks for a range, so that writing it cannot find the disk full."""
        os.posix_fallocate(fd, offset, length)

    def punch(self, fd: int, start: int, stop: int) -> None:
        """Turn the bytes [start, stop), which end the file, into a hole. The file keeps its length, because
        a mapping of it may be read meanwhile; on file systems without holes it loses it for a moment."""
        if start < stop and (_fallocate is None or _fallocate(fd, _PUNCH_HOLE, start, stop - start) != 0):
            code = errno.EOPNOTSUPP if _fallocate is None else ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(code, os.strerror(code))
            os.ftruncate(fd, start)
            os.ftruncate(fd, stop)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts consecutively with one call (joining them first measured faster than
        pwritev for parts of 1 KiB)."""
        data = b"".join(parts)
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            more = os.pwrite(fd, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the device took no bytes")
            written += more

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write many parts from a worker thread, with as few calls as possible and without joining them,
        which would hold the interpreter lock. Raises OSError."""
        for at in range(0, len(parts), _IOV_MAX):
            group = parts[at : at + _IOV_MAX]
            size = sum(map(len, group))
            written = os.pwritev(fd, group, offset)
            if written < size:
                self.write(fd, [memoryview(b"".join(group))[written:]], offset + written)
            offset += size

    def sync(self, fd: int) -> None:
        """Flush a file's data to the device."""
        os.fdatasync(fd)

    def sync_path(self, path: Path) -> None:
        """Flush a file or directory by name; a deleted file is ignored."""
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

    def sync_paths(self, paths: Sequence[Path]) -> None:
        """Flush files and directories by name, in this order; deleted ones are ignored. Many of them are
        flushed together with everything else on their file systems. Raises OSError."""
        if len(paths) < MANY_FILES or _syncfs is None or not _reports_failed_writes():
            for path in paths:
                self.sync_path(path)
            return
        seen: set[int] = set()
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                device = os.stat(path).st_dev
                if device not in seen:
                    fd = _open_when_possible(path)
                    try:
                        self.sync_file_system(fd)
                    finally:
                        os.close(fd)
                    seen.add(device)

    def sync_file_system(self, fd: int) -> None:
        """Flush the file system of a file."""
        assert _syncfs is not None
        if _syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def _reports_failed_writes() -> bool:
    numbers = re.findall(r"\d+", os.uname().release)[:2]
    return tuple(map(int, numbers)) >= _SYNCFS_REPORTS


def delete_file(path: Path, directory_fd: int | None = None) -> int:
    """Delete a file and return the bytes its blocks use, 0 if it does not exist. Raises OSError.

    With `directory_fd` only the last part of the path is used, and the file is looked up in that directory,
    even if another directory has its name by now.
    """
    name = path if directory_fd is None else path.name
    try:
        taken = os.stat(name, dir_fd=directory_fd).st_blocks * 512
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return 0
    return taken


def _open_when_possible(path: Path) -> int:
    """Open for reading. If connections use all descriptors, wait in this thread until one is free: this is
    not a fault of the device, and the store must not refuse messages because of it. Raises OSError."""
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
    """Open a file for reading and writing; a new file is created with its full length. Returns the
    descriptor. Raises OSError, after which nothing is open.

    A new file gets its name last, because RocketMQ 4 does not load a store with a file of another length, and
    a process can be killed between two system calls. Where that is not possible, it gets its name first.
    """
    with contextlib.suppress(FileNotFoundError):
        return _with_length(os.open(path, os.O_RDWR | os.O_CLOEXEC), size_bytes)
    with contextlib.suppress(_NoUnnamedFiles):
        _create_whole(path, size_bytes)
    return _with_length(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), size_bytes)


class _NoUnnamedFiles(Exception):
    """A file cannot get its name after its length here."""


def _create_whole(path: Path, size_bytes: int) -> None:
    """Create a file that gets its name last, unless there is one. It must be opened again by its name: the
    system shows the files of a process by the names by which they were opened. Raises OSError,
    _NoUnnamedFiles."""
    fd = -1
    try:
        fd = os.open(path.parent, os.O_RDWR | _UNNAMED | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, size_bytes)
        # Given a descriptor, which an absolute path makes irrelevant, Python calls linkat, which follows the
        # link in /proc.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in _UNNAMED_IMPOSSIBLE:
            raise _NoUnnamedFiles from error
        raise
    finally:
        if fd >= 0:
            os.close(fd)


def _with_length(fd: int, size_bytes: int) -> int:
    """Give a file this length, and its descriptor back; if that fails it is closed. Raises OSError."""
    try:
        if os.fstat(fd).st_size != size_bytes:
            os.ftruncate(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def zero_range(fd: int, start: int, stop: int) -> int:
    """Zero the bytes [start, stop); holes remain holes. Returns the distance from `start` to the end of the
    last byte that was not zero. Raises OSError.

    Nothing is read ahead: pages of allocated blocks that were never written would be data from then on, and
    the next call would read them all.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    found = 0
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
            found = at + len(data.rstrip(b"\0")) - start
            os.pwrite(fd, bytes(len(data)), at)
        at += len(data)
    return found


def not_writable(what: str, error: OSError) -> StoreNotWritable:
    """The StoreNotWritable for a failed system call, with the operation and the system's reason."""
    return StoreNotWritable(f"{what}: {error.strerror or error}")
