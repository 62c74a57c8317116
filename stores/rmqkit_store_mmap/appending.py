"""The hot path: appends runs of messages to the log, the queues and the backlog of the index.

Disk space for everything is reserved first, then the log is written, then units and keys, which are written
to memory only. So a full disk or a failed write is detected before units and keys are changed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from rmqkit.errors import StoreNotWritable
from rmqkit.model.message import Appended, PutMessage
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.packed import PackedRun, Packer
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from rmqkit_store_mmap.index.key_index import MAX_BACKLOG, KeyIndex
from rmqkit_store_mmap.log.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import UNIT
from rmqkit_store_mmap.replication import ReplicaLog

#: Number of keys that an append indexes with a full backlog, in addition to those beyond the limit and twice
#: the number of messages that it appends.
_CATCH_UP = 256
CLOSED = "the store is closed"


class AppendingStore(MessageStore):
    """The part of MmapStore that appends."""

    _open: bool
    #: The reason why the owner lets the store refuse messages.
    _refusal: str | None
    _clock: Clock
    _packer: Packer
    _log: CommitLog
    _changes: SegmentChanges
    _queues: QueueTable
    _index: KeyIndex
    _index_enabled: bool
    _replication: ReplicaLog

    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        log, queues, backlog = self._log, self._queues.by_key, self._index.backlog
        if not self._open or log.refusal is not None or self._refusal is not None:
            raise self._refused()
        if len(backlog) >= MAX_BACKLOG:
            self._index.drain(len(backlog) - MAX_BACKLOG + _CATCH_UP + 2 * len(messages))
        now_ms, start, changes = self._clock.now_ms(), log.position, self._changes
        (segment, reserved), elsewhere = log.room(), changes.place_elsewhere
        made: dict[tuple[str, int], ConsumeQueue] = {}
        try:
            packed = self._packer.pack(
                messages, now_ms, queues, self._new_queue, start, reserved, elsewhere, made, self.queue_codes
            )
            end, parts, results, units, notes, breaks = packed
            chunks = changes.chunks(start, parts, breaks) if breaks else [(segment, start, parts)]
            log.write(chunks, end, now_ms)
        except BaseException:
            changes.full.clear()
            with contextlib.suppress(OSError):
                for new in made.values():
                    new.destroy()
            raise
        if made:
            queues.update(made)
        try:
            if self.has_extensions:
                units = self._extended(packed, now_ms)
            for queue, own in units.items():
                if own:
                    queue.put_all(own)
        except BaseException:
            self._replication.cut_back(start)
            raise
        if self._index_enabled:
            is_first = not backlog
            backlog.add_notes(notes)
            if is_first and backlog:
                self._index.wanted.set()
        return results

    def _extended(self, packed: PackedRun[ConsumeQueue], now_ms: int) -> dict[ConsumeQueue, bytes]:
        """The units of a run with the addresses of their extensions, which are written."""
        records: dict[int, bytes] = {}
        extended: dict[ConsumeQueue, bytes] = {}
        for queue, units in packed.units.items():
            extension = queue.extension
            bit_maps: Sequence[bytes] = ()
            make = self.bit_maps(queue.topic) if self.bit_maps is not None and units else None
            if make is not None:
                records = records or dict(
                    zip((at.physical_offset for at in packed.results), packed.records(), strict=True)
                )
                bit_maps = make([records[offset] for offset, _, _ in UNIT.iter_unpack(units)])
            extended[queue] = extension.extend(units, now_ms, bit_maps) if extension and units else units
        return extended

    def _new_queue(self, topic: str, queue_id: int, number: int) -> ConsumeQueue:
        return self._queues.new(topic, queue_id)

    def _refused(self) -> StoreNotWritable:
        if not self._open:
            return StoreNotWritable(CLOSED)
        kind, text = self._log.refusal or (StoreNotWritable, self._refusal)
        return kind(text)


class SegmentChanges:
    """Where one append goes from a full segment of the log to the next one.

    full  the end of the records in each full segment, as a log offset
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.full: list[int] = []

    def place_elsewhere(self, position: int, size_bytes: int) -> tuple[int, int]:
        """Allocate disk space for a record in the segment at `position` or the next one (packed.NextPlace).
        Raises StoreNotWritable."""
        log, segment = self._log, self._segment(position)
        if position + size_bytes + BLANK_BYTES <= segment.stop:
            return position, log.allocate(segment, position, size_bytes)
        self.full.append(position)
        following = log.next_segment(segment, size_bytes)
        return following.base, log.reserved_until(following)

    def chunks(self, start: int, parts: Sequence[bytes], breaks: Sequence[int]) -> list[Chunk]:
        """The data to write into each segment, with a blank record after the last record of a full one;
        forgets the full ones. `breaks`: the number of parts up to the end of each full one."""
        chunks: list[Chunk] = []
        done = 0
        for end, count in zip(self.full, breaks, strict=True):
            segment = self._segment(end)
            blank = BLANK.pack(segment.stop - end, MAGIC_BLANK)
            chunks.append((segment, start, [*parts[done:count], blank]))
            start, done = segment.stop, count
        self.full.clear()
        return [*chunks, (self._segment(start), start, parts[done:])]

    def _segment(self, offset: int) -> Segment:
        segment = self._log.segment_at(offset)
        assert segment is not None
        return segment
