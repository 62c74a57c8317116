"""Messages into records, units and offsets: all that an append decides, before anything of the store is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import error as StructError

import msgspec
from attrs import define, field

from rmqkit.abc import Appended
from rmqkit.errors import MessageIllegal
from rmqkit.model.message import PutMessage
from rmqkit.model.names import topic_fault
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import BLANK_BYTES, message_size, pack
from rmqkit_store_lmdb.layout import OFFSET, UNIT, UNIT_KEY
from rmqkit_store_lmdb.queues import Queue

#: Kinds of record that get no place in a queue.
UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_MAX_I32 = 0x7FFFFFFF


@define
class Packed:
    """One append. `end` is the log position behind it; `made` are queues that were not there, `nexts` the queues' next offsets behind it."""

    end: int
    records: list[tuple[bytes, bytes]] = field(factory=list)
    units: list[tuple[bytes, bytes]] = field(factory=list)
    landed: list[Appended] = field(factory=list)
    queues: list[Queue] = field(factory=list)
    made: dict[tuple[str, int], Queue] = field(factory=dict)
    nexts: dict[Queue, int] = field(factory=dict)


@define
class Packer:
    """`segment_bytes`: no record lies across a multiple of it, as in the files of RocketMQ's log, so that the log can become such files and
    replicas with other stores have equal offsets."""

    max_body_bytes: int
    segment_bytes: int
    store_host: bytes

    def pack(
        self, messages: Sequence[PutMessage], position: int, now_ms: int, find: Callable[[tuple[str, int]], Queue | None], number: int
    ) -> Packed:
        """Messages for the log from `position` on; new queues get numbers from `number` on. Raises MessageIllegal."""
        packed = Packed(position)
        for message in messages:
            message = self._checked(message)
            queue = find((message.topic, message.queue_id)) or packed.made.get((message.topic, message.queue_id))
            if queue is None:
                queue = self._new_queue(message, number + len(packed.made))
                packed.made[message.topic, message.queue_id] = queue
            try:
                self._pack_one(packed, message, queue, now_ms)
            except StructError as error:
                raise MessageIllegal(f"a number is out of its range: {error}") from error
        return packed

    def _pack_one(self, packed: Packed, message: PutMessage, queue: Queue, now_ms: int) -> None:
        size = message_size(message)
        position = packed.end
        room = self.segment_bytes - position % self.segment_bytes
        if size + BLANK_BYTES > room:
            position += room
        queued = message.sys_flag & TRANSACTION_MASK not in UNQUEUED
        offset = packed.nexts.get(queue, queue.next_offset) if queued else 0
        record = pack(message, size, offset, position, now_ms, self.store_host)
        if queued:
            packed.units.append((UNIT_KEY.pack(queue.number, offset), UNIT.pack(position, size, message.tags_code, now_ms)))
            packed.nexts[queue] = offset + 1
        elif queue not in packed.nexts:
            packed.nexts[queue] = queue.next_offset
        packed.records.append((OFFSET.pack(position), record))
        packed.landed.append(Appended(offset, position, size, now_ms))
        packed.queues.append(queue)
        packed.end = position + size

    def _checked(self, message: PutMessage) -> PutMessage:
        """The message with the store-host bit of this store. Raises MessageIllegal."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | (STORE_HOST_V6 if len(self.store_host) > 8 else 0)
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
        if len(message.body) > self.max_body_bytes:
            raise MessageIllegal(f"a body of {len(message.body)} bytes, at most {self.max_body_bytes} are allowed")
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
