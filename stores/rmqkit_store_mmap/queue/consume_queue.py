"""One consume queue (store-format sheet, section 3; Java: ConsumeQueue). The file being written is mapped;
older files are opened for each read."""

from __future__ import annotations

import mmap
import os
import shutil
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from rmqkit.errors import StoreCorrupt
from rmqkit.plugin.store import NotInMemory, QueueUnit
from rmqkit.protocol.packed import TopicHead
from rmqkit_store_mmap.cold import FileRange
from rmqkit_store_mmap.log.commit_log import checked_files
from rmqkit_store_mmap.log.disk import Disk, create_file, not_writable, zero_range
from rmqkit_store_mmap.log.mincore import PAGES, address_of
from rmqkit_store_mmap.log.segment import offset_name
from rmqkit_store_mmap.queue.extension import QueueExtension, last_address
from rmqkit_store_mmap.queue.queue_trim import QueueFiles, first_kept
from rmqkit_store_mmap.queue.unit_tail import NEVER, tail
from rmqkit_store_mmap.queue.units import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES

__all__ = ["FILLER", "FILLER_SIZE", "UNIT", "UNIT_BYTES", "ConsumeQueue", "MappedFiles"]

#: Disk space of a queue's file is allocated in powers of two from the smallest to the largest of these sizes,
#: then in steps of the largest: most of many thousands of queues have few units.
LEAST_ALLOCATION_BYTES = 4 * 1024
ALLOCATION_STEP_BYTES = 64 * 1024
#: Maximum number of mapped queue files; each costs a descriptor.
MAX_MAPPED_FILES = 384
#: The last bytes of the units in the mapped file, which are assumed to be in memory.
HOT_BYTES = 1024 * 1024
_RECOVERED_FILES = 3
_NOT_MAPPED = bytearray()
_READ_UNITS = 1024
#: Read-ahead when units are not in memory, because reads of old units are usually sequential.
_AHEAD_BYTES = 256 * 1024


