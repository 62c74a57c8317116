"""Packing runs of messages into records (drawn in `rmqkit.protocol.record`): one packer for all stores.

What records of a topic have in common is prepared once, in a `TopicHead`. The packer checks messages, assigns
offsets and packs, and changes nothing of the store: that takes the result when the records are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

import msgspec
from attrs import field, frozen

from rmqkit.errors import MessageIllegal
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.names import queue_fault
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.protocol.record import BLANK_BYTES, CRC_MASK, MAGIC_V1, MAGIC_V2, pack, record_size
from rmqkit.protocol.tags import extend_hash
from rmqkit.speedups.sends import PutColumns, pack_columns

#: A record up to its body, IPv4; `rmqkit.protocol.record.pack` makes the others.
_pack_head = Struct(">iIiiiqqiq8sq8siqi").pack
#: A unit of a consume queue: physical offset and size of a record, tags code (store-format sheet, 3).
UNIT = Struct(">qiq")
_pack_unit = UNIT.pack
_SHORT_HOST_BYTES, _LONG_HOST_BYTES = 8, 20
_MAX_PROPERTIES = MAX_PROPERTIES_BYTES
#: Flags of records with other host widths, or without a place in a queue.
_UNUSUAL = BORN_HOST_V6 | STORE_HOST_V6 | UNQUEUED
_new_tuple = tuple.__new__


#: Lengths of properties whose field is kept ready in a TopicHead.
_KEPT_LENGTHS = 1024


@frozen
class TopicHead:
    """What records of a topic have in common: the magic, the topic with its length, the bytes besides body
    and properties (IPv4), and the hash of `topic#`, with which those of keys begin. `between` maps the length
    of properties to what a record has between body and properties."""

    magic: int
    topic_field: bytes
    fixed_bytes: int
    key_code: int
    between: dict[int, bytes] = field(factory=dict, eq=False)

    @classmethod
    def of(cls, topic: str) -> TopicHead:
        name = topic.encode()
        is_long = len(name) > 127
        length = len(name).to_bytes(2 if is_long else 1, "big")
        size = record_size(0, len(name), 0, 0)
        return cls(MAGIC_V2 if is_long else MAGIC_V1, length + name, size, extend_hash(0, f"{topic}#"))

    def field_between(self, properties_bytes: int) -> bytes:
        """`between` for one length. Raises OverflowError for one that does not fit."""
        found = self.topic_field + properties_bytes.to_bytes(2, "big")
        if len(self.between) < _KEPT_LENGTHS:
            self.between[properties_bytes] = found
        return found


class PackedQueue(Protocol):
    """A queue as the packer sees it. It is found by identity."""

    @property
    def head(self) -> TopicHead: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def room_end(self) -> int:
        """The first queue offset whose unit has no reserved place yet."""
        ...

    def reserve(self, stop: int) -> None:
        """Reserve places for all units before a queue offset. Raises StoreNotWritable."""
        ...


Q = TypeVar("Q", bound=PackedQueue)
QueueKey = tuple[str, int]
#: Gives the place of a record that does not fit before `room_end`: from the log position and its size, the
#: position to use and the new `room_end`.
Turn = Callable[[int, int], tuple[int, int]]


#: The keys of a record: hash of `topic#`, UNIQ_KEY, KEYS, physical offset, store time in ms.
KeyNote = tuple[int, str | None, str | None, int, int]
#: Parts of which a record consists that Python packs.
PARTS = 4


class PackedRun(NamedTuple, Generic[Q]):
    """One run of packed messages.

    end     the log position behind them
    parts   the records in pieces: `PARTS` for each, or one for all that lie together
    landed  their places
    units   what each queue gets from its `next_offset` on, packed (`UNIT`)
    notes   what the index gets
    breaks  number of parts before each record that does not lie behind the one before it
    """

    end: int
    parts: list[bytes]
    landed: Sequence[Appended]
    units: dict[Q, bytes]
    notes: Sequence[KeyNote]
    breaks: list[int]

    def records(self) -> list[bytes]:
        """Each record as one piece."""
        parts, join = self.parts, b"".join
        if len(parts) == PARTS * len(self.landed):
            return [join(parts[at : at + PARTS]) for at in range(0, len(parts), PARTS)]
        data, at, records = join(parts), 0, []
        for _, _, size, _ in self.landed:
            records.append(data[at : at + size])
            at += size
        return records

    def stretches(self) -> tuple[list[int], list[bytes]]:
        """The records that lie side by side, as one piece each; and the log offset of each piece."""
        parts, landed = self.parts, self.landed
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self.breaks:
            return [landed[0][1]], [data]
        offsets: list[int] = []
        ends: list[int] = []
        at = end = 0
        for _, offset, size, _ in landed:
            if not offsets or offset != end:
                offsets.append(offset)
                ends.append(at)
            at += size
            end = offset + size
        return offsets, [data[start:stop] for start, stop in pairwise([*ends, at])]


class RecordPacker:
    """`store_host` is this broker's address as records have it. Messages of the topics `unindexed` give no
    notes."""

    def __init__(self, max_body_bytes: int, store_host: bytes, unindexed: Iterable[str] = ()) -> None:
        self._max_body_bytes = max_body_bytes
        self._store_host = store_host
        self._unindexed = frozenset(unindexed)
        self._host_bit = STORE_HOST_V6 if len(store_host) > _SHORT_HOST_BYTES else 0

    def pack(
        self,
        messages: Sequence[PutMessage],
        now_ms: int,
        queues: Mapping[QueueKey, Q],
        new_queue: Callable[[str, int, int], Q],
        position: int,
        room_end: int,
        turn: Turn,
        made: dict[QueueKey, Q],
        queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    ) -> PackedRun[Q]:
        """Messages for the log from `position` on. `new_queue` makes a queue from topic, id and the number of
        new ones before it, for `made`. `queue_codes` sets the tags codes of its topics from properties and
        store time. Raises MessageIllegal, and what `turn` and `reserve` raise: what was reserved stays, and
        the queues in `made` are the caller's to remove."""
        if isinstance(messages, PutColumns):
            run = pack_columns(
                messages, now_ms, queues, lambda made, key: _new(made, key, new_queue), position, room_end,
                turn, made, queue_codes, self._max_body_bytes, self._store_host, self._host_bit, _illegal,
                self._unindexed,
            )  # fmt: skip
            if run is not None:
                return _new_tuple(PackedRun, run)
        return self._pack_values(
            messages, now_ms, queues, new_queue, position, room_end, turn, made, queue_codes
        )

    def _pack_values(
        self,
        messages: Sequence[PutMessage],
        now_ms: int,
        queues: Mapping[QueueKey, Q],
        new_queue: Callable[[str, int, int], Q],
        position: int,
        room_end: int,
        turn: Turn,
        made: dict[QueueKey, Q],
        queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    ) -> PackedRun[Q]:
        """Pack message by message (`pack`)."""
        parts: list[bytes] = []
        breaks: list[int] = []
        landed: list[Appended] = []
        units: dict[Q, list[bytes]] = {}
        notes: list[KeyNote] = []
        key: QueueKey | None = None
        store_host, host_bit, max_body = self._store_host, self._host_bit, self._max_body_bytes
        try:
            for message in messages:
                topic, queue_id = message.topic, message.queue_id
                if key != (topic, queue_id):
                    key = topic, queue_id
                    queue = queues.get(key) or made.get(key) or _new(made, key, new_queue)
                    head = queue.head
                    is_indexed = topic not in self._unindexed
                    own = units.setdefault(queue, [])
                if topic in queue_codes:
                    message.tags_code = queue_codes[topic](message.properties, now_ms)
                sys_flag, body, properties = message.sys_flag, message.body, message.properties_bytes
                body_bytes, properties_bytes = len(body), len(properties)
                if body_bytes > max_body or properties_bytes > _MAX_PROPERTIES:
                    raise _illegal(message, max_body)
                size = head.fixed_bytes + body_bytes + properties_bytes
                unusual = sys_flag & _UNUSUAL or host_bit or len(message.born_host) != _SHORT_HOST_BYTES
                if unusual:
                    message, size = self._with_hosts(message, size)
                if position + size > room_end:
                    before, (position, room_end) = position, turn(position, size)
                    if before != position:
                        breaks.append(len(parts))
                if unusual and sys_flag & UNQUEUED:
                    offset = 0
                else:
                    offset = queue.next_offset + len(own)
                    if offset >= queue.room_end:
                        queue.reserve(offset + 1)
                    own.append(_pack_unit(position, size, message.tags_code))
                if unusual:
                    parts += (pack(message, size, offset, position, now_ms, store_host), b"", b"", b"")
                else:
                    parts += (
                        _pack_head(size, head.magic, crc32(body) & CRC_MASK, queue_id, message.flag, offset,
                                   position, sys_flag, message.born_timestamp_ms, message.born_host, now_ms,
                                   store_host, message.reconsume_times, message.prepared_offset, body_bytes),
                        body,
                        head.between.get(properties_bytes) or head.field_between(properties_bytes),
                        properties,
                    )  # fmt: skip
                unique_key, keys = message.properties.get(UNIQ_KEY), message.properties.get(KEYS)
                rolled_back = unusual and sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
                if (unique_key or keys) and is_indexed and not rolled_back:
                    notes.append((head.key_code, unique_key, keys, position, now_ms))
                landed.append(_new_tuple(Appended, (offset, position, size, now_ms)))
                position += size
        except StructError as error:
            raise MessageIllegal(f"a number is out of its range: {error}") from error
        packed = {queue: b"".join(own) for queue, own in units.items()}
        return _new_tuple(PackedRun, (position, parts, landed, packed, notes, breaks))

    def _with_hosts(self, message: PutMessage, size_bytes: int) -> tuple[PutMessage, int]:
        """The message with the store-host bit of this store, and its size with the hosts it has."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | self._host_bit
        born_bytes = _LONG_HOST_BYTES if sys_flag & BORN_HOST_V6 else _SHORT_HOST_BYTES
        if len(message.born_host) != born_bytes:
            raise _wrong_host(message, born_bytes)
        if sys_flag != message.sys_flag:
            message = msgspec.structs.replace(message, sys_flag=sys_flag)
        return message, size_bytes + born_bytes + len(self._store_host) - 2 * _SHORT_HOST_BYTES


def _new(made: dict[QueueKey, Q], key: QueueKey, new_queue: Callable[[str, int, int], Q]) -> Q:
    """A queue that is not in the store yet. Raises MessageIllegal."""
    fault = queue_fault(*key)
    if fault is not None:
        raise MessageIllegal(fault)
    queue = made[key] = new_queue(*key, len(made))
    return queue


def turn_in_files(file_bytes: int) -> Turn:
    """For a store without files whose records lie as they would in files of RocketMQ's log: none lies across
    the end of a file, and a blank record has room there. So its log can become such files, and replicas of
    other kinds have equal offsets."""

    def turn(position: int, size_bytes: int) -> tuple[int, int]:
        base = position - position % file_bytes
        if position + size_bytes + BLANK_BYTES > base + file_bytes:
            base += file_bytes
            position = base
        return position, base + file_bytes - BLANK_BYTES

    return turn


def _illegal(message: PutMessage, max_body_bytes: int) -> MessageIllegal:
    if len(message.body) > max_body_bytes:
        return MessageIllegal(f"a body of {len(message.body)} bytes, at most {max_body_bytes} are allowed")
    return MessageIllegal(
        f"properties of {len(message.properties_bytes)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
    )


def _wrong_host(message: PutMessage, expected_bytes: int) -> MessageIllegal:
    return MessageIllegal(
        f"a born host of {len(message.born_host)} bytes where the system flag says {expected_bytes}"
    )
