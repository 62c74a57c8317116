"""The body of a batch send (wire-protocol sheet, section 5.6).

total i32 | magic i32 = 0 | crc i32 = 0 | flag i32 | body length i32 | body | properties length i16 |
properties
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from rmqkit.errors import DecodeError
from rmqkit.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES

_HEAD = Struct(">iiiii")
_I16 = Struct(">h")
#: The size of a message without a body and properties.
_LEAST_BYTES = _HEAD.size + _I16.size


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the encoded message."""
        return _LEAST_BYTES + len(self.body) + len(self.properties)


def encode(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch. Raises DecodeError when properties exceed their limit."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise DecodeError(
                f"properties of {len(properties)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
            )
        parts.append(_HEAD.pack(_LEAST_BYTES + len(body) + len(properties), 0, 0, flag, len(body)))
        parts += [body, _I16.pack(len(properties)), properties]
    return b"".join(parts)


def decode(body: bytes, found: list[BatchItem] | None = None) -> list[BatchItem]:
    """All messages of a batch body. Magic and CRC are ignored. Raises DecodeError when lengths are
    inconsistent; `found`, if given, has the messages before that place then."""
    items: list[BatchItem] = [] if found is None else found
    unpack_head, new, done = _HEAD.unpack_from, tuple.__new__, items.append
    at, end = 0, len(body)
    try:
        while at < end:
            if len(items) == MAX_BATCH_MESSAGES:
                raise DecodeError(f"batch of more than {MAX_BATCH_MESSAGES} messages")
            total, _, _, flag, size = unpack_head(body, at)
            body_at = at + 20
            properties_at = body_at + size
            if size < 0 or properties_at + 2 > end:
                raise DecodeError(f"batch message at byte {at} claims a body of {size} bytes")
            properties_bytes = body[properties_at] << 8 | body[properties_at + 1]
            properties_at += 2
            stop = properties_at + properties_bytes
            if properties_bytes > MAX_PROPERTIES_BYTES or stop > end or stop - at != total:
                raise DecodeError(f"batch message at byte {at} claims {total} bytes")
            done(new(BatchItem, (flag, body[body_at : body_at + size], body[properties_at:stop])))
            at = stop
    except StructError as error:
        raise DecodeError(f"batch message at byte {at} is cut short") from error
    return items


def count(body: bytes) -> int:
    """The number of messages of a batch body, by their lengths alone and without decoding them. Of a broken
    body, those before the first length that is wrong."""
    found = at = 0
    while at + 4 <= len(body) and found < MAX_BATCH_MESSAGES:
        total = int.from_bytes(body[at : at + 4])
        if not _LEAST_BYTES <= total <= len(body) - at:
            break
        at += total
        found += 1
    return found
