"""Reads the messages of one pop: from which queues, which messages, and what is leased in order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from attrs import define, field

from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.store import ReadLimits, ReadResult, ReadStatus
from rmqkit.protocol.headers import PopMessageRequestHeader
from rmqkit.protocol.record import peek_properties, peek_size_and_magic
from rmqkit_pop.engine import Delivery, Engine
from rmqkit_pop.leases import Queue
from rmqkit_pop.limits import MAX_ANSWER_BYTES, MAX_SCANNED_UNITS
from rmqkit_pop.waiting import KEY, Source, queue_of

#: Units that one read of the store looks at.
_UNITS = 800
_MOVED = (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.OFFSET_FOUND_NULL)
_GROUP_MARK = f"{props.POP_GROUP}{props.NAME_END}".encode()


class Found(msgspec.Struct, gc=False):
    """Messages of one queue, as records."""

    source: Source
    delivery: Delivery
    records: Sequence[Buffer]

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


@define(eq=False)
class PopRead:
    """One look for messages, at most `limit` of them. Nothing is leased by it.

    found     the messages
    passed    queues that are read on at an offset, where nothing was for the group
    rest      messages that are left in the queues that were read
    """

    engine: Engine
    header: PopMessageRequestHeader
    filter: CompiledFilter
    limit: int
    found: list[Found] = field(factory=list)
    passed: list[tuple[Queue, int]] = field(factory=list)
    rest: int = 0
    _bytes: int = 0

    @property
    def count(self) -> int:
        return sum(len(each.records) for each in self.found)

    @property
    def is_full(self) -> bool:
        """Whether there are enough messages."""
        return self.count >= self.limit or self._bytes >= MAX_ANSWER_BYTES

    def look(self, sources: Sequence[Source]) -> None:
        """Look into queues until there are enough messages. Raises NotInMemory, RequestRefused; nothing was
        changed then but what a repetition does not change further."""
        for source in sources:
            if self.is_full:
                return
            queue = queue_of(self.engine, source, self.header)
            found = self._in_order(source, queue) if queue.ordered else self._next(source, queue)
            if found is not None and found.records:
                self.found.append(found)
                self._bytes += found.size

    @property
    def _most_units(self) -> int:
        """Units that are looked at in one queue, for the event loop waits meanwhile."""
        return MAX_SCANNED_UNITS if self.filter.records is None else _UNITS

    def _limits(self) -> ReadLimits:
        config = self.engine.broker.config
        return ReadLimits(
            self.limit - self.count,
            max(1, MAX_ANSWER_BYTES - self._bytes),
            _UNITS,
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
            self.engine.memory_bytes,
        )

    def _read(self, source: Source, queue: Queue, offset: int) -> ReadResult:
        """The messages at an offset of a queue, or at the first that is there; a queue that ends before the
        offset is read on at its end."""
        store, (_, topic, queue_id) = self.engine.broker.store, source.key
        unit = None if source.is_retry else self.filter.unit
        limits = self._limits()
        result = store.read(topic, queue_id, offset, limits, unit)
        if result.status in _MOVED and result.next_offset != offset:
            if result.next_offset < offset:
                queue.go_to(result.next_offset, ordered=queue.ordered)
            result = store.read(topic, queue_id, result.next_offset, limits, unit)
        return result

    def _next(self, source: Source, queue: Queue) -> Found | None:
        """The next messages of a queue without order."""
        start = offset = queue.position
        if offset == self.engine.broker.store.max_offset(source.key.topic, source.key.queue_id):
            return None
        while True:
            result = self._read(source, queue, offset)
            start = min(start, queue.position)
            if result.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE:
                return None
            offsets, records = self._wanted(source, queue, result)
            offset = result.next_offset
            if records or offset >= result.max_offset or offset - start >= self._most_units:
                break
        self.rest += max(0, result.max_offset - offset)
        if records:
            return Found(source, Delivery(queue, start, offsets, offset), records)
        if offset != start:
            self.passed.append((queue, offset))
        return None

    def _wanted(
        self, source: Source, queue: Queue, result: ReadResult
    ) -> tuple[Sequence[int], Sequence[Buffer]]:
        """The offsets and records of a read that are for the group: those that it has leased already, after
        its offset was set back, are not."""
        if not result.message_count:
            return (), ()
        offsets, records = result.queue_offsets, split(result.slices)
        kept: Sequence[int] = range(len(records))
        if queue.leases or queue.done:
            kept = [at for at in kept if offsets[at] not in queue.leases and offsets[at] not in queue.done]
        if source.is_retry:
            kept = [at for at in kept if _is_of(records[at], source.key.group)]
        else:
            kept = self._matching(records, kept)
        if len(kept) == len(records):
            return offsets, records
        return [offsets[at] for at in kept], [records[at] for at in kept]

    def _in_order(self, source: Source, queue: Queue) -> Found | None:
        """What may be delivered of an ordered queue now."""
        store, (_, topic, queue_id) = self.engine.broker.store, source.key
        wanted = self.limit - self.count
        attempt_id = self.header.attempt_id
        by_key = (self.header.order_by or self.engine.settings.pop_order_by) == KEY
        start, now_ms = queue.position, self.engine.broker.clock.now_ms()
        while len(queue.takable(wanted, now_ms, attempt_id)) < wanted and queue.room > 0:
            if not by_key and queue.leases and not queue.takable(1, now_ms, attempt_id):
                break
            result = self._read(source, queue, queue.position)
            offsets, records = self._wanted_in_order(result)
            keys = [_sharding_key(each) if by_key else "" for each in records]
            if result.next_offset <= queue.position and not offsets:
                break
            queue.scanned(list(zip(offsets, keys, strict=True)), result.next_offset)
            if queue.position - start >= self._most_units:
                break
        self.rest += max(0, store.max_offset(topic, queue_id) - queue.position)
        found, kept = self._records_at(source, queue, queue.takable(wanted, now_ms, attempt_id))
        if not kept:
            self.passed.append((queue, queue.position))
            return None
        return Found(source, Delivery(queue, kept[0], kept, queue.position, ordered=True), found)

    def _records_at(
        self, source: Source, queue: Queue, offsets: Sequence[int]
    ) -> tuple[list[Buffer], list[int]]:
        """The records at some offsets of a window, as many as an answer takes, with their offsets. One that
        is gone is finished."""
        store, (_, topic, queue_id) = self.engine.broker.store, source.key
        records: list[Buffer] = []
        kept: list[int] = []
        size = self._bytes
        for offset in offsets:
            result = store.read(topic, queue_id, offset, ReadLimits(1), None)
            if not result.message_count or result.queue_offsets[0] != offset:
                queue.window.pop(offset, None)
                continue
            (record,) = split(result.slices)
            size += len(record)
            if records and size > MAX_ANSWER_BYTES:
                break
            kept.append(offset)
            records.append(record)
        return records, kept

    def _wanted_in_order(self, result: ReadResult) -> tuple[Sequence[int], Sequence[Buffer]]:
        if not result.message_count:
            return (), ()
        offsets, records = result.queue_offsets, split(result.slices)
        kept = self._matching(records, range(len(records)))
        return [offsets[at] for at in kept], [records[at] for at in kept]

    def _matching(self, records: Sequence[Buffer], kept: Sequence[int]) -> Sequence[int]:
        """The indexes of records that pass the second stage of the filter. Raises RequestRefused."""
        judge = self.filter.records
        if judge is None:
            return kept
        found: list[int] = []
        for at in range(0, len(kept), self.filter.records_per_call):
            part = kept[at : at + self.filter.records_per_call]
            verdicts = judge([records[each] for each in part])
            found += [each for each, wanted in zip(part, verdicts, strict=True) if wanted]
        return found


def split(slices: Sequence[Buffer]) -> list[Buffer]:
    """The records of slices, which hold whole ones."""
    found: list[Buffer] = []
    for each in slices:
        view, at = memoryview(each), 0
        while at < len(view):
            size, _ = peek_size_and_magic(view, at)
            found.append(view[at : at + size])
            at += size
    return found


def _is_of(record: Buffer, group: str) -> bool:
    """Whether a message of a retry topic belongs to a group. Java's messages do not say it."""
    stored = peek_properties(record)
    return _GROUP_MARK not in stored or props.decode_bytes(stored).get(props.POP_GROUP) == group


def _sharding_key(record: Buffer) -> str | None:
    return props.decode_bytes(peek_properties(record)).get(props.SHARDING_KEY)


__all__ = ["Found", "PopRead", "split"]
