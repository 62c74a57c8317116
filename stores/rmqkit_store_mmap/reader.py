"""Reads over a queue and the log (store-format sheet, section 8; Java: DefaultMessageStore.getMessage). No state of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct

from rmqkit.abc import Boundary, Buffer, FileRange, ReadLimits, ReadResult, ReadStatus, RecordFilter, UnitFilter
from rmqkit.protocol.record import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, peek_store_timestamp
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.consume_queue import ConsumeQueue, NotInMemory
from rmqkit_store_mmap.residency import Residency
from rmqkit_store_mmap.units import UNIT

_PHYSICAL_OFFSET = Struct(">q")
_PHYSICAL_OFFSET_AT = 28


def read(
    log: CommitLog,
    residency: Residency,
    queue: ConsumeQueue,
    offset: int,
    limits: ReadLimits,
    unit_filter: UnitFilter | None,
    record_filter: RecordFilter | None,
) -> ReadResult:
    """MessageStore.read for a queue that is there."""
    low, high = queue.min_offset, queue.next_offset
    refusal = _outside(low, high, offset)
    if refusal is not None:
        return ReadResult(refusal[0], refusal[1], low, high, [])
    found: list[tuple[int, int]] = []
    status = ReadStatus.NO_MATCHED_MESSAGE
    max_messages, max_bytes, max_scanned, disk_messages, disk_bytes, memory_bytes, wait = limits
    disk_end = log.position - memory_bytes
    cold: Sequence[FileRange] = ()
    total = looked = 0
    at = offset
    try:
        for physical_offset, size, tags_code in _units(queue, offset, max(max_scanned, max_messages), wait):
            if found and (
                len(found) >= max_messages
                or total + size > max_bytes
                or (physical_offset < disk_end and (len(found) >= disk_messages or total + size > disk_bytes))
            ):
                break
            if unit_filter is None or unit_filter(tags_code):
                record = log.record(physical_offset, size)
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
    except NotInMemory as error:
        cold = [error.where]
    if found:
        status = ReadStatus.FOUND
        if not wait and not cold and found[0][0] < residency.hot_from:
            cold = residency.cold(found)
    return ReadResult(status, at, low, high, _merged(log, found), len(found), total, cold)


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


def _units(queue: ConsumeQueue, offset: int, count: int, wait: bool) -> Iterator[tuple[int, int, int]]:
    for data in queue.data(offset, count, wait):
        yield from UNIT.iter_unpack(data)


def _merged(log: CommitLog, found: list[tuple[int, int]]) -> list[Buffer]:
    """Records as slices; those that stand side by side as one (between two segments there is always a blank record)."""
    slices: list[Buffer] = []
    start = stop = -1
    for physical_offset, size in found:
        if physical_offset == stop:
            stop += size
        else:
            _add(log, slices, start, stop)
            start, stop = physical_offset, physical_offset + size
    _add(log, slices, start, stop)
    return slices


def _add(log: CommitLog, slices: list[Buffer], start: int, stop: int) -> None:
    record = log.record(start, stop - start)
    if record is not None:
        slices.append(record)


def read_record(log: CommitLog, offset: int) -> Buffer | None:
    """MessageStore.read_record: what begins at `offset` must say of itself that it does."""
    head = log.record(offset, MIN_RECORD_BYTES)
    if head is None:
        return None
    size, magic = BLANK.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES or _PHYSICAL_OFFSET.unpack_from(head, _PHYSICAL_OFFSET_AT)[0] != offset:
        return None
    return log.record(offset, size)


def read_log(log: CommitLog, offset: int, max_bytes: int) -> Buffer:
    """MessageStore.read_log: whole records of one segment from `offset` on, the blank record that ends it included; at least one record."""
    segment = log.segment_at(offset) if log.min_offset <= offset < log.position else None
    if segment is None:
        return b""
    stop = min(segment.stop, log.position)
    view = segment.view()
    at = offset
    while at < stop - 7:
        size, magic = BLANK.unpack_from(view, at - segment.base)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or size < 8 or at + size > stop:
            break
        if magic != MAGIC_BLANK and (
            size < MIN_RECORD_BYTES or _PHYSICAL_OFFSET.unpack_from(view, at - segment.base + _PHYSICAL_OFFSET_AT)[0] != at
        ):
            break
        if at > offset and at + size - offset > max_bytes:
            break
        at += size
    return view[offset - segment.base : at - segment.base]


def store_time(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """Store time in ms of the record at a queue offset, -1 when there is none."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    unit = queue.unit(offset)
    record = log.record(unit.physical_offset, unit.size_bytes)
    return -1 if record is None else peek_store_timestamp(record)


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """MessageStore.offset_by_time, by bisection; store times do not fall within a queue unless the clock was set back."""
    low, high = queue.min_offset, queue.next_offset
    if boundary is Boundary.LOWER:
        return bisect_left(range(high), timestamp_ms, low, key=lambda offset: store_time(log, queue, offset))
    behind = bisect_right(range(high), timestamp_ms, low, key=lambda offset: store_time(log, queue, offset))
    return max(low, behind - 1)
