"""Selects the units and records of a queue for a read (store-format sheet, sections 8.1 and 8.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import ReadLimits, ReadResult, ReadStatus, RecordFilter, UnitFilter
from rmqkit.protocol.damage import FLAGS, FLAGS_AT, is_damage
from rmqkit_store_lmdb.read.queues import Queue
from rmqkit_store_lmdb.read.reader import Reader


@define
class Gatherer:
    """One read; `at` is the queue offset that it has reached. Records before the log offset `disk_end` count
    as on disk."""

    limits: ReadLimits
    unit_filter: UnitFilter | None
    record_filter: RecordFilter | None
    disk_end: int
    at: int
    count: int = 0
    total_bytes: int = 0
    full: bool = False
    status: ReadStatus = ReadStatus.NO_MATCHED_MESSAGE
    slices: list[Buffer] = field(factory=list)

    def take(self, entries: Iterable[tuple[Any, ...]], reader: Reader | None) -> None:
        """Continue with these units. They contain their records (queues.Entry), or the records are read with
        `reader` (layout.Unit)."""
        max_messages, max_bytes, _, disk_messages, disk_bytes, _ = self.limits
        unit_filter, record_filter, disk_end = self.unit_filter, self.record_filter, self.disk_end
        found: list[Buffer] = []
        at, count, total = self.at, self.count, self.total_bytes
        for entry in entries:
            physical_offset, size = entry[0], entry[1]
            if count and (
                count >= max_messages
                or total + size > max_bytes
                or (physical_offset < disk_end and (count >= disk_messages or total + size > disk_bytes))
            ):
                self.full = True
                break
            at += 1
            if unit_filter is not None and not unit_filter(entry[2]):
                continue
            record = entry[4] if reader is None else reader.slice(physical_offset, size)
            if record is None or is_damage(*FLAGS.unpack_from(record, FLAGS_AT)):
                self.status = ReadStatus.MESSAGE_WAS_REMOVING
            elif record_filter is None or record_filter(record):
                found.append(record)
                count += 1
                total += size
        if found:
            self.slices.append(b"".join(found))  # copied, because the pages are valid in the transaction only
        self.at, self.count, self.total_bytes = at, count, total

    def result(self, queue: Queue) -> ReadResult:
        status = ReadStatus.FOUND if self.count else self.status
        return ReadResult(
            status, self.at, queue.first, queue.next_offset, self.slices, self.count, self.total_bytes
        )


def refused(queue: Queue, offset: int) -> ReadResult | None:
    """The result for a queue offset without a unit, None if there is a unit."""
    low, high = queue.first, queue.next_offset
    if high == 0:
        status, following = ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    elif offset < low:
        status, following = ReadStatus.OFFSET_TOO_SMALL, low
    elif offset == high:
        status, following = ReadStatus.OFFSET_OVERFLOW_ONE, offset
    elif offset > high:
        status, following = ReadStatus.OFFSET_OVERFLOW_BADLY, high
    else:
        return None
    return ReadResult(status, following, low, high, [])
