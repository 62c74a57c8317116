"""Bulk decoding of stored records, from wire or file bytes to Arrow record batches (layout:
rmqkit.protocol.record).

    scalar_decoder    decodes one record at a time: for rare cases (inner batches, a property given twice,
                      properties that are not UTF-8), what is left of bad records, and error texts
    _columns          the regular records in one pass of compiled code; where it does not run, these are:
    record_headers    the fixed-position fields, gathered by numpy
    record_columns    the columns; only the requested ones are created
    property_columns  properties, parsed by numpy
    slices            ranges of the bytes, copied by Arrow

Without compiled code the steps per message in Python are its place in an answer and the checksum of its body.
"""

from __future__ import annotations

import logging
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
from pyspark_rocketmq.read.source import BadRecord, Block, ByteBuffer, SourceError
from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from rmqkit.speedups import IN_USE

log = logging.getLogger(__name__)

#: How many bad records of a decoder are logged one by one.
MAX_TOLD = 10
#: How often, and at what interval in seconds, a record of a file that looks damaged is read again, because a
#: broker may be writing it.
LOOKS = 3
LOOK_AGAIN_S = 0.02

_SIZE_MAGIC = Struct(">iI")
_QUEUE_OFFSET, _QUEUE_OFFSET_AT = Struct(">q"), 20


def record_places(data: ByteBuffer, of: str = "an answer") -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the records of a pull answer begin, and their lengths: `starts` and `sizes` of a Block. `of`
    describes the answer. Raises SourceError when they do not fill the answer exactly."""
    starts, sizes, end = places(data)
    found = np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32)
    if end != len(data):
        behind = ""
        if len(found[0]):
            (offset,) = _QUEUE_OFFSET.unpack_from(data, int(found[0][-1]) + _QUEUE_OFFSET_AT)
            behind = f", behind the record at queue offset {offset}"
        raise SourceError(
            f"byte {end} of {of} of {len(data)}{behind}: expected the start of a complete record, found"
            f" {bytes(data[end : end + 8]).hex(' ')}. To pass it over, read the offsets before and after it"
        )
    return found


def sound_bytes(data: ByteBuffer) -> int:
    """How many bytes at the beginning of an answer are complete records, one after the other."""
    return places(data)[2]


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
        #: How many bad records became nulls or were left out.
        self.bad = 0
        self._projection = projection
        self._schema = schema
        self._sleep = sleep

    def batches(self, block: Block, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        """The messages of a block with queue offsets in [lo, hi), in order, with inner batches unfolded. The
        result is one batch, unless the decompressed messages are so large that they are decoded in parts.

        A record that is damaged, cannot be decompressed, or is too large by itself is treated as the
        projection says: BadRecord with the file or queue, the position and the offset; a row with nulls; no
        row. The latter two are logged.
        """
        try:
            batch = self.decode(block, lo, hi)
        except TooMuch as error:
            yield from self._divided(block, lo, hi, error)
        except BadRecord as bad:
            if self._projection.bad_records == "fail":
                raise
            yield from self._without(block, lo, hi, bad)
        else:
            yield batch

    def _divided(self, block: Block, lo: int, hi: int, error: TooMuch) -> Iterator[pa.RecordBatch]:
        """The batches of the halves of a block."""
        middle = len(block.starts) // 2
        if middle:
            yield from self.batches(_portion(block, slice(middle)), lo, hi)
            yield from self.batches(_portion(block, slice(middle, None)), lo, hi)
            return
        try:
            plain.fault(block, 0, str(error))
        except BadRecord as bad:
            if self._projection.bad_records == "fail":
                raise
            yield from self._without(block, lo, hi, bad)

    def _without(self, block: Block, lo: int, hi: int, bad: BadRecord) -> Iterator[pa.RecordBatch]:
        """The batches of a block in which a record is bad, and perhaps others."""
        rest = block
        try:
            while True:
                self._note(bad)
                if bad.number:
                    yield from self.batches(_portion(rest, slice(bad.number)), lo, hi)
                if self._projection.bad_records == "null":
                    remains = plain.remains_of(rest, bad.number, lo, hi, self._projection)
                    yield self._from_rows(list(remains))
                rest = _portion(rest, slice(bad.number + 1, None))
                if not len(rest.starts):
                    return
                try:
                    # A record that is being written was waited for before.
                    batch = self._decode(rest, lo, hi)
                except BadRecord as next_bad:
                    bad = next_bad
                else:
                    yield batch
                    return
        except TooMuch as error:
            yield from self._divided(rest, lo, hi, error)

    def _note(self, bad: BadRecord) -> None:
        """Count a bad record, and log the first ones."""
        self.bad += 1
        if self.bad <= MAX_TOLD:
            how = self._projection.bad_records
            done = "read as nulls" if how == "null" else "left out"
            log.warning("%s (badRecords=%s): %s", done, how, bad)

    def decode(self, block: Block, lo: int, hi: int) -> pa.RecordBatch:
        """Like `batches`, in one batch. Raises BadRecord whatever the projection says, and TooMuch when the
        batch would exceed the memory limit."""
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


if IN_USE:
    from pyspark_rocketmq.decode import _columns, filled_columns
else:
    from pyspark_rocketmq.decode import gathered_columns

places = _columns.places if IN_USE else walked_places
regular_records = filled_columns.filled if IN_USE else gathered_columns.gathered
