"""Packing messages into records one by one (drawn in `rmqkit.protocol.record`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from zlib import crc32

import msgspec

from rmqkit.errors import MessageIllegal
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.protocol.packed import UNIT, KeyNote, NextPlace, PackedRun, Q, QueueKey, added_queue, illegal
from rmqkit.protocol.record import CRC_MASK, pack

#: A record up to its body, IPv4; `rmqkit.protocol.record.pack` makes the others.
_pack_head = Struct(">iIiiiqqiq8sq8siqi").pack
_pack_unit = UNIT.pack
_SHORT_HOST_BYTES, _LONG_HOST_BYTES = 8, 20
_MAX_PROPERTIES = MAX_PROPERTIES_BYTES
#: Flags of records with other host widths, or without a place in a queue.
_UNUSUAL = BORN_HOST_V6 | STORE_HOST_V6 | UNQUEUED
_new_tuple = tuple.__new__


class ValuePacker:
    """A Packer (`rmqkit.protocol.packed`) that looks at each message."""

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
        reserved_until: int,
        place_elsewhere: NextPlace,
        made: dict[QueueKey, Q],
        queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    ) -> PackedRun[Q]:
        parts: list[bytes] = []
        breaks: list[int] = []
        results: list[Appended] = []
        units: dict[Q, list[bytes]] = {}
        notes: list[KeyNote] = []
        key: QueueKey | None = None
        store_host, host_bit, max_body = self._store_host, self._host_bit, self._max_body_bytes
        try:
            for message in messages:
                topic, queue_id = message.topic, message.queue_id
                if key != (topic, queue_id):
                    key = topic, queue_id
                    queue = queues.get(key) or made.get(key) or added_queue(made, key, new_queue)
                    head = queue.head
                    is_indexed = topic not in self._unindexed
                    own = units.setdefault(queue, [])
                if topic in queue_codes:
                    message.tags_code = queue_codes[topic](message.properties, now_ms)
                sys_flag, body, properties = message.sys_flag, message.body, message.properties_bytes
                body_bytes, properties_bytes = len(body), len(properties)
                if body_bytes > max_body or properties_bytes > _MAX_PROPERTIES:
                    raise illegal(message, max_body)
                size = head.fixed_bytes + body_bytes + properties_bytes
                unusual = sys_flag & _UNUSUAL or host_bit or len(message.born_host) != _SHORT_HOST_BYTES
                if unusual:
                    message, size = self._with_hosts(message, size)
                if position + size > reserved_until:
                    before, (position, reserved_until) = position, place_elsewhere(position, size)
                    if before != position:
                        breaks.append(len(parts))
                if unusual and sys_flag & UNQUEUED:
                    offset = message.unqueued_offset
                else:
                    offset = queue.next_offset + len(own)
                    if offset >= queue.reserved_until:
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
                results.append(_new_tuple(Appended, (offset, position, size, now_ms)))
                position += size
        except StructError as error:
            raise MessageIllegal(f"a number is out of its range: {error}") from error
        packed = {queue: b"".join(own) for queue, own in units.items()}
        return _new_tuple(PackedRun, (position, parts, results, packed, notes, breaks))

    def _with_hosts(self, message: PutMessage, size_bytes: int) -> tuple[PutMessage, int]:
        """The message with the store-host bit of this store, and its size with the hosts it has."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | self._host_bit
        born_bytes = _LONG_HOST_BYTES if sys_flag & BORN_HOST_V6 else _SHORT_HOST_BYTES
        if len(message.born_host) != born_bytes:
            raise _wrong_host(message, born_bytes)
        if sys_flag != message.sys_flag:
            message = msgspec.structs.replace(message, sys_flag=sys_flag)
        return message, size_bytes + born_bytes + len(self._store_host) - 2 * _SHORT_HOST_BYTES


def _wrong_host(message: PutMessage, expected_bytes: int) -> MessageIllegal:
    return MessageIllegal(
        f"a born host of {len(message.born_host)} bytes where the system flag says {expected_bytes}"
    )
