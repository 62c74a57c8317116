"""Reads of LMDB in one read transaction. Results are copied: LMDB's pages are reused after the transaction
has ended, and a transaction as long as a slow reader's answer would prevent LMDB from reusing any page and
make the file grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from rmqkit.protocol.record import peek_size_and_magic
from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import OFFSET, UNIT, Unit
from rmqkit_store_lmdb.database.scanning import groups, record_at, seek_chunk
from rmqkit_store_lmdb.journal.padding import blank

_EMPTY = memoryview(b"")


class Reader:
    """One transaction; a context manager. Log offsets from `start` up to `end` are read."""

    def __init__(self, env: Environment, start: int, end: int, segment_bytes: int) -> None:
        self._env = env
        self._start = start
        self._end = end
        self._segment_bytes = segment_bytes
        self._txn: Transaction[memoryview] = env.begin()
        self._log = self._txn.cursor(env.db("log"))
        self._chunk = _EMPTY
        self._chunk_at = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._chunk = _EMPTY
        self._log.close()
        self._txn.abort()

    @property
    def txn(self) -> Transaction[memoryview]:
        return self._txn

    # --- records --------------------------------------------------------------------------------------------

    def _find_chunk(self, offset: int) -> bool:
        """Move to the chunk that contains an offset; returns whether there is one."""
        if 0 <= offset - self._chunk_at < len(self._chunk):
            return True
        self._chunk = _EMPTY
        if not seek_chunk(self._log, offset):
            return False
        self._chunk_at, self._chunk = OFFSET.unpack(self._log.key())[0], self._log.value()
        return True

    def stretch(self, offset: int) -> tuple[int, memoryview] | None:
        """The chunk that contains a log offset, and where it begins; None when it is gone. Valid until the
        end of the transaction."""
        if not self._start <= offset < self._end or not self._find_chunk(offset):
            return None
        return self._chunk_at, self._chunk

    def record(self, offset: int) -> memoryview | None:
        """The record that begins at an offset; valid until the end of the transaction."""
        if not self._start <= offset < self._end or not self._find_chunk(offset):
            return None
        at = record_at(self._chunk, offset - self._chunk_at)
        if at < 0:
            return None
        return self._chunk[at : at + peek_size_and_magic(self._chunk, at)[0]]

    def log(self, offset: int, max_bytes: int) -> bytes:
        """Complete consecutive records, or the blank record for a gap; at least one, unless `offset` lies
        inside a record."""
        if not self._start <= offset < self._end:
            return b""
        if not self._find_chunk(offset):
            gap_bytes = self.first_record_from(offset) - offset
            return blank(offset, gap_bytes, self._segment_bytes, max_bytes)
        found: list[bytes] = []
        total = 0
        at = record_at(self._chunk, offset - self._chunk_at)
        while at >= 0:
            size = peek_size_and_magic(self._chunk, at)[0]
            if found and total + size > max_bytes:
                break
            found.append(bytes(self._chunk[at : at + size]))
            total += size
            at += size
            if at == len(self._chunk):
                if not self._log.next() or OFFSET.unpack(self._log.key())[0] != offset + total < self._end:
                    break
                self._chunk_at, self._chunk, at = offset + total, self._log.value(), 0
        return b"".join(found)

    def first_record_from(self, offset: int) -> int:
        """The offset of the first chunk at or behind an offset, which is the end of a chunk or lies in a
        gap; the end when there is none."""
        with self._txn.cursor(self._env.db("log")) as cursor:
            return (
                min(OFFSET.unpack(cursor.key())[0], self._end)
                if cursor.set_range(OFFSET.pack(offset))
                else self._end
            )

    def last_record_before(self, offset: int) -> memoryview | None:
        """The last record of the last chunk before an offset."""
        with self._txn.cursor(self._env.db("log")) as cursor:
            if not (cursor.prev() if cursor.set_range(OFFSET.pack(offset)) else cursor.last()):
                return None
            chunk, at = cursor.value(), 0
            while at + (size := peek_size_and_magic(chunk, at)[0]) < len(chunk):
                at += size
            return chunk[at:]

    # --- queues ---------------------------------------------------------------------------------------------

    def packed_units(self, number: int, offset: int, count: int) -> Iterator[memoryview]:
        """Up to `count` units of a queue from a queue offset on, packed, in pieces that are valid until the
        next one is asked for."""
        with self._txn.cursor(self._env.db("units")) as cursor:
            for first, value in groups(cursor, number, offset):
                start = (offset - first) * UNIT.size
                if count <= 0 or not 0 <= start < len(value):
                    return
                found = value[start : start + count * UNIT.size]
                yield found
                taken = len(found) // UNIT.size
                offset += taken
                count -= taken

    def units(self, number: int, offset: int, count: int) -> Iterator[Unit]:
        """The units of a queue from an offset on, one by one."""
        for found in self.packed_units(number, offset, count):
            yield from UNIT.iter_unpack(found)

    def unit(self, number: int, offset: int) -> Unit | None:
        return next(self.units(number, offset, 1), None)

    def time(self, number: int, offset: int) -> int:
        """The store time at a queue offset, -1 when there is none."""
        unit = self.unit(number, offset)
        return -1 if unit is None else unit[3]

    def first_kept(self, number: int, first: int, stop: int, log_start: int) -> int:
        """The first queue offset in [first, stop) whose record is at or behind a log offset; `stop` when
        there is none."""

        def is_kept(offset: int) -> bool:
            unit = self.unit(number, offset)
            return unit is not None and unit[0] >= log_start

        if first >= stop or is_kept(first):
            return first
        return bisect_left(range(stop), True, first, key=is_kept)

    def warm(self, number: int, offset: int, max_units: int, max_bytes: int) -> int:
        """Touch units and their records; returns the queue offset reached."""
        total, at = 0, offset
        for physical_offset, size, _, _ in self.units(number, offset, max_units):
            if total > max_bytes:
                break
            found = self.stretch(physical_offset)
            if found is not None:
                start = physical_offset - found[0]
                bytes(found[1][start : start + size])
            total += size
            at += 1
        return at
