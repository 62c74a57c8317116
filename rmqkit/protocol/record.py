"""The stored message (wire-protocol sheet, section 5.1; store-format sheet, section 2; Java:
MessageExtEncoder, MessageDecoder).

    at  size  field                        at  size  field
     0     4  total size                   48  8/20  born host (address, port i32)
     4     4  magic, V1 or V2              56     8  store timestamp, ms
     8     4  body CRC-32 & 0x7FFFFFFF     64  8/20  store host
    12     4  queue id                     72     4  reconsume times
    16     4  flag                         76     8  prepared transaction offset
    20     8  queue offset                 84     4  body length, then the body
    28     8  physical offset                  1/2  topic length (V1 u8, V2 i16), then the topic
    36     4  sys flag                           2  properties length, then the properties
    40     8  born timestamp, ms

Positions behind the born host hold for IPv4. V2 is written when the topic has more than 127 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from zlib import crc32

from rmqkit.errors import DecodeError, MessageIllegal
from rmqkit.limits import MAX_DERIVED_TOPIC_LENGTH, MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqkit.model.text import text_of

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
#: Fills the end of a segment: total size (what is left), this magic, nothing more.
MAGIC_BLANK = 0xCBD43194
#: At least so much stays free behind the last record of a full segment.
BLANK_BYTES = 8
#: A record without body, topic and properties, IPv4.
MIN_RECORD_BYTES = 91
CRC_MASK = 0x7FFFFFFF

_HEAD = Struct(">iIiiiqqiq")
_TIME = Struct(">q")
_PLACE = Struct(">12xi4xqq")
_TAIL = Struct(">iqi")
_I32 = Struct(">i")
_I16 = Struct(">h")
_SIZE_MAGIC = Struct(">iI")
_TO_CRC = Struct(">iIi")
#: Size, magic, sys flag, and the body length of a record with IPv4 hosts.
_TO_BODY = Struct(">iI28xi44xi")

BLANK = Struct(">iI")
_V6 = BORN_HOST_V6 | STORE_HOST_V6


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int) -> int:
    """Bytes of a record."""
    hosts = (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
    return (
        MIN_RECORD_BYTES
        + hosts
        + (1 if topic_bytes > 127 else 0)
        + body_bytes
        + topic_bytes
        + properties_bytes
    )


def message_size(message: PutMessage) -> int:
    """Bytes `pack` will make of a message. Raises MessageIllegal when topic or properties pass their
    limits."""
    topic_bytes = len(message.topic.encode())
    if topic_bytes > MAX_DERIVED_TOPIC_LENGTH:
        raise MessageIllegal(f"topic of {topic_bytes} bytes, at most {MAX_DERIVED_TOPIC_LENGTH} are allowed")
    properties_bytes = len(message.properties_bytes)
    if properties_bytes > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"properties of {properties_bytes} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    return record_size(len(message.body), topic_bytes, properties_bytes, message.sys_flag)


def pack(
    message: PutMessage,
    size: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> bytes:
    """One record; `size` is what `message_size` gave. The STORE_HOST_V6 bit of `message.sys_flag` must fit
    the width of `store_host`."""
    topic = message.topic.encode()
    body = message.body
    properties = message.properties_bytes
    sys_flag = message.sys_flag
    head = _HEAD.pack(
        size,
        MAGIC_V2 if len(topic) > 127 else MAGIC_V1,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp_ms,
    )
    times = _TIME.pack(store_timestamp_ms)
    tail = _TAIL.pack(message.reconsume_times, message.prepared_offset, len(body))
    topic_length = _I16.pack(len(topic)) if len(topic) > 127 else bytes((len(topic),))
    properties_length = _I16.pack(len(properties))
    hosts = head, message.born_host, times, store_host, tail
    return b"".join((*hosts, body, topic_length, topic, properties_length, properties))


def unpack(data: bytes | memoryview, at: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """The record that begins at `at`. Text that is not UTF-8 is replaced. Raises DecodeError when a length,
    the magic or (with `check_crc`) the body CRC is wrong."""
    try:
        return _unpack(data, at, check_crc)
    except (StructError, IndexError) as error:
        raise DecodeError(f"record at byte {at} is cut short: {error}") from error


def _unpack(data: bytes | memoryview, at: int, check_crc: bool) -> StoredMessage:
    total, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = (
        _HEAD.unpack_from(data, at)
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise DecodeError(f"record at byte {at} has magic {magic:#x}")
    if total < MIN_RECORD_BYTES or at + total > len(data):
        raise DecodeError(f"record at byte {at} claims {total} bytes, {len(data) - at} are there")
    stop = at + total
    born_at = at + 48
    time_at = born_at + (20 if sys_flag & BORN_HOST_V6 else 8)
    (store_timestamp,) = _TIME.unpack_from(data, time_at)
    tail_at = time_at + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    reconsume_times, prepared_offset, body_bytes = _TAIL.unpack_from(data, tail_at)
    body_at = tail_at + 16
    topic_at = body_at + body_bytes
    if body_bytes < 0 or topic_at >= stop:
        raise DecodeError(f"record at byte {at} claims a body of {body_bytes} bytes")
    body = bytes(data[body_at:topic_at])
    if magic == MAGIC_V1:
        topic_bytes = data[topic_at]
        topic_at += 1
    else:
        (topic_bytes,) = _I16.unpack_from(data, topic_at)
        topic_at += 2
    properties_at = topic_at + topic_bytes + 2
    (properties_bytes,) = _I16.unpack_from(data, properties_at - 2)
    if topic_bytes < 0 or properties_bytes < 0 or properties_at + properties_bytes != stop:
        raise DecodeError(f"record at byte {at}: its parts do not add up to {total} bytes")
    if check_crc and body_bytes and crc32(body) & CRC_MASK != crc:
        raise DecodeError(f"record at byte {at}: body CRC does not match")
    stored = bytes(data[properties_at:stop])
    return StoredMessage(
        topic=text_of(data[topic_at : properties_at - 2]),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=props.decode_bytes(stored),
        properties_bytes=stored,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp,
        born_host=bytes(data[born_at:time_at]),
        store_timestamp_ms=store_timestamp,
        store_host=bytes(data[time_at + 8 : tail_at]),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body_crc=crc,
        size_bytes=total,
    )


def unpack_all(data: bytes | memoryview, *, check_crc: bool = True) -> Iterator[StoredMessage]:
    """The records of a pull answer, one behind the other. Raises DecodeError at the first bad one."""
    at, end = 0, len(data)
    while at < end:
        message = unpack(data, at, check_crc=check_crc)
        yield message
        at += message.size_bytes


def peek_store_timestamp(data: bytes | memoryview, at: int = 0) -> int:
    """Store timestamp (ms) of the record at `at` without reading the rest. Raises DecodeError."""
    try:
        (sys_flag,) = _I32.unpack_from(data, at + 36)
        (timestamp,) = _TIME.unpack_from(data, at + (68 if sys_flag & BORN_HOST_V6 else 56))
    except StructError as error:
        raise DecodeError(f"record at byte {at} is cut short") from error
    return int(timestamp)


class Place(NamedTuple):
    """Where a record says it belongs: its queue, its offset there and in the log."""

    queue_id: int
    queue_offset: int
    physical_offset: int


def peek_place(data: bytes | memoryview, at: int = 0) -> Place:
    """The place of the record at `at` without reading the rest, which may be damaged. Raises DecodeError when
    it is cut short before."""
    try:
        return Place(*_PLACE.unpack_from(data, at))
    except StructError as error:
        raise DecodeError(f"record at byte {at} is cut short") from error


def peek_queue_offsets(data: bytes | memoryview) -> list[int]:
    """The queue offsets of records one behind the other, without reading the rest of them, which may be
    damaged. Raises DecodeError for a size that is none, or when the last one is cut short."""
    offsets: list[int] = []
    at, end = 0, len(data)
    while at < end:
        size, _ = peek_size_and_magic(data, at)
        if not MIN_RECORD_BYTES <= size <= end - at:
            raise DecodeError(f"record at byte {at} claims {size} bytes, {end - at} are there")
        offsets.append(peek_place(data, at).queue_offset)
        at += size
    return offsets


def peek_size_and_magic(data: bytes | memoryview, at: int = 0) -> tuple[int, int]:
    """Total size and magic of what begins at `at`. Raises DecodeError when fewer than 8 bytes are there."""
    try:
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
    except StructError as error:
        raise DecodeError(f"fewer than 8 bytes at {at}") from error
    return size, magic


def has_intact_body(data: Buffer, at: int = 0) -> bool:
    """Whether the body of the record at `at` matches its checksum; an empty one has none. Raises DecodeError
    when its parts do not lie within it."""
    try:
        size, _, crc = _TO_CRC.unpack_from(data, at)
        (sys_flag,) = _I32.unpack_from(data, at + 36)
        body_at = at + 88 + (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
        (body_bytes,) = _I32.unpack_from(data, body_at - 4)
    except StructError as error:
        raise DecodeError(f"record at byte {at} is cut short") from error
    if body_bytes < 0 or size < MIN_RECORD_BYTES or body_at + body_bytes > at + size or at + size > len(data):
        raise DecodeError(f"record at byte {at} claims a body of {body_bytes} bytes")
    return not body_bytes or crc32(memoryview(data)[body_at : body_at + body_bytes]) & CRC_MASK == crc


def peek_properties(record: Buffer) -> bytes:
    """The properties of one whole record as bytes `0x02 name 0x01 value 0x02 ...`, without reading the rest.
    Raises DecodeError when its parts do not add up."""
    try:
        size, magic, sys_flag, body_bytes = _TO_BODY.unpack_from(record)
        topic_at = 88 + body_bytes
        if sys_flag & _V6:
            longer = (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
            (body_bytes,) = _I32.unpack_from(record, 84 + longer)
            topic_at = 88 + longer + body_bytes
        if body_bytes < 0:
            raise DecodeError(f"record claims a body of {body_bytes} bytes")
        at = topic_at + (
            3 + record[topic_at] if magic == MAGIC_V1 else 4 + _I16.unpack_from(record, topic_at)[0]
        )
        (properties_bytes,) = _I16.unpack_from(record, at - 2)
    except (StructError, IndexError) as error:
        raise DecodeError("record is cut short") from error
    if not (properties_bytes >= 0 and at > topic_at and at + properties_bytes == size <= len(record)):
        raise DecodeError("the parts of a record do not add up to its size")
    return b"".join((b"\x02", record[at:size]))
