"""Receipt handles and the other texts of pop consumption (wire-protocol sheet, section 3.6; Java:
ExtraInfoUtil, BatchAck).

A popped message has a handle, `extraInfo` of its acknowledgement. A client makes it from the header of the
answer, `receipts`, unless the record has one in its property POP_CK: a message of a retry topic has, for it
is delivered under its original topic.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.model import names
from rmqkit.protocol.headers.pop import PopMessageResponseHeader
from rmqkit.protocol.integers import I32, I64

#: `retry` of a handle: where its message was read from.
OWN_TOPIC, RETRY_V1, RETRY_V2 = "0", "1", "2"
#: The revive queue in the handle of an ordered pop.
ORDERED_QUEUE = 999
#: Places of a batch acknowledgement, counted from its start offset. Java's clients use 32; a filter leaves
#: gaps between them.
MAX_BATCH_SPAN = 65_536
_FIELDS = 8
_MAX_DIGITS = 19
_I64_END = 1 << 63


class Receipt(NamedTuple):
    """A receipt handle. Times in ms.

    start_offset  first queue offset of the run in which the message was delivered
    revive_queue  ORDERED_QUEUE for an ordered pop
    retry         OWN_TOPIC, RETRY_V1 or RETRY_V2
    offset        queue offset of the message; None in a handle of seven fields, which belongs to a run
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int | None = None

    @property
    def text(self) -> str:
        return " ".join(map(str, self if self.offset is not None else self[:-1]))

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED_QUEUE

    def topic(self, topic: str, group: str) -> str:
        """The topic from which the message was read, for the topic to which it belongs."""
        return real_topic(topic, group, self.retry)


