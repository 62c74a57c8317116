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

from rmqkit.abc import NotInMemory, QueueUnit
from rmqkit.errors import StoreCorrupt
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, record_size
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap.cold import FileRange, read_in_memory
from rmqkit_store_mmap.commit_log import checked_files
from rmqkit_store_mmap.disk import Disk, create_file, not_writable, zero_range
from rmqkit_store_mmap.mincore import PAGES, address_of
from rmqkit_store_mmap.queue_trim import QueueFiles, first_kept
from rmqkit_store_mmap.segment import offset_name
from rmqkit_store_mmap.units import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES

__all__ = ["FILLER", "FILLER_SIZE", "UNIT", "UNIT_BYTES", "ConsumeQueue", "MappedFiles"]

#: Disk is taken this far ahead in a queue's file; there may be thousands of queues.
ALLOCATION_STEP_BYTES = 64 * 1024
#: Files of queues that are mapped at a time; each costs a descriptor.
MAX_MAPPED_FILES = 384
#: The end of the mapped file that is taken to be in memory.
HOT_BYTES = 1024 * 1024
_RECOVERED_FILES = 3
_NOT_MAPPED = bytearray()
_READ_UNITS = 1024
#: Whoever reads units that are not in memory wants what follows too.
_AHEAD_BYTES = 256 * 1024


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
        self._address = 0
        self._file_bytes = file_bytes
        self._first = 0
        #: Log offset of the record of the first unit, -1 when it is not known, or the unit is filler.
        self._first_physical = -1
        #: Whether zeros, and no files, are known to stand behind the units.
        self._ends_clean = True
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

    def clear_behind(self) -> bool:
        """Have nothing but zeros behind the units. Returns whether there was anything else. Raises OSError."""
        return not self._ends_clean and self.truncate(self.next_offset)

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
        self._ends_clean = True
        if offset == self._first:
            self._first_physical = -1
        return found

    def truncate_physical(self, end: int) -> None:
        """Drop the units of records that do not end at or before `end` (section 5.7). Raises OSError."""
        if self.max_physical > end:
            self.truncate(bisect_left(range(self.next_offset), True, self._first, key=lambda offset: self._ends_behind(offset, end)))

    def correct_min(self, log_min: int) -> None:
        """Move `min_offset` to the first unit whose record is there (Java: correctMinOffset). Raises OSError."""
        if self.min_offset > self._first or self._first_physical < log_min:
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
            yield self._bytes(base, (offset - base) * UNIT_BYTES, (end - base) * UNIT_BYTES, wait, _AHEAD_BYTES)
            offset = end

    def unit(self, offset: int, wait: bool = True) -> QueueUnit:
        """The unit at `offset`, which must be there. Raises OSError, NotInMemory unless `wait`."""
        base = offset - offset % self.file_units
        at = (offset - base) * UNIT_BYTES
        return QueueUnit(offset, *UNIT.unpack(self._bytes(base, at, at + UNIT_BYTES, wait)))

    def _bytes(self, base: int, start: int, stop: int, wait: bool = True, ahead_bytes: int = 0) -> bytes | bytearray:
        if self._map is not None and base == self.base_offset and (wait or self._is_in_memory(self._map, start, stop)):
            return self._map[start:stop]
        path = self._path(base)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, stop - start, start) if wait else read_in_memory(fd, start, stop)
        finally:
            os.close(fd)
        if data is None:
            raise NotInMemory(FileRange(path, start, stop, ahead_bytes))
        return data

    def _is_in_memory(self, mapped: mmap.mmap, start: int, stop: int) -> bool:
        """Whether bytes of the file that is mapped can be read through the map without waiting."""
        if (self.next_offset - self.base_offset) * UNIT_BYTES - start <= HOT_BYTES:
            return True
        if not self._address:
            self._address = address_of(mapped)
        return PAGES.are_resident(self._address, start, stop)

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
        self._ends_clean = False
        start = bases[-_RECOVERED_FILES:][0]
        if crashed and flushed_to is None:
            self.next_offset = self._walk(start, bases[-1] + self.file_units)
            self._find_max_physical()
        else:
            self._find_end(bases if crashed else bases[-_RECOVERED_FILES:], flushed_to if crashed else None)
            start = self.next_offset
        self.flushed_offset = start

    def _walk(self, start: int, stop: int) -> int:
        self.next_offset = stop
        at = start
        for data in self.data(start, stop - start):
            for physical_offset, size_bytes, _ in UNIT.iter_unpack(data):
                if physical_offset < 0 or size_bytes <= 0:
                    return at
                at += 1
        return stop

    def _find_end(self, bases: Sequence[int], log_end: int | None) -> None:
        """Set `next_offset` behind the last unit, of a record before `log_end` if that is given: by bisection, among the files, in the file, in memory."""
        base = bases[0]
        if len(bases) > 1:
            base = bases[max(0, bisect_left(bases, True, key=lambda base: _is_end(self._bytes(base, 0, UNIT_BYTES), 0, log_end)) - 1)]
        fd = os.open(self._path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            low, high = 0, -(-os.lseek(fd, 0, os.SEEK_HOLE) // UNIT_BYTES)
            while high - low > _READ_UNITS:
                middle = (low + high) // 2
                if _is_end(os.pread(fd, UNIT_BYTES, middle * UNIT_BYTES), 0, log_end):
                    high = middle
                else:
                    low = middle + 1
            start = max(low - 1, 0)
            data = os.pread(fd, min(high * UNIT_BYTES, self._file_bytes) - start * UNIT_BYTES, start * UNIT_BYTES)
            count = bisect_left(range(len(data) // UNIT_BYTES), True, key=lambda at: _is_end(data, at, log_end))
            self.next_offset = base + start + count
            behind = data[count * UNIT_BYTES :].lstrip(b"\0")
            self._ends_clean = not behind and base == bases[-1] and not _has_data(fd, start * UNIT_BYTES + len(data))
            if base == self._first and count:
                first, size_bytes, _ = UNIT.unpack(data[:UNIT_BYTES] if start == 0 else os.pread(fd, UNIT_BYTES, 0))
                self._first_physical = -1 if size_bytes == FILLER_SIZE else first
        finally:
            os.close(fd)
        if count:
            self._take_last(QueueUnit(self.next_offset - 1, *UNIT.unpack_from(data, (count - 1) * UNIT_BYTES)))
        else:
            self._find_max_physical()

    def _find_max_physical(self) -> None:
        self.max_physical = 0
        if self.next_offset > self._first:
            self._take_last(self.unit(self.next_offset - 1))

    def _take_last(self, unit: QueueUnit) -> None:
        self.max_physical = 0 if unit.size_bytes == FILLER_SIZE else unit.physical_offset + unit.size_bytes

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
            self._address = 0
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
        self._first_physical = -1
        self._ends_clean = True

    def path_at(self, offset: int) -> Path:
        """The file in which the unit at `offset` is or would be."""
        return self._path(offset - offset % self.file_units)

    def _path(self, base: int) -> Path:
        return self.directory / offset_name(base * UNIT_BYTES)


def _is_end(data: bytes | bytearray, number: int, log_end: int | None) -> bool:
    physical_offset, size_bytes, _ = UNIT.unpack_from(data, number * UNIT_BYTES)
    return physical_offset < 0 or size_bytes <= 0 or (log_end is not None and physical_offset >= log_end)


def _has_data(fd: int, start: int) -> bool:
    """Whether a file has more than holes from byte `start` on. Raises OSError."""
    try:
        os.lseek(fd, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True
