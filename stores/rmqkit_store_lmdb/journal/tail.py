"""The end of the log, which is in the journal but not in LMDB yet."""

from __future__ import annotations

from bisect import bisect_right

from attrs import define, field

from rmqkit.protocol.record import peek_size_and_magic
from rmqkit_store_lmdb.database.layout import CHUNK_BYTES, OFFSET
from rmqkit_store_lmdb.database.scanning import record_at
from rmqkit_store_lmdb.journal.padding import blank


@define
class Tail:
    """Pieces of the log in its order, with their physical offsets: records that lie side by side, one or more
    each. LMDB has the log before `start`, and the tail ends at `end`. Files of RocketMQ's log would have
    `segment_bytes`."""

    segment_bytes: int
    start: int = 0
    end: int = 0
    size_bytes: int = 0
    offsets: list[int] = field(factory=list)
    pieces: list[bytes] = field(factory=list)

    def add(self, offsets: list[int], pieces: list[bytes], end: int) -> None:
        self.offsets += offsets
        self.pieces += pieces
        self.size_bytes += end - self.end
        self.end = end

    def stretch(self, offset: int) -> tuple[int, bytes] | None:
        """The piece that contains a log offset, and where it begins."""
        at = bisect_right(self.offsets, offset) - 1
        if at < 0 or offset >= self.offsets[at] + len(self.pieces[at]):
            return None
        return self.offsets[at], self.pieces[at]

    def record(self, offset: int) -> bytes | None:
        """The record that begins at a log offset."""
        found = self.stretch(offset)
        if found is None:
            return None
        at = record_at(memoryview(found[1]), offset - found[0])
        return None if at < 0 else found[1][at : at + peek_size_and_magic(found[1], at)[0]]

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Complete consecutive records from a log offset on, or the blank record for a gap; at least one
        unless `offset` lies inside a record."""
        found = self.stretch(offset)
        if found is None:
            at = bisect_right(self.offsets, offset)
            gap_end = self.offsets[at] if at < len(self.offsets) else self.end
            return blank(offset, gap_end - offset, self.segment_bytes, max_bytes)
        if record_at(memoryview(found[1]), offset - found[0]) < 0:
            return b""
        parts: list[bytes] = []
        total = 0
        while found is not None and found[0] <= offset + total:
            base, piece = found
            start = at = offset + total - base
            while at < len(piece):
                size = peek_size_and_magic(piece, at)[0]
                if total and total + size > max_bytes:
                    break
                total += size
                at += size
            parts.append(piece[start:at])
            found = self.stretch(offset + total) if at == len(piece) else None
        return b"".join(parts)

    def chunks(self, count: int) -> list[tuple[bytes, bytes]]:
        """The first `count` pieces as LMDB keeps them."""
        return chunks(self.offsets[:count], self.pieces[:count])

    def were_stored(self, count: int, end: int) -> None:
        """The first `count` pieces are now in LMDB, which has the log before `end`."""
        del self.offsets[:count]
        del self.pieces[:count]
        self.size_bytes -= end - self.start
        self.start = end


def chunks(offsets: list[int], pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Rows of the database `log`: pieces that lie side by side, some together, large ones in parts."""
    found: list[tuple[bytes, bytes]] = []
    together: list[bytes] = []
    start = size = 0
    for offset, piece in zip(offsets, pieces, strict=True):
        if together and (offset != start + size or size + len(piece) > CHUNK_BYTES):
            found.append((OFFSET.pack(start), b"".join(together)))
            together, size = [], 0
        if len(piece) > CHUNK_BYTES:
            found += _parts(offset, piece)
            continue
        if not together:
            start = offset
        together.append(piece)
        size += len(piece)
    if together:
        found.append((OFFSET.pack(start), b"".join(together)))
    return found


def _parts(offset: int, piece: bytes) -> list[tuple[bytes, bytes]]:
    """Rows of a large piece, each of whole records."""
    found: list[tuple[bytes, bytes]] = []
    start = at = 0
    while at < len(piece):
        size = peek_size_and_magic(piece, at)[0]
        if at > start and at + size - start > CHUNK_BYTES:
            found.append((OFFSET.pack(offset + start), piece[start:at]))
            start = at
        at += size
    found.append((OFFSET.pack(offset + start), piece[start:]))
    return found
