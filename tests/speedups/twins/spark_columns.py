"""The Spark connector's columns: `_columns.fill` beside numpy and Arrow, and the places of records."""

from __future__ import annotations

import random
import zlib

import numpy as np

from pyspark_rocketmq.decode import _columns
from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.decode.filled_columns import filled
from pyspark_rocketmq.decode.gathered_columns import gathered
from pyspark_rocketmq.decode.record_columns import Regular
from pyspark_rocketmq.decode.records import walked_places
from pyspark_rocketmq.decode.scalar_decoder import FOLDED
from pyspark_rocketmq.read.source import Block, QueueKey, SourceError
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import MIN_RECORD_BYTES, message_size, pack
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import mutated

_QUEUE = QueueKey("Orders", "broker-a", 3)
_HOSTS = {False: pack_host("10.0.0.1", 10911), True: pack_host("2001:db8::7", 10911)}
_NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "a", "\u00e9", "", "KEYS", "n" * 40)
_COLUMNS = (*DEFAULT_COLUMNS, *METADATA_COLUMNS)


def _property(rng: random.Random) -> str:
    value = "".join(rng.choice("aZ 7\u00e9\U0001f600\x01") for _ in range(rng.choice((0, 1, 3, 20, 50))))
    return f"{rng.choice(_NAMES)}\x01{value}"


def _properties(rng: random.Random) -> bytes:
    count = rng.choice((0, 1, 3, 6, 6, 70))
    text = "\x02".join(_property(rng) if rng.random() < 0.9 else "x" for _ in range(count))
    data = (text + rng.choice(("", "\x02"))).encode()
    return data if rng.random() < 0.8 else mutated(rng, data)


def _record(rng: random.Random, offset: int, at: int) -> bytes:
    flags = rng.choice((0, 0, 0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6))
    body = rng.randbytes(rng.choice((0, 1, 15, 64, 200, 1500)))
    if rng.random() < 0.1:
        body, flags = zlib.compress(body), flags | COMPRESSED
    if rng.random() < 0.1:
        flags |= FOLDED
    message = PutMessage(
        topic=rng.choice(("Orders", "%RETRY%".ljust(200, "g"))),
        queue_id=_QUEUE.queue_id,
        body=body,
        properties={},
        properties_bytes=_properties(rng),
        sys_flag=flags,
        flag=rng.choice((0, -1, 2**31 - 1)),
        born_timestamp_ms=rng.choice((0, 1_700_000_000_123, -(2**63), 2**63 - 1)),
        born_host=_HOSTS[bool(flags & BORN_HOST_V6)],
    )
    return pack(
        message, message_size(message), offset, at, 1_700_000_000_456, _HOSTS[bool(flags & STORE_HOST_V6)]
    )


def _block(rng: random.Random) -> tuple[object, ...]:
    """Data with a few records, where they are said to be, and what is asked for."""
    data, starts, sizes = b"", [], []
    for number in range(rng.choice((1, 1, 2, 3, 9))):
        record = _record(rng, 40 + number, 1000 + len(data))
        starts.append(len(data))
        sizes.append(len(record))
        data += record + bytes(rng.choice((0, 0, 0, 5)))
    if rng.random() < 0.5:
        damaged = bytearray(mutated(rng, data))
        # The places of records lie within the data, which is checked before.
        data = bytes(damaged[: len(data)].ljust(len(data), b"\0"))
    if sizes and rng.random() < 0.1:
        sizes[-1] = max(MIN_RECORD_BYTES, sizes[-1] - rng.choice((1, 4, 30)))
        data = data[: starts[-1] + sizes[-1]]
    names = tuple(rng.sample(_COLUMNS, rng.randint(1, 6))) if rng.random() < 0.5 else _COLUMNS
    offsets = [40 + number for number in range(len(starts))] if rng.random() < 0.3 else None
    base = 1000 if rng.random() < 0.3 else -1
    lo = rng.choice((-(2**63), 41))
    hi = rng.choice((2**63 - 1, 44))
    return Guarded(data), starts, sizes, offsets, base, lo, hi, names, rng.random() < 0.8


def _decoded(
    find: object,
    data: memoryview,
    starts: list[int],
    sizes: list[int],
    offsets: list[int] | None,
    base: int,
    lo: int,
    hi: int,
    names: tuple[str, ...],
    check_crc: bool,
) -> object:
    expected = None if offsets is None else np.array(offsets, np.int64)
    block = Block(_QUEUE, data, np.array(starts, np.int64), np.array(sizes, np.int32), "", base, expected)
    projection = Projection(names, check_crc=check_crc)
    assert callable(find)
    found: Regular = find(block, lo, hi, projection)
    if found.fault >= 0:
        return found.fault
    return found.numbers.tolist(), found.odd, _columns_of(found, projection)


def _columns_of(found: Regular, projection: Projection) -> object:
    from tests.spark.kit_records import schema

    try:
        made = [found.columns.make(field, projection) for field in schema(projection)]
    except SourceError as error:
        return str(error)
    for column in made:
        column.validate(full=True)
    return [(str(column.type), column.null_count, str(column.to_pylist())) for column in made]


def _answer(rng: random.Random) -> tuple[object, ...]:
    data = b"".join(_record(rng, number, 0) for number in range(rng.choice((0, 1, 2, 5))))
    return (Guarded(mutated(rng, data)),)


register(
    Twin(
        "spark.columns",
        pure=lambda *arguments: _decoded(gathered, *arguments),
        compiled=lambda *arguments: _decoded(filled, *arguments),
        arguments=_block,
    )
)
register(Twin("spark.places", pure=walked_places, compiled=_columns.places, arguments=_answer))
