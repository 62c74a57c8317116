"""The columns of many regular records: one message each, no property name twice."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.property_columns import PropertyColumns
from pyspark_rocketmq.decode.record_headers import Bools, Heads, Numbers, Parts
from pyspark_rocketmq.decode.scalar_decoder import MAX_TIME_MS, Needs, fault
from pyspark_rocketmq.decode.slices import every, numbers, stretches
from pyspark_rocketmq.read.source import Block, SourceError
from rmqkit.errors import ClientError
from rmqkit.model import properties as props
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import CRC_MASK

#: Limit of the decompressed bodies of one batch, of which a worker holds several. A single body has at most
#: 64 MiB.
MAX_BATCH_BODY_BYTES = 256 * 1024 * 1024


class TooMuch(SourceError):
    """The messages of a block exceed MAX_BATCH_BODY_BYTES when decompressed."""


#: Columns that are fixed-position fields without conversion.
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
}
_TIMES = {"bornTimestamp": "born", "storeTimestamp": "store"}
_FROM_PROPERTIES = {"keys": props.KEYS, "tags": props.TAGS}


class Columns:
    """Creates columns one by one with `make`, after `faulty` has found nothing. `numbers` are the indexes of
    the records in the block."""

    def __init__(self, block: Block, heads: Heads, numbers: Numbers, needs: Needs) -> None:
        self._block = block
        self._heads = heads
        self._numbers = numbers
        self._needs = needs

    def faulty(self) -> Bools:
        """The records with inconsistent lengths, a wrong body checksum, or properties that are not UTF-8, as
        far as these parts are needed."""
        none: Bools = np.zeros(len(self._heads), np.bool_)
        if not (self._needs.body or self._needs.properties):
            return none
        bad = self._parts.faulty
        if bad.any():
            return bad
        if self._needs.body and self._needs.checksum:
            bad = bad | ((self._checksums() != self._heads["crc"]) & (self._heads["bodyBytes"] > 0))
        if self._needs.properties:
            try:
                self._texts.validate(full=True)
            except pa.ArrowInvalid:
                bad = bad | np.array(
                    [not _is_text(text) for text in self._texts.cast(pa.binary()).to_pylist()], np.bool_
                )
        return bad

    def repeated(self) -> Bools:
        """The records that have a property twice."""
        return self._properties.repeated()

    def make(self, field: pa.Field, projection: Projection) -> pa.Array:
        """Create the column of the field's name and type."""
        name, count = field.name, len(self._heads)
        if name in _FIELDS:
            return numbers(self._heads[_FIELDS[name]], field.type)
        if name in _TIMES:
            return self._times(_TIMES[name], field.type)
        if name in _FROM_PROPERTIES:
            return self._properties.value_of(_FROM_PROPERTIES[name])
        match name:
            case "topic":
                return pa.repeat(pa.scalar(self._block.queue.topic, field.type), count)
            case "brokerName":
                return pa.repeat(pa.scalar(self._block.queue.broker, field.type), count)
            case "body":
                return self._bodies() if projection.body == "binary" else _as_text(self._bodies())
            case "properties":
                return (
                    self._properties.as_map(field.type)
                    if projection.properties == "map"
                    else self._properties.as_json()
                )
            case "msgId":
                return self._message_ids()
            case "bornHost":
                return self._hosts(self._heads.starts + 48, self._heads.time_at)
            case "storeHost":
                return self._hosts(self._heads.time_at + 8, self._heads.end_at)
        raise ValueError(f"no column {name}")

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

    def _times(self, name: str, kind: pa.DataType) -> pa.Array:
        times = self._heads[name]
        beyond = (times > MAX_TIME_MS) | (times < -MAX_TIME_MS)
        return numbers(np.where(beyond, 0, times) * 1000, kind, beyond)

    def _bodies(self) -> pa.Array:
        compressed = (self._heads["sysFlag"] & COMPRESSED != 0) & (self._heads["bodyBytes"] > 0)
        if not compressed.any():
            return every(self._stretches, 4, 0)
        stored = np.flatnonzero(~compressed)
        inflated = np.flatnonzero(compressed)
        as_they_are = self._stretches.take(numbers(stored * 4, pa.int64()))
        both = pa.concat_arrays([as_they_are, pa.array(self._inflated(inflated.tolist()), pa.binary())])
        return both.take(numbers(np.argsort(np.concatenate([stored, inflated]), kind="stable"), pa.int64()))

    def _inflated(self, numbers: list[int]) -> list[bytes]:
        view, flags = memoryview(self._block.data), self._heads["sysFlag"]
        left = MAX_BATCH_BODY_BYTES - int(self._heads["bodyBytes"].sum(dtype=np.int64))
        bodies: list[bytes] = []
        for number in numbers:
            stored = view[int(self._heads.body_at[number]) : int(self._parts.body_end[number])]
            try:
                body = inflate(bytes(stored), int(flags[number]))
            except ClientError as error:
                fault(
                    self._block,
                    int(self._numbers[number]),
                    f"{error}. To skip it, read the offsets before and after it",
                )
            left -= len(body)
            if left < 0:
                raise TooMuch(
                    f"the messages of a block of topic {self._block.queue.topic} take more than"
                    f" {MAX_BATCH_BODY_BYTES} bytes"
                )
            bodies.append(body)
        return bodies

    def _message_ids(self) -> pa.Array:
        unique = self._properties.value_of(props.UNIQ_KEY)
        if not unique.null_count:
            return unique
        ids = unique.to_pylist()
        offsets = self._heads["physicalOffset"]
        view = memoryview(self._block.data)
        for number, text in enumerate(ids):
            if text is None:
                host = view[int(self._heads.time_at[number]) + 8 : int(self._heads.end_at[number])]
                ids[number] = offset_message_id(bytes(host), int(offsets[number]))
        return pa.array(ids, pa.string())

    def _hosts(self, starts: Numbers, stops: Numbers) -> pa.Array:
        view = memoryview(self._block.data)
        known: dict[bytes, str] = {}
        texts: list[str] = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            packed = bytes(view[start:stop])
            text = known.get(packed)
            if text is None:
                text = known[packed] = host_text(packed)
            texts.append(text)
        return pa.array(texts, pa.string())


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_text(bodies: pa.Array) -> pa.Array:
    """Bodies as UTF-8 text; invalid bytes become U+FFFD."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        found: list[Any] = bodies.to_pylist()
        return pa.array([body.decode("utf-8", "replace") for body in found], pa.string())
