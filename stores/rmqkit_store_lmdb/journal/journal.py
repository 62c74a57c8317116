"""The journal: appended data that is not in LMDB yet, or not on the device in LMDB.

An LMDB transaction writes several pages however small it is, and its flush waits for the device twice. So
each append is one write to the end of a file, which survives a failure of the process, and with one flush a
failure of the machine; LMDB later gets many appends in one transaction.

A file is named after its first frame. Frames count from 1, and stand one behind the other:

    at  size     field                          at  size     field
     0     4     CRC-32 of all from 4 on        16     4     kind: 1 records, 2 a queue was deleted
     4     4     bytes behind the header        20     4     n, records in it
     8     8     frame number                   24           kind 1: n tags codes i64, then n records; a
                 gap after them, if any, as the head of a blank record and the log offset after it, i64;
                 kind 2: the queue's key

The journal ends where no later frame follows. A damaged frame followed by later ones is skipped: the later
ones were promised, and their numbers and CRCs prove their place. Space is allocated in advance, so that a
flush need not write the file's length, and a full disk is detected before writing.
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
from rmqkit.protocol.record import MIN_RECORD_BYTES
from rmqkit_store_lmdb.journal.snapshot import sync_directory

RECORDS, DELETED = 1, 2
#: Not in files: records of a frame with a wrong CRC, some of which may be valid.
DAMAGED = 3
#: A new file is started at this size.
FILE_BYTES = 32 * 1024 * 1024
#: Space allocated first; then as much again as there is, so that small stores stay small.
_FIRST_BYTES = 256 * 1024
_MOST_BYTES = 8 * 1024 * 1024
_HEAD = Struct(">IIQII")
_REST = Struct(">IQII")
_HEAD_BYTES = _HEAD.size
_CODE_BYTES = 8
_PREFIX = "journal-"
#: Maximum number of parts that one system call takes on every system.
_MOST_PARTS = 16
#: Maximum number of consecutive damaged frames after which later ones are still found.
_MOST_LOST = 64


class Frame(NamedTuple):
    """One append, or the deletion of a queue. `records` is the number of records, `data` the content after
    the header."""

    number: int
    kind: int
    records: int
    data: bytes


@define(eq=False)
class File:
    """A file of the journal; `fd` is -1 unless it is being written or waits to be flushed; `entered` tells
    whether its name is on the device."""

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
    """`number` is the last frame's, `written_bytes` what was written since the journal was loaded. `flush`
    and `remove` are for worker threads, all else is for the loop."""

    def __init__(self, directory: Path) -> None:
        self.number = 0
        self.written_bytes = 0
        self._directory = directory
        self._files: list[File] = []
        self._current: File | None = None
        self._unflushed: list[File] = []

    def load(self, after: int) -> Iterator[Frame]:
        """The frames after number `after`, in order; the journal continues after the last one, and all of it
        is on the device then. A missing number belongs to a lost frame. Raises StoreCorrupt when the first
        file is missing, OSError."""
        self.close()
        self.number, self.written_bytes, self._files = after, 0, []
        files = journal_files(self._directory)
        if files and files[0].first > after + 1:
            raise StoreCorrupt(
                f"{self._directory}: frame {after + 1} of the journal is missing, it begins with"
                f" {files[0].first}"
            )
        used = 0
        for count, file in enumerate(files, 1):
            for frame, end in frames_of(file.path, file.first):
                file.end = end
                if frame.number > self.number:
                    self.number = frame.number
                    used = count
                    yield frame
        used = max(used, len([file for file in files if file.first <= self.number]))
        self._files = files[:used]
        remove([file.path for file in files[used:]])
        self._flush_loaded()

    def _flush_loaded(self) -> None:
        """Flush the frames written by the previous process, and make sure that bytes after the last frame are
        never found later."""
        for file in self._files:
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, file.end)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        sync_directory(self._directory)

    # --- writing --------------------------------------------------------------------------------------------

    def put(self, kind: int, count: int, parts: Sequence[bytes]) -> None:
        """Write one frame with these parts as its content. Raises OSError, without effect."""
        number = self.number + 1
        data_bytes = sum(map(len, parts))
        rest = _REST.pack(data_bytes, number, kind, count)
        crc = crc32(rest)
        for part in parts:
            crc = crc32(part, crc)
        head = crc.to_bytes(4, "big") + rest
        size = _HEAD_BYTES + data_bytes
        file = self._current
        if file is None or (file.end and file.end + size > FILE_BYTES):
            file = self._begin_file(number)
        if file.end + size > file.room:
            _take_room(file, size)
        self.write(file.fd, [head, *parts], size, file.end)
        file.end += size
        self.number = number
        self.written_bytes += size

    def write(self, fd: int, parts: Sequence[bytes], size_bytes: int, at: int) -> None:
        """Write parts one after the other at a place of a file. Raises OSError."""
        if len(parts) > _MOST_PARTS:
            parts = (b"".join(parts),)
        if os.pwritev(fd, parts, at) != size_bytes:
            raise OSError(errno.EIO, "a write was cut short")

    def _begin_file(self, number: int) -> File:
        path = self._directory / f"{_PREFIX}{number:020}"
        file = File(path, number, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        self._files.append(file)
        self._unflushed.append(file)
        self._current = file
        return file

    # --- the device -----------------------------------------------------------------------------------------

    def hold(self) -> list[File]:
        """The files to flush so that everything written until now is on the device."""
        return list(self._unflushed)

    def flush(self, files: Sequence[File]) -> None:
        """Bring files and their names to the device. Raises OSError."""
        for file in files:
            os.fdatasync(file.fd)
        if not all(file.entered for file in files):
            sync_directory(self._directory)
            for file in files:
                file.entered = True

    def flushed(self, files: Sequence[File]) -> None:
        """Record the completion of `flush`."""
        for file in files:
            if file is not self._current:
                self._unflushed.remove(file)
                file.close()

    def drop(self, number: int) -> list[Path]:
        """Drop the files without frames after `number`, none of which a flush may hold; they are then for
        `remove`."""
        gone = [
            file
            for file, following in zip(self._files, self._files[1:], strict=False)
            if following.first <= number + 1
        ]
        for file in gone:
            self._files.remove(file)
            if file in self._unflushed:
                self._unflushed.remove(file)
            file.close()
        return [file.path for file in gone]

    def close(self, *, clean: bool = False) -> None:
        """Close; `clean`: everything is in LMDB and on the device, and the journal is deleted. A second call
        does nothing. Raises OSError."""
        files, self._files, self._unflushed, self._current = self._files, [], [], None
        for file in files:
            file.close()
        if clean:
            remove([file.path for file in files])


def _take_room(file: File, size: int) -> None:
    """Allocate space at the end of a file. Raises OSError when the disk is full."""
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
    """The existing files, in order. Raises OSError."""
    return [
        File(path, int(path.name.removeprefix(_PREFIX))) for path in sorted(directory.glob(f"{_PREFIX}*"))
    ]


def frames_of(path: Path, first: int) -> Iterator[tuple[Frame, int]]:
    """The frames of a file that begins with frame number `first`, each with the position after it; for a
    damaged one followed by others, the content of its header if that is readable. Raises OSError."""
    data = path.read_bytes()
    view, used = memoryview(data), len(data.rstrip(b"\0"))
    at, expected = 0, first
    while at < used:
        frame, end = _frame_at(view, at)
        if frame is None or frame.number < expected:
            following = _next_frame(data, at, used, expected)
            if following < 0:
                return
            size, number, kind, count = _REST.unpack_from(data, at + 4)
            legible = number == expected and kind == RECORDS and at + _HEAD_BYTES + size == following
            if legible and count * (_CODE_BYTES + MIN_RECORD_BYTES) <= size:
                yield Frame(number, DAMAGED, count, data[at + _HEAD_BYTES : following]), following
            at = following
            continue
        yield frame, end
        at, expected = end, frame.number + 1


def _frame_at(data: memoryview, at: int) -> tuple[Frame | None, int]:
    """The complete frame at a position, and the position after it."""
    if at + _HEAD_BYTES > len(data):
        return None, at
    crc, size, number, kind, count = _HEAD.unpack_from(data, at)
    end = at + _HEAD_BYTES + size
    if not number or end > len(data) or crc32(data[at + 4 : end]) != crc:
        return None, at
    return Frame(number, kind, count, bytes(data[at + _HEAD_BYTES : end])), end


def _next_frame(data: bytes, at: int, stop: int, damaged: int) -> int:
    """The position of the first complete frame after the damaged one with a number; -1 when there is none.
    Frames are recognised by their numbers."""
    view = memoryview(data)
    for number in range(damaged + 1, damaged + 1 + _MOST_LOST):
        needle = number.to_bytes(8, "big")
        place = data.find(needle, at + _HEAD_BYTES, stop)
        while place >= 0:
            frame, _ = _frame_at(view, place - 8)
            if frame is not None and frame.number == number:
                return place - 8
            place = data.find(needle, place + 1, stop)
    return -1


def behind(directory: Path, number: int) -> bool:
    """Whether the journal contains frames after `number`. Raises OSError."""
    return any(
        frame.number > number
        for file in journal_files(directory)
        for frame, _ in frames_of(file.path, file.first)
    )


def remove(paths: Sequence[Path]) -> None:
    """Delete files, which may be missing. Raises OSError."""
    for path in paths:
        path.unlink(missing_ok=True)
