"""The records of one file of the log. Each is verified by magic, lengths, body CRC and the log offset that it
contains (layout in rmqkit.protocol.record)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.errors import DecodeError
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqkit.model.text import text_of
from rmqkit.protocol.record import BLANK, CRC_MASK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, unpack

#: Layout of a record up to its body, without born time, hosts and fields that only clients use, for each
#: value of the two host bits of the system flag.
_HEADS = [Struct(f">iIiiiqqi8x{born}xq{store}x12xi") for store in (8, 20) for born in (8, 20)]
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_HOST_SHIFT = 4


class Record(NamedTuple):
    """The fields of a record that the checks of queues and index use."""

    physical_offset: int
    size_bytes: int
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    store_timestamp_ms: int
    topic: bytes
    properties: str


def good_records(view: memoryview, base: int, at: int) -> Iterator[Record]:
    """The good records from byte `at` on of a file that begins at log offset `base`, up to the first place
    without a good record."""
    plain = _HEADS[0].unpack_from
    last = len(view) - MIN_RECORD_BYTES
    while at <= last:
        size, magic, crc, queue_id, flag, queue_offset, claimed, sys_flag, time_ms, body_bytes = plain(
            view, at
        )
        body_at = at + 88
        if sys_flag & _HOST_BITS:
            head = _HEADS[(sys_flag & _HOST_BITS) >> _HOST_SHIFT]
            if at + head.size > len(view):
                return
            *_, time_ms, body_bytes = head.unpack_from(view, at)
            body_at = at + head.size
        end = at + size
        topic_at = body_at + body_bytes
        if claimed != base + at or end > len(view) or topic_at < body_at or topic_at + 3 > end:
            return
        if magic == MAGIC_V1:
            name_at = topic_at + 1
            text_at = name_at + view[topic_at] + 2
        elif magic == MAGIC_V2:
            name_at = topic_at + 2
            text_at = name_at + (view[topic_at] << 8 | view[topic_at + 1]) + 2
        else:
            return
        if (
            text_at > end
            or view[text_at - 2] << 8 | view[text_at - 1] != end - text_at
            or end - text_at > MAX_PROPERTIES_BYTES
        ):
            return
        if body_bytes and crc32(view[body_at:topic_at]) & CRC_MASK != crc:
            return
        yield Record(
            claimed,
            size,
            queue_id,
            queue_offset,
            flag,
            sys_flag,
            time_ms,
            bytes(view[name_at : text_at - 2]),
            text_of(view[text_at:end]),
        )
        at = end


def is_blank(view: memoryview, at: int) -> bool:
    """Whether a blank record fills the rest of the file."""
    room = len(view) - at
    return room >= BLANK.size and BLANK.unpack_from(view, at) == (room, MAGIC_BLANK)


def fault(view: memoryview, base: int, at: int) -> str:
    """The reason why there is no good record at byte `at`."""
    room = len(view) - at
    if room < BLANK.size:
        return f"{room} bytes are left, too few for the blank record that ends a file"
    size, magic = BLANK.unpack_from(view, at)
    if magic == MAGIC_BLANK:
        return f"the blank record says that {size} bytes are left, {room} are"
    try:
        message = unpack(view[at:])
    except DecodeError as error:
        text = str(error).replace("record at byte 0", "a record", 1)
        return f"{text} (log offset {base + at})"
    if message.physical_offset != base + at:
        return f"the record says that it is at log offset {message.physical_offset}, it is at {base + at}"
    return f"the record's parts do not add up to its {message.size_bytes} bytes (log offset {base + at})"
