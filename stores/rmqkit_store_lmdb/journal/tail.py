"""The end of the log, which is in the journal but not in LMDB yet."""

from __future__ import annotations

from bisect import bisect_left

from attrs import define, field

from rmqkit_store_lmdb.database.layout import CHUNK_BYTES, OFFSET
from rmqkit_store_lmdb.journal.padding import blank


@define
class Tail:
    """Records in the order of the log, with their physical offsets; LMDB has the log before `start`, and
    the tail ends at `end`. Files of RocketMQ's log would have `segment_bytes`."""

    segment_bytes: int
    start: int = 0
    end: int = 0
    size_bytes: int = 0
    offsets: list[int] = field(factory=list)
    records: list[bytes] = field(factory=list)

    def add(self, offsets: list[int], records: list[bytes], end: int) -> None:
        self.offsets += offsets
        self.records += records
        self.size_bytes += end - self.end
        self.end = end

    def record(self, offset: int) -> bytes | None:
        """The record that begins at a log offset."""
        at = bisect_left(self.offsets, offset)
        return self.records[at] if at < len(self.offsets) and self.offsets[at] == offset else None

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Complete consecutive records from a log offset on, or the blank record for a gap; at least one
        unless `offset` lies inside a record."""
        offsets, records = self.offsets, self.records
        at = bisect_left(offsets, offset)
        if at == len(offsets) or offsets[at] != offset:
            in_record = at > 0 and offsets[at - 1] + len(records[at - 1]) > offset
            gap_end = offsets[at] if at < len(offsets) else self.end
            return b"" if in_record else blank(offset, gap_end - offset, self.segment_bytes, max_bytes)
        stop, total = at, 0
        while (
            stop < len(offsets)
            and offsets[stop] == offset + total
            and (stop == at or total + len(records[stop]) <= max_bytes)
        ):
            total += len(records[stop])
            stop += 1
        return b"".join(records[at:stop])

    def chunks(self, count: int) -> list[tuple[bytes, bytes]]:
        """The first `count` records as LMDB keeps them."""
        return chunks(self.offsets[:count], self.records[:count])

    def were_stored(self, count: int, end: int) -> None:
        """The first `count` records are now in LMDB, which has the log before `end`."""
        del self.offsets[:count]
        del self.records[:count]
        self.size_bytes -= end - self.start
        self.start = end


def chunks(offsets: list[int], records: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Rows of the database `log`: records that lie side by side, some together."""
    found: list[tuple[bytes, bytes]] = []
    start = size = at = 0
    for number, (offset, record) in enumerate(zip(offsets, records, strict=True)):
        if number and (offset != at or size + len(record) > CHUNK_BYTES):
            found.append((OFFSET.pack(offsets[start]), b"".join(records[start:number])))
            start, size = number, 0
        size += len(record)
        at = offset + len(record)
    if records:
        found.append((OFFSET.pack(offsets[start]), b"".join(records[start:])))
    return found
