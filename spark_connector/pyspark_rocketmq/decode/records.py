"""Bulk decoding of stored records, from wire or file bytes to Arrow record batches (layout:
rmqkit.protocol.record).

    scalar_decoder    decodes one record at a time: for rare cases (inner batches, a property given twice),
                      and to produce error texts
    record_headers    the fixed-position fields, gathered by numpy
    record_columns    the columns; only the requested ones are created
    property_columns  properties, parsed by numpy
    slices            ranges of the bytes, copied by Arrow

The only step per message in Python is the checksum of its body.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from struct import Struct

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_rocketmq.decode import scalar_decoder as plain
from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.record_columns import MAX_BATCH_BODY_BYTES, Columns, TooMuch
from pyspark_rocketmq.decode.record_headers import Bools, Heads, gather
from pyspark_rocketmq.decode.scalar_decoder import FOLDED, Needs
from pyspark_rocketmq.decode.slices import numbers
from pyspark_rocketmq.read.source import Block, ByteBuffer, SourceError
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES

#: How often, and at what interval in seconds, a record of a file that looks damaged is read again, because a
#: broker may be writing it.
LOOKS = 3
LOOK_AGAIN_S = 0.02

_SIZE = Struct(">i")
_SIZE_MAGIC = np.dtype([("size", ">i4"), ("magic", ">u4")])


def record_places(data: ByteBuffer) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the records of a pull answer begin, and their lengths: `starts` and `sizes` of a Block. Raises
    SourceError when they do not fill the answer exactly."""
    starts: list[int] = []
    at, end = 0, len(data)
    unpack, found = _SIZE.unpack_from, starts.append
    while end - at >= MIN_RECORD_BYTES:
        found(at)
        (size,) = unpack(data, at)
        if size < MIN_RECORD_BYTES:
            break
        at += size
    places = np.array(starts, np.int64)
    magic = gather(data, places, _SIZE_MAGIC)["magic"] if starts else places
    wrong = np.flatnonzero((magic != MAGIC_V1) & (magic != MAGIC_V2))
    if at != end or len(wrong):
        place = starts[wrong[0]] if len(wrong) else starts[-1] if at > end else at
        raise SourceError(
            f"byte {place} of an answer of {end}: expected the start of a complete record, found"
            f" {bytes(data[place : place + 8]).hex(' ')}"
        )
    return places, np.diff(places, append=end).astype(np.int32)


