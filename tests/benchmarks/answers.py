"""Responses as a broker writes them, for generators without a broker."""

from __future__ import annotations

import json
import struct
from typing import Any

from benchmarks.load.frames import FRAME_HEAD, frame


def opaque_of(request: bytes) -> int:
    """The opaque in the header of a request frame."""
    _, word = FRAME_HEAD.unpack_from(request)
    header = json.loads(request[FRAME_HEAD.size : FRAME_HEAD.size + (word & 0xFFFFFF)])
    return int(header["opaque"])


def split(data: bytes) -> list[bytes]:
    """The consecutive frames in `data`."""
    found = []
    while data:
        (total,) = struct.unpack_from(">i", data)
        found.append(data[: 4 + total])
        data = data[4 + total :]
    return found


def answer(opaque: int, body: bytes = b"", **fields: Any) -> bytes:
    """A response frame: by default code 0 first, then `fields`, then the opaque."""
    header = {"code": 0, **fields, "flag": 1, "language": "JAVA", "opaque": opaque, "version": 453}
    return frame(json.dumps(header, separators=(",", ":")).encode(), body)


def sent(opaque: int, queue_offset: int = 1000, **fields: Any) -> bytes:
    """A successful answer to a send."""
    return answer(
        opaque,
        **{"extFields": {"queueId": "0", "msgId": "0" * 32, "queueOffset": str(queue_offset)}, **fields},
    )


def record(queue_offset: int, size: int = 200, magic: int = 0xDAA320A7) -> bytes:
    """A stored message of `size` bytes with only the fields that the generator reads."""
    return struct.pack(">II12xq", size, magic, queue_offset).ljust(size, b"\0")


def found(opaque: int, records: bytes, next_offset: int, max_offset: int) -> bytes:
    """A successful answer to a pull."""
    offsets = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": str(max_offset)}
    return answer(opaque, records, extFields=offsets)
