"""The log: a sequence of segment files, and the ends of its appended, written and flushed parts (Java:
CommitLog, MappedFileQueue; store-format sheet, section 2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import trio

from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.protocol.record import BLANK_BYTES, MIN_RECORD_BYTES, peek_store_timestamp
from rmqkit_store_mmap.log.disk import Disk, not_writable, zero_range
from rmqkit_store_mmap.log.segment import Segment, offset_name

#: Disk space is allocated ahead of the write position in steps of this size: large enough for allocations to
#: be rare, small enough not to waste space.
ALLOCATION_STEP_BYTES = 32 * 1024 * 1024

_NEVER = 1 << 63

#: The part of an append in one segment: the segment, the log offset where it begins, the bytes.
Chunk = tuple[Segment, int, Sequence[Buffer]]


#: The reason why appends are refused, as the error type and its text.
Refusal = tuple[type[StoreNotWritable], str]


class CommitLog:
    """All offsets are physical: bytes since the log began. `position` is the offset of the next record,
    `written` the end of the data in the files, `flushed` the end of the data on the device. Here an append
    writes immediately, so `position` equals `written`; they differ in `commit_buffer.BufferedLog`. Data of
    this process starts at `written_from`; `last_time_ms` is the store time of the last written record.

    `fault` is set permanently by `give_up`, after a failed flush; `refusal` is set while appends are
    refused. `on_progress` is called after a commit, a flush and a failure.
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
        self.on_progress: Callable[[], None] = _ignore
        self._disk = disk
        self._first = 0
        self._prepare_at = 0
        self._new_files = False
        self._flushing = trio.Lock()
        self._preparing = trio.Lock()
        self._wanted = trio.Event()
        self._progress = trio.Event()

    # --- files ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find and check the files. Raises StoreCorrupt for a file with a wrong name or size, or a missing
        file between two others."""
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

    def start_at(self, position: int) -> tuple[int, int]:
        """Take `position` as the end of the log: bytes after it become zeros or are removed. Returns how many
        bytes of its segment were not zero, up to the last one, and how many segments were removed. Raises
        OSError."""
        behind = [base for base in self.segments if base > position]
        for base in behind:
            self.segments.pop(base).remove()
        segment = self.segment_at(position)
        zeroed = (
            0 if segment is None else zero_range(segment.open(), position - segment.base, self.segment_bytes)
        )
        self.position = self.written = self.flushed = self.written_from = position
        self._prepare_at = 0
        return zeroed, len(behind)

    def begin_at(self, base: int, position: int | None = None) -> None:
        """Let an empty log begin with the file of offset `base`, and end at `position`: `base`, unless that
        file has a filled front. Raises OSError."""
        for other in [other for other in self.segments if other != base]:
            self.segments.pop(other).remove()
        self._first = base
        self.position = self.written = base if position is None else position
        self.flushed = self.written_from = base
        self._prepare_at = 0

    def cut(self, position: int) -> list[Segment]:
        """End the log at `position`, where a record begins. Returns the segments behind it, for `free`, which
        must follow before the next append."""
        gone = [self.segments.pop(base) for base in sorted(base for base in self.segments if base > position)]
        self.position = position
        self.written = min(self.written, position)
        self.flushed = min(self.flushed, position)
        self.written_from = min(self.written_from, position)
        self._prepare_at = 0
        self._new_files = True
        return gone

    def free(self, gone: Sequence[Segment]) -> None:
        """Delete these segments, the last one first, and everything behind the end of the log; may run in a
        worker thread. Raises OSError."""
        for segment in reversed(gone):
            segment.remove()
        last = self.segment_at(self.position)
        if last is not None:
            last.cut(self._disk, self.position - last.base)

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Prevents commits, flushes and new files while it is held."""
        async with self._preparing, self._flushing:
            yield

    def time_at(self, offset: int) -> int:
        """Store time in ms of the record at `offset`, 0 when there is none."""
        head = self.record(offset, MIN_RECORD_BYTES)
        return 0 if head is None else peek_store_timestamp(head)

    def removable(self) -> list[Segment]:
        """Full and flushed segments, oldest first, except the newest segment."""
        return [segment for segment in list(self.segments.values())[:-1] if segment.stop <= self.flushed]

    def removable_end(self, before: int) -> int:
        """Start of the log after `detach(before)`."""
        return max(
            (segment.stop for segment in self.removable() if segment.stop <= before), default=self._first
        )

    def detach(self, before: int) -> list[Segment]:
        """Remove the removable segments that end at or before `before` from the log. Returns them; the caller
        must close them and delete their files."""
        gone = [segment for segment in self.removable() if segment.stop <= before]
        for segment in gone:
            del self.segments[segment.base]
        self._first = next(iter(self.segments), 0)
        return gone

    def sync_range(self, start: int, end: int) -> None:
        """Flush the files of [start, end]: after a crash it is unknown which of their data is on the device.
        Raises OSError."""
        for segment in self.segments.values():
            if segment.stop > start and segment.base <= end:
                self._disk.sync(segment.open())
        self._disk.sync_path(self.directory)

    def remove_unused(self) -> None:
        """Delete files created in advance, as Java does before it stops. Raises OSError."""
        for base in [base for base in self.segments if base >= self.position and base != self._first]:
            self.segments.pop(base).remove()

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()
        self.segments = {}

    # --- writing --------------------------------------------------------------------------------------------

    def room(self) -> tuple[Segment, int]:
        """The segment at the write position, created if there is none, and its `reserved_until`. Raises
        StoreNotWritable."""
        position = self.position
        segment = self.segments.get(position - (position - self._first) % self.segment_bytes)
        if segment is None:
            segment = self._make(position)
        return segment, segment.base + segment.allocated_bytes - BLANK_BYTES

    def reserved_until(self, segment: Segment) -> int:
        """The end of the space for records; a blank record always fits after it."""
        return segment.base + segment.allocated_bytes - BLANK_BYTES

    def allocate(self, segment: Segment, position: int, size_bytes: int) -> int:
        """Allocate disk space for at least `size_bytes` at `position`; returns the new `reserved_until`.
        Raises StoreNotWritable."""
        start = max(segment.allocated_bytes, position - segment.base)
        needed = position - segment.base + size_bytes + BLANK_BYTES - start
        try:
            segment.allocate(self._disk, start, max(ALLOCATION_STEP_BYTES, needed))
        except OSError as error:
            raise not_writable(f"no disk for {segment.path}", error) from error
        return self.reserved_until(segment)

    def next_segment(self, segment: Segment, size_bytes: int) -> Segment:
        """The segment after a full one, with disk space for `size_bytes`. Raises StoreNotWritable."""
        following = self.segments.get(segment.stop) or self._make(segment.stop)
        if following.allocated_bytes < size_bytes + BLANK_BYTES:
            self.allocate(following, following.base, size_bytes)
        return following

    async def prepare_next(self) -> None:
        """Allocate disk space in a worker thread before appends need it: the next step of the current segment
        when half of the previous step is used, and, when a quarter of the segment or less is unallocated, the
        first step of the next segment, which is created. Errors are ignored: the append that needs the space
        tries again."""
        async with self._preparing:
            await self._prepare_next()

    async def _prepare_next(self) -> None:
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
                self._prepare_at = (
                    current.stop if taken == size else current.base + taken - ALLOCATION_STEP_BYTES // 2 + 1
                )
                return
        self._prepare_at = self.position + ALLOCATION_STEP_BYTES // 4

    async def _allocate_ahead(self, segment: Segment, start: int) -> bool:
        length = min(ALLOCATION_STEP_BYTES, segment.size_bytes - start)
        fd = os.dup(segment.open())  # the segment may be full, flushed and closed before the thread starts
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

    def write(self, chunks: Sequence[Chunk], position: int, time_ms: int) -> None:
        """Write the packed data of one append, and advance the position. Raises StoreNotWritable, after which
        the data is overwritten with zeros as far as possible."""
        try:
            for segment, start, parts in chunks:
                self._disk.write(segment.open(), parts, start - segment.base)
        except OSError as error:
            refusal = not_writable(f"cannot write {segment.path}", error)
            for segment, start, parts in chunks:
                with contextlib.suppress(OSError):
                    os.pwrite(segment.open(), bytes(sum(map(len, parts))), start - segment.base)
            raise refusal from error
        self.position = self.written = position
        self.last_time_ms = time_ms
        if position >= self._prepare_at:
            self._want_next()

    def _want_next(self) -> None:
        self._prepare_at = _NEVER
        self.next_wanted.set()

    async def commit(self) -> int:
        """Does nothing: data is written by `write` (Flushable.commit)."""
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

    # --- reading --------------------------------------------------------------------------------------------

    def record(self, offset: int, size_bytes: int) -> memoryview | None:
        """A range of one segment, None when it was removed or is not written yet."""
        if offset < self._first or size_bytes <= 0 or offset + size_bytes > self.written:
            return None
        segment = self.segment_at(offset)
        if segment is None or offset + size_bytes > segment.stop:
            return None
        at = offset - segment.base
        return segment.view()[at : at + size_bytes]

    def stretch_at(self, offset: int) -> tuple[int, int]:
        """Start and end of the range around an offset that `record` can return; (0, 0) when there is none."""
        segment = self.segment_at(offset)
        return (
            (0, 0) if segment is None else (max(segment.base, self._first), min(segment.stop, self.written))
        )

    # --- flushing -------------------------------------------------------------------------------------------

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
        """Flush everything written so far (Flushable.flush). After a failure appends are refused."""
        async with self._flushing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            target, time_ms = self.written, self.last_time_ms
            if target > self.flushed:
                dirty = [
                    segment
                    for segment in self.segments.values()
                    if segment.stop > self.flushed and segment.base < target
                ]
                new_files, self._new_files = self._new_files, False
                try:
                    await trio.to_thread.run_sync(
                        self._sync, [segment.open() for segment in dirty], new_files
                    )
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
        """Refuse further appends and wake waiting tasks: the state of the device is unknown, or there is no
        flushing task."""
        self.fault = fault
        self.refusal = StoreNotWritable, fault
        self._wake()

    def _sync(self, descriptors: Sequence[int], new_files: bool) -> None:
        for fd in descriptors:
            self._disk.sync(fd)
        if new_files:
            self._disk.sync_path(self.directory)

    def _wake(self) -> None:
        self.on_progress()
        self._progress.set()
        self._progress = trio.Event()

    async def wait_written(self, offset: int) -> None:
        """Wait until everything before `offset` is written. Raises StoreNotWritable when writing
        failed; the data may still be written later."""
        while self.written < offset:
            await self._wait(offset)

    async def wait_flushed(self, offset: int) -> None:
        """Wait until everything before `offset` is on the device. Raises StoreNotWritable when the device
        failed."""
        while self.flushed < offset:
            await self._wait(offset)

    async def _wait(self, offset: int) -> None:
        """Request a commit or a flush, and wait until one has ended. Raises StoreNotWritable, StoreError."""
        if self.fault is not None:
            raise StoreNotWritable(self.fault)
        if offset > self.position:
            raise StoreError(f"offset {offset} is behind the end of the log, {self.position}")
        self._wanted.set()
        await self._progress.wait()

    async def progress_wanted(self) -> None:
        """Wait until a task waits for a commit or a flush."""
        await self._wanted.wait()
        self._wanted = trio.Event()


