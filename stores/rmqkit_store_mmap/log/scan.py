"""Validation and parsing of records for recovery (store-format sheet, section 2.9; Java:
checkMessageAndReturnSize).

A valid record has the right magic, lengths, body CRC and, in addition to Java's checks, its own log offset.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.model import properties as props
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqkit.model.text import text_of
from rmqkit.protocol.damage import is_damage
from rmqkit.protocol.record import (
    BLANK,
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    peek_store_timestamp,
)

_HEAD = Struct(">iIiiiqqi")
_I32 = Struct(">i")
_I16 = Struct(">h")
_BODY_LENGTH_AT = 84


class Found(NamedTuple):
    """The fields of a record that recovery needs."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    flag: int
    sys_flag: int
    store_timestamp_ms: int
    properties: dict[str, str]

    @property
    def is_damage(self) -> bool:
        """Whether this is a damaged record replaced by a recovery."""
        return is_damage(self.flag, self.sys_flag)

    @property
    def end(self) -> int:
        return self.physical_offset + self.size_bytes


def check_record(data: memoryview, at: int, physical_offset: int, check_body: bool = True) -> int:
    """Size of the good record at `at`, 0 for the blank record that ends a segment, -1 for anything else.

    Without `check_body` the body is not read: for records known to be on the device, whose body a recovery
    cannot repair.
    """
    room = len(data) - at
    if room < BLANK.size:
        return -1
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK:
        return 0 if size == room else -1
    if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= room:
        return -1
    _, _, crc, _, _, _, claimed, sys_flag = _HEAD.unpack_from(data, at)
    body_at = _body_at(at, sys_flag)
    if body_at > at + size:
        return -1
    topic_at = body_at + _I32.unpack_from(data, body_at - 4)[0]
    width = 1 if magic == MAGIC_V1 else 2
    if claimed != physical_offset or topic_at < body_at or topic_at + width > at + size:
        return -1
    topic_length = data[topic_at] if width == 1 else _I16.unpack_from(data, topic_at)[0]
    properties_at = topic_at + width + topic_length + 2
    if topic_length < 0 or properties_at > at + size:
        return -1
    if properties_at + _I16.unpack_from(data, properties_at - 2)[0] != at + size:
        return -1
    good = not check_body or body_at == topic_at or crc32(data[body_at:topic_at]) & CRC_MASK == crc
    return size if good else -1


def _body_at(at: int, sys_flag: int) -> int:
    return (
        at
        + _BODY_LENGTH_AT
        + 4
        + (12 if sys_flag & BORN_HOST_V6 else 0)
        + (12 if sys_flag & STORE_HOST_V6 else 0)
    )


def texts(data: memoryview, at: int) -> tuple[memoryview, memoryview]:
    """Topic and properties of a record that `check_record` found good."""
    size, magic, _, _, _, _, _, sys_flag = _HEAD.unpack_from(data, at)
    body_at = _body_at(at, sys_flag)
    topic_at = body_at + _I32.unpack_from(data, body_at - 4)[0]
    if magic == MAGIC_V1:
        name_at, length = topic_at + 1, data[topic_at]
    else:
        name_at, length = topic_at + 2, _I16.unpack_from(data, topic_at)[0]
    return data[name_at : name_at + length], data[name_at + length + 2 : at + size]


def body_of(data: memoryview, at: int) -> memoryview:
    """The body of a record whose lengths `check_record` found right."""
    (sys_flag,) = _I32.unpack_from(data, at + 36)
    body_at = _body_at(at, sys_flag)
    return data[body_at : body_at + _I32.unpack_from(data, body_at - 4)[0]]


def may_be_torn(data: memoryview, at: int) -> bool:
    """Whether a record that `check_record` found good may still lack its end: no checksum covers topic and
    properties, but a torn write leaves zeros."""
    topic, properties = texts(data, at)
    last = properties or topic
    return len(last) > 0 and last[-1] == 0


def parse_record(data: memoryview, at: int) -> Found:
    """A record that `check_record` found valid. Invalid UTF-8 is decoded with replacement characters."""
    size, _, _, queue_id, flag, queue_offset, physical_offset, sys_flag = _HEAD.unpack_from(data, at)
    topic, properties = (text_of(text) for text in texts(data, at))
    time_ms = peek_store_timestamp(data, at)
    return Found(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        size,
        flag,
        sys_flag,
        time_ms,
        props.decode(properties),
    )
