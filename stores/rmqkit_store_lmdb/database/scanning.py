"""Searching in rows with many items: the chunk with a record, a record in its chunk, a queue's groups of
units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import lmdb

from rmqkit.protocol.record import peek_size_and_magic
from rmqkit_store_lmdb.database.layout import OFFSET, UNIT_KEY

Data = TypeVar("Data", bytes, memoryview)


def seek_chunk(cursor: lmdb.Cursor[Data], offset: int) -> bool:
    """Move to the chunk that contains a log offset; returns whether there is one."""
    if cursor.set_range(OFFSET.pack(offset)):
        if OFFSET.unpack(cursor.key())[0] == offset:
            return True
        there = cursor.prev()
    else:
        there = cursor.last()
    return there and offset < OFFSET.unpack(cursor.key())[0] + len(cursor.value())


def record_at(chunk: memoryview, at: int) -> int:
    """`at` if a record begins there in the chunk, else -1."""
    found = 0
    while found < at:
        found += peek_size_and_magic(chunk, found)[0]
    return at if found == at else -1


def groups(cursor: lmdb.Cursor[Data], number: int, offset: int) -> Iterator[tuple[int, Data]]:
    """First queue offset and units of the groups of a queue, from the one that contains a queue offset on."""
    key = UNIT_KEY.pack(number, offset)
    there = cursor.set_range(key)
    if not there or bytes(cursor.key()) != key:
        there = _to_group_before(cursor, there, number)
    while there:
        found, first = UNIT_KEY.unpack(cursor.key())
        if found != number:
            return
        yield first, cursor.value()
        there = cursor.next()


def _to_group_before(cursor: lmdb.Cursor[Data], there: bool, number: int) -> bool:
    """Move back by one row if it belongs to the queue; returns whether the cursor is on a row."""
    before = cursor.prev() if there else cursor.last()
    if before and UNIT_KEY.unpack(cursor.key())[0] != number:
        return cursor.next()
    return before or cursor.first()
