"""Decoding of stored records one at a time in plain Python; the reference with which tests compare `records`.

It also decodes rare cases for `records` (inner batches, properties with a name twice or that are not UTF-8),
what is left of bad records, and produces the error texts. The layout of a record is shown in
rmqkit.protocol.record. Only the parts that a projection needs are read and checked: if all its columns are
fixed-position fields, neither body nor properties are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Any, NoReturn
from zlib import crc32

import msgspec
from attrs import evolve, frozen

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.read.source import BadRecord, Block
from rmqkit.errors import ClientError, DecodeError
from rmqkit.model import properties as props
from rmqkit.model.sysflag import BORN_HOST_V6, COMPRESSED, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6
from rmqkit.model.text import text_of
from rmqkit.protocol import batch
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import CRC_MASK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES

Row = dict[str, Any]

#: A record with both bits contains several messages.
FOLDED = INNER_BATCH | NEED_UNWRAP
#: Columns computed from the text of the properties.
FROM_PROPERTIES = frozenset({"properties", "keys", "tags", "msgId", "deliveryTimestamp"})
#: Larger millisecond values do not fit into Spark's timestamps, which are 64-bit microseconds. Clients may
#: send any born time.
MAX_TIME_MS = (2**63 - 1) // 1000
#: Digits of the largest 64-bit number.
_LONGEST_NUMBER = 19

_HEAD = Struct(">iIiiiqqiq")
_TIME = Struct(">q")
_TAIL = Struct(">iqi")
_I16 = Struct(">h")
_OFFSET_AT = 20


@frozen
class Needs:
    """Which parts of a record a projection reads, and whether the body checksum is checked."""

    body: bool
    properties: bool
    checksum: bool

    @classmethod
    def of(cls, projection: Projection) -> Needs:
        return cls(
            "body" in projection.names, not FROM_PROPERTIES.isdisjoint(projection.names), projection.check_crc
        )


@frozen
class _Head:
    """The fixed-position fields of one record, and where the rest begins."""

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
    """The messages of a block with queue offsets in [lo, hi), inner batches unfolded, as column -> value;
    times in microseconds since 1970.

    Raises BadRecord with the file or queue and the position when a record is damaged or differs from what
    the source expects. Of records outside the range only the fixed-position fields are read.
    """
    for number in range(len(block.starts)):
        for row in rows_of(block, number, lo, hi, projection):
            yield {name: row[name] for name in projection.names}


def rows_of(block: Block, number: int, lo: int, hi: int, projection: Projection) -> Iterator[Row]:
    """The messages of one record of a block, as in `rows`. A row contains further columns besides those of
    the projection."""
    head = _head(block, number)
    offset, flag = head.fields["queueOffset"], head.fields["flag"]
    if offset >= hi or (offset < lo and not head.folded):
        return
    stored, text = _parts(
        block, number, head, Needs(True, True, projection.check_crc) if head.folded else Needs.of(projection)
    )
    body = _inflated(block, number, head, stored)
    outer = props.decode_bytes(text)
    if not head.folded:
        yield _row(head, offset, flag, body, outer, projection)
        return
    try:
        items = [
            (item.flag, item.body, {**outer, **props.decode_bytes(item.properties)})
            for item in batch.decode(body)
        ]
    except DecodeError as error:
        fault(block, number, f"it contains several messages that cannot be separated: {error}")
    for at, (flag, content, properties) in enumerate(items, offset):
        if lo <= at < hi:
            yield _row(head, at, flag, content, properties, projection)


def remains_of(block: Block, number: int, lo: int, hi: int, projection: Projection) -> Iterator[Row]:
    """What can be read of a bad record whose queue offset is in [lo, hi): a row, null where the record is
    damaged. A row contains further columns besides those of the projection."""
    row: Row = dict.fromkeys(projection.names)
    row |= {"topic": block.queue.topic, "brokerName": block.queue.broker, "queueId": block.queue.queue_id}
    row["queueOffset"] = offset = _queue_offset(block, number)
    if offset is not None and not lo <= offset < hi:
        return
    with suppress(BadRecord):
        head = _head(block, number)
        row |= head.fields
        needs = Needs.of(projection)
        with suppress(BadRecord):
            _, text = _parts(block, number, head, evolve(needs, body=False))
            row |= _of_properties(head, props.decode_bytes(text), projection) if needs.properties else {}
        if not head.folded:
            stored, _ = _parts(block, number, head, evolve(needs, properties=False))
            row |= _of_body(_inflated(block, number, head, stored), projection)
    yield row


def _inflated(block: Block, number: int, head: _Head, stored: bytes) -> bytes:
    try:
        return inflate(stored, head.sys_flag) if stored and head.sys_flag & COMPRESSED else stored
    except ClientError as error:
        fault(block, number, str(error))


def _queue_offset(block: Block, number: int) -> int | None:
    """The queue offset of a record, as the source knows it, else as its head says; None when it has none."""
    if block.offsets is not None:
        return int(block.offsets[number])
    start = int(block.starts[number])
    if not 0 <= start <= len(block.data) - _OFFSET_AT - _TIME.size:
        return None
    (offset,) = _TIME.unpack_from(block.data, start + _OFFSET_AT)
    return int(offset)


def fault(block: Block, number: int, text: str) -> NoReturn:
    """Raise the BadRecord for a record."""
    start = int(block.starts[number])
    offset = _queue_offset(block, number)
    known = "" if offset is None else f" at queue offset {offset}"
    where = f"{block.origin}, byte {start}: " if block.origin else f"byte {start} of an answer: "
    raise BadRecord(
        f"{where}record of topic {block.queue.topic}, {block.queue.broker}, queue"
        f" {block.queue.queue_id}{known}: {text}. badRecords=null or skip reads the others",
        number,
    )


def _head(block: Block, number: int) -> _Head:
    data, at, stop = (
        block.data,
        int(block.starts[number]),
        int(block.starts[number]) + int(block.sizes[number]),
    )
    if stop - at < MIN_RECORD_BYTES or at < 0 or stop > len(data):
        fault(
            block, number, f"it should have {stop - at} bytes, but only {max(0, len(data) - at)} are present"
        )
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(
        data, at
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        fault(block, number, f"no record begins here, the magic number is {magic:#010x}")
    if size != stop - at:
        fault(block, number, f"its length field says {size} bytes, it should have {stop - at}")
    if queue_id != block.queue.queue_id:
        fault(block, number, f"the record is of queue {queue_id}")
    if block.base >= 0 and physical_offset != block.base + at:
        fault(
            block, number, f"its log offset field says {physical_offset}, its position is {block.base + at}"
        )
    if block.offsets is not None and queue_offset != int(block.offsets[number]):
        fault(block, number, f"its queue offset field says {queue_offset}")
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


def _parts(block: Block, number: int, head: _Head, needs: Needs) -> tuple[bytes, bytes]:
    """The stored body and the stored properties, each empty unless needed; lengths are checked when
    either is needed."""
    if not (needs.body or needs.properties):
        return b"", b""
    data, stop = block.data, int(block.starts[number]) + int(block.sizes[number])
    topic_at = head.body_at + head.body_bytes
    width = 1 if head.magic == MAGIC_V1 else 2
    if head.body_bytes < 0 or topic_at + width + 2 > stop:
        fault(block, number, f"its body should have {head.body_bytes} bytes")
    topic_bytes = data[topic_at] if width == 1 else _I16.unpack_from(data, topic_at)[0]
    properties_at = topic_at + width + topic_bytes + 2
    if (
        topic_bytes < 0
        or properties_at > stop
        or _I16.unpack_from(data, properties_at - 2)[0] != stop - properties_at
    ):
        fault(block, number, "the lengths of its parts do not add up to its length")
    body, text = b"", b""
    if needs.body:
        body = bytes(data[head.body_at : topic_at])
        if body and needs.checksum and crc32(body) & CRC_MASK != head.fields["bodyCrc"]:
            fault(block, number, "the checksum of its body does not match")
    if needs.properties:
        text = bytes(data[properties_at:stop])
    return body, text


def _row(
    head: _Head, queue_offset: int, flag: int, body: bytes, properties: dict[str, str], projection: Projection
) -> Row:
    row = {**head.fields, "queueOffset": queue_offset, "flag": flag}
    if "body" in projection.names:
        row |= _of_body(body, projection)
    if not FROM_PROPERTIES.isdisjoint(projection.names):
        row |= _of_properties(head, properties, projection)
    return row


def _of_body(body: bytes, projection: Projection) -> Row:
    return {"body": body if projection.body == "binary" else text_of(body)}


def _of_properties(head: _Head, properties: dict[str, str], projection: Projection) -> Row:
    """The columns of FROM_PROPERTIES."""
    unique = properties.get(props.UNIQ_KEY)
    return {
        "keys": properties.get(props.KEYS),
        "tags": properties.get(props.TAGS),
        "msgId": unique or offset_message_id(head.store_host, head.fields["physicalOffset"]),
        "properties": list(properties.items()) if projection.properties == "map" else json_text(properties),
        "deliveryTimestamp": delivery_time(
            properties.get(props.TIMER_DELIVER_MS), properties.get(props.TIMER_OUT_MS)
        ),
    }


def json_text(properties: dict[str, str]) -> str:
    """The column `properties` as JSON."""
    return msgspec.json.encode(properties).decode()


def delivery_time(asked: str | None, slot: str | None) -> int | None:
    """The column `deliveryTimestamp`, in microseconds since 1970, from the properties TIMER_DELIVER_MS and
    TIMER_OUT_MS: the time that the sender asked for; after a span of time, the one that the broker chose,
    which is up to a unit of its precision earlier. None of a message without either."""
    for text in (asked, slot):
        if text and text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER:
            return _microseconds(int(text))
    return None


def _microseconds(time_ms: int) -> int | None:
    return time_ms * 1000 if -MAX_TIME_MS <= time_ms <= MAX_TIME_MS else None
