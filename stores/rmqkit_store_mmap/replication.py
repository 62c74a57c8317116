"""Appending raw bytes of another broker's log, as a replica does, and cutting the end of the log (Java:
CommitLog.appendData, DefaultMessageStore.truncateDirtyFiles; store-format sheet, section 13.1).

Queues and index are built by the code that recovery uses. The files become identical to those of the other
broker, including the blank records at their ends. Two places have no such bytes and are filled with
rolled-back records, which are added to neither queues nor index: the front of the first file of a log that
begins in the middle of a file, and gaps that another kind of store has inside a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import trio

from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.model.sysflag import UNQUEUED
from rmqkit.protocol.damage import LEAST_FILLER_BYTES, filler
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from rmqkit_store_mmap.index.index_file import IndexFile
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.log.disk import Disk, not_writable
from rmqkit_store_mmap.log.scan import check_record, parse_record
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.open.background import Rounds
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.open.mending import fill
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.open.trimming import Trimmer
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.received import sound_end

_CUTTING = "the log is being cut"


class Stretch(NamedTuple):
    """Whole records within some bytes: ordinary ones of one file, with the store time of the last one, or a
    blank record, whose `time_ms` is None."""

    at: int
    size_bytes: int
    time_ms: int | None


class ReplicaLog:
    """`append` and `truncate` of one open store. `truncated` tells the followers of the log its new end."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        redispatch: Redispatch,
        checkpoint: Checkpoint,
        rounds: Rounds,
        trimmer: Trimmer,
        disk: Disk,
        truncated: Callable[[int], Awaitable[None]],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._redispatch = redispatch
        self._checkpoint = checkpoint
        self._rounds = rounds
        self._trimmer = trimmer
        self._disk = disk
        self._truncated = truncated

    # --- appending ------------------------------------------------------------------------------------------

    def append(self, offset: int, data: Buffer) -> list[tuple[str, int]]:
        """Log.append_log for an open store."""
        log, view = self._log, memoryview(data)
        if offset != log.position and log.position != log.min_offset:
            raise StoreError(f"the log ends at {log.position}, bytes for offset {offset} cannot follow")
        places = self._checked(offset, view)
        if not places:
            return []
        times = [each.time_ms for each in places if each.time_ms is not None]
        time_ms = times[-1] if times else log.last_time_ms
        if offset != log.position:
            self._begin_at(offset, time_ms)
        known = len(self._queues.by_key)
        log.write(self._chunks(offset, view, places, time_ms), offset + len(view), time_ms)
        try:
            self._redispatch.log_start = log.min_offset
            with self._disk.blocking_reads():
                for at, size, recorded_ms in places:
                    if recorded_ms is not None:
                        self._redispatch.dispatch_all(view, at, at + size, offset + at)
        except BaseException:
            self.cut_back(offset)
            raise
        if self._index.backlog:
            self._index.wanted.set()
        return [*islice(self._queues.by_key, known, None)]

    def _room(self, offset: int) -> int:
        """Number of bytes from a log offset to the end of its file."""
        return self._log.segment_bytes - offset % self._log.segment_bytes

    def _checked(self, offset: int, view: memoryview) -> list[Stretch]:
        """The stretches of ordinary records, and the blank records. Raises StoreError when the bytes are not
        complete records of this place in the log, or do not fit into its files."""
        found: list[Stretch] = []
        at = 0
        while at < len(view):
            here, left = offset + at, len(view) - at
            room = self._room(here)
            end, time_ms = sound_end(view, at, at + min(left, max(0, room - BLANK_BYTES)), here)
            if end > at:
                found.append(Stretch(at, end - at, time_ms))
                at = end
                continue
            size, magic = BLANK.unpack_from(view, at) if left >= BLANK_BYTES else (0, 0)
            is_blank = magic == MAGIC_BLANK
            if is_blank:
                fits = size == room or LEAST_FILLER_BYTES <= size <= room - BLANK_BYTES
                is_whole = BLANK_BYTES <= size <= left
            else:
                fits = size + BLANK_BYTES <= room
                is_whole = check_record(view, at, here, check_body=False) == size > 0
            if not is_whole:
                raise StoreError(f"byte {at} of what is to follow is not a whole record of log offset {here}")
            if not fits:
                raise StoreError(
                    f"the record at log offset {here} does not fit into a file of {self._log.segment_bytes}"
                    " bytes: mappedFileSizeCommitLog must be that of the other broker"
                )
            found.append(Stretch(at, size, None))
            at += size
        return found

    def _begin_at(self, offset: int, time_ms: int) -> None:
        """Let the empty log begin in the file of a log offset. Raises StoreError, StoreNotWritable."""
        base = offset - offset % self._log.segment_bytes
        if 0 < offset - base < LEAST_FILLER_BYTES:
            raise StoreError(f"a log cannot begin at {offset}, {offset - base} bytes into a file")
        try:
            self._log.begin_at(base)
            if offset > base:
                fill(self._log.room()[0], base, offset, time_ms, self._disk)
                self._log.begin_at(base, offset)
        except OSError as error:
            raise not_writable(f"cannot write {self._log.directory}", error) from error

    def _chunks(self, offset: int, view: memoryview, places: list[Stretch], time_ms: int) -> list[Chunk]:
        """The data to write into each segment. Raises StoreNotWritable."""
        log = self._log
        segment, _ = log.room()
        chunks: list[Chunk] = []
        parts: list[Buffer] = []
        start = offset
        for at, size, recorded_ms in places:
            here = offset + at
            if here >= segment.stop:
                chunks.append((segment, start, parts))
                segment, start, parts = log.next_segment(segment, size), here, []
            part: Buffer = view[at : at + size]
            if recorded_ms is None and here + size == segment.stop:
                part = bytes(part).rstrip(b"\0").ljust(BLANK_BYTES, b"\0")  # the rest of the file is a hole
            elif recorded_ms is None:
                part = filler(bytes(size - LEAST_FILLER_BYTES), here, time_ms)
            if here + len(part) > segment.base + segment.allocated_bytes:
                log.allocate(segment, here, len(part))
            parts.append(part)
        chunks.append((segment, start, parts))
        return chunks

    # --- cutting --------------------------------------------------------------------------------------------

    async def truncate(self, offset: int) -> None:
        """Log.truncate. The mark of the checkpoint is removed first: otherwise a recovery would take the cut
        part for lost. Then queues, log and index are cut; files are changed in a worker thread. Raises
        StoreError, StoreNotWritable, OSError."""
        log = self._log
        await self._rounds.flush(thorough=True)
        if offset == log.position:
            return
        async with self._trimmer.exclusive(), self._rounds.exclusive(), log.exclusive():
            await trio.to_thread.run_sync(self._require_boundary, offset)
            log.refusal, refusal = (StoreNotWritable, _CUTTING), log.refusal
            with trio.CancelScope(shield=True):
                try:
                    await self._cut(offset)
                    await self._truncated(offset)
                except (OSError, StoreError) as error:
                    text = getattr(error, "strerror", None) or error
                    log.give_up(
                        f"the log was not cut at {offset} as a whole, the next start repairs it: {text}"
                    )
                    raise StoreError(f"cannot cut the log {log.directory}: {text}") from error
            log.refusal = refusal
        await self._rounds.flush(thorough=True)

    def _require_boundary(self, offset: int) -> None:
        segment = self._log.segment_at(offset)
        if segment is None or not self._log.min_offset <= offset < self._log.position:
            raise StoreError(
                f"the log cannot be cut at {offset}: it reaches from {self._log.min_offset} to"
                f" {self._log.position}"
            )
        if check_record(segment.view(), offset - segment.base, offset, check_body=False) < 0:
            raise StoreError(f"the log cannot be cut at {offset}: no record begins there")

    async def _cut(self, offset: int) -> None:
        """Cut and flush. Raises OSError."""
        self._checkpoint.mark = self._queues.mark = None
        self._checkpoint.confirmed_offset = min(self._checkpoint.confirmed_offset, offset)
        await trio.to_thread.run_sync(self._checkpoint.write, self._disk)
        lowered = await trio.to_thread.run_sync(self._lowered_numbers, offset)
        changed: list[Path] = []
        for queue in list(self._queues.by_key.values()):
            if queue.max_physical > offset:
                changed.append(self._cut_queue(queue, offset))
                await trio.lowlevel.checkpoint()
        self._lower_numbers(lowered)
        segments, files = self._log.cut(offset), self._index.cut(offset)
        await trio.to_thread.run_sync(self._free, segments, files, offset)
        await trio.to_thread.run_sync(self._sync, changed, offset)

    def cut_back(self, offset: int) -> None:
        """Take back an append that began at a log offset. Raises OSError."""
        lowered = self._lowered_numbers(offset)
        for queue in list(self._queues.by_key.values()):
            if queue.max_physical > offset:
                self._cut_queue(queue, offset)
        self._lower_numbers(lowered)
        self._free(self._log.cut(offset), self._index.cut(offset), offset)

    def _cut_queue(self, queue: ConsumeQueue, offset: int) -> Path:
        """Drop the units for the log from an offset on; returns the changed file. Raises OSError."""
        with self._disk.blocking_reads():
            queue.truncate_physical(offset)
        if queue.next_offset == 0 and self._queues.get(queue.topic, queue.queue_id) is queue:
            self._queues.forget(queue.topic, queue.queue_id)
        return queue.path_at(queue.next_offset)

    def _free(self, segments: Sequence[Segment], files: Sequence[IndexFile], offset: int) -> None:
        """Delete files after a truncation. Raises OSError."""
        self._log.free(segments)
        self._index.free(files, offset, self._log.time_at)

    def _lowered_numbers(self, offset: int) -> dict[tuple[str, int], int]:
        """For queues without units: the lowest queue offset of each among the records from a log offset
        on."""
        found: dict[tuple[str, int], int] = {}
        segment = self._log.segment_at(offset) if self._queues.by_numbers else None
        while segment is not None and offset < self._log.written:
            size = check_record(segment.view(), offset - segment.base, offset, check_body=False)
            if size > 0:
                record = parse_record(segment.view(), offset - segment.base)
                if not record.sys_flag & UNQUEUED:
                    key = record.topic, record.queue_id
                    found[key] = min(record.queue_offset, found.get(key, record.queue_offset))
            offset = offset + size if size > 0 else segment.stop
            segment = self._log.segment_at(offset)
        return found

    def _lower_numbers(self, lowered: Mapping[tuple[str, int], int]) -> None:
        for key, number in lowered.items():
            queue = self._queues.get(*key)
            if queue is not None:
                queue.truncate(min(queue.next_offset, number))
                if queue.next_offset == 0:
                    self._queues.forget(*key)

    def _sync(self, paths: Sequence[Path], offset: int) -> None:
        """Flush the cuts; for a worker thread. Raises OSError."""
        self._log.sync_range(offset, offset)
        for path in paths:
            self._disk.sync_path(path)
        self._queues.was_cut()