def _ignore() -> None:
    """The initial `on_progress`, for a log without an owner."""


class FileMissing(StoreCorrupt):
    """A file is missing between two others."""


def checked_files(directory: str | Path, size_bytes: int) -> list[int]:
    """Start offsets of a directory's files in order. An empty last file is deleted, because a crash may leave
    one. Raises StoreCorrupt."""
    found: list[tuple[int, int]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                continue
            if not (entry.name.isascii() and entry.name.isdigit()):
                raise StoreCorrupt(
                    f"{entry.path} does not belong into a directory of files named by their start offset"
                )
            found.append((int(entry.name), entry.stat().st_size))
    found.sort()
    if found and found[-1][1] == 0:
        os.unlink(_named(directory, found.pop()[0]))
    expected = found[0][0] if found else 0
    for base, length in found:
        if base != expected:
            raise FileMissing(
                f"{_named(directory, expected - size_bytes)} is followed by offset {base}; the file of offset"
                f" {expected} is missing"
            )
        if length != size_bytes:
            raise StoreCorrupt(f"{_named(directory, base)} has {length} bytes, the settings say {size_bytes}")
        expected = base + size_bytes
    return [base for base, _ in found]


def _named(directory: str | Path, base: int) -> str:
    return os.path.join(directory, offset_name(base))
