"""Reads of the two topics and of the log, without blocking the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from struct import Struct

import trio

from rmqkit.errors import DecodeError
from rmqkit.model.buffer import Buffer
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqkit.plugin.store import MessageStore, QueueUnit
from rmqkit.protocol.record import BLANK_BYTES, MAGIC_BLANK, unpack
from rmqkit.toolkit.cold_reads import all_of, read_when_cached
from rmqkit_transaction.limits import MAX_LOOKS, MAX_SEARCHED_BYTES

#: Size, magic and system flag of a record.
_HEAD = Struct(">iI28xi").unpack_from

Found = tuple[QueueUnit, Buffer | None]


async def entries(store: MessageStore, topic: str, queue_id: int, offset: int) -> Sequence[Found]:
    """Some units of a queue from an offset on, with their records; None for a record that is gone. Empty at
    the end; a removed front is passed over. Other tasks may run meanwhile."""
    offset = max(offset, store.min_offset(topic, queue_id))
    count = min(MAX_LOOKS, store.max_offset(topic, queue_id) - offset)
    if count <= 0:
        return ()
    units = await read_when_cached(store, partial(store.read_units, topic, queue_id, offset, count))
    reads = [partial(store.read_record, unit.physical_offset) for unit in units]
    records = await read_when_cached(store, partial(all_of, reads))
    return [*zip(units, records, strict=True)]


async def all_entries(store: MessageStore, topic: str, queue_id: int, offset: int) -> AsyncIterator[Found]:
    """All units of a queue from an offset on."""
    while found := await entries(store, topic, queue_id, offset):
        for each in found:
            yield each
        offset = found[-1][0].queue_offset + 1
        await trio.lowlevel.checkpoint()


async def committed_since(store: MessageStore, offset: int) -> set[int]:
    """The offsets of half messages whose real messages are in the log from an offset on, at which a record
    begins."""
    found: set[int] = set()
    offset = max(offset, store.start_offset)
    while offset < store.end_offset:
        data = await read_when_cached(store, partial(store.read_log, offset, MAX_SEARCHED_BYTES))
        if not data:
            break
        _search(data, found)
        offset += len(data)
        await trio.lowlevel.checkpoint()
    return found


def _search(data: Buffer, found: set[int]) -> None:
    at, end = 0, len(data)
    while end - at >= BLANK_BYTES:
        if end - at < 40:
            break
        size, magic, sys_flag = _HEAD(data, at)
        if magic != MAGIC_BLANK and sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            # The store reports a record that cannot be read; its size leads to the next one.
            with suppress(DecodeError):
                found.add(unpack(data, at, check_crc=False).prepared_offset)
        if size < BLANK_BYTES:
            break
        at += size
