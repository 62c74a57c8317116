"""The records of the revive topic (store-format sheet, section 12.1; Java: PopCheckPoint, AckMsg,
BatchAckMsg).

Their bodies are Java's, with further fields that Java ignores. Records of ordered leases have tags of their
own, which a Java broker passes over: it knows no such records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol.tags import tags_code

CHECK_POINT: Final = "ck"
ACK: Final = "ack"
BATCH_ACK: Final = "bAck"
ORDERED_CHECK_POINT: Final = "ock"
ORDERED_ACK: Final = "oack"
#: Messages of a check point: Java's bit map has 32 bits, and an answer as many messages.
MAX_OFFSETS: Final = 32


class CheckPointRecord(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Messages of one queue that were leased together, or one whose lease was changed.

    start         with `pop_ms` the name of the lease: acknowledgements repeat them
    differences   queue offsets, as distances from `start`; empty in old records, which have `count`
    acked         bits of those that are acknowledged already, in a record that was written again
    first_pop_ms  when the messages were delivered, for a lease that was renewed; 0 for `pop_ms`. Handles
                  with times between the two are valid
    next_offset   where the group reads the queue next; None in a record that moves nothing
    suspended     the end of the lease is not counted as a failed delivery
    attempts      deliveries of each message before this one, for ordered leases
    attempt_id    by which a client asks once more for an ordered delivery whose answer it did not get
    hidden        no client has it: its delivery failed, and the next one waits for its time
    own           written by rmqkit, not by Java
    """

    start: int = msgspec.field(name="so")
    pop_ms: int = msgspec.field(name="pt")
    invisible_ms: int = msgspec.field(name="it")
    acked: int = msgspec.field(name="bm", default=0)
    count: int = msgspec.field(name="n")
    queue_id: int = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    differences: tuple[int, ...] | None = msgspec.field(name="d", default=None)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    first_pop_ms: int = msgspec.field(name="fp", default=0)
    next_offset: int | None = msgspec.field(name="nx", default=None)
    suspended: bool = msgspec.field(name="sp", default=False)
    attempts: tuple[int, ...] = msgspec.field(name="at", default=())
    attempt_id: str | None = msgspec.field(name="ai", default=None)
    hidden: bool = msgspec.field(name="hd", default=False)
    ordered: bool = msgspec.field(name="od", default=False)
    own: bool = msgspec.field(name="rk", default=False)

    @property
    def places(self) -> list[tuple[int, int]]:
        """(index, queue offset) of the messages that are not acknowledged."""
        everything = self.differences or range(self.count)
        return [(at, self.start + each) for at, each in enumerate(everything) if not self.acked >> at & 1]


class AckRecord(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Messages of one lease that are finished."""

    offset: int = msgspec.field(name="ao", default=-1)
    start: int = msgspec.field(name="so")
    pop_ms: int = msgspec.field(name="pt")
    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    queue_id: int = msgspec.field(name="q")
    broker_name: str | None = msgspec.field(name="bn", default=None)
    several: tuple[int, ...] = msgspec.field(name="aol", default=())
    next_offset: int | None = msgspec.field(name="nx", default=None)
    ordered: bool = msgspec.field(name="od", default=False)

    @property
    def offsets(self) -> tuple[int, ...]:
        return self.several or (self.offset,)


Record = CheckPointRecord | AckRecord
_encoder = msgspec.json.Encoder()
_check_points = msgspec.json.Decoder(CheckPointRecord)
_acks = msgspec.json.Decoder(AckRecord)


def ack_of(check_point: CheckPointRecord, offsets: Sequence[int]) -> AckRecord:
    """The acknowledgement of messages of a lease."""
    return AckRecord(
        offset=offsets[0] if len(offsets) == 1 else -1,
        several=tuple(offsets) if len(offsets) > 1 else (),
        start=check_point.start,
        pop_ms=check_point.pop_ms,
        group=check_point.group,
        topic=check_point.topic,
        queue_id=check_point.queue_id,
        broker_name=check_point.broker_name,
        ordered=check_point.ordered,
    )


def to_message(
    record: Record, topic: str, queue_id: int, host: bytes, now_ms: int, sys_flag: int
) -> PutMessage:
    """The message that stores a record in a queue of the revive topic. Its delivery time, which a Java broker
    takes for the present when it reads, is that of the append; put hooks do not see it, for the record is
    not to be kept back."""
    tag = _tag(record)
    shown = {props.TAGS: tag, props.UNIQ_KEY: _unique(record, tag)}
    stored = shown | {props.TIMER_DELIVER_MS: str(now_ms)}
    return PutMessage(
        topic=topic,
        queue_id=queue_id,
        body=_encoder.encode(record),
        properties=shown,
        properties_bytes=props.encode(stored).encode(),
        sys_flag=sys_flag,
        born_timestamp_ms=now_ms,
        born_host=host,
        tags_code=tags_code(tag),
    )


def _tag(record: Record) -> str:
    if isinstance(record, CheckPointRecord):
        return ORDERED_CHECK_POINT if record.ordered else CHECK_POINT
    if record.ordered:
        return ORDERED_ACK
    return BATCH_ACK if record.several else ACK


def _unique(record: Record, tag: str) -> str:
    of = record.start if isinstance(record, CheckPointRecord) else record.several or record.offset
    place = f"{record.topic}@{record.queue_id}@{of}@{record.group}@{record.pop_ms}"
    return f"{place}@{tag}" if tag == BATCH_ACK else f"{place}@{record.broker_name}@{tag}"


def from_message(stored: StoredMessage) -> Record | None:
    """The record that a message of the revive topic stores; None for one of another kind. Raises
    DecodeError."""
    tag = stored.properties.get(props.TAGS)
    try:
        if tag in (CHECK_POINT, ORDERED_CHECK_POINT):
            found = _check_points.decode(stored.body)
            if len(found.differences or ()) > MAX_OFFSETS or not 0 <= found.count <= MAX_OFFSETS:
                raise DecodeError(f"a check point of {found.count} messages")
            return found
        if tag in (ACK, BATCH_ACK, ORDERED_ACK):
            return _acks.decode(stored.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"a record with tag {tag} that is not one: {error}") from error
    return None


__all__ = ["MAX_OFFSETS", "AckRecord", "CheckPointRecord", "Record", "ack_of", "from_message", "to_message"]
