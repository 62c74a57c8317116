"""Selects the units and records of a queue for a read (store-format sheet, sections 8.1 and 8.2)."""

from __future__ import annotations

from typing import Protocol

from attrs import define, field

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import ReadLimits, ReadResult, ReadStatus, UnitFilter
from rmqkit.protocol.damage import FLAGS, FLAGS_AT, is_damage
from rmqkit.protocol.record import MIN_RECORD_BYTES
from rmqkit_store_lmdb.database.layout import UNIT
from rmqkit_store_lmdb.read.columns import Caps, copied_records
from rmqkit_store_lmdb.read.queues import Queue


class Source(Protocol):
    """What contains records: a Reader of LMDB, or the tail of the log."""

    def stretch(self, offset: int) -> tuple[int, Buffer] | None:
        """Adjacent records, one of which contains a log offset, and where they begin; None for none."""
        ...


@define
class Gatherer:
    """One read; `at` is the queue offset that it has reached. Records before the log offset `disk_end` count
    as on disk. The log ends at `log_end`."""

    limits: ReadLimits
    unit_filter: UnitFilter | None
    disk_end: int
    at: int
    log_end: int
    count: int = 0
    total_bytes: int = 0
    full: bool = False
    status: ReadStatus = ReadStatus.NO_MATCHED_MESSAGE
    slices: list[Buffer] = field(factory=list)
    #: (queue offset, log offset, size) of units that cannot be right.
    wrong: list[tuple[int, int, int]] = field(factory=list)

    def take(self, units: Buffer, source: Source) -> None:
        """Continue with these packed units (layout.UNIT), whose records `source` has. Records are copied,
        because the pages of LMDB are valid in the transaction only."""
        limits = self.limits
        caps = (
            limits.max_messages, limits.max_bytes, self.disk_end, limits.max_disk_messages,
            limits.max_disk_bytes,
        )  # fmt: skip
        chooses = self.unit_filter is not None
        number, stop = 0, len(units) // UNIT.size
        base: int = 0
        data: Buffer = b""
        while number < stop:
            if not chooses:
                taken, size_bytes, records = copied_records(
                    units, number, base, data, caps, self.count, self.total_bytes
                )
                if taken:
                    self.slices.append(records)
                    number += taken
                    self.at += taken
                    self.count += taken
                    self.total_bytes += size_bytes
                    continue
            offset, size, code, _ = UNIT.unpack_from(units, number * UNIT.size)
            if self._exceeds(caps, offset, size):
                self.full = True
                return
            if not base <= offset < base + len(data):
                base, data = source.stretch(offset) or (0, b"")
                if data and not chooses:
                    continue
            number += 1
            self.at += 1
            self._take_one(code, offset - base, size, data)
            if not 0 <= offset < self.log_end or (data and not 0 < size <= base + len(data) - offset):
                self.wrong.append((self.at - 1, offset, size))

    def _exceeds(self, caps: Caps, offset: int, size: int) -> bool:
        """Whether the limits are reached before a record. The first one is always accepted."""
        max_messages, max_bytes, disk_end, disk_messages, disk_bytes = caps
        count, total = self.count, self.total_bytes + size
        return count > 0 and (
            count >= max_messages
            or total > max_bytes
            or (offset < disk_end and (count >= disk_messages or total > disk_bytes))
        )

    def _take_one(self, code: int, start: int, size: int, data: Buffer) -> None:
        """Add the record at a position of `data` if it is wanted."""
        if self.unit_filter is not None and not self.unit_filter(code):
            return
        record = data[start : start + size]
        if len(record) < max(size, MIN_RECORD_BYTES) or is_damage(*FLAGS.unpack_from(record, FLAGS_AT)):
            self.status = ReadStatus.MESSAGE_WAS_REMOVING
        else:
            self.slices.append(bytes(record))
            self.count += 1
            self.total_bytes += size

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
