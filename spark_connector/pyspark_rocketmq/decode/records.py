"""Bulk decoding of stored records, from wire or file bytes to Arrow record batches (layout:
rmqkit.protocol.record).

    scalar_decoder    decodes one record at a time: for rare cases (inner batches, a property given twice),
                      and to produce error texts
    _columns          the regular records in one pass of compiled code; where it does not run, these are:
    record_headers    the fixed-position fields, gathered by numpy
    record_columns    the columns; only the requested ones are created
    property_columns  properties, parsed by numpy
    slices            ranges of the bytes, copied by Arrow

Without compiled code the steps per message in Python are its place in an answer and the checksum of its body.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from struct import Struct

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_rocketmq.decode import scalar_decoder as plain
from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.record_columns import MAX_BATCH_BODY_BYTES, Regular, TooMuch
from pyspark_rocketmq.decode.slices import numbers
from pyspark_rocketmq.read.source import Block, ByteBuffer, SourceError
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from rmqkit.speedups import IN_USE

if IN_USE:
    from pyspark_rocketmq.decode._columns import places
    from pyspark_rocketmq.decode.filled_columns import filled as regular_records
else:
    from pyspark_rocketmq.decode.gathered_columns import gathered as regular_records

#: How often, and at what interval in seconds, a record of a file that looks damaged is read again, because a
#: broker may be writing it.
LOOKS = 3
LOOK_AGAIN_S = 0.02

_SIZE_MAGIC = Struct(">iI")


def record_places(data: ByteBuffer) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the records of a pull answer begin, and their lengths: `starts` and `sizes` of a Block. Raises
    SourceError when they do not fill the answer exactly."""
    starts, sizes, end = places(data)
    if end != len(data):
        raise SourceError(
            f"byte {end} of an answer of {len(data)}: expected the start of a complete record, found"
            f" {bytes(data[end : end + 8]).hex(' ')}"
        )
    return np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32)


def walked_places(data: ByteBuffer) -> tuple[bytes, bytes, int]:
    """Starts (int64) and sizes (int32) of the complete records from the first byte on, and where they end."""
    starts, sizes = array("q"), array("i")
    at, end = 0, len(data)
    while end - at >= MIN_RECORD_BYTES:
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= end - at:
            break
        starts.append(at)
        sizes.append(size)
        at += size
    return starts.tobytes(), sizes.tobytes(), at


if not IN_USE:
    places = walked_places


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
        found = regular_records(block, lo, hi, self._projection)
        if found.fault >= 0:
            self._refuse(block, found.fault)
        arrays = [found.columns.make(field, self._projection) for field in self._schema]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return self._merged(block, lo, hi, made, found) if found.odd else made

    def _merged(
        self, block: Block, lo: int, hi: int, made: pa.RecordBatch, regular: Regular
    ) -> pa.RecordBatch:
        """The regular records' batch, with the messages of the odd records, decoded one at a time,
        inserted."""
        places = regular.numbers.tolist()
        rows: list[plain.Row] = []
        left = MAX_BATCH_BODY_BYTES
        for number in regular.odd:
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

    def _refuse(self, block: Block, number: int) -> None:
        """Raise the error of a faulty record."""
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
