"""What members of an elected group say to each other before a slave follows a master; plain values, no I/O.
Apache's brokers send and get none of it: a slave greets only with `elected`.

slave to master   8 bytes MAGIC, i32 size, then as many bytes of JSON (Greeting); its reports follow
master to slave   8 bytes MAGIC, i32 size, then as many bytes of JSON (Welcome); its frames follow

MAGIC is a negative i64, and so no log offset.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeVar

import msgspec

from rmqkit.errors import ProtocolError
from rmqkit_ha.epochs import EpochStart, is_rising
from rmqkit_ha.limits import MAX_GREETING_BYTES, MAX_NAME_CHARS

MAGIC = b"\x8drmqkit\x01"
_HEAD = struct.Struct(">8si")
HEAD_BYTES = _HEAD.size


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class Greeting(msgspec.Struct, frozen=True, rename="camel"):
    """A slave's name, the number of its start, and the newest epoch that it knows."""

    cluster: Name
    group: Name
    member: Name
    start: int
    epoch: int


class Welcome(msgspec.Struct, frozen=True, rename="camel"):
    """A master's name and epoch, and the epochs and the end of its log; or why it does not serve the slave,
    in `refusal`."""

    member: str
    epoch: int
    epochs: list[EpochStart]
    end: int
    refusal: str = ""


T = TypeVar("T", Greeting, Welcome)


def packed(value: Greeting | Welcome) -> bytes:
    body = msgspec.json.encode(value)
    return _HEAD.pack(MAGIC, len(body)) + body


def body_size(head: bytes) -> int:
    """The size that a head of HEAD_BYTES announces. Raises ProtocolError."""
    magic, size = _HEAD.unpack(head)
    if magic != MAGIC or not 0 < size <= MAX_GREETING_BYTES:
        raise ProtocolError("it is not a member of an elected group ([plugins.ha] elected = true)")
    return int(size)


def unpacked(body: bytes, kind: type[T]) -> T:
    """A value from its JSON. Raises ProtocolError."""
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"its {kind.__name__.lower()} cannot be read: {error}") from error
    if isinstance(found, Welcome) and (not is_rising(found.epochs) or found.end < 0):
        raise ProtocolError("the epochs of its log contradict themselves")
    return found


__all__ = ["HEAD_BYTES", "MAGIC", "Greeting", "Welcome", "body_size", "packed", "unpacked"]
