"""Records, blocks and schemas for tests of decoding, without a Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.decode import scalar_decoder as plain
from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.decode.records import Decoder, record_places
from pyspark_rocketmq.read.source import Block, QueueKey
from rmqkit.model.message import PutMessage
from rmqkit.protocol.record import message_size, pack

ALL_COLUMNS = (*DEFAULT_COLUMNS, *METADATA_COLUMNS)
ALL = Projection(ALL_COLUMNS)
QUEUE = QueueKey("Orders", "broker-a", 3)
STORE_HOST = b"\x0a\x00\x00\x01\x00\x00\x2a\x9f"
FROM, TO = -(1 << 63), (1 << 63) - 1

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema(projection: Projection) -> pa.Schema:
    """The Arrow schema that Spark requires for the columns."""
    fields = [StructField(name, _TYPES[projection.type_of(name)]) for name in projection.names]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def put(body: bytes = b"body", properties: bytes = b"", **fields: Any) -> PutMessage:
    """A message of the queue with stored properties."""
    defaults: dict[str, Any] = {
        "topic": QUEUE.topic,
        "queue_id": QUEUE.queue_id,
        "born_timestamp_ms": 1_700_000_000_123,
    }
    return PutMessage(body=body, properties={}, properties_bytes=properties, **(defaults | fields))


def packed(
    message: PutMessage,
    queue_offset: int,
    log_offset: int = 0,
    time_ms: int = 1_700_000_000_456,
    host: bytes = STORE_HOST,
) -> bytes:
    """The record of a message."""
    return pack(message, message_size(message), queue_offset, log_offset, time_ms, host)


def block_of(records: Sequence[bytes], **fields: Any) -> Block:
    """Concatenated records, as in a pull answer."""
    data = b"".join(records)
    return Block(QUEUE, data, *record_places(data))._replace(**fields)


def numbered(messages: Sequence[PutMessage], first: int = 0) -> Block:
    """Concatenated records of messages at queue offsets from `first` on."""
    return block_of([packed(message, first + at, 1000 * at) for at, message in enumerate(messages)])


def decoded(block: Block, projection: Projection = ALL, lo: int = FROM, hi: int = TO) -> list[dict[str, Any]]:
    """The rows of bulk decoding in the form of `scalar_decoder.rows`; checks that the batch is valid and has
    the required schema."""
    batch = Decoder(projection, schema(projection)).decode(block, lo, hi)
    batch.validate(full=True)
    assert batch.schema.equals(schema(projection), check_metadata=True)
    numbers = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
    ]
    return [
        dict(zip(projection.names, values, strict=True))
        for values in zip(*(column.to_pylist() for column in numbers), strict=True)
    ]


def one_by_one(
    block: Block, projection: Projection = ALL, lo: int = FROM, hi: int = TO
) -> list[dict[str, Any]]:
    """The rows of scalar decoding."""
    return list(plain.rows(block, lo, hi, projection))
