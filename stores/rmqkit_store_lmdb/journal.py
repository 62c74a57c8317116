"""The journal: what was appended and is not in LMDB yet, or not on the device in LMDB.

A transaction of LMDB writes several pages however little it brings, and a flush of it waits for the device twice. So each append is one write to the end of a
file, which survives the death of the process, and one flush of it survives that of the machine; LMDB gets many appends in one transaction later.

A file is named after its first frame. Frames count from 1, and stand one behind the other:

    at  size     field                          at  size     field
     0     4     CRC-32 of all from 4 on        16     4     kind: 1 records, 2 a queue was deleted
     4     4     bytes behind the header        20     4     n, records in it
     8     8     frame number                   24           kind 1: n tags codes i64, then n records; kind 2: the queue's key

The journal ends where no frame with the next number follows. Space is taken ahead, so that a flush need not write down how long the file is, and so that a full
disk is noticed before anything is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from attrs import define

from rmqkit.errors import StoreCorrupt
from rmqkit_store_lmdb.snapshot import sync_directory

RECORDS, DELETED = 1, 2
#: A new file is begun when one is as large as this.
FILE_BYTES = 32 * 1024 * 1024
#: So much space is taken at first, then as much again as there is, so that small stores stay small.
_FIRST_BYTES = 256 * 1024
_MOST_BYTES = 8 * 1024 * 1024
_HEAD = Struct(">IIQII")
_REST = Struct(">IQII")
_HEAD_BYTES = _HEAD.size
_PREFIX = "journal-"


class Frame(NamedTuple):
    """One append, or the deletion of a queue. `records` is how many there are, `data` what is behind the header."""

    number: int
    kind: int
    records: int
    data: bytes


@define(eq=False)
class File:
    """A file of the journal; `fd` is -1 unless it is being written or waits to be flushed, `entered` whether its name is on the device."""

    path: Path
    first: int
    fd: int = -1
    end: int = 0
    room: int = 0
    entered: bool = False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Journal:
    """`number` is the last frame's, `written_bytes` what was written since the journal was loaded. `flush` and `remove` are for worker threads, all else is
    for the loop."""

    def __init__(self, directory: Path) -> None:
        self.number = 0
        self.written_bytes = 0
        self._directory = directory
        self._files: list[File] = []
        self._current: File | None = None
        self._unflushed: list[File] = []

    def load(self, after: int) -> Iterator[Frame]:
        """The frames behind number `after`, in order; the journal goes on behind the last one, and all of it is on the device then. Raises StoreCorrupt when
        one is missing, OSError."""
        self.close()
        self.number, self.written_bytes, self._files = after, 0, []
        files = journal_files(self._directory)
        if files and files[0].first > after + 1:
            raise StoreCorrupt(f"{self._directory}: frame {after + 1} of the journal is missing, it begins with {files[0].first}")
        for file in files:
            if file.first > self.number + 1:
                break
            self._files.append(file)
            for frame in frames_of(file.path):
                if frame.number == self.number + 1:
                    self.number = frame.number
                    yield frame
        while self._files and self._files[-1].first > self.number:
            self._files.pop()
        remove([file.path for file in files[len(self._files) :]])
        self._flush_loaded()

    def _flush_loaded(self) -> None:
        """What the process before wrote need not be on the device."""
        for file in self._files:
            fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)
        sync_directory(self._directory)

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, kind: int, count: int, data: bytes) -> None:
        """Write one frame. Raises OSError, and then there is none."""
        number = self.number + 1
        rest = _REST.pack(len(data), number, kind, count)
        head = crc32(data, crc32(rest)).to_bytes(4, "big") + rest
        size = _HEAD_BYTES + len(data)
        file = self._current
        if file is None or (file.end and file.end + size > FILE_BYTES):
            file = self._begin_file(number)
        if file.end + size > file.room:
            _take_room(file, size)
        self.write(file.fd, head, data, file.end)
        file.end += size
        self.number = number
        self.written_bytes += size

    def write(self, fd: int, head: bytes, data: bytes, at: int) -> None:
        """Raises OSError."""
        if os.pwritev(fd, (head, data), at) != len(head) + len(data):
            raise OSError(errno.EIO, "a write was cut short")

    def _begin_file(self, number: int) -> File:
        path = self._directory / f"{_PREFIX}{number:020}"
        file = File(path, number, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        self._files.append(file)
        self._unflushed.append(file)
        self._current = file
        return file

    # --- the device --------------------------------------------------------------------------------------------------

    def hold(self) -> list[File]:
        """What `flush` has to flush to have everything on the device that was written until now."""
        return list(self._unflushed)

    def flush(self, files: Sequence[File]) -> None:
        """Raises OSError."""
        for file in files:
            os.fdatasync(file.fd)
        if not all(file.entered for file in files):
            sync_directory(self._directory)
            for file in files:
                file.entered = True

    def flushed(self, files: Sequence[File]) -> None:
        """`flush` is done."""
        for file in files:
            if file is not self._current:
                self._unflushed.remove(file)
                file.close()

    def drop(self, number: int) -> list[Path]:
        """Forget the files that have no frame behind `number`, none of which a flush may hold; they are for `remove` now."""
        gone = [file for file, following in zip(self._files, self._files[1:], strict=False) if following.first <= number + 1]
        for file in gone:
            self._files.remove(file)
            if file in self._unflushed:
                self._unflushed.remove(file)
            file.close()
        return [file.path for file in gone]

    def used_bytes(self) -> int:
        """What the files take on the disk. Raises OSError."""
        return sum(file.path.stat().st_blocks for file in self._files) * 512

    def close(self, *, clean: bool = False) -> None:
        """`clean`: everything is in LMDB and on the device; nothing of the journal is left. A second call does nothing. Raises OSError."""
        files, self._files, self._unflushed, self._current = self._files, [], [], None
        for file in files:
            file.close()
        if clean:
            remove([file.path for file in files])


def _take_room(file: File, size: int) -> None:
    """Raises OSError when the disk is full."""
    more = max(size, min(max(file.room, _FIRST_BYTES), _MOST_BYTES))
    try:
        os.posix_fallocate(file.fd, file.room, more)
    except OSError as error:
        if error.errno != errno.ENOSPC or more == size:
            raise
        more = size
        os.posix_fallocate(file.fd, file.room, more)
    file.room += more


def journal_files(directory: Path) -> list[File]:
    """The files that are there, in order. Raises OSError."""
    return [File(path, int(path.name.removeprefix(_PREFIX))) for path in sorted(directory.glob(f"{_PREFIX}*"))]


def frames_of(path: Path) -> Iterator[Frame]:
    """The frames of a file, up to the first that is not whole. Raises OSError."""
    data = memoryview(path.read_bytes())
    at, expected = 0, 0
    while at + _HEAD_BYTES <= len(data):
        crc, size, number, kind, count = _HEAD.unpack_from(data, at)
        end = at + _HEAD_BYTES + size
        if not number or (expected and number != expected) or end > len(data) or crc32(data[at + 4 : end]) != crc:
            return
        yield Frame(number, kind, count, bytes(data[at + _HEAD_BYTES : end]))
        at, expected = end, number + 1


def behind(directory: Path, number: int) -> bool:
    """Whether the journal holds frames behind `number`. Raises OSError."""
    return any(frame.number > number for file in journal_files(directory) for frame in frames_of(file.path))


def remove(paths: Sequence[Path]) -> None:
    """Raises OSError."""
    for path in paths:
        path.unlink(missing_ok=True)
