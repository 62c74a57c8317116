"""One consume queue (store-format sheet, section 3; Java: ConsumeQueue). The file that is being written is mapped; older ones are read by name."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from rmqkit.abc import FileRange, QueueUnit
from rmqkit.errors import StoreCorrupt
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, record_size
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap.commit_log import checked_files
from rmqkit_store_mmap.disk import Disk, create_file, not_writable, zero_range
from rmqkit_store_mmap.queue_trim import QueueFiles, first_kept
from rmqkit_store_mmap.segment import offset_name
from rmqkit_store_mmap.units import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES

__all__ = ["FILLER", "FILLER_SIZE", "UNIT", "UNIT_BYTES", "ConsumeQueue", "MappedFiles", "NotInMemory"]

#: Disk is taken this far ahead in a queue's file; there may be thousands of queues.
ALLOCATION_STEP_BYTES = 64 * 1024
#: Files of queues that are mapped at a time; each costs a descriptor.
MAX_MAPPED_FILES = 384
#: The end of the mapped file that is taken to be in memory.
HOT_BYTES = 1024 * 1024
_RECOVERED_FILES = 3
_NOT_MAPPED = bytearray()
_READ_UNITS = 1024


class NotInMemory(Exception):
    """A read that must not wait for the device would have to; inside this package only."""

    def __init__(self, where: FileRange) -> None:
        super().__init__(where)
        self.where = where


class MappedFiles:
    """Bounds the mapped queue files: the first one that was not written to since it was last looked at is let go."""

    def __init__(self, limit: int = MAX_MAPPED_FILES) -> None:
        self._limit = limit
        self._queues: deque[ConsumeQueue] = deque()

    def mapped(self, queue: ConsumeQueue) -> None:
        queue.touched = True
        self._queues.append(queue)
        while len(self._queues) > self._limit:
            oldest = self._queues.popleft()
            if oldest.touched:
                oldest.touched = False
                self._queues.append(oldest)
            else:
                oldest.unmap()

    def forget(self, queue: ConsumeQueue) -> None:
        if queue in self._queues:
            self._queues.remove(queue)


class ConsumeQueue:
    """The units of one queue. Offsets count units; `next_offset` is exclusive. `room_end` is the first offset with no disk under it yet.

    What an append needs of a queue is kept ready here: `magic`, `fixed_bytes` (a record less body and properties), `topic_field`
    (length and name as a record has them) and `key_code` (hash of `topic#`).
    """

    def __init__(self, topic: str, queue_id: int, directory: Path, file_bytes: int, disk: Disk, mapped: MappedFiles) -> None:
        name = topic.encode()
        long = len(name) > 127
        self.topic = topic
        self.queue_id = queue_id
        self.magic = MAGIC_V2 if long else MAGIC_V1
        self.topic_field = len(name).to_bytes(2 if long else 1, "big") + name
        self.fixed_bytes = record_size(0, len(name), 0, 0)
        self.key_code = extend_hash(0, f"{topic}#")
        self.directory = directory
        self.file_units = file_bytes // UNIT_BYTES
        self.min_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self.max_physical = 0
        self.view: mmap.mmap | bytearray = _NOT_MAPPED
        self.base_offset = 0
        self.room_end = 0
        self.touched = False
        self._map: mmap.mmap | None = None
        self._file_bytes = file_bytes
        self._first = 0
        self._new_files = False
        self._disk = disk
        self._mapped = mapped

    # --- writing -----------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Have the unit at `next_offset` mapped and on allocated disk. Raises StoreNotWritable."""
        base = self.next_offset - self.next_offset % self.file_units
        at = (self.next_offset - base) * UNIT_BYTES
        path = self._path(base)
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True)
            self._new_files |= not path.exists()
            fd = create_file(path, self._file_bytes)
            try:
                stop = min(self._file_bytes, -(-(at + UNIT_BYTES) // ALLOCATION_STEP_BYTES) * ALLOCATION_STEP_BYTES)
                self._disk.allocate(fd, at, stop - at)
                if self._map is None or base != self.base_offset:
                    self.unmap()
                    self.view = self._map = mmap.mmap(fd, self._file_bytes)
                    self.base_offset = base
                    self._mapped.forget(self)
                    self._mapped.mapped(self)
            finally:
                os.close(fd)
        except OSError as error:
            raise not_writable(f"no disk for {path}", error) from error
        self.room_end = base + stop // UNIT_BYTES

    def put(self, physical_offset: int, size_bytes: int, tags_code: int) -> None:
        """Append one unit. Raises StoreNotWritable. (MmapStore.append has these lines inline.)"""
        if self.next_offset >= self.room_end:
            self.make_room()
        UNIT.pack_into(self.view, (self.next_offset - self.base_offset) * UNIT_BYTES, physical_offset, size_bytes, tags_code)
        self.next_offset += 1
        self.touched = True
        if size_bytes != FILLER_SIZE:
            self.max_physical = physical_offset + size_bytes

    def put_filler(self) -> None:
        """Append a unit without a record: the one that belongs here is lost. Raises StoreNotWritable."""
        self.put(0, FILLER_SIZE, 0)

    def take_back(self) -> None:
        """Undo the last unit of an append that failed."""
        self.next_offset -= 1
        fd = os.open(self._path(self.next_offset - self.next_offset % self.file_units), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, bytes(UNIT_BYTES), self.next_offset % self.file_units * UNIT_BYTES)
        finally:
            os.close(fd)

    def begin_at(self, offset: int) -> None:
        """Drop everything and begin at a queue offset in the middle of a file, with filler before it (section 3.4). Raises OSError."""
        self.destroy()
        self.next_offset = self._first = offset - offset % self.file_units
        while self.next_offset < offset:
            self.put_filler()
        self.min_offset = offset
        self.flushed_offset = self._first

    def truncate(self, offset: int) -> bool:
        """Keep the units before `offset`; what lies behind becomes zeros or goes away. Returns whether there was anything. Raises OSError."""
        self.unmap()
        if offset < self.min_offset:
            self.begin_at(offset)
            return True
        found = False
        base = offset - offset % self.file_units
        for other in checked_files(self.directory, self._file_bytes) if self.directory.is_dir() else []:
            if other // UNIT_BYTES > base:
                (self.directory / offset_name(other)).unlink()
                found = True
            elif other // UNIT_BYTES == base:
                fd = os.open(self._path(base), os.O_RDWR | os.O_CLOEXEC)
                try:
                    found |= zero_range(fd, (offset - base) * UNIT_BYTES, self._file_bytes)
                finally:
                    os.close(fd)
        self.next_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._find_max_physical()
        return found

    def truncate_physical(self, end: int) -> None:
        """Drop the units of records that do not end at or before `end` (section 5.7). Raises OSError."""
        if self.max_physical > end:
            self.truncate(bisect_left(range(self.next_offset), True, self._first, key=lambda offset: self._ends_behind(offset, end)))

    def correct_min(self, log_min: int) -> None:
        """Move `min_offset` to the first unit whose record is there (Java: correctMinOffset). Raises OSError."""
        self.min_offset = first_kept(self.files(), log_min)

    def files(self) -> QueueFiles:
        """The queue as it is now, for a worker thread."""
        return QueueFiles(self.directory, self.file_units, self._first, self.min_offset, self.next_offset)

    def files_deleted(self, count: int) -> None:
        """Take note that the first files are gone."""
        self._first += count * self.file_units

    def _ends_behind(self, offset: int, end: int) -> bool:
        unit = self.unit(offset)
        return unit.size_bytes != FILLER_SIZE and unit.physical_offset + unit.size_bytes > end

    # --- reading -----------------------------------------------------------------------------------------------------

    def data(self, offset: int, count: int, wait: bool = True) -> Iterator[bytes | bytearray]:
        """The bytes of up to `count` units from `offset` on, a piece at a time, never more than are there. Raises OSError, NotInMemory unless `wait`."""
        stop = min(offset + count, self.next_offset)
        while offset < stop:
            base = offset - offset % self.file_units
            end = min(stop, base + self.file_units, offset + _READ_UNITS)
            yield self._bytes(base, (offset - base) * UNIT_BYTES, (end - base) * UNIT_BYTES, wait)
            offset = end

    def unit(self, offset: int) -> QueueUnit:
        """The unit at `offset`, which must be there. Raises OSError."""
        base = offset - offset % self.file_units
        at = (offset - base) * UNIT_BYTES
        return QueueUnit(offset, *UNIT.unpack(self._bytes(base, at, at + UNIT_BYTES)))

    def _bytes(self, base: int, start: int, stop: int, wait: bool = True) -> bytes | bytearray:
        if self._map is not None and base == self.base_offset and (wait or (self.next_offset - base) * UNIT_BYTES - start <= HOT_BYTES):
            return self._map[start:stop]
        path = self._path(base)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, stop - start, start) if wait else _in_memory(fd, FileRange(path, start, stop))
        finally:
            os.close(fd)

    # --- files -------------------------------------------------------------------------------------------------------

    def load(self, crashed: bool, flushed_to: int | None = None) -> None:
        """Find the end of the queue (section 5.5): after a crash by walking the last three files, else by bisection. Raises StoreCorrupt, OSError.

        `flushed_to`: all units of records before this log offset are known to be on the device; after a crash the queue then ends behind them.
        """
        bases = [base // UNIT_BYTES for base in checked_files(self.directory, self._file_bytes)]
        if not bases:
            return
        if bases[0] % self.file_units:
            raise StoreCorrupt(f"{self._path(bases[0])} does not begin at a multiple of {self._file_bytes}")
        self._first = self.min_offset = bases[0]
        self.next_offset = bases[-1] + self.file_units
        start = bases[-_RECOVERED_FILES:][0]
        if crashed and flushed_to is None:
            self.next_offset = self._walk(start, self.next_offset)
        elif crashed:
            self.next_offset = start = self._find_end(bases, flushed_to)
        else:
            self.next_offset = self._find_end(bases[-_RECOVERED_FILES:], None)
        self.flushed_offset = start if crashed else self.next_offset
        self._find_max_physical()

    def _walk(self, start: int, stop: int) -> int:
        for base in range(start, stop, self.file_units):
            data = self._bytes(base, 0, self._file_bytes)
            for at, (physical_offset, size_bytes, _) in enumerate(UNIT.iter_unpack(data)):
                if physical_offset < 0 or size_bytes <= 0:
                    return base + at
        return stop

    def _find_end(self, bases: Sequence[int], log_end: int | None) -> int:
        """By bisection, first among the files: behind the last unit, of a record before `log_end` if that is given."""
        base = bases[max(0, bisect_left(bases, True, key=lambda base: _is_end(self._bytes(base, 0, UNIT_BYTES), log_end)) - 1)]
        fd = os.open(self._path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return base + bisect_left(
                range(self.file_units), True, key=lambda at: _is_end(os.pread(fd, UNIT_BYTES, at * UNIT_BYTES), log_end)
            )
        finally:
            os.close(fd)

    def _find_max_physical(self) -> None:
        self.max_physical = 0
        if self.next_offset > self._first:
            last = self.unit(self.next_offset - 1)
            if last.size_bytes != FILLER_SIZE:
                self.max_physical = last.physical_offset + last.size_bytes

    def unflushed_files(self) -> list[Path]:
        """What to flush to bring every unit to the device: files, and the directory when files were made."""
        if self.flushed_offset >= self.next_offset:
            return []
        first = self.flushed_offset - self.flushed_offset % self.file_units
        paths = [self._path(base) for base in range(first, self.next_offset, self.file_units)]
        if self._new_files:
            paths += [self.directory, self.directory.parent, self.directory.parent.parent]
            self._new_files = False
        return paths

    def unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            self.view = _NOT_MAPPED
        self.room_end = 0
        self.touched = False

    def destroy(self) -> None:
        """Delete the queue's files; it is empty and begins at 0 again. Raises OSError."""
        self.unmap()
        self._mapped.forget(self)
        if self.directory.is_dir():
            shutil.rmtree(self.directory)
        self.min_offset = self.next_offset = self.flushed_offset = self.max_physical = self._first = 0

    def path_at(self, offset: int) -> Path:
        """The file in which the unit at `offset` is or would be."""
        return self._path(offset - offset % self.file_units)

    def _path(self, base: int) -> Path:
        return self.directory / offset_name(base * UNIT_BYTES)


def _is_end(data: bytes | bytearray, log_end: int | None) -> bool:
    physical_offset, size_bytes, _ = UNIT.unpack(data)
    return physical_offset < 0 or size_bytes <= 0 or (log_end is not None and physical_offset >= log_end)


def _in_memory(fd: int, where: FileRange) -> bytes | bytearray:
    """Read without waiting for the device; a file system that cannot say what is in memory is waited for. Raises NotInMemory, OSError."""
    data = bytearray(where.stop - where.start)
    try:
        if os.preadv(fd, [data], where.start, os.RWF_NOWAIT) == len(data):
            return data
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return os.pread(fd, len(data), where.start)
        if error.errno != errno.EAGAIN:
            raise
    raise NotInMemory(where)
