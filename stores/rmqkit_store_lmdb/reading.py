"""Which units and records of a queue a read takes (store-format sheet, sections 8.1 and 8.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from rmqkit.abc import Buffer, ReadLimits, ReadResult, ReadStatus, RecordFilter, UnitFilter
from rmqkit_store_lmdb.queues import Queue
from rmqkit_store_lmdb.reader import Reader


@define
class Gatherer:
    """One read; `at` is the queue offset it has come to. Records before the log offset `disk_end` count as being on disk."""

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
        """Go on with these units, whose records come along (queues.Entry) or are the reader's (layout.Unit)."""
        max_messages, max_bytes, _, disk_messages, disk_bytes, _, _ = self.limits
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
            if record is None:
                self.status = ReadStatus.MESSAGE_WAS_REMOVING
            elif record_filter is None or record_filter(record):
                found.append(record)
                count += 1
                total += size
        if found:
            self.slices.append(b"".join(found))  # a copy, for the reader's pages are not there for long
        self.at, self.count, self.total_bytes = at, count, total

    def result(self, queue: Queue) -> ReadResult:
        status = ReadStatus.FOUND if self.count else self.status
        return ReadResult(status, self.at, queue.first, queue.end, self.slices, self.count, self.total_bytes)


def refused(queue: Queue, offset: int) -> ReadResult | None:
    """The answer when nothing is at a queue offset."""
    low, high = queue.first, queue.end
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
