"""Reads over a queue and the log (store-format sheet, section 8; Java: DefaultMessageStore.getMessage). No state of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct

from rmqkit.abc import Boundary, Buffer, KeyMatches, NotInMemory, ReadLimits, ReadResult, ReadStatus, RecordFilter, UnitFilter
from rmqkit.protocol.record import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, peek_store_timestamp
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.key_index import KeyIndex
from rmqkit_store_mmap.queue_lookup import ReadableQueue
from rmqkit_store_mmap.residency import Residency
from rmqkit_store_mmap.units import UNIT

_PHYSICAL_OFFSET = Struct(">q")
_PHYSICAL_OFFSET_AT = 28
#: A record is taken to be no longer until its head has been read: whether so much is in memory is asked at once, and more is brought in at once.
_LOOK_BYTES = 2 * 1024
_LIKELY_BYTES = 16 * 1024


def read(
    log: CommitLog,
    residency: Residency,
    queue: ReadableQueue,
    offset: int,
    limits: ReadLimits,
    unit_filter: UnitFilter | None,
    record_filter: RecordFilter | None,
) -> ReadResult:
    """MessageStore.read for a queue that is there."""
    low, high = queue.min_offset, end_offset(log, queue)
    refusal = _outside(low, high, offset)
    if refusal is not None:
        return ReadResult(refusal[0], refusal[1], low, high, [])
    found: list[tuple[int, int]] = []
    status = ReadStatus.NO_MATCHED_MESSAGE
    max_messages, max_bytes, max_scanned, disk_messages, disk_bytes, memory_bytes, wait = limits
    disk_end = log.position - memory_bytes
    cold: Sequence[object] = ()
    total = looked = there_from = there_to = 0
    at = offset
    try:
        for physical_offset, size, tags_code in _units(queue, offset, min(high - offset, max(max_scanned, max_messages)), wait):
            if found and (
                len(found) >= max_messages
                or total + size > max_bytes
                or (physical_offset < disk_end and (len(found) >= disk_messages or total + size > disk_bytes))
            ):
                break
            if unit_filter is None or unit_filter(tags_code):
                if record_filter is None and there_from <= physical_offset and physical_offset + size <= there_to and size > 0:
                    found.append((physical_offset, size))
                    total += size
                    at += 1
                    continue
                record = log.record(physical_offset, size)
                there_from, there_to = log.stretch_at(physical_offset)
                if record is None:
                    if not found:
                        status = ReadStatus.MESSAGE_WAS_REMOVING
                else:
                    if record_filter is not None and not wait and physical_offset + size > looked:
                        looked = residency.look_ahead(physical_offset, size)
                    if record_filter is None or record_filter(record):
                        found.append((physical_offset, size))
                        total += size
                    elif not found:
                        status = ReadStatus.NO_MATCHED_MESSAGE
            at += 1
    except NotInMemory as missed:
        cold = missed.cold
    if found:
        status = ReadStatus.FOUND
        if not wait and record_filter is None and found[0][0] < residency.hot_from:
            cold = [*residency.cold(found), *cold]
    if cold:
        raise NotInMemory(*cold)
    return ReadResult(status, at, low, high, _merged(log, found), len(found), total)


def end_offset(log: CommitLog, queue: ReadableQueue) -> int:
    """The queue offset behind the last unit whose record is written; what comes behind it cannot be read yet."""
    end = queue.next_offset
    if log.written == log.position:
        return end
    start, step = end, 1
    while start > queue.min_offset and queue.unit(start - 1).physical_offset >= log.written:
        end = start - 1
        start = max(queue.min_offset, start - step)
        step *= 2
    return bisect_left(range(end), True, start, key=lambda offset: queue.unit(offset).physical_offset >= log.written)


def _outside(low: int, high: int, offset: int) -> tuple[ReadStatus, int] | None:
    if high == 0:
        return ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return ReadStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return ReadStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return ReadStatus.OFFSET_OVERFLOW_BADLY, high
    return None


def _units(queue: ReadableQueue, offset: int, count: int, wait: bool) -> Iterator[tuple[int, int, int]]:
    for data in queue.data(offset, count, wait):
        yield from UNIT.iter_unpack(data)


def _merged(log: CommitLog, found: list[tuple[int, int]]) -> list[Buffer]:
    """Records as slices; those that stand side by side as one (between two segments there is always a blank record)."""
    slices: list[Buffer] = []
    there_from = there_to = base = 0
    view = memoryview(b"")
    start = stop = -1
    for physical_offset, size in (*found, (-1, 0)):
        if physical_offset == stop:
            stop += size
            continue
        if start >= 0:
            if not there_from <= start < there_to:
                there_from, there_to = log.stretch_at(start)
                segment = log.segment_at(start)
                if segment is not None:
                    view, base = segment.view(), segment.base
            if there_from <= start and stop <= there_to:
                slices.append(view[start - base : stop - base])
        start, stop = physical_offset, physical_offset + size
    return slices


def read_record(log: CommitLog, residency: Residency, offset: int, wait: bool) -> Buffer | None:
    """MessageStore.read_record: what begins at `offset` must say of itself that it does."""
    head = log.record(offset, MIN_RECORD_BYTES)
    if head is None:
        return None
    looked = log.written if wait else residency.require(offset, _LOOK_BYTES, _LIKELY_BYTES)
    size, magic = BLANK.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES or _PHYSICAL_OFFSET.unpack_from(head, _PHYSICAL_OFFSET_AT)[0] != offset:
        return None
    record = log.record(offset, size)
    if record is not None and offset + size > looked:
        residency.require(offset, size)
    return record


def read_log(log: CommitLog, residency: Residency, offset: int, max_bytes: int, wait: bool) -> Buffer:
    """MessageStore.read_log: whole records of one segment from `offset` on, the blank record that ends it included; at least one record."""
    segment = log.segment_at(offset) if log.min_offset <= offset < log.written else None
    if segment is None:
        return b""
    stop = min(segment.stop, log.written)
    view = segment.view()
    at = offset
    looked = stop if wait else offset
    while at < stop - 7:
        if at + MIN_RECORD_BYTES > looked:
            looked = min(stop, max(offset + max_bytes, at + MIN_RECORD_BYTES))
            residency.require(offset, looked - offset)
        size, magic = BLANK.unpack_from(view, at - segment.base)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or size < 8 or at + size > stop:
            break
        if magic != MAGIC_BLANK and (
            size < MIN_RECORD_BYTES or _PHYSICAL_OFFSET.unpack_from(view, at - segment.base + _PHYSICAL_OFFSET_AT)[0] != at
        ):
            break
        if at > offset and at + size - offset > max_bytes:
            break
        if magic != MAGIC_BLANK and at + size > looked:  # behind the head of a blank record there is a hole, and nothing to wait for
            looked = at + size
            residency.require(offset, looked - offset)
        at += size
    return view[offset - segment.base : at - segment.base]


def query_by_key(
    log: CommitLog, residency: Residency, index: KeyIndex, key: tuple[int, str], begin_ms: int, end_ms: int, max_results: int, wait: bool
) -> KeyMatches:
    """MessageStore.query_by_key; `key` is the hash of `topic#` and the key's text. What is cold counts as found until it is looked at."""
    found: dict[int, None] = {}
    cold: list[object] = []
    try:
        for offset in index.find(*key, begin_ms, end_ms, wait) if max_results > 0 else ():
            if offset in found:
                continue
            try:
                record = read_record(log, residency, offset, wait)
            except NotInMemory as missed:
                cold += missed.cold
            else:
                if record is None or not begin_ms <= peek_store_timestamp(record) <= end_ms:
                    continue
            found[offset] = None
            if len(found) == max_results:
                break
    except NotInMemory as missed:
        cold += missed.cold
    if cold:
        raise NotInMemory(*cold)
    return KeyMatches(sorted(found, reverse=True), *index.newest)


def store_time(log: CommitLog, residency: Residency, queue: ReadableQueue, offset: int, wait: bool) -> int:
    """Store time in ms of the record at a queue offset, -1 when there is none."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    unit = queue.unit(offset, wait)
    record = log.record(unit.physical_offset, unit.size_bytes)
    if record is None:
        return -1
    if not wait:
        residency.require(unit.physical_offset, MIN_RECORD_BYTES)
    return peek_store_timestamp(record)


def offset_by_time(log: CommitLog, residency: Residency, queue: ReadableQueue, timestamp_ms: int, boundary: Boundary, wait: bool) -> int:
    """MessageStore.offset_by_time, by bisection; store times do not fall within a queue unless the clock was set back."""

    def time_at(offset: int) -> int:
        return store_time(log, residency, queue, offset, wait)

    low, high = queue.min_offset, end_offset(log, queue)
    if boundary is Boundary.LOWER:
        return bisect_left(range(high), timestamp_ms, low, key=time_at)
    return max(low, bisect_right(range(high), timestamp_ms, low, key=time_at) - 1)
