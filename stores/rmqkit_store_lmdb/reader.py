"""Reads in one read transaction. What they return is copied: LMDB's pages are written again once the transaction has ended, and one that lasted as
long as a slow reader's answer would keep LMDB from using any page again and make the file grow."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from rmqkit.abc import Boundary, Buffer, QueueUnit, ReadLimits, ReadResult, ReadStatus, RecordFilter, UnitFilter
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from rmqkit_store_lmdb.environment import Environment, Transaction
from rmqkit_store_lmdb.layout import OFFSET, UNIT, UNIT_KEY
from rmqkit_store_lmdb.queues import Queue

#: A gap in the log is read as blank records of at most this length.
_MAX_BLANK_BYTES = 1024 * 1024


class Reader:
    """One transaction; a context manager. `end` is the log position up to which is read."""

    def __init__(self, env: Environment, start: int, end: int) -> None:
        self._env = env
        self._start = start
        self._end = end
        self._txn: Transaction[memoryview] = env.begin()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._txn.abort()

    @property
    def txn(self) -> Transaction[memoryview]:
        return self._txn

    # --- records -----------------------------------------------------------------------------------------------------

    def record(self, offset: int) -> memoryview | None:
        """The record that begins at an offset; valid until the end of the transaction."""
        if not self._start <= offset < self._end:
            return None
        return self._txn.get(OFFSET.pack(offset), db=self._env.db("log"))

    def log(self, offset: int, max_bytes: int) -> bytes:
        """Whole records one behind the other, or the blank records that stand for a gap; at least one."""
        if not self._start <= offset < self._end:
            return b""
        found: list[bytes] = []
        total = 0
        with self._txn.cursor(self._env.db("log")) as cursor:
            there = cursor.set_range(OFFSET.pack(offset))
            following = OFFSET.unpack(cursor.key())[0] if there else self._end
            if following != offset:
                before = cursor.prev() if there else cursor.last()
                if before and OFFSET.unpack(cursor.key())[0] + len(cursor.value()) > offset:
                    return b""
                return _blank(min(following, self._end) - offset, max_bytes)
            while there and OFFSET.unpack(cursor.key())[0] == offset + total < self._end:
                record = cursor.value()
                if found and total + len(record) > max_bytes:
                    break
                found.append(bytes(record))
                total += len(record)
                there = cursor.next()
        return b"".join(found)

    def first_record_from(self, offset: int) -> int:
        """The offset of the first record at or behind an offset; the end when there is none."""
        with self._txn.cursor(self._env.db("log")) as cursor:
            return min(OFFSET.unpack(cursor.key())[0], self._end) if cursor.set_range(OFFSET.pack(offset)) else self._end

    def last_record_before(self, offset: int) -> memoryview | None:
        with self._txn.cursor(self._env.db("log")) as cursor:
            there = cursor.prev() if cursor.set_range(OFFSET.pack(offset)) else cursor.last()
            return cursor.value() if there else None

    # --- queues ------------------------------------------------------------------------------------------------------

    def units(self, queue: Queue, offset: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """(physical offset, size, tags code, store time) of up to `count` units from a queue offset on."""
        left = min(count, queue.end - offset)
        if left <= 0 or offset < queue.first:
            return
        unpack = UNIT.unpack
        with self._txn.cursor(self._env.db("units")) as cursor:
            if cursor.set_range(UNIT_KEY.pack(queue.number, offset)):
                for value in cursor.iternext(keys=False, values=True):
                    yield unpack(value)
                    left -= 1
                    if not left:
                        return

    def unit(self, queue: Queue, offset: int) -> tuple[int, int, int, int] | None:
        return next(self.units(queue, offset, 1), None)

    def queue_units(self, queue: Queue, offset: int, count: int) -> list[QueueUnit]:
        """MessageStore.read_units."""
        return [QueueUnit(at, *unit[:3]) for at, unit in enumerate(self.units(queue, offset, count), offset)]

    def read(
        self,
        queue: Queue,
        offset: int,
        stop: int,
        limits: ReadLimits,
        unit_filter: UnitFilter | None,
        record_filter: RecordFilter | None,
    ) -> ReadResult:
        """MessageStore.read, up to the queue offset `stop`."""
        low, high = queue.first, queue.end
        refusal = _outside(low, high, offset)
        if refusal is not None:
            return ReadResult(refusal[0], refusal[1], low, high, [])
        found: list[Buffer] = []
        status = ReadStatus.NO_MATCHED_MESSAGE
        total, at = 0, offset
        max_messages, max_bytes, max_scanned, disk_messages, disk_bytes, memory_bytes, _ = limits
        disk_end = self._end - memory_bytes
        for physical_offset, size, tags_code, _ in self.units(queue, offset, min(stop - offset, max(max_scanned, max_messages))):
            if found and (
                len(found) >= max_messages
                or total + size > max_bytes
                or (physical_offset < disk_end and (len(found) >= disk_messages or total + size > disk_bytes))
            ):
                break
            at += 1
            if unit_filter is not None and not unit_filter(tags_code):
                continue
            record = self.record(physical_offset)
            if record is None:
                status = ReadStatus.MESSAGE_WAS_REMOVING
            elif record_filter is None or record_filter(record):
                found.append(record)
                total += size
        if not found:
            return ReadResult(status, at, low, high, [])
        return ReadResult(ReadStatus.FOUND, at, low, high, [b"".join(found)], len(found), total)

    def offset_by_time(self, queue: Queue, timestamp_ms: int, boundary: Boundary) -> int:
        """MessageStore.offset_by_time, by bisection; store times do not fall within a queue unless the clock was set back."""

        def time_at(offset: int) -> int:
            unit = self.unit(queue, offset)
            return -1 if unit is None else unit[3]

        low, high = queue.first, queue.end
        if boundary is Boundary.LOWER:
            return bisect_left(range(high), timestamp_ms, low, key=time_at)
        return max(low, bisect_right(range(high), timestamp_ms, low, key=time_at) - 1)

    def first_kept(self, queue: Queue, log_start: int) -> int:
        """The first queue offset whose record is at or behind a log offset; the queue's end when there is none."""

        def is_kept(offset: int) -> bool:
            unit = self.unit(queue, offset)
            return unit is not None and unit[0] >= log_start

        if queue.first >= queue.end or is_kept(queue.first):
            return queue.first
        return bisect_left(range(queue.end), True, queue.first, key=is_kept)

    def warm(self, queue: Queue, offset: int, max_units: int, max_bytes: int) -> int:
        """Go through units and their records; the queue offset up to which."""
        total, at = 0, offset
        for physical_offset, size, _, _ in self.units(queue, offset, max_units):
            if total > max_bytes:
                break
            record = self.record(physical_offset)
            if record is not None:
                bytes(record)
            total += size
            at += 1
        return at


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


def _blank(gap_bytes: int, max_bytes: int) -> bytes:
    """The beginning of a gap as a blank record; what is left of it is long enough for another one."""
    size = min(gap_bytes, max(2 * BLANK_BYTES, min(max_bytes, _MAX_BLANK_BYTES)))
    if 0 < gap_bytes - size < BLANK_BYTES:
        size -= BLANK_BYTES
    return BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK_BYTES)