class Decoder:
    """Produces record batches of one schema. Reusable for any number of blocks, by one thread at a time."""

    def __init__(
        self, projection: Projection, schema: pa.Schema, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`schema` is `to_arrow_schema(..., timezone="UTC")` of the projection's columns, in their order;
        `sleep` takes seconds."""
        if tuple(schema.names) != projection.names:
            raise ValueError(
                f"the schema has the columns {schema.names}, the projection {list(projection.names)}"
            )
        self._projection = projection
        self._schema = schema
        self._needs = Needs.of(projection)
        self._sleep = sleep

    def batches(self, block: Block, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """The messages of a block with queue offsets in [lo, hi), in order, with inner batches unfolded. The
        result is one batch, unless the decompressed messages are so large that they are decoded in parts.

        Raises SourceError with the file or queue and the position when a record is damaged, cannot be
        decompressed, or is too large by itself.
        """
        try:
            batch = self.decode(block, lo, hi)
        except TooMuch as error:
            middle = len(block.starts) // 2
            if not middle:
                plain.fault(block, 0, str(error))
            yield from self.batches(_portion(block, slice(middle)), lo, hi)
            yield from self.batches(_portion(block, slice(middle, None)), lo, hi)
        else:
            yield batch

    def decode(self, block: Block, lo: int, hi: int) -> pa.RecordBatch:
        """Like `batches`, in one batch. Also raises TooMuch when that would exceed the memory limit."""
        for _ in range(LOOKS - 1 if block.origin else 0):
            try:
                return self._decode(block, lo, hi)
            except TooMuch:
                raise
            except SourceError:
                self._sleep(LOOK_AGAIN_S)
        return self._decode(block, lo, hi)

    def _decode(self, block: Block, lo: int, hi: int) -> pa.RecordBatch:
        if not _in_order(block):
            return self._from_rows(list(plain.rows(block, lo, hi, self._projection)))
        heads = Heads(block)
        self._refuse(block, heads.faulty(block))
        offsets = heads["queueOffset"]
        folded = heads["sysFlag"] & FOLDED == FOLDED
        regular = ~folded & (lo <= offsets) & (offsets < hi)
        odd = folded & (offsets < hi)
        columns = self._columns(block, heads, regular)
        self._refuse(block, _spread(columns.faulty(), regular))
        repeated = columns.repeated() if "properties" in self._projection.names else None
        if repeated is not None and repeated.any():
            odd |= _spread(repeated, regular)
            regular &= ~odd
            columns = self._columns(block, heads, regular)
        arrays = [columns.make(field, self._projection) for field in self._schema]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return self._merged(block, lo, hi, made, regular, odd) if odd.any() else made

    def _columns(self, block: Block, heads: Heads, chosen: Bools) -> Columns:
        return Columns(
            block, heads if chosen.all() else heads.chosen(chosen), np.flatnonzero(chosen), self._needs
        )

    def _merged(
        self, block: Block, lo: int, hi: int, made: pa.RecordBatch, regular: Bools, odd: Bools
    ) -> pa.RecordBatch:
        """The regular records' batch, with the messages of the odd records, decoded one at a time,
        inserted."""
        places = np.flatnonzero(regular).tolist()
        rows: list[plain.Row] = []
        left = MAX_BATCH_BODY_BYTES
        for number in np.flatnonzero(odd).tolist():
            found = list(plain.rows_of(block, number, lo, hi, self._projection))
            left -= sum(_row_bytes(row) for row in found)
            if left < 0:
                raise TooMuch(
                    f"the messages of a block of topic {block.queue.topic} take more than"
                    f" {MAX_BATCH_BODY_BYTES} bytes"
                )
            rows += found
            places += [number] * len(found)
        both = pa.concat_batches([made, self._from_rows(rows)])
        return both.take(numbers(np.argsort(np.array(places, np.int64), kind="stable"), pa.int64()))

    def _from_rows(self, rows: list[plain.Row]) -> pa.RecordBatch:
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refuse(self, block: Block, faulty: Bools) -> None:
        """Raise the error of the first faulty record."""
        for number in np.flatnonzero(faulty)[:1].tolist():
            for _ in plain.rows_of(block, number, -(1 << 63), 1 << 63, self._projection):
                pass
            plain.fault(block, number, "it changed while being read")


def _in_order(block: Block) -> bool:
    """Whether the records lie in the data one after the other, so that they can be decoded in bulk."""
    starts, stops = block.starts, block.starts + block.sizes
    return bool(
        len(starts)
        and len(block.data) < 1 << 31
        and starts[0] >= 0
        and stops[-1] <= len(block.data)
        and (block.sizes >= MIN_RECORD_BYTES).all()
        and (starts[1:] >= stops[:-1]).all()
    )


def _portion(block: Block, part: slice) -> Block:
    offsets = None if block.offsets is None else block.offsets[part]
    return block._replace(starts=block.starts[part], sizes=block.sizes[part], offsets=offsets)


def _row_bytes(row: plain.Row) -> int:
    """Bytes of a row in the columns of variable length. Each message of an inner batch has all properties of
    the record."""
    texts = [
        row.get("body") or "",
        row.get("keys") or "",
        *(part for pair in row.get("properties") or () for part in pair),
    ]
    return sum(map(len, texts))


def _spread(found: Bools, among: Bools) -> Bools:
    """Map a result for some of the records to indexes among all records."""
    result = np.zeros(len(among), np.bool_)
    result[among] = found
    return result
