"""Messages into records, units and offsets: all that an append decides, before anything of the store is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from zlib import crc32

import msgspec
from attrs import define, field

from rmqkit.abc import Appended
from rmqkit.errors import MessageIllegal
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.message import PutMessage
from rmqkit.model.names import topic_fault
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import BLANK_BYTES, CRC_MASK, message_size, pack
from rmqkit_store_lmdb.queues import Entry, Queue

#: Kinds of record that get no place in a queue.
UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
#: Flags of records with hosts of other widths; the others are packed here, which saves some calls.
_LONG_WAY = BORN_HOST_V6 | STORE_HOST_V6
_SHORT_HOST = 8
#: A record up to its body, IPv4 (drawn in rmqkit.protocol.record; the contract of stores holds the two equal byte for byte).
_pack_head = Struct(">iIiiiqqiq8sq8siqi").pack
_MAX_I32 = 0x7FFFFFFF
_MAX_I64 = (1 << 63) - 1
_new_appended = tuple.__new__


@define
class Packed:
    """One append. `end` is the log position behind it; `made` are queues that were not there, `units` what each queue gets, `queues` those of the
    messages."""

    end: int
    offsets: list[int] = field(factory=list)
    records: list[bytes] = field(factory=list)
    codes: list[int] = field(factory=list)
    landed: list[Appended] = field(factory=list)
    queues: list[Queue] = field(factory=list)
    made: dict[tuple[str, int], Queue] = field(factory=dict)
    units: dict[Queue, list[Entry]] = field(factory=dict)


class Packer:
    """`segment_bytes`: no record lies across a multiple of it, as in the files of RocketMQ's log, so that the log can become such files and
    replicas with other stores have equal offsets."""

    def __init__(self, max_body_bytes: int, segment_bytes: int, store_host: bytes) -> None:
        self._max_body_bytes = max_body_bytes
        self._segment_bytes = segment_bytes
        self._store_host = store_host
        self._host_bit = STORE_HOST_V6 if len(store_host) > 8 else 0

    def pack(
        self, messages: Sequence[PutMessage], position: int, now_ms: int, queues: Mapping[tuple[str, int], Queue], number: int
    ) -> Packed:
        """Messages for the log from `position` on; new queues get numbers from `number` on. Raises MessageIllegal."""
        packed = Packed(position)
        segment_bytes, store_host, max_body, all_units = self._segment_bytes, self._store_host, self._max_body_bytes, packed.units
        offsets, records, codes, landed, found = packed.offsets, packed.records, packed.codes, packed.landed, packed.queues
        for message in messages:
            key = (message.topic, message.queue_id)
            queue = queues.get(key) or packed.made.get(key)
            if queue is None:
                queue = packed.made[key] = self._new_queue(message, number + len(packed.made))
            units = all_units.get(queue)
            if units is None:
                units = all_units[queue] = []
            body, properties, sys_flag, code = message.body, message.properties_bytes, message.sys_flag, message.tags_code
            body_bytes, properties_bytes = len(body), len(properties)
            is_long = self._host_bit or sys_flag & _LONG_WAY
            if is_long:
                message = self._checked(message)
                sys_flag, size = message.sys_flag, message_size(message)
            else:
                size = queue.fixed_bytes + body_bytes + properties_bytes
            if body_bytes > max_body or properties_bytes > MAX_PROPERTIES_BYTES or not -_MAX_I64 <= code <= _MAX_I64:
                raise _illegal(message, max_body)
            if not is_long and len(message.born_host) != _SHORT_HOST:
                raise MessageIllegal(f"a born host of {len(message.born_host)} bytes where the system flag says {_SHORT_HOST}")
            room = segment_bytes - position % segment_bytes
            if size + BLANK_BYTES > room:
                position += room
            queued = sys_flag & TRANSACTION_MASK not in UNQUEUED
            offset = queue.end + len(units) if queued else 0
            try:
                if is_long:
                    record = pack(message, size, offset, position, now_ms, store_host)
                else:
                    head = _pack_head(
                        size, queue.magic, crc32(body) & CRC_MASK, message.queue_id, message.flag, offset, position, sys_flag,
                        message.born_timestamp_ms, message.born_host, now_ms, store_host, message.reconsume_times, message.prepared_offset, body_bytes,
                    )  # fmt: skip
                    record = b"".join((head, body, queue.topic_field, properties_bytes.to_bytes(2, "big"), properties))
            except StructError as error:
                raise MessageIllegal(f"a number is out of its range: {error}") from error
            if queued:
                units.append((position, size, code, now_ms, record))
            offsets.append(position)
            records.append(record)
            codes.append(code)
            landed.append(_new_appended(Appended, (offset, position, size, now_ms)))
            found.append(queue)
            position += size
        packed.end = position
        return packed

    def _checked(self, message: PutMessage) -> PutMessage:
        """A message with wide hosts, with the store-host bit of this store. Raises MessageIllegal."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | self._host_bit
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else _SHORT_HOST
        if len(message.born_host) != born_bytes:
            raise MessageIllegal(f"a born host of {len(message.born_host)} bytes where the system flag says {born_bytes}")
        return message if sys_flag == message.sys_flag else msgspec.structs.replace(message, sys_flag=sys_flag)

    def _new_queue(self, message: PutMessage, number: int) -> Queue:
        fault = topic_fault(message.topic)
        if fault is None and not 0 <= message.queue_id <= _MAX_I32:
            fault = f"the queue id {message.queue_id} is out of range"
        if fault is not None:
            raise MessageIllegal(fault)
        return Queue.of(message.topic, message.queue_id, number)


def _illegal(message: PutMessage, max_body_bytes: int) -> MessageIllegal:
    if len(message.body) > max_body_bytes:
        return MessageIllegal(f"a body of {len(message.body)} bytes, at most {max_body_bytes} are allowed")
    if len(message.properties_bytes) > MAX_PROPERTIES_BYTES:
        return MessageIllegal(f"properties of {len(message.properties_bytes)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed")
    return MessageIllegal(f"the tags code {message.tags_code} is out of its range")
