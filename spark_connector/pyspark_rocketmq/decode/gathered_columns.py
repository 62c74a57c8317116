"""The columns of regular records, gathered by numpy and Arrow: the reference of `filled_columns`."""

from __future__ import annotations

from functools import cached_property
from zlib import crc32

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.property_columns import PropertyColumns
from pyspark_rocketmq.decode.record_columns import Columns, Regular
from pyspark_rocketmq.decode.record_headers import Bools, Heads, Numbers, Parts
from pyspark_rocketmq.decode.scalar_decoder import FOLDED, MAX_TIME_MS, Needs
from pyspark_rocketmq.decode.slices import every, numbers, stretches
from pyspark_rocketmq.read.source import Block
from rmqkit.model import properties as props
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.protocol.record import CRC_MASK

#: Columns that are fixed-position fields.
_FIELDS = {
    "queueId": "queueId",
    "queueOffset": "queueOffset",
    "flag": "flag",
    "reconsumeTimes": "reconsume",
    "sysFlag": "sysFlag",
    "physicalOffset": "physicalOffset",
    "storeSize": "size",
    "bodyCrc": "crc",
    "preparedTransactionOffset": "prepared",
    "bornTimestamp": "born",
    "storeTimestamp": "store",
}
_FROM_PROPERTIES = {
    "keys": props.KEYS,
    "tags": props.TAGS,
    **{name: name for name in (props.TIMER_DELIVER_MS, props.TIMER_OUT_MS)},
}


class GatheredColumns(Columns):
    """Columns made by numpy and Arrow, after `faulty` has found nothing. `numbers` are the indexes of the
    records in the block."""

    def __init__(self, block: Block, heads: Heads, chosen: Numbers, needs: Needs) -> None:
        super().__init__(block, len(heads))
        self._heads = heads
        self._chosen = chosen
        self._needs = needs

    def faulty(self) -> Bools:
        """The records with inconsistent lengths or a wrong body checksum, as far as these parts are
        needed."""
        none: Bools = np.zeros(len(self._heads), np.bool_)
        if not (self._needs.body or self._needs.properties):
            return none
        bad = self._parts.faulty
        if bad.any():
            return bad
        if self._needs.body and self._needs.checksum:
            bad = bad | ((self._checksums() != self._heads["crc"]) & (self._heads["bodyBytes"] > 0))
        return bad

    def illegible(self) -> Bools:
        """The records whose properties are needed and not UTF-8."""
        none: Bools = np.zeros(len(self._heads), np.bool_)
        if not self._needs.properties:
            return none
        try:
            self._texts.validate(full=True)
        except pa.ArrowInvalid:
            return np.array(
                [not _is_text(text) for text in self._texts.cast(pa.binary()).to_pylist()], np.bool_
            )
        return none

    def repeated(self) -> Bools:
        """The records that have a property twice, after `illegible` has found nothing."""
        return self._properties.repeated()

    @cached_property
    def _parts(self) -> Parts:
        return Parts(self._block.data, self._heads)

    @cached_property
    def _stretches(self) -> pa.Array:
        borders = (self._heads.body_at, self._parts.body_end, self._parts.properties_at, self._heads.stops)
        return stretches(pa.py_buffer(self._block.data), borders, pa.binary())

    @cached_property
    def _texts(self) -> pa.Array:
        """The stored properties as strings, which may not be valid UTF-8 yet."""
        return every(self._stretches, 4, 2).view(pa.string())

    @cached_property
    def _properties(self) -> PropertyColumns:
        return PropertyColumns(self._texts)

    def _checksums(self) -> Numbers:
        view = memoryview(self._block.data)
        places = map(slice, self._heads.body_at.tolist(), self._parts.body_end.tolist())
        return np.fromiter(map(crc32, map(view.__getitem__, places)), np.int64, len(self._heads)) & CRC_MASK

    def numbers(self, name: str, kind: pa.DataType) -> pa.Array:
        return numbers(self._heads[_FIELDS[name]], kind)

    def times(self, name: str, kind: pa.DataType) -> pa.Array:
        times = self._heads[_FIELDS[name]]
        beyond = (times > MAX_TIME_MS) | (times < -MAX_TIME_MS)
        return numbers(np.where(beyond, 0, times) * 1000, kind, beyond)

    def text(self, name: str) -> pa.Array:
        return self._properties.value_of(_FROM_PROPERTIES[name])

    def properties(self) -> tuple[pa.Buffer, pa.Array, pa.Array]:
        found = self._properties
        return pa.py_buffer(found.offsets), found.names, found.values

    def bodies(self) -> pa.Array:
        heads, stops = self._heads, self._parts.body_end
        rows = np.flatnonzero((heads["sysFlag"] & COMPRESSED != 0) & (heads["bodyBytes"] > 0))
        fields = (self._chosen[rows], heads.body_at[rows], stops[rows], heads["sysFlag"][rows])
        compressed = list(zip(rows.tolist(), *(field.tolist() for field in fields), strict=True))
        return self.with_inflated(
            every(self._stretches, 4, 0), int(heads["bodyBytes"].sum(dtype=np.int64)), compressed
        )

    def message_ids(self) -> pa.Array:
        unique = self._properties.value_of(props.UNIQ_KEY)
        if not unique.null_count:
            return unique
        ids = unique.to_pylist()
        offsets, hosts = self._heads["physicalOffset"], self.hosts("storeHost").to_pylist()
        for number, text in enumerate(ids):
            if text is None:
                ids[number] = offset_message_id(hosts[number], int(offsets[number]))
        return pa.array(ids, pa.string())

    def hosts(self, name: str) -> pa.Array:
        heads = self._heads
        starts, stops = (
            (heads.starts + 48, heads.time_at) if name == "bornHost" else (heads.time_at + 8, heads.end_at)
        )
        return every(stretches(pa.py_buffer(self._block.data), (starts, stops), pa.binary()), 2, 0)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def gathered(block: Block, lo: int, hi: int, projection: Projection) -> Regular:
    """The regular records of a block whose records lie one after the other, found in Python."""
    needs = Needs.of(projection)
    heads = Heads(block)
    bad = np.flatnonzero(heads.faulty(block))
    offsets = heads["queueOffset"]
    folded = heads["sysFlag"] & FOLDED == FOLDED
    regular = ~folded & (lo <= offsets) & (offsets < hi)
    columns = _gathered_columns(block, heads, regular, needs)
    chosen = np.flatnonzero(regular)
    if not len(bad):
        bad = chosen[columns.faulty()]
    if len(bad):
        return Regular(int(bad[0]), chosen, [], columns)
    odd = folded & (offsets < hi)
    if (illegible := columns.illegible()).any():
        odd[chosen[illegible]] = True
        chosen = chosen[~illegible]
        columns = _gathered_columns(block, heads, regular & ~odd, needs)
    if "properties" in projection.names and (repeated := columns.repeated()).any():
        odd[chosen[repeated]] = True
        chosen = chosen[~repeated]
        columns = _gathered_columns(block, heads, regular & ~odd, needs)
    return Regular(-1, chosen, np.flatnonzero(odd).tolist(), columns)


def _gathered_columns(block: Block, heads: Heads, chosen: Bools, needs: Needs) -> GatheredColumns:
    return GatheredColumns(
        block, heads if chosen.all() else heads.chosen(chosen), np.flatnonzero(chosen), needs
    )
