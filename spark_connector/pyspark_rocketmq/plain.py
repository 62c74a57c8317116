"""Stored records decoded one at a time, in plain Python: what `records` does in bulk, and what it is held against in the tests.

It also decodes for `records` what is rare (inner batches, properties with a name twice), and words its errors. The layout of a record is drawn in
rmqkit.protocol.record. Only what a projection needs is looked at, and only that is checked: with columns of fixed place neither body nor properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NoReturn
from zlib import crc32

import msgspec
from attrs import frozen

from pyspark_rocketmq.columns import Projection
from pyspark_rocketmq.source import Block, SourceError
from rmqkit.client.received import inflate
from rmqkit.errors import ClientError, DecodeError
from rmqkit.model import properties as props
from rmqkit.model.sysflag import BORN_HOST_V6, COMPRESSED, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6
from rmqkit.protocol import batch
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import CRC_MASK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES

Row = dict[str, Any]

#: A record with both bits is several messages.
FOLDED = INNER_BATCH | NEED_UNWRAP
#: Columns that are worked out from the text of the properties.
FROM_PROPERTIES = frozenset({"properties", "keys", "tags", "msgId"})
#: Milliseconds beyond this are no timestamp of Spark, which counts microseconds in 64 bits. A client may claim any born time.
MAX_TIME_MS = (2**63 - 1) // 1000

_HEAD = Struct(">iIiiiqqiq")
_TIME = Struct(">q")
_TAIL = Struct(">iqi")
_I16 = Struct(">h")


@frozen
class Needs:
    """Which parts of a record a projection looks at, and whether at the checksum of the body."""

    body: bool
    properties: bool
    checksum: bool

    @classmethod
    def of(cls, projection: Projection) -> Needs:
        return cls("body" in projection.names, not FROM_PROPERTIES.isdisjoint(projection.names), projection.check_crc)


@frozen
class _Head:
    """What stands at fixed places of one record, and where the rest begins."""

    fields: Row
    sys_flag: int
    magic: int
    store_host: bytes
    body_at: int
    body_bytes: int

    @property
    def folded(self) -> bool:
        return self.sys_flag & FOLDED == FOLDED


def rows(block: Block, lo: int, hi: int, projection: Projection) -> Iterator[Row]:
    """The messages of a block with queue offsets in [lo, hi), inner batches unfolded, as column -> value; times in microseconds since 1970.

    Raises SourceError that names the file or queue and the place: a record is damaged, or is another one than the source says. Of records outside the
    range only the fields of fixed place are looked at.
    """
    for number in range(len(block.starts)):
        for row in rows_of(block, number, lo, hi, projection):
            yield {name: row[name] for name in projection.names}


def rows_of(block: Block, number: int, lo: int, hi: int, projection: Projection) -> Iterator[Row]:
    """The messages of one record of a block, as `rows`; besides the columns of the projection a row has others."""
    head = _head(block, number)
    offset, flag = head.fields["queueOffset"], head.fields["flag"]
    if offset >= hi or (offset < lo and not head.folded):
        return
    stored, text = _parts(block, number, head, Needs(True, True, projection.check_crc) if head.folded else Needs.of(projection))
    try:
        body = inflate(stored, head.sys_flag) if stored and head.sys_flag & COMPRESSED else stored
    except ClientError as error:
        fault(block, number, f"{error}. To go past it, read the offsets before and behind it")
    outer = props.decode(text)
    if not head.folded:
        yield _row(head, offset, flag, body, outer, projection)
        return
    try:
        items = [(item.flag, item.body, {**outer, **props.decode(item.properties.decode())}) for item in batch.decode(body)]
    except (DecodeError, UnicodeDecodeError) as error:
        fault(block, number, f"it holds several messages that cannot be told apart: {error}")
    for at, (flag, content, properties) in enumerate(items, offset):
        if lo <= at < hi:
            yield _row(head, at, flag, content, properties, projection)


def fault(block: Block, number: int, text: str) -> NoReturn:
    """Raise the SourceError of a record."""
    start = int(block.starts[number])
    known = "" if block.offsets is None else f" at queue offset {int(block.offsets[number])}"
    where = f"{block.origin}, byte {start}: " if block.origin else f"byte {start} of an answer: "
    raise SourceError(f"{where}record of topic {block.queue.topic}, {block.queue.broker}, queue {block.queue.queue_id}{known}: {text}")


def _head(block: Block, number: int) -> _Head:
    data, at, stop = block.data, int(block.starts[number]), int(block.starts[number]) + int(block.sizes[number])
    if stop - at < MIN_RECORD_BYTES or at < 0 or stop > len(data):
        fault(block, number, f"it should have {stop - at} bytes, and {max(0, len(data) - at)} are there")
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        fault(block, number, f"no record begins here, the magic number is {magic:#010x}")
    if size != stop - at:
        fault(block, number, f"the record says {size} bytes, it should have {stop - at}")
    if queue_id != block.queue.queue_id:
        fault(block, number, f"the record is of queue {queue_id}")
    if block.base >= 0 and physical_offset != block.base + at:
        fault(block, number, f"the record says log offset {physical_offset}, it lies at {block.base + at}")
    if block.offsets is not None and queue_offset != int(block.offsets[number]):
        fault(block, number, f"the record says queue offset {queue_offset}")
    time_at = at + 48 + (20 if sys_flag & BORN_HOST_V6 else 8)
    tail_at = time_at + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    if tail_at + 16 > stop:
        fault(block, number, "it is too short for its hosts")
    (store_ms,) = _TIME.unpack_from(data, time_at)
    reconsume_times, prepared_offset, body_bytes = _TAIL.unpack_from(data, tail_at)
    store_host = bytes(data[time_at + 8 : tail_at])
    fields = {
        "topic": block.queue.topic,
        "brokerName": block.queue.broker,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "flag": flag,
        "bornTimestamp": _microseconds(born_ms),
        "storeTimestamp": _microseconds(store_ms),
        "reconsumeTimes": reconsume_times,
        "sysFlag": sys_flag,
        "bornHost": host_text(bytes(data[at + 48 : time_at])),
        "storeHost": host_text(store_host),
        "physicalOffset": physical_offset,
        "storeSize": size,
        "bodyCrc": crc,
        "preparedTransactionOffset": prepared_offset,
    }
    return _Head(fields, sys_flag, magic, store_host, tail_at + 16, body_bytes)


def _parts(block: Block, number: int, head: _Head, needs: Needs) -> tuple[bytes, str]:
    """Body as stored and text of the properties, each empty unless needed; lengths are checked when either is."""
    if not (needs.body or needs.properties):
        return b"", ""
    data, stop = block.data, int(block.starts[number]) + int(block.sizes[number])
    topic_at = head.body_at + head.body_bytes
    width = 1 if head.magic == MAGIC_V1 else 2
    if head.body_bytes < 0 or topic_at + width + 2 > stop:
        fault(block, number, f"its body should have {head.body_bytes} bytes")
    topic_bytes = data[topic_at] if width == 1 else _I16.unpack_from(data, topic_at)[0]
    properties_at = topic_at + width + topic_bytes + 2
    if topic_bytes < 0 or properties_at > stop or _I16.unpack_from(data, properties_at - 2)[0] != stop - properties_at:
        fault(block, number, "the lengths of its parts do not add up to its own")
    body, text = b"", ""
    if needs.body:
        body = bytes(data[head.body_at : topic_at])
        if body and needs.checksum and crc32(body) & CRC_MASK != head.fields["bodyCrc"]:
            fault(block, number, "the checksum of its body does not match")
    if needs.properties:
        try:
            text = bytes(data[properties_at:stop]).decode()
        except UnicodeDecodeError as error:
            fault(block, number, f"its properties are no UTF-8: {error}")
    return body, text


def _row(head: _Head, queue_offset: int, flag: int, body: bytes, properties: dict[str, str], projection: Projection) -> Row:
    row = {**head.fields, "queueOffset": queue_offset, "flag": flag}
    if "body" in projection.names:
        row["body"] = body if projection.body == "binary" else body.decode("utf-8", "replace")
    if not FROM_PROPERTIES.isdisjoint(projection.names):
        row["keys"] = properties.get(props.KEYS)
        row["tags"] = properties.get(props.TAGS)
        row["msgId"] = properties.get(props.UNIQ_KEY) or offset_message_id(head.store_host, head.fields["physicalOffset"])
        row["properties"] = list(properties.items()) if projection.properties == "map" else json_text(properties)
    return row


def json_text(properties: dict[str, str]) -> str:
    """The column `properties` as JSON."""
    return msgspec.json.encode(properties).decode()


def _microseconds(time_ms: int) -> int | None:
    return time_ms * 1000 if -MAX_TIME_MS <= time_ms <= MAX_TIME_MS else None
