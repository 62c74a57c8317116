"""The log: a row of segment files, where it ends, and how far it is written and flushed (Java: CommitLog, MappedFileQueue; store-format sheet, section 2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from rmqkit.abc import Buffer
from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit.protocol.record import BLANK_BYTES
from rmqkit_store_mmap.disk import Disk, not_writable, zero_range
from rmqkit_store_mmap.segment import Segment

#: Disk is taken this far ahead of the write position: rarely enough to cost nothing, little enough not to be missed.
ALLOCATION_STEP_BYTES = 32 * 1024 * 1024

_NEVER = 1 << 63

#: What one append puts into one segment: the segment, the log offset where it begins, the bytes.
Chunk = tuple[Segment, int, Sequence[Buffer]]


#: Why nothing is appended, as the error to raise and its text.
Refusal = tuple[type[StoreNotWritable], str]


class CommitLog:
    """All offsets are physical: bytes since the log began. `position` is where the next record goes, `written` the end of what the files hold,
    `flushed` of what is on the device. An append here writes at once, so the first two are one; `commit_buffer.BufferedLog` holds them apart.
    What this process wrote begins at `written_from`; `last_time_ms` is the store time of the last record that is written.

    `fault` is set for good by `give_up`, once the device failed to flush; `refusal` says whether anything is taken now.
    """

    def __init__(self, directory: Path, segment_bytes: int, disk: Disk) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: dict[int, Segment] = {}
        self.position = 0
        self.written = 0
        self.flushed = 0
        self.written_from = 0
        self.last_time_ms = 0
        self.flushed_time_ms = 0
        self.fault: str | None = None
        self.refusal: Refusal | None = None
        self.next_wanted = trio.Event()
        self._disk = disk
        self._first = 0
        self._prepare_at = 0
        self._new_files = False
        self._flushing = trio.Lock()
        self._wanted = trio.Event()
        self._progress = trio.Event()

    # --- files -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find and check the files. Raises StoreCorrupt naming a file of the wrong name or size, or one that is missing between two others."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.segments = {}
        for base in checked_files(self.directory, self.segment_bytes):
            self.segments[base] = Segment(self.directory, base, self.segment_bytes)
        self._first = next(iter(self.segments), 0)
        self.position = self.written = self.flushed = self._first

    @property
    def min_offset(self) -> int:
        return self._first

    def segment_at(self, offset: int) -> Segment | None:
        return self.segments.get(offset - (offset - self._first) % self.segment_bytes)

    def start_at(self, position: int) -> bool:
        """Take `position` as the end of the log: what lies behind becomes zeros or goes away. Returns whether there was anything. Raises OSError."""
        behind = [base for base in self.segments if base > position]
        for base in behind:
            self.segments.pop(base).remove()
        segment = self.segment_at(position)
        zeroed = segment is not None and zero_range(segment.open(), position - segment.base, self.segment_bytes)
        self.position = self.written = self.flushed = self.written_from = position
        self._prepare_at = 0
        return zeroed or bool(behind)

    def removable(self) -> list[Segment]:
        """Segments that are full and on the device, oldest first; never the newest."""
        return [segment for segment in list(self.segments.values())[:-1] if segment.stop <= self.flushed]

    def removable_end(self, before: int) -> int:
        """Where the log would begin after `detach(before)`."""
        return max((segment.stop for segment in self.removable() if segment.stop <= before), default=self._first)

    def detach(self, before: int) -> list[Segment]:
        """Begin the log behind the removable segments that end at or before `before`; they are the caller's then, files and all."""
        gone = [segment for segment in self.removable() if segment.stop <= before]
        for segment in gone:
            del self.segments[segment.base]
        self._first = next(iter(self.segments), 0)
        return gone

    def sync_range(self, start: int, end: int) -> None:
        """Bring the files of [start, end] to the device: after a crash nobody knows what had got there. Raises OSError."""
        for segment in self.segments.values():
            if segment.stop > start and segment.base <= end:
                self._disk.sync(segment.open())
        self._disk.sync_path(self.directory)

    def remove_unused(self) -> None:
        """Delete files made ahead of need, as Java does before it stops. Raises OSError."""
        for base in [base for base in self.segments if base >= self.position and base != self._first]:
            self.segments.pop(base).remove()

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()
        self.segments = {}

    # --- writing -----------------------------------------------------------------------------------------------------

    def segment_for_append(self) -> Segment:
        """The segment at the write position, made when there is none. Raises StoreNotWritable."""
        return self.segment_at(self.position) or self._make(self.position)

    def room_end(self, segment: Segment) -> int:
        """Up to where records may reach now; a blank record always fits behind."""
        return segment.base + segment.allocated_bytes - BLANK_BYTES

    def allocate(self, segment: Segment, position: int, size_bytes: int) -> int:
        """Take disk for `size_bytes` and more at `position`; returns the new `room_end`. Raises StoreNotWritable."""
        start = max(segment.allocated_bytes, position - segment.base)
        needed = position - segment.base + size_bytes + BLANK_BYTES - start
        try:
            segment.allocate(self._disk, start, max(ALLOCATION_STEP_BYTES, needed))
        except OSError as error:
            raise not_writable(f"no disk for {segment.path}", error) from error
        return self.room_end(segment)

    def next_segment(self, segment: Segment, size_bytes: int) -> Segment:
        """The segment behind a full one, with disk for `size_bytes`. Raises StoreNotWritable."""
        following = self.segments.get(segment.stop) or self._make(segment.stop)
        if following.allocated_bytes < size_bytes + BLANK_BYTES:
            self.allocate(following, following.base, size_bytes)
        return following

    async def prepare_next(self) -> None:
        """Take disk ahead of the appends in a worker thread, so that no append waits for it: the next step of the current segment once half of the last is
        used up, and when little is left to take, the first of the segment behind it, which is made then. Trouble is left to the append that needs the space."""
        worked = True
        while worked:
            current = self.segment_at(self.position)
            if current is None:
                return
            size, used, taken = current.size_bytes, self.position - current.base, current.allocated_bytes
            if taken < size and taken - used < ALLOCATION_STEP_BYTES // 2:
                worked = await self._allocate_ahead(current, max(taken, used))
            elif (size - taken) * 4 <= size and current.stop not in self.segments:
                worked = await self._make_ahead(current)
            else:
                self._prepare_at = current.stop if taken == size else current.base + taken - ALLOCATION_STEP_BYTES // 2 + 1
                return
        self._prepare_at = self.position + ALLOCATION_STEP_BYTES // 4

    async def _allocate_ahead(self, segment: Segment, start: int) -> bool:
        length = min(ALLOCATION_STEP_BYTES, segment.size_bytes - start)
        fd = os.dup(segment.open())  # the segment may be full, flushed and closed before the thread has begun
        try:
            await trio.to_thread.run_sync(self._disk.allocate, fd, start, length)
        except OSError:
            return False
        finally:
            os.close(fd)
        segment.allocated_bytes = max(segment.allocated_bytes, start + length)
        return True

    async def _make_ahead(self, current: Segment) -> bool:
        segment = Segment(self.directory, current.stop, self.segment_bytes)
        try:
            await trio.to_thread.run_sync(segment.allocate, self._disk, 0, ALLOCATION_STEP_BYTES)
        except OSError:
            segment.close()
            return False
        if self.segments.get(current.base) is not current or segment.base in self.segments:
            segment.close()
        else:
            self.segments[segment.base] = segment
            self._new_files = True
        return True

    def write(self, chunks: Iterable[Chunk], position: int, time_ms: int) -> None:
        """Take what one append packed, here by writing it, and move the position. Raises StoreNotWritable, and then none of it can be found again."""
        begun: list[Chunk] = []
        try:
            for chunk in chunks:
                begun.append(chunk)
                segment, start, parts = chunk
                self._disk.write(segment.open(), parts, start - segment.base)
        except OSError as error:
            for segment, start, parts in begun:
                with contextlib.suppress(OSError):
                    os.pwrite(segment.open(), bytes(sum(map(len, parts))), start - segment.base)
            raise not_writable(f"cannot write {begun[-1][0].path}", error) from error
        self.position = self.written = position
        self.last_time_ms = time_ms
        if position >= self._prepare_at:
            self._want_next()

    def _want_next(self) -> None:
        self._prepare_at = _NEVER
        self.next_wanted.set()

    async def commit(self) -> int:
        """Write what waits in memory (Flushable.commit): nothing here."""
        await trio.lowlevel.checkpoint()
        return self.written

    def _make(self, base: int) -> Segment:
        segment = Segment(self.directory, base, self.segment_bytes)
        try:
            segment.open()
        except OSError as error:
            raise not_writable(f"cannot make {segment.path}", error) from error
        self.segments[base] = segment
        self._new_files = True
        return segment

    # --- reading -----------------------------------------------------------------------------------------------------

    def record(self, offset: int, size_bytes: int) -> memoryview | None:
        """A stretch of one segment, None when it is not (or no longer, or not yet) there."""
        if offset < self._first or size_bytes <= 0 or offset + size_bytes > self.written:
            return None
        segment = self.segment_at(offset)
        if segment is None or offset + size_bytes > segment.stop:
            return None
        at = offset - segment.base
        return segment.view()[at : at + size_bytes]

    def stretch_at(self, offset: int) -> tuple[int, int]:
        """From where to where, around an offset, `record` finds everything; (0, 0) when it finds nothing there."""
        segment = self.segment_at(offset)
        return (0, 0) if segment is None else (max(segment.base, self._first), min(segment.stop, self.written))

    # --- flushing ----------------------------------------------------------------------------------------------------

    @property
    def appended_offset(self) -> int:
        return self.position

    @property
    def written_offset(self) -> int:
        return self.written

    @property
    def flushed_offset(self) -> int:
        return self.flushed

    async def flush(self) -> int:
        """Bring everything written so far to the device (Flushable.flush). After a failure the log takes nothing more."""
        async with self._flushing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            target, time_ms = self.written, self.last_time_ms
            if target > self.flushed:
                dirty = [segment for segment in self.segments.values() if segment.stop > self.flushed and segment.base < target]
                new_files, self._new_files = self._new_files, False
                try:
                    await trio.to_thread.run_sync(self._sync, [segment.open() for segment in dirty], new_files)
                except OSError as error:
                    refusal = not_writable(f"the device failed to flush {self.directory}", error)
                    self.give_up(str(refusal))
                    raise refusal from error
                self.flushed, self.flushed_time_ms = target, time_ms
                for segment in dirty:
                    if segment.stop <= target:
                        segment.release()
            self._wake()
            return self.flushed

    def give_up(self, fault: str) -> None:
        """Take nothing more, and tell those that wait: nobody knows what the device has, or nobody is left who would flush."""
        self.fault = fault
        self.refusal = StoreNotWritable, fault
        self._wake()

    def _sync(self, descriptors: Sequence[int], new_files: bool) -> None:
        for fd in descriptors:
            self._disk.sync(fd)
        if new_files:
            self._disk.sync_path(self.directory)

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def wait_written(self, offset: int) -> None:
        """Wait until everything before `offset` is written. Raises StoreNotWritable when that failed; it may be written later all the same."""
        while self.written < offset:
            await self._wait(offset)

    async def wait_flushed(self, offset: int) -> None:
        """Wait until everything before `offset` is on the device. Raises StoreNotWritable when the device failed."""
        while self.flushed < offset:
            await self._wait(offset)

    async def _wait(self, offset: int) -> None:
        """Ask for progress and wait for some."""
        if self.fault is not None:
            raise StoreNotWritable(self.fault)
        if offset > self.position:
            raise StoreError(f"offset {offset} is behind the end of the log, {self.position}")
        self._wanted.set()
        await self._progress.wait()

    async def progress_wanted(self) -> None:
        """Wait until somebody waits for a commit or a flush."""
        await self._wanted.wait()
        self._wanted = trio.Event()


class FileMissing(StoreCorrupt):
    """Between two files of a row one is missing."""


def checked_files(directory: Path, size_bytes: int) -> list[int]:
    """Start offsets of a directory's files in order; a last file of no length is deleted, for a crash may leave one. Raises StoreCorrupt."""
    found: list[tuple[int, int]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                continue
            if not (entry.name.isascii() and entry.name.isdigit()):
                raise StoreCorrupt(f"{entry.path} does not belong into a directory of files named by their start offset")
            found.append((int(entry.name), entry.stat().st_size))
    found.sort()
    if found and found[-1][1] == 0:
        (directory / f"{found.pop()[0]:020d}").unlink()
    expected = found[0][0] if found else 0
    for base, length in found:
        if base != expected:
            before = directory / f"{expected - size_bytes:020d}"
            raise FileMissing(f"{before} is followed by offset {base}; the file of offset {expected} is missing")
        if length != size_bytes:
            raise StoreCorrupt(f"{directory / f'{base:020d}'} has {length} bytes, the settings say {size_bytes}")
        expected = base + size_bytes
    return [base for base, _ in found]
