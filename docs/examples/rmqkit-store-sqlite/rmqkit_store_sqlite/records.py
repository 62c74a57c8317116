"""Messages -> rows: checked, numbered and packed, before anything is written."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from rmqkit.errors import MessageIllegal
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.names import topic_fault
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.plugin.store import Appended
from rmqkit.protocol.record import message_size, pack
from rmqkit.protocol.tags import index_hash


class Row(NamedTuple):
    """A message as the table `log` has it. `queue_offset` is None for what has no place in a queue;
    `hashes` are those of its keys."""

    message: PutMessage
    at: Appended
    queue_offset: int | None
    record: bytes
    hashes: list[int]


def in_queue(message: PutMessage) -> bool:
    """Prepared and rolled-back messages have no place in one."""
    return message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def checked(message: PutMessage, max_body_bytes: int, store_host: bytes) -> PutMessage:
    """The message with the store-host bit of this store. Raises MessageIllegal."""
    wide = STORE_HOST_V6 if len(store_host) > 8 else 0
    born_bytes = 20 if message.sys_flag & BORN_HOST_V6 else 8
    fault = topic_fault(message.topic)
    if fault is None and not 0 <= message.queue_id < 1 << 31:
        fault = f"queue id {message.queue_id} is out of range"
    if fault is None and len(message.body) > max_body_bytes:
        fault = f"the body has {len(message.body)} bytes, and {max_body_bytes} is the limit"
    if fault is None and len(message.born_host) != born_bytes:
        fault = f"the born host has {len(message.born_host)} bytes, the system flag says {born_bytes}"
    if fault is None and not -(1 << 63) <= message.tags_code < 1 << 63:
        fault = f"tags code {message.tags_code} is out of range"
    if fault is not None:
        raise MessageIllegal(fault)
    return msgspec.structs.replace(message, sys_flag=message.sys_flag & ~STORE_HOST_V6 | wide)


def row(message: PutMessage, queue_offset: int, physical_offset: int, now_ms: int, store_host: bytes) -> Row:
    """Raises MessageIllegal."""
    try:
        record = pack(message, message_size(message), queue_offset, physical_offset, now_ms, store_host)
    except struct.error as error:
        raise MessageIllegal(f"a number of the message is out of range: {error}") from error
    at = Appended(queue_offset, physical_offset, len(record), now_ms)
    return Row(message, at, queue_offset if in_queue(message) else None, record, key_hashes(message))


def key_hashes(message: PutMessage | StoredMessage) -> list[int]:
    """Hashes of the keys that the index has of a message."""
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    keys = {
        message.properties.get(props.UNIQ_KEY, ""),
        *message.properties.get(props.KEYS, "").split(" "),
    } - {""}
    return sorted({index_hash(message.topic, key) for key in keys})
