"""The columns of many regular records: one message each, properties in UTF-8, none twice. How their parts are
found is left to `gathered_columns` (numpy and Arrow) and `filled_columns` (compiled code)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from attrs import frozen

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.decode.property_columns import json_column
from pyspark_rocketmq.decode.record_headers import Numbers
from pyspark_rocketmq.decode.scalar_decoder import delivery_time, fault
from pyspark_rocketmq.decode.slices import numbers
from pyspark_rocketmq.read.source import Block, SourceError
from rmqkit.errors import ClientError
from rmqkit.model import properties as props
from rmqkit.model.text import text_of
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text

#: Limit of the decompressed bodies of one batch, of which a worker holds several. A single body has at most
#: 64 MiB.
MAX_BATCH_BODY_BYTES = 256 * 1024 * 1024


class TooMuch(SourceError):
    """The messages of a block exceed MAX_BATCH_BODY_BYTES when decompressed."""


class Columns(ABC):
    """The columns of many regular records; `make` creates them one by one."""

    def __init__(self, block: Block, count: int) -> None:
        self._block = block
        self._count = count

    def make(self, field: pa.Field, projection: Projection) -> pa.Array:
        """Create the column of the field's name and type. Raises SourceError for a body that cannot be
        decompressed, TooMuch."""
        match field.name:
            case "topic":
                return pa.repeat(pa.scalar(self._block.queue.topic, field.type), self._count)
            case "brokerName":
                return pa.repeat(pa.scalar(self._block.queue.broker, field.type), self._count)
            case "body":
                return self.bodies() if projection.body == "binary" else _as_text(self.bodies())
            case "properties" if projection.properties == "map":
                return self.properties_as_map(field.type)
            case "properties":
                return json_column(*self.properties(), self._count)
            case "bornHost" | "storeHost":
                return _host_texts(self.hosts(field.name))
            case "keys" | "tags":
                return self.text(field.name)
            case "msgId":
                return self.message_ids()
            case "bornTimestamp" | "storeTimestamp":
                return self.times(field.name, field.type)
            case "deliveryTimestamp":
                return self.delivery_times(field.type)
        return self.numbers(field.name, field.type)

    def properties_as_map(self, kind: pa.DataType) -> pa.Array:
        """The column as Spark's map type."""
        offsets, names, values = self.properties()
        entries = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self._count, [None, offsets], children=[entries])

    def delivery_times(self, kind: pa.DataType) -> pa.Array:
        """The column `deliveryTimestamp`; most messages have none."""
        asked, slots = (self.text(name) for name in (props.TIMER_DELIVER_MS, props.TIMER_OUT_MS))
        if asked.null_count == slots.null_count == self._count:
            return pa.nulls(self._count, kind)
        return pa.array(map(delivery_time, asked.to_pylist(), slots.to_pylist()), kind, size=self._count)

    @abstractmethod
    def numbers(self, name: str, kind: pa.DataType) -> pa.Array:
        """A fixed-position field without conversion."""

    @abstractmethod
    def times(self, name: str, kind: pa.DataType) -> pa.Array:
        """A time as microseconds, null where it does not fit."""

    @abstractmethod
    def text(self, name: str) -> pa.Array:
        """The column keys or tags, or one of the properties that `delivery_times` needs."""

    @abstractmethod
    def message_ids(self) -> pa.Array: ...

    @abstractmethod
    def hosts(self, name: str) -> pa.Array:
        """Stored hosts, as binary."""

    @abstractmethod
    def properties(self) -> tuple[pa.Buffer, pa.Array, pa.Array]:
        """int32 offsets of the properties of each record, one more than records; all names; all values."""

    @abstractmethod
    def bodies(self) -> pa.Array:
        """Decompressed bodies, as binary."""

    def with_inflated(
        self, stored: pa.Array, stored_bytes: int, compressed: Sequence[tuple[int, int, int, int, int]]
    ) -> pa.Array:
        """The bodies `stored` with those of compressed records replaced: row, number of the record in the
        block, start and stop in the data, sys flag of each. `stored_bytes` is the length of all bodies as
        stored."""
        if not compressed:
            return stored
        view = memoryview(self._block.data)
        left = MAX_BATCH_BODY_BYTES - stored_bytes
        bodies: list[bytes] = []
        for _, number, start, stop, flags in compressed:
            try:
                body = inflate(bytes(view[start:stop]), flags)
            except ClientError as error:
                fault(self._block, number, str(error))
            left -= len(body)
            if left < 0:
                raise TooMuch(
                    f"the messages of a block of topic {self._block.queue.topic} take more than"
                    f" {MAX_BATCH_BODY_BYTES} bytes"
                )
            bodies.append(body)
        places = np.arange(self._count, dtype=np.int64)
        places[[row for row, *_ in compressed]] = np.arange(self._count, self._count + len(bodies))
        return pa.concat_arrays([stored, pa.array(bodies, pa.binary())]).take(numbers(places, pa.int64()))


def _host_texts(hosts: pa.Array) -> pa.Array:
    known: dict[bytes, str] = {}
    texts: list[str] = []
    for packed in hosts.to_pylist():
        text = known.get(packed)
        if text is None:
            text = known[packed] = host_text(packed)
        texts.append(text)
    return pa.array(texts, pa.string())


def _as_text(bodies: pa.Array) -> pa.Array:
    """Bodies as UTF-8 text; invalid bytes become U+FFFD."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        found: list[bytes] = bodies.to_pylist()
        return pa.array([text_of(body) for body in found], pa.string())


@frozen
class Regular:
    """The regular records of a block in a range of offsets.

    fault    number of the first faulty record, -1 when there is none; then nothing else counts
    numbers  numbers of the regular records in the block
    odd      numbers of the records that are decoded one at a time: inner batches, a property name twice,
             properties that are not UTF-8
    """

    fault: int
    numbers: Numbers
    odd: list[int]
    columns: Columns
