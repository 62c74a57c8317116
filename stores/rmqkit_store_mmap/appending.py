"""The hot path: appends runs of messages to the log, the queues and the backlog of the index.

Disk space for everything is reserved first, then the log is written, then units and keys, which are written
to memory only. So a full disk or a failed write is detected before units and keys are changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from rmqkit.model.message import Appended, PutMessage
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from rmqkit.protocol.record_packer import PARTS, RecordPacker
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import UNIT, UNIT_BYTES

_pack_unit = UNIT.pack_into
Codes = Mapping[str, Callable[[Mapping[str, str], int], int]]


class Appender:
    """Appends to one open log. `cut_back` removes everything from a log offset on; it is called if units
    cannot be written, for example because a file cannot be mapped."""

    def __init__(
        self,
        packer: RecordPacker,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        cut_back: Callable[[int], object],
    ) -> None:
        self._packer = packer
        self._log = log
        self._queues = queues
        self._note = None if index is None else index.backlog.extend
        self._cut_back = cut_back
        self._places = _Places(log)
        self._turn = self._places.turn

    def append(self, messages: Sequence[PutMessage], now_ms: int, codes: Codes) -> list[Appended]:
        """Log.append for an open store."""
        log, places, by_key = self._log, self._places, self._queues.by_key
        start = log.position
        places.segment, room_end = log.room()
        places.start = start
        places.full = []
        made: dict[tuple[str, int], ConsumeQueue] = {}
        try:
            end, parts, landed, touched, notes = self._packer.pack(
                messages, now_ms, by_key, self._new_queue, start, room_end, self._turn, made, codes
            )
            chunks = places.chunks(parts) if places.full else [(places.segment, start, parts)]
            log.write(chunks, end, now_ms)
        except BaseException:
            with contextlib.suppress(OSError):
                for new in made.values():
                    new.destroy()
            raise
        if made:
            by_key.update(made)
        try:
            for queue, (offset, position, size, _), message in zip(touched, landed, messages, strict=True):
                if queue is None:
                    continue
                if offset >= queue.room_end:
                    queue.make_room()
                at = (offset - queue.base_offset) * UNIT_BYTES
                _pack_unit(queue.view, at, position, size, message.tags_code)
                queue.next_offset = offset + 1
                queue.max_physical = position + size
                queue.touched = True
        except BaseException:
            self._cut_back(start)
            raise
        if self._note is not None and notes:
            self._note(notes)
        return landed

    def _new_queue(self, topic: str, queue_id: int, number: int) -> ConsumeQueue:
        return self._queues.new(topic, queue_id)


class _Places:
    """Places records of one append in the segments of the log, with a blank record after the last record of a
    full segment.

    segment, start  the segment for the next record, and the log offset of its first one of the append
    full            full segments with start and end of their records as log offsets, and the number of
                    records of the append up to there
    """

    __slots__ = ("_log", "full", "segment", "start")

    segment: Segment
    start: int
    full: list[tuple[Segment, int, int, int]]

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def turn(self, position: int, size_bytes: int, count: int) -> tuple[int, int]:
        """Allocate disk space for a record in the segment or the next one (record_packer.Turn). Raises
        StoreNotWritable."""
        log, segment = self._log, self.segment
        if position + size_bytes + BLANK_BYTES <= segment.stop:
            return position, log.allocate(segment, position, size_bytes)
        self.full.append((segment, self.start, position, count))
        self.segment = log.next_segment(segment, size_bytes)
        self.start = self.segment.base
        return self.start, log.room_end(self.segment)

    def chunks(self, parts: Sequence[bytes]) -> list[Chunk]:
        """The data to write into each segment."""
        chunks: list[Chunk] = []
        done = 0
        for segment, start, end, count in self.full:
            blank = BLANK.pack(segment.stop - end, MAGIC_BLANK)
            chunks.append((segment, start, [*parts[done : count * PARTS], blank]))
            done = count * PARTS
        return [*chunks, (self.segment, self.start, parts[done:])]
