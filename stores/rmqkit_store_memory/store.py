"""MemoryStore: the store contract in its plainest form. Nothing survives the process; FLUSHED means no more than WRITTEN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import error as StructError

import msgspec
import trio
from attrs import Factory, define

from rmqkit.abc import (
    Appended,
    Boundary,
    Buffer,
    Clock,
    FlushPolicy,
    KeyMatches,
    Level,
    LogPart,
    MessageStore,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    RecordFilter,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.dispatch import KeyLookup, QueueLookup
from rmqkit.errors import MessageIllegal, StoreError, StoreNotWritable
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.names import topic_fault
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import message_size, pack, peek_store_timestamp
from rmqkit.protocol.tags import index_hash

_MAX_I32 = 0x7FFFFFFF
#: Kinds of record that get no place in a queue.
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


@define
class _Log:
    """Records by physical offset, in order; `start` is the first one kept, `end` where the next one begins."""

    records: dict[int, bytes] = Factory(dict)
    start: int = 0
    end: int = 0

    def add(self, record: bytes) -> None:
        self.records[self.end] = record
        self.end += len(record)


@define
class _Queue:
    """Units of a queue; `first` is the queue offset of the first one kept."""

    units: list[QueueUnit] = Factory(list)
    first: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.units)

    def slice(self, offset: int, count: int) -> list[QueueUnit]:
        at = offset - self.first
        return self.units[at : at + count] if at >= 0 and count > 0 else []


class MemoryStore(MessageStore):
    """Whole records in a dict, queues as lists of units, keys as lists of physical offsets by hash.

    Where a log of files would begin a new file, a new part of the log begins here.
    """

    def __init__(self, config: Config, clock: Clock, policy: FlushPolicy) -> None:
        self._clock = clock
        self._max_body_bytes = config.max_message_size
        self._part_bytes = config.mapped_file_size_commit_log
        self._index_enabled = config.message_index_enable
        self._store_host = store_host(config)
        self._log = _Log()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._keys: dict[int, list[tuple[int, int]]] = {}
        self._queue_lookup: QueueLookup | None = None
        self._key_lookup: KeyLookup | None = None
        self._last_indexed = (0, 0)
        self._open = False
        self._refusal: str | None = None

    def read_queues_from(self, lookup: QueueLookup) -> None:
        self._queue_lookup = lookup

    def look_keys_up_in(self, lookup: KeyLookup) -> None:
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

    def append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        if not self._open:
            raise StoreNotWritable("the store is closed")
        if self._refusal is not None:
            raise StoreNotWritable(self._refusal)
        checked = [self._checked(message) for message in messages]
        now = self._clock.now_ms()
        results: list[Appended] = []
        records: list[bytes] = []
        next_offsets: dict[tuple[str, int], int] = {}
        physical_offset = self._log.end
        for message in checked:
            key = (message.topic, message.queue_id)
            queued = message.sys_flag & TRANSACTION_MASK not in _UNQUEUED
            offset = next_offsets.get(key, self._queues.get(key, _Queue()).end) if queued else 0
            try:
                record = pack(message, message_size(message), offset, physical_offset, now, self._store_host)
            except StructError as error:
                raise MessageIllegal(f"a number is out of its range: {error}") from error
            if not -(2**63) <= message.tags_code < 2**63:
                raise MessageIllegal(f"a tags code of {message.tags_code} is out of its range")
            if queued:
                next_offsets[key] = offset + 1
            records.append(record)
            results.append(Appended(offset, physical_offset, len(record), now))
            physical_offset += len(record)
        for message, record, at in zip(checked, records, results, strict=True):
            self._keep(message, record, at)
        return results

    def _checked(self, message: PutMessage) -> PutMessage:
        """The message with the store-host bit of this store. Raises MessageIllegal."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | (STORE_HOST_V6 if len(self._store_host) > 8 else 0)
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
        fault = topic_fault(message.topic)
        if fault is None and not 0 <= message.queue_id <= _MAX_I32:
            fault = f"the queue id {message.queue_id} is out of range"
        if fault is None and len(message.body) > self._max_body_bytes:
            fault = f"a body of {len(message.body)} bytes, at most {self._max_body_bytes} are allowed"
        if fault is None and len(message.born_host) != born_bytes:
            fault = f"a born host of {len(message.born_host)} bytes where the system flag says {born_bytes}"
        if fault is not None:
            raise MessageIllegal(fault)
        message_size(message)
        return msgspec.structs.replace(message, sys_flag=sys_flag)

    def _keep(self, message: PutMessage, record: bytes, at: Appended) -> None:
        self._log.add(record)
        queue = self._queues.setdefault((message.topic, message.queue_id), _Queue())
        kind = message.sys_flag & TRANSACTION_MASK
        if kind not in _UNQUEUED:
            queue.units.append(QueueUnit(at.queue_offset, at.physical_offset, at.size_bytes, message.tags_code))
        if self._index_enabled and kind != TRANSACTION_ROLLBACK:
            keys = [message.properties.get(props.UNIQ_KEY, ""), *message.properties.get(props.KEYS, "").split(" ")]
            for key in filter(None, keys):
                self._keys.setdefault(index_hash(message.topic, key), []).append((at.store_timestamp_ms, at.physical_offset))
                self._last_indexed = (at.store_timestamp_ms, at.physical_offset)

    def is_settled(self, offset: int, level: Level) -> bool:
        return offset <= self._log.end

    async def settled(self, offset: int, level: Level) -> None:
        if not self.is_settled(offset, level):
            raise StoreError(f"offset {offset} is behind the end of the log, {self._log.end}")
        await trio.lowlevel.checkpoint()

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None, record_filter: RecordFilter | None
    ) -> ReadResult:
        queue = self._found(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        low, end = queue.first, queue.end
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
            elif (unit_filter is None or unit_filter(unit.tags_code)) and (record_filter is None or record_filter(record)):
                found.append(record)
                total += len(record)
        return ReadResult(ReadStatus.FOUND if found else status, at, low, end, found, len(found), total)

    def _is_full(self, unit: QueueUnit, count: int, total_bytes: int, limits: ReadLimits) -> bool:
        if count >= limits.max_messages or total_bytes > limits.max_bytes:
            return True
        on_disk = self._log.end - unit.physical_offset > limits.memory_bytes
        return on_disk and (count >= limits.max_disk_messages or total_bytes > limits.max_disk_bytes)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int, wait: bool = True) -> list[QueueUnit]:
        return self._queue(topic, queue_id).slice(offset, count)

    def read_record(self, physical_offset: int, wait: bool = True) -> Buffer | None:
        return self._log.records.get(physical_offset)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int, wait: bool = True) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        entries = self._keys.get(index_hash(topic, key), ())
        offsets = sorted({offset for time_ms, offset in entries if begin_ms <= time_ms <= end_ms}, reverse=True)
        return KeyMatches(offsets[: max(0, max_results)], *self._last_indexed)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._queue(topic, queue_id).first

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._queue(topic, queue_id).end

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary, wait: bool = True) -> int:
        queue = self._queue(topic, queue_id)
        times = [self._time(unit) for unit in queue.units]
        if boundary is Boundary.LOWER:
            return queue.first + sum(time_ms < timestamp_ms for time_ms in times)
        return queue.first + max(0, sum(time_ms <= timestamp_ms for time_ms in times) - 1)

    def store_time(self, topic: str, queue_id: int, offset: int, wait: bool = True) -> int:
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
        return _Queue(list(lookup.units(topic, queue_id, low, high - low)), low)

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        return self._found(topic, queue_id) or _Queue()

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
            last = offset
        return parts

    async def trim(self, before_offset: int) -> Trimmed:
        log = self._log
        before = log.start
        log.start = max((part.end for part in await self.log_parts() if part.end <= before_offset), default=before)
        log.records = {offset: record for offset, record in log.records.items() if offset >= log.start}
        for queue in self._queues.values():
            kept = [unit for unit in queue.units if unit.physical_offset >= log.start]
            queue.first, queue.units = queue.end - len(kept), kept
        kept_keys = {key: [entry for entry in entries if entry[1] >= log.start] for key, entries in self._keys.items()}
        self._keys = {key: entries for key, entries in kept_keys.items() if entries}
        return Trimmed(log.start, log.start - before)

    def read_log(self, offset: int, max_bytes: int, wait: bool = True) -> Buffer:
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
