"""The columns of regular records, filled by compiled code."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.decode._columns import Filled, fill
from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.record_columns import Columns, Regular
from pyspark_rocketmq.read.source import Block
from rmqkit.model import properties as props


class FilledColumns(Columns):
    """Columns that compiled code has filled."""

    def __init__(self, block: Block, filled: Filled) -> None:
        super().__init__(block, filled.count)
        self._filled = filled

    def _made(self, name: str, kind: pa.DataType, count: int) -> pa.Array:
        buffers, nulls = self._filled.columns[name]
        return pa.Array.from_buffers(kind, count, buffers, nulls)

    def numbers(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._made(name, kind, self._count)

    def times(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._made(name, kind, self._count)

    def text(self, name: str) -> pa.Array:
        return self._made(name, pa.string(), self._count)

    def message_ids(self) -> pa.Array:
        return self._made("msgId", pa.string(), self._count)

    def hosts(self, name: str) -> pa.Array:
        return self._made(name, pa.binary(), self._count)

    def properties(self) -> tuple[pa.Buffer, pa.Array, pa.Array]:
        (_, offsets), _ = self._filled.columns["properties"]
        assert offsets is not None
        count = int(np.frombuffer(offsets, np.int32)[self._count])
        return offsets, self._made("names", pa.string(), count), self._made("values", pa.string(), count)

    def bodies(self) -> pa.Array:
        stored = self._made("body", pa.binary(), self._count)
        numbers_of = np.frombuffer(self._filled.numbers, np.int64)
        compressed = [
            (row, int(numbers_of[row]), start, stop, flags)
            for row, start, stop, flags in self._filled.compressed
        ]
        return self.with_inflated(stored, self._filled.body_bytes, compressed)


def filled(block: Block, lo: int, hi: int, projection: Projection) -> Regular:
    """The columns of a stretch of a block, filled by compiled code."""
    queue_id, names, check = block.queue.queue_id, {*projection.names}, projection.check_crc
    if "deliveryTimestamp" in names:
        names |= {props.TIMER_DELIVER_MS, props.TIMER_OUT_MS}
    made = fill(
        block.data, block.starts, block.sizes, block.offsets, block.base, queue_id, lo, hi, names, check
    )
    chosen = np.frombuffer(made.numbers, np.int64)[: made.count] if made.fault < 0 else block.starts[:0]
    return Regular(made.fault, chosen, made.odd, FilledColumns(block, made))