class MappedFiles:
    """Limits the number of mapped queue files. Beyond the limit, the first queue that was not written to
    since its previous examination is unmapped."""

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
    """The units of one queue. Offsets count units; `next_offset` is exclusive. `reserved_until` is the first
    offset without allocated disk space. `place` is the path of the queue's directory.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        place: str,
        file_bytes: int,
        disk: Disk,
        mapped: MappedFiles,
        extension: QueueExtension | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._place = place
        self.extension = extension
        self.file_units = file_bytes // UNIT_BYTES
        self.min_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self._max_physical = 0
        #: The last unit if `_max_physical` does not consider it yet.
        self._last_unit = b""
        self.view: mmap.mmap | bytearray = _NOT_MAPPED
        self.base_offset = 0
        self.reserved_until = 0
        self.touched = False
        self._map: mmap.mmap | None = None
        self._address = 0
        self._file_bytes = file_bytes
        self._first = 0
        #: Log offset of the record of the first unit, -1 if it is unknown or the unit is filler.
        self._first_physical = -1
        #: Whether it is known that only zeros, and no further files, follow the units.
        self._ends_clean = True
        self._new_files = False
        self._disk = disk
        self._mapped = mapped

    @cached_property
    def head(self) -> TopicHead:
        """The fields that all records of the queue share."""
        return TopicHead.of(self.topic)

    @property
    def directory(self) -> Path:
        return Path(self._place)

    @property
    def first(self) -> int:
        """The offset at which the first file begins."""
        return self._first

    # --- writing --------------------------------------------------------------------------------------------

    def reserve(self, stop: int) -> None:
        """Allocate disk space for all units before `stop` and map the next unit, so that `put` cannot fail on
        a full disk. Raises StoreNotWritable; space allocated by then remains allocated."""
        if self.next_offset >= self.reserved_until:
            self.make_room()
        offset = self.reserved_until
        while offset < stop:
            base = offset - offset % self.file_units
            end = min(stop, base + self.file_units)
            reserved_until = self._allocate(base, offset - base, end - base)
            if base == self.base_offset:
                self.reserved_until = reserved_until
            offset = end

    def _allocate(self, base: int, at: int, stop: int) -> int:
        """Allocate disk space for units [at, stop) of the file that begins at queue offset `base`, rounded
        up. Returns the queue offset at which the allocated space ends. Raises StoreNotWritable."""
        path, start = self._path(base), at * UNIT_BYTES
        length = min(self._file_bytes, allocated_bytes(stop * UNIT_BYTES)) - start
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._new_files |= not path.exists()
            fd = create_file(path, self._file_bytes)
            try:
                self._disk.allocate(fd, start, length)
            finally:
                os.close(fd)
        except OSError as error:
            raise not_writable(f"no disk for {path}", error) from error
        return base + (start + length) // UNIT_BYTES

    def make_room(self) -> None:
        """Map the unit at `next_offset` and allocate disk space for it. Raises StoreNotWritable."""
        base = self.next_offset - self.next_offset % self.file_units
        at = self.next_offset - base
        reserved_until = self._allocate(base, at, at + 1)
        if self._map is None or base != self.base_offset:
            self.unmap()
            try:
                fd = os.open(self._path(base), os.O_RDWR | os.O_CLOEXEC)
                try:
                    mapped = mmap.mmap(fd, self._file_bytes)
                finally:
                    os.close(fd)
                # The first write to a page would read ahead, up to the whole file.
                mapped.madvise(mmap.MADV_RANDOM)
                self.view = self._map = mapped
            except OSError as error:
                raise not_writable(f"cannot map {self._path(base)}", error) from error
            self.base_offset = base
            self._mapped.forget(self)
            self._mapped.mapped(self)
        self.reserved_until = reserved_until

    def put(self, physical_offset: int, size_bytes: int, tags_code: int) -> None:
        """Append one unit. Raises StoreNotWritable."""
        self.put_all(UNIT.pack(physical_offset, size_bytes, tags_code))

    def put_all(self, units: bytes) -> None:
        """Append packed units, at least one. Raises StoreNotWritable; some of them may be appended then."""
        offset, count = self.next_offset, len(units) // UNIT_BYTES
        room = self.reserved_until - offset
        if count > room:
            if room <= 0:
                self.make_room()
                room = self.reserved_until - offset
            if count > room:
                self.put_all(units[: room * UNIT_BYTES])
                self.put_all(units[room * UNIT_BYTES :])
                return
        at = (offset - self.base_offset) * UNIT_BYTES
        self.view[at : at + count * UNIT_BYTES] = units
        self.next_offset = offset + count
        self._last_unit = units[-UNIT_BYTES:]
        self.touched = True

    @property
    def max_physical(self) -> int:
        """The end of the record of the last unit as a log offset, 0 without one."""
        if self._last_unit:
            position, size, _ = UNIT.unpack(self._last_unit)
            if size != FILLER_SIZE:
                self._max_physical = position + size
            self._last_unit = b""
        return self._max_physical

    @max_physical.setter
    def max_physical(self, offset: int) -> None:
        self._max_physical, self._last_unit = offset, b""

    def put_message(self, physical_offset: int, size_bytes: int, tags_code: int, store_time_ms: int) -> None:
        """Append the unit of a message, with its extension if the queue has one. Raises StoreNotWritable."""
        unit = UNIT.pack(physical_offset, size_bytes, tags_code)
        if self.is_extended:
            assert self.extension is not None
            unit = self.extension.extend(unit, store_time_ms)
        self.put_all(unit)

    @property
    def is_extended(self) -> bool:
        """Whether new units get an extension."""
        return self.extension is not None and self.extension.written

    def put_filler(self) -> None:
        """Append a unit without a record, in place of a lost record. Raises StoreNotWritable."""
        self.put(0, FILLER_SIZE, 0)

    def begin_at(self, offset: int) -> None:
        """Delete all units and begin at a queue offset, with filler before it if it lies in the middle of a
        file (section 3.4). Raises OSError."""
        self.destroy()
        self.next_offset = self._first = offset - offset % self.file_units
        while self.next_offset < offset:
            self.put_filler()
        self.min_offset = offset
        self.flushed_offset = self._first

    def clear_behind(self) -> bool:
        """Zero everything behind the units. Returns whether there was anything other than zeros. Raises
        OSError."""
        return not self._ends_clean and self.truncate(self.next_offset)

    def truncate(self, offset: int) -> bool:
        """Keep the units before `offset`; the rest of the file is zeroed and later files are deleted. Returns
        whether there was anything to remove. Raises OSError."""
        self.unmap()
        if offset < self.min_offset:
            self.begin_at(offset)
            return True
        found = False
        base = offset - offset % self.file_units
        for other in checked_files(self._place, self._file_bytes) if self.directory.is_dir() else []:
            if other // UNIT_BYTES > base:
                (self.directory / offset_name(other)).unlink()
                found = True
            elif other // UNIT_BYTES == base:
                fd = os.open(self._path(base), os.O_RDWR | os.O_CLOEXEC)
                try:
                    found |= zero_range(fd, (offset - base) * UNIT_BYTES, self._file_bytes) > 0
                finally:
                    os.close(fd)
        self.next_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._find_max_physical()
        self._ends_clean = True
        if offset == self._first:
            self._first_physical = -1
        self._cut_extension()
        return found

    def truncate_physical(self, end: int) -> None:
        """Drop the units of records that do not end at or before `end` (section 5.7). Raises OSError."""
        if self.max_physical > end:
            self.truncate(
                bisect_left(
                    range(self.next_offset),
                    True,
                    self._first,
                    key=lambda offset: self._ends_behind(offset, end),
                )
            )

    def redirect(self, stretches: Sequence[tuple[int, int, int]]) -> list[Path]:
        """Let the units of records within ranges of the log (start, stop, size of the record that is now at
        the start) refer to the record at the start. Returns the changed files. Raises OSError."""
        changed: dict[Path, None] = {}
        at = bisect_left(
            range(self.next_offset),
            True,
            self._first,
            key=lambda offset: self._ends_behind(offset, stretches[0][0]),
        )
        for data in self.data(at, self.next_offset - at):
            for physical_offset, size_bytes, _ in UNIT.iter_unpack(data):
                start, stop, new_size = stretches[
                    max(0, bisect_right(stretches, (physical_offset, NEVER, 0)) - 1)
                ]
                if (
                    start <= physical_offset < stop
                    and (physical_offset, size_bytes) != (start, new_size)
                    and size_bytes != FILLER_SIZE
                ):
                    self._replace(at, UNIT.pack(start, new_size, 0))
                    changed[self.path_at(at)] = None
                at += 1
        self._find_max_physical()
        return list(changed)

    def _replace(self, offset: int, unit: bytes) -> None:
        fd = os.open(self.path_at(offset), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, unit, offset % self.file_units * UNIT_BYTES)
        finally:
            os.close(fd)

    def correct_min(self, log_min: int) -> None:
        """Move `min_offset` to the first unit whose record is still in the log (Java: correctMinOffset).
        Raises OSError."""
        if self.min_offset > self._first or self._first_physical < log_min:
            self.min_offset = first_kept(self.files(), log_min)

    def files(self) -> QueueFiles:
        """The present state of the queue, for a worker thread."""
        return QueueFiles(self.directory, self.file_units, self._first, self.min_offset, self.next_offset)

    def files_deleted(self, count: int) -> None:
        """Record that the first `count` files were deleted."""
        self._first += count * self.file_units

    def _ends_behind(self, offset: int, end: int) -> bool:
        unit = self.unit(offset)
        return unit.size_bytes != FILLER_SIZE and unit.physical_offset + unit.size_bytes > end

    # --- reading --------------------------------------------------------------------------------------------

    def data(self, offset: int, count: int) -> Iterator[bytes | bytearray]:
        """The bytes of up to `count` existing units from `offset` on, in pieces. Raises OSError,
        NotInMemory."""
        stop = min(offset + count, self.next_offset)
        while offset < stop:
            base = offset - offset % self.file_units
            end = min(stop, base + self.file_units, offset + _READ_UNITS)
            yield self._bytes(base, (offset - base) * UNIT_BYTES, (end - base) * UNIT_BYTES, _AHEAD_BYTES)
            offset = end

    def unit(self, offset: int) -> QueueUnit:
        """The unit at `offset`, which must exist. Raises OSError, NotInMemory."""
        base = offset - offset % self.file_units
        at = (offset - base) * UNIT_BYTES
        return QueueUnit(offset, *UNIT.unpack(self._bytes(base, at, at + UNIT_BYTES)))

    def _bytes(self, base: int, start: int, stop: int, ahead_bytes: int = 0) -> bytes | bytearray:
        if self._map is not None and base == self.base_offset and self._is_in_memory(self._map, start, stop):
            return self._map[start:stop]
        path = self._path(base)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = self._disk.read(fd, start, stop)
        finally:
            os.close(fd)
        if data is None:
            raise NotInMemory(FileRange(path, start, stop, ahead_bytes))
        return data

    def _is_in_memory(self, mapped: mmap.mmap, start: int, stop: int) -> bool:
        """Whether bytes of the mapped file can be read through the mapping without waiting for the device."""
        if self._disk.reads_block or (self.next_offset - self.base_offset) * UNIT_BYTES - start <= HOT_BYTES:
            return True
        if not self._address:
            self._address = address_of(mapped)
        return PAGES.are_resident(self._address, start, stop)

    # --- files ----------------------------------------------------------------------------------------------

    def load(self, crashed: bool, flushed_to: int | None = None) -> None:
        """Find the end of the queue (section 5.5): after a crash by reading the last three files, else by
        bisection. Raises StoreCorrupt, OSError.

        `flushed_to`: all units of records before this log offset are known to be on the device; after a crash
        the queue then ends after these units, found by bisection.
        """
        bases = [base // UNIT_BYTES for base in checked_files(self._place, self._file_bytes)]
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
            if crashed:
                assert flushed_to is not None
                self._find_end(bases, flushed_to)
            else:
                self._find_end(bases[-_RECOVERED_FILES:], NEVER)
            start = self.next_offset
        self.flushed_offset = start
        if self.extension is not None:
            self.extension.check_files()
        self._cut_extension()

    def _walk(self, start: int, stop: int) -> int:
        self.next_offset = stop
        at = start
        for data in self.data(start, stop - start):
            for physical_offset, size_bytes, _ in UNIT.iter_unpack(data):
                if physical_offset < 0 or size_bytes <= 0:
                    return at
                at += 1
        return stop

    def _find_end(self, bases: Sequence[int], log_end: int) -> None:
        """Set `next_offset` to the end of the units of records before `log_end`, by bisection among the files
        and in the file."""
        base = bases[0]
        if len(bases) > 1:
            base = bases[
                max(
                    0,
                    bisect_left(
                        bases, True, key=lambda base: _is_end(self._bytes(base, 0, UNIT_BYTES), 0, log_end)
                    )
                    - 1,
                )
            ]
        count, first, last, is_clean = tail(self._place_of(base), self._file_bytes, log_end)
        self.next_offset = base + count
        self._ends_clean = is_clean and base == bases[-1]
        if not count:
            self._find_max_physical()
            return
        self._last_unit = last
        if base == self._first:
            physical_offset, size_bytes, _ = UNIT.unpack(first)
            self._first_physical = -1 if size_bytes == FILLER_SIZE else physical_offset

    def _find_max_physical(self) -> None:
        self.max_physical = 0
        if self.next_offset > self._first:
            self._last_unit = UNIT.pack(*self.unit(self.next_offset - 1)[1:])

    def _cut_extension(self) -> None:
        """Let the extension continue behind the last unit that has one. Raises OSError. Blocks."""
        if not self.is_extended:
            return
        assert self.extension is not None
        address, stop = None, self.next_offset if self.extension.directory.is_dir() else self._first
        with self._disk.blocking_reads():
            while address is None and stop > self._first:
                start = max(self._first, stop - 1 if stop == self.next_offset else stop - _READ_UNITS)
                address = last_address(b"".join(self.data(start, stop - start)))
                stop = start
            self.extension.begin_behind(address)

    def unflushed_files(self) -> list[Path]:
        """The paths to flush for every unit to be on the device: files, and directories if files were
        created. Those of the extension are first, because units refer to it."""
        if self.flushed_offset >= self.next_offset:
            return []
        extension = [] if self.extension is None else self.extension.unflushed_files()
        first = self.flushed_offset - self.flushed_offset % self.file_units
        paths = [self._path(base) for base in range(first, self.next_offset, self.file_units)]
        if self._new_files:
            paths += [self.directory, self.directory.parent, self.directory.parent.parent]
            self._new_files = False
        return extension + paths

    def unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            self._address = 0
            self.view = _NOT_MAPPED
        self.reserved_until = 0
        self.touched = False

    def destroy(self) -> None:
        """Delete the queue's files. Afterwards the queue is empty and begins at 0. Raises OSError."""
        self.unmap()
        self._mapped.forget(self)
        if self.directory.is_dir():
            shutil.rmtree(self.directory)
        if self.extension is not None:
            self.extension.destroy()
        self.min_offset = self.next_offset = self.flushed_offset = self.max_physical = self._first = 0
        self._first_physical = -1
        self._ends_clean = True

    def path_at(self, offset: int) -> Path:
        """The file in which the unit at `offset` is or would be."""
        return self._path(offset - offset % self.file_units)

    def _path(self, base: int) -> Path:
        return Path(self._place_of(base))

    def _place_of(self, base: int) -> str:
        return f"{self._place}/{offset_name(base * UNIT_BYTES)}"


def allocated_bytes(stop: int) -> int:
    """The bytes to allocate in a file whose units end at byte `stop`."""
    if stop > ALLOCATION_STEP_BYTES:
        return -(-stop // ALLOCATION_STEP_BYTES) * ALLOCATION_STEP_BYTES
    return int(max(LEAST_ALLOCATION_BYTES, 1 << (stop - 1).bit_length()))


def _is_end(data: bytes | bytearray, number: int, log_end: int) -> bool:
    physical_offset, size_bytes, _ = UNIT.unpack_from(data, number * UNIT_BYTES)
    return bool(physical_offset < 0 or size_bytes <= 0 or physical_offset >= log_end)
