"""MemoryStore: the store contract in its simplest form. Nothing survives the process; FLUSHED means no more
than WRITTEN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter

import trio
from attrs import Factory, define

from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.queue_code import queue_code
from rmqkit.plugin.store import (
    Appended,
    Boundary,
    KeyLookup,
    KeyMatches,
    LogPart,
    MessageStore,
    QueueLookup,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.protocol.packed import UNIT, TopicHead, next_place_in_files
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK, peek_size_and_magic, peek_store_timestamp
from rmqkit.protocol.record_packer import RecordPacker
from rmqkit.protocol.tags import absolute_hash, extend_hash, index_hash
from rmqkit.toolkit.log_records import log_records


@define
class _Log:
    """Records by physical offset, in order; `start` is the first one kept, `end` the position of the next
    one."""

    records: dict[int, bytes] = Factory(dict)
    start: int = 0
    end: int = 0

    def add(self, record: bytes) -> None:
        self.records[self.end] = record
        self.end += len(record)


@define(eq=False)
class _Queue:
    """Units of a queue; `first` is the queue offset of the first one kept."""

    head: TopicHead
    units: list[QueueUnit] = Factory(list)
    first: int = 0
    #: No place has to be reserved for units.
    reserved_until: int = 1 << 63

    @property
    def next_offset(self) -> int:
        return self.first + len(self.units)

    def reserve(self, stop: int) -> None:
        """Does nothing: see `reserved_until`."""

    def slice(self, offset: int, count: int) -> list[QueueUnit]:
        at = offset - self.first
        return self.units[at : at + count] if at >= 0 and count > 0 else []


def _new_queue(topic: str, queue_id: int, number: int) -> _Queue:
    return _Queue(TopicHead.of(topic))


class MemoryStore(MessageStore):
    """Whole records in a dict, queues as lists of units, keys as lists of physical offsets by hash.

    Where a log of files would begin a new file, a new part of the log begins here.
    """

    is_durable = False

    def __init__(self, config: Config, clock: Clock, policy: FlushPolicy) -> None:
        self._clock = clock
        self._packer = RecordPacker(config.largest_body_bytes, store_host(config), config.unindexed_topics)
        self._next_place = next_place_in_files(config.mapped_file_size_commit_log)
        self._part_bytes = config.mapped_file_size_commit_log
        self._index_enabled = config.message_index_enable
        self._unindexed = frozenset(config.unindexed_topics)
        self._log = _Log()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._keys: dict[int, list[tuple[int, int]]] = {}
        self._queue_lookup: QueueLookup | None = None
        self._key_lookup: KeyLookup | None = None
        self._last_indexed = (0, 0)
        self._open = False
        self._refusal: str | None = None

    def use_external_consume_queue(self, lookup: QueueLookup) -> None:
        self._queue_lookup = lookup

    def use_external_index(self, lookup: KeyLookup) -> None:
        self._key_lookup = lookup
        self._index_enabled = False

    def dispatch_behind(self) -> Mapping[str, int]:
        built = {CONSUME_QUEUE: self._queue_lookup is None, INDEX: self._index_enabled}
        return {name: 0 for name, is_built in built.items() if is_built}

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._open:
            raise StoreError("the store is open already")
        self._open = True

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        self._open = False

    def _require_writable(self) -> None:
        """Check that messages can be appended. Raises StoreNotWritable."""
        if not self._open:
            raise StoreNotWritable("the store is closed")
        if self._refusal is not None or self.positions.going_back:
            raise StoreNotWritable(self._refusal or "the log is being cut")

    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        self._require_writable()
        made: dict[tuple[str, int], _Queue] = {}
        now, log = self._clock.now_ms(), self._log
        begin, elsewhere, codes = self._next_place(log.end, 0), self._next_place, self.queue_codes
        run = self._packer.pack(messages, now, self._queues, _new_queue, *begin, elsewhere, made, codes)
        self._queues |= made
        for record, at in zip(run.records(), run.results, strict=True):
            if at.physical_offset > log.end:
                log.add(_blank(at.physical_offset - log.end))
            log.add(record)
        for queue, units in run.units.items():
            queue.units += [
                QueueUnit(at, *unit) for at, unit in enumerate(UNIT.iter_unpack(units), queue.next_offset)
            ]
        for note in run.notes if self._index_enabled else ():
            self._note_keys(*note)
        return run.results

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        self._require_writable()
        log = self._log
        if offset != log.end and log.start != log.end:
            raise StoreError(f"the log ends at {log.end}, bytes for offset {offset} cannot follow")
        found = log_records(offset, data)
        if found and log.start == log.end:
            log.start = log.end = offset
        known = len(self._queues)
        for record, message in found:
            if message is not None:
                self._place(message)
            log.add(record)
        self.positions.moved()
        return [*islice(self._queues, known, None)]

    def _place(self, message: StoredMessage) -> None:
        """Put a record of another broker into its queue and the index."""
        at = Appended(
            message.queue_offset, message.physical_offset, message.size_bytes, message.store_timestamp_ms
        )
        kind = message.sys_flag & TRANSACTION_MASK
        if not kind & UNQUEUED:
            key = message.topic, message.queue_id
            queue = self._queues.setdefault(key, _new_queue(*key, 0))
            if not queue.first <= at.queue_offset <= queue.next_offset:
                queue.first, queue.units = at.queue_offset, []
            del queue.units[at.queue_offset - queue.first :]
            code = queue_code(self.queue_codes, message.topic, message.properties, at.store_timestamp_ms)
            queue.units.append(QueueUnit(*at[:3], code))
        if kind != TRANSACTION_ROLLBACK and self._index_enabled and message.topic not in self._unindexed:
            found, code = message.properties, extend_hash(0, f"{message.topic}#")
            unique_key, keys = found.get(props.UNIQ_KEY), found.get(props.KEYS)
            self._note_keys(code, unique_key, keys, at.physical_offset, at.store_timestamp_ms)

    async def truncate(self, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        log = self._log
        if offset == log.end:
            return
        if offset not in log.records:
            raise StoreError(f"the log cannot be cut at {offset}: no record begins there")
        log.records = {at: record for at, record in log.records.items() if at < offset}
        log.end = offset
        for key, queue in list(self._queues.items()):
            queue.units = [unit for unit in queue.units if unit.physical_offset < offset]
            if queue.next_offset == 0:
                del self._queues[key]
        kept = {key: [entry for entry in found if entry[1] < offset] for key, found in self._keys.items()}
        self._keys = {key: entries for key, entries in kept.items() if entries}
        newest = max((found[-1] for found in self._keys.values()), key=itemgetter(1), default=(0, 0))
        self._last_indexed = newest
        with trio.CancelScope(shield=True):
            await self.positions.truncated(offset)

    def _note_keys(
        self, key_code: int, unique_key: str | None, keys: str | None, offset: int, time_ms: int
    ) -> None:
        for key in filter(None, [unique_key, *(keys or "").split(" ")]):
            self._last_indexed = (time_ms, offset)
            code = absolute_hash(extend_hash(key_code, key))
            self._keys.setdefault(code, []).append(self._last_indexed)

    def settled_offset(self, level: Level) -> int:
        return self._log.end

    async def settled(self, offset: int, level: Level) -> None:
        if not self.is_settled(offset, level):
            raise StoreError(f"offset {offset} is behind the end of the log, {self._log.end}")
        await trio.lowlevel.checkpoint()

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        queue = self._found(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        low, end = queue.first, queue.next_offset
        if end == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, end, [])
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, end, [])
        if offset == end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, end, [])
        if offset > end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, low, end, [])
        found: list[Buffer] = []
        status = ReadStatus.NO_MATCHED_MESSAGE
        total = 0
        at = offset
        for unit in queue.slice(offset, max(limits.max_scanned_units, limits.max_messages)):
            if found and self._is_full(unit, len(found), total + unit.size_bytes, limits):
                break
            at += 1
            record = self._log.records.get(unit.physical_offset)
            if record is None:
                status = ReadStatus.MESSAGE_WAS_REMOVING
            elif unit_filter is None or unit_filter(unit.tags_code):
                found.append(record)
                total += len(record)
        return ReadResult(ReadStatus.FOUND if found else status, at, low, end, found, len(found), total)

    def _is_full(self, unit: QueueUnit, count: int, total_bytes: int, limits: ReadLimits) -> bool:
        if count >= limits.max_messages or total_bytes > limits.max_bytes:
            return True
        on_disk = self._log.end - unit.physical_offset > limits.memory_bytes
        return on_disk and (count >= limits.max_disk_messages or total_bytes > limits.max_disk_bytes)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        queue = self._found(topic, queue_id)
        return queue.slice(offset, count) if queue is not None else []

    def read_record(self, physical_offset: int) -> Buffer | None:
        record = self._log.records.get(physical_offset)
        return None if record is None or _is_blank(record) else record

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        entries = self._keys.get(index_hash(topic, key), ())
        offsets = sorted(
            {offset for time_ms, offset in entries if begin_ms <= time_ms <= end_ms}, reverse=True
        )
        return KeyMatches(offsets[: max(0, max_results)], *self._last_indexed)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._found(topic, queue_id)
        return queue.first if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._found(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        queue = self._found(topic, queue_id)
        if queue is None:
            return 0
        times = [self._time(unit) for unit in queue.units]
        if boundary is Boundary.LOWER:
            return queue.first + sum(time_ms < timestamp_ms for time_ms in times)
        return queue.first + max(0, sum(time_ms <= timestamp_ms for time_ms in times) - 1)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        units = self.read_units(topic, queue_id, offset, 1)
        return self._time(units[0]) if units else -1

    def _time(self, unit: QueueUnit) -> int:
        return peek_store_timestamp(self._log.records[unit.physical_offset])

    def queues(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        for queue_id in self.queues().get(topic, ()):
            self.delete_queue(topic, queue_id)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self._queues.pop((topic, queue_id), None)
        if self._queue_lookup is not None:
            self._queue_lookup.delete_queue(topic, queue_id)

    def _found(self, topic: str, queue_id: int) -> _Queue | None:
        """The queue as readers see it, None for an unknown one."""
        queue = self._queues.get((topic, queue_id))
        lookup = self._queue_lookup
        if lookup is None or queue is None:
            return queue
        low, high = lookup.min_offset(topic, queue_id), lookup.max_offset(topic, queue_id)
        return _Queue(queue.head, list(lookup.units(topic, queue_id, low, high - low)), low)

    def refuse_writes(self, reason: str | None) -> None:
        self._refusal = reason

    async def log_parts(self) -> list[LogPart]:
        await trio.lowlevel.checkpoint()
        parts: list[LogPart] = []
        start = last = self._log.start
        for offset in self._log.records:
            if offset // self._part_bytes != start // self._part_bytes:
                parts.append(LogPart(start, offset, peek_store_timestamp(self._log.records[last])))
                start = offset
            last = last if _is_blank(self._log.records[offset]) else offset
        return parts

    async def trim(self, before_offset: int) -> Trimmed:
        log, before_offset = self._log, self.pins.limit(before_offset)
        before = log.start
        log.start = max(
            (part.end for part in await self.log_parts() if part.end <= before_offset), default=before
        )
        log.records = {offset: record for offset, record in log.records.items() if offset >= log.start}
        for queue in self._queues.values():
            kept = [unit for unit in queue.units if unit.physical_offset >= log.start]
            queue.first, queue.units = queue.next_offset - len(kept), kept
        kept_keys = {
            key: [entry for entry in entries if entry[1] >= log.start] for key, entries in self._keys.items()
        }
        self._keys = {key: entries for key, entries in kept_keys.items() if entries}
        return Trimmed(log.start, log.start - before)

    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        found: list[bytes] = []
        total = 0
        while offset + total in self._log.records:
            record = self._log.records[offset + total]
            if found and total + len(record) > max_bytes:
                break
            found.append(record)
            total += len(record)
        return b"".join(found)

    @property
    def start_offset(self) -> int:
        return self._log.start

    @property
    def end_offset(self) -> int:
        return self._log.end

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            min_physical_offset=self._log.start,
            max_physical_offset=self._log.end,
            flushed_physical_offset=self._log.end,
            queue_count=len(self._queues),
            disk_bytes=0,
            file_count=0,
        )


def _is_blank(record: bytes) -> bool:
    return peek_size_and_magic(record)[1] == MAGIC_BLANK


def _blank(size: int) -> bytes:
    return BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK_BYTES)
