"""Reads over a queue and the log (store-format sheet, section 8; Java: DefaultMessageStore.getMessage). The
functions keep no state."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from struct import Struct

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import (
    Boundary,
    KeyMatches,
    NotInMemory,
    ReadLimits,
    ReadResult,
    ReadStatus,
    UnitFilter,
)
from rmqkit.protocol.damage import is_damage
from rmqkit.protocol.record import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    peek_store_timestamp,
)
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.read_faults import ReadFaults, look
from rmqkit_store_mmap.log.residency import Residency
from rmqkit_store_mmap.log.scan import check_record, may_be_torn
from rmqkit_store_mmap.queue.queue_lookup import ReadableQueue
from rmqkit_store_mmap.queue.units import FILLER_SIZE
from rmqkit_store_mmap.received import sound_end
from rmqkit_store_mmap.unit_scan import UnitScan, merged

_PHYSICAL_OFFSET = Struct(">q")
_PHYSICAL_OFFSET_AT = 28
#: Assumed sizes of a record before its head has been read: the first is how much must be in memory, the
#: second how much is fetched if it is not.
_LOOK_BYTES = 2 * 1024
_LIKELY_BYTES = 16 * 1024


def read(
    log: CommitLog,
    residency: Residency,
    faults: ReadFaults,
    queue: ReadableQueue,
    offset: int,
    limits: ReadLimits,
    unit_filter: UnitFilter | None,
) -> ReadResult:
    """MessageStore.read for an existing queue."""
    low, high = queue.min_offset, end_offset(log, queue)
    refusal = _outside(low, high, offset)
    if refusal is not None:
        return ReadResult(refusal[0], refusal[1], low, high, [])
    scan = UnitScan(limits, log.position, log.stretch_at, unit_filter)
    cold: Sequence[object] = ()
    count = min(high - offset, max(limits.max_scanned_units, limits.max_messages))
    # Without a filter these units are usually enough.
    likely = limits.max_messages if unit_filter is None else count
    try:
        for units in chain(
            queue.data(offset, min(likely, count)), queue.data(offset + likely, count - likely)
        ):
            if not scan.take(units):
                break
    except NotInMemory as missed:
        cold = missed.cold
    found = scan.found
    if found and found[0][0] < residency.hot_from:
        cold = [*residency.cold(found), *cold]
    if cold:
        raise NotInMemory(*cold)
    end = offset + len(found) + scan.passed_over
    slices, left_out, left_out_bytes = merged(found, log.segment_at, log.stretch_at, faults.is_sound)
    total_bytes = scan.size_bytes - left_out_bytes
    if scan.lost:
        _note_lost(log, faults, queue, offset, end)
    if found and found[0][0] < log.written_from:
        faults.check_bodies(slices)
    status = ReadStatus.FOUND
    if not found:
        status = ReadStatus.MESSAGE_WAS_REMOVING if scan.removed else ReadStatus.NO_MATCHED_MESSAGE
    elif not total_bytes:
        status = ReadStatus.MESSAGE_WAS_REMOVING
    return ReadResult(status, end, low, high, slices, len(found) - left_out, total_bytes)


def _note_lost(log: CommitLog, faults: ReadFaults, queue: ReadableQueue, offset: int, end: int) -> None:
    """Note the units from one queue offset to another that refer to no record, besides those whose records
    were removed with the beginning of the log, and those that fill the beginning of a queue."""
    for at in range(offset, end):
        unit = queue.unit(at)
        start, stop = log.stretch_at(unit.physical_offset)
        there = start <= unit.physical_offset and 0 < unit.size_bytes <= stop - unit.physical_offset
        fills = unit.size_bytes == FILLER_SIZE
        if not (there or fills) and not 0 <= unit.physical_offset < log.min_offset:
            faults.note_unit(f"{queue.topic}:{queue.queue_id}", at, unit.physical_offset, unit.size_bytes)


def end_offset(log: CommitLog, queue: ReadableQueue) -> int:
    """The end of the units whose records are written; later units cannot be read yet. Raises OSError,
    NotInMemory."""
    end = queue.next_offset
    if log.written == log.position:
        return end
    start, step = end, 1
    while start > queue.min_offset and queue.unit(start - 1).physical_offset >= log.written:
        end = start - 1
        start = max(queue.min_offset, start - step)
        step *= 2
    return bisect_left(
        range(end), True, start, key=lambda offset: queue.unit(offset).physical_offset >= log.written
    )


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


def read_record(log: CommitLog, residency: Residency, offset: int) -> Buffer | None:
    """MessageStore.read_record. The record must contain its own offset, be complete, and not be one that
    replaces damage. Its body may be damaged, as in pulls: the reader decides what becomes of it. An offset
    may also lie within repaired damage, where the head of a record may remain without the rest; such a record
    is not returned. Raises NotInMemory."""
    record = _record_at(log, residency, offset)
    if record is None or check_record(record, 0, offset, check_body=False) < 0:
        return None
    segment, end = log.segment_at(offset), offset + len(record)
    if may_be_torn(record, 0) and segment is not None and end < min(segment.stop, log.written):
        follows = check_record(segment.view(), end - segment.base, end, check_body=False)
        return None if follows < 0 else record
    return record


def _record_at(log: CommitLog, residency: Residency, offset: int) -> memoryview | None:
    """The record at a log offset, of which only the head is checked; None when there is none."""
    head = log.record(offset, MIN_RECORD_BYTES)
    if head is None:
        return None
    looked = residency.require(offset, _LOOK_BYTES, _LIKELY_BYTES)
    size, magic, flag, claimed, sys_flag = look(head)
    if (
        magic not in (MAGIC_V1, MAGIC_V2)
        or size < MIN_RECORD_BYTES
        or claimed != offset
        or is_damage(flag, sys_flag)
    ):
        return None
    record = log.record(offset, size)
    if record is not None and offset + size > looked:
        residency.require(offset, size)
    return record


def read_log(log: CommitLog, residency: Residency, offset: int, max_bytes: int) -> Buffer:
    """MessageStore.read_log: complete records of one segment from `offset` on, including the blank record at
    its end; at least one record if there is one. Raises NotInMemory."""
    segment = log.segment_at(offset) if log.min_offset <= offset < log.written else None
    if segment is None:
        return b""
    stop = min(segment.stop, log.written)
    view = segment.view()
    looked = min(stop, max(offset + max_bytes, offset + MIN_RECORD_BYTES))
    residency.require(offset, looked - offset, goes_on=True)
    at = segment.base + sound_end(view, offset - segment.base, looked - segment.base, offset)[0]
    while at < stop - 7:
        if at + MIN_RECORD_BYTES > looked:
            looked = min(stop, max(offset + max_bytes, at + MIN_RECORD_BYTES))
            residency.require(offset, looked - offset, goes_on=True)
        size, magic = BLANK.unpack_from(view, at - segment.base)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or size < 8 or at + size > stop:
            break
        if magic != MAGIC_BLANK and (
            size < MIN_RECORD_BYTES
            or _PHYSICAL_OFFSET.unpack_from(view, at - segment.base + _PHYSICAL_OFFSET_AT)[0] != at
        ):
            break
        if at > offset and at + size - offset > max_bytes:
            break
        if (
            magic != MAGIC_BLANK and at + size > looked
        ):  # after the head of a blank record there is only a hole, which need not be in memory
            looked = at + size
            residency.require(offset, looked - offset, goes_on=True)
        at += size
    return view[offset - segment.base : at - segment.base]


def query_by_key(
    log: CommitLog,
    residency: Residency,
    index: KeyIndex,
    key: tuple[int, str],
    begin_ms: int,
    end_ms: int,
    max_results: int,
) -> KeyMatches:
    """MessageStore.query_by_key; `key` is the hash of `topic#` and the key's text. A record
    that is not in memory counts as a match until it is read. Raises NotInMemory."""
    found: dict[int, None] = {}
    cold: list[object] = []
    try:
        for offset in index.find(*key, begin_ms, end_ms) if max_results > 0 else ():
            if offset in found:
                continue
            try:
                record = _record_at(log, residency, offset)
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


def store_time(log: CommitLog, residency: Residency, queue: ReadableQueue, offset: int) -> int:
    """Store time in ms of the record at a queue offset, -1 without a record. Raises OSError, NotInMemory."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    unit = queue.unit(offset)
    record = log.record(unit.physical_offset, unit.size_bytes)
    if record is None:
        return -1
    residency.require(unit.physical_offset, MIN_RECORD_BYTES)
    return peek_store_timestamp(record)


def offset_by_time(
    log: CommitLog, residency: Residency, queue: ReadableQueue, timestamp_ms: int, boundary: Boundary
) -> int:
    """MessageStore.offset_by_time, by bisection. Store times do not decrease within a queue unless the clock
    was set back. Raises OSError, NotInMemory."""

    def time_at(offset: int) -> int:
        return store_time(log, residency, queue, offset)

    low, high = queue.min_offset, end_offset(log, queue)
    if boundary is Boundary.LOWER:
        return bisect_left(range(high), timestamp_ms, low, key=time_at)
    return max(low, bisect_right(range(high), timestamp_ms, low, key=time_at) - 1)