def parse_receipt(text: str) -> Receipt:
    """A handle from its text; what follows the eighth field is ignored, as other programs append to it.
    Raises DecodeError."""
    parts = text.split(" ")
    if len(parts) < _FIELDS - 1:
        raise DecodeError(f"a handle has {_FIELDS} fields, this one has {len(parts)}: {text[:100]!r}")
    retry = parts[4]
    if retry not in (OWN_TOPIC, RETRY_V1, RETRY_V2):
        raise DecodeError(f"a handle has 0, 1 or 2 as its fifth field, not {retry[:20]!r}")
    return Receipt(
        _number(parts[0]),
        _number(parts[1]),
        _number(parts[2]),
        _number(parts[3]),
        retry,
        parts[5],
        _number(parts[6]),
        _number(parts[7]) if len(parts) >= _FIELDS else None,
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS) or int(text) >= _I64_END:
        raise DecodeError(f"a handle has numbers where this one has {text[:30]!r}")
    return int(text)


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic from which a message of `topic` was read."""
    if retry == OWN_TOPIC:
        return topic
    return names.pop_retry_topic(topic, group, v2=retry == RETRY_V2)


def retry_mark(topic: str) -> str:
    """`retry` of handles for messages read from this topic."""
    if not topic.startswith(names.RETRY_PREFIX):
        return OWN_TOPIC
    return RETRY_V2 if names.POP_RETRY_V2 in topic else RETRY_V1


class QueueOffsets(NamedTuple):
    """What one answer has from one queue."""

    retry: str
    queue_id: int
    start_offset: int
    offsets: Sequence[int]


def offset_infos(queues: Iterable[QueueOffsets]) -> tuple[str, str]:
    """`startOffsetInfo` and `msgOffsetInfo` of an answer."""
    starts, offsets = [], []
    for queue in queues:
        place = f"{queue.retry} {queue.queue_id}"
        starts.append(f"{place} {queue.start_offset}")
        offsets.append(f"{place} {','.join(map(str, queue.offsets))}")
    return ";".join(starts), ";".join(offsets)


def parse_offset_infos(header: PopMessageResponseHeader) -> list[QueueOffsets]:
    """The queues of an answer. Raises DecodeError."""
    starts = {tuple(rest): start for *rest, start in _entries(header.start_offset_info)}
    found = []
    for retry, queue_id, offsets in _entries(header.msg_offset_info):
        start = starts.get((retry, queue_id))
        if start is None:
            raise DecodeError(f"the answer says no start offset of queue {queue_id!r} ({retry!r})")
        found.append(
            QueueOffsets(retry, _number(queue_id), _number(start), [*map(_number, offsets.split(","))])
        )
    return found


def _entries(text: str | None) -> list[list[str]]:
    entries = [entry.split(" ") for entry in (text or "").split(";") if entry]
    if any(len(entry) != 3 for entry in entries):
        raise DecodeError(f"an entry of {text!r} has not three fields")
    return entries


def receipts(header: PopMessageResponseHeader, broker_name: str) -> dict[tuple[int, int], Receipt]:
    """(queue id, queue offset) -> handle, for the messages of an answer that were read from their own topic;
    those of a retry topic have their handle with them. Raises DecodeError."""
    return {
        (queue.queue_id, offset): Receipt(
            queue.start_offset,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            queue.retry,
            broker_name,
            queue.queue_id,
            offset,
        )
        for queue in parse_offset_infos(header)
        if queue.retry == OWN_TOPIC
        for offset in queue.offsets
    }


def parse_order_counts(text: str | None) -> dict[tuple[str, int, int], int]:
    """(retry, queue id, queue offset) -> deliveries before this one, for the messages that `orderCountInfo`
    names; what it says of whole queues is left out. Raises DecodeError."""
    found = {}
    for retry, place, count in _entries(text):
        queue_id, is_message, offset = place.removeprefix("qo").partition("%")
        if is_message:
            found[retry, _number(queue_id), _number(offset)] = _number(count)
    return found


def order_count_entries(retry: str, queue_id: int, counts: Sequence[tuple[int, int]]) -> list[str]:
    """The entries of `orderCountInfo` for (queue offset, deliveries before this one): each message that was
    delivered before, then the least of all, for old clients."""
    entries = [f"{retry} qo{queue_id}%{offset} {count}" for offset, count in counts if count]
    return [*entries, f"{retry} {queue_id} {min((count for _, count in counts), default=0)}"]


class BatchAck(msgspec.Struct, kw_only=True):
    """Acknowledges several messages of one run: those at `start_offset` plus the numbers of the bits that are
    set in `bits`, in base64 with the lowest byte first."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r", default=OWN_TOPIC)
    start_offset: I64 = msgspec.field(name="so")
    queue_id: I32 = msgspec.field(name="q")
    revive_queue: I32 = msgspec.field(name="rq")
    pop_time_ms: I64 = msgspec.field(name="pt")
    invisible_ms: I64 = msgspec.field(name="it", default=0)
    bits: str = msgspec.field(name="b", default="")

    def offsets(self) -> list[int]:
        """The acknowledged queue offsets. Raises DecodeError."""
        try:
            raw = b64decode(self.bits, validate=True)
        except (Error, ValueError) as error:
            raise DecodeError(f"the bits of a batch are not base64: {error}") from error
        if len(raw) * 8 > MAX_BATCH_SPAN:
            raise DecodeError(f"a batch acknowledges {len(raw) * 8} places, at most {MAX_BATCH_SPAN}")
        bits = int.from_bytes(raw, "little")
        return [self.start_offset + at for at in range(bits.bit_length()) if bits >> at & 1]

    @staticmethod
    def bits_of(start_offset: int, offsets: Iterable[int]) -> str:
        """`bits` for these queue offsets."""
        bits = 0
        for offset in offsets:
            bits |= 1 << (offset - start_offset)
        return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class BatchAckMessageRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = []


__all__ = [
    "MAX_BATCH_SPAN",
    "ORDERED_QUEUE",
    "OWN_TOPIC",
    "RETRY_V1",
    "RETRY_V2",
    "BatchAck",
    "BatchAckMessageRequestBody",
    "QueueOffsets",
    "Receipt",
    "offset_infos",
    "order_count_entries",
    "parse_offset_infos",
    "parse_order_counts",
    "parse_receipt",
    "real_topic",
    "receipts",
    "retry_mark",
]
