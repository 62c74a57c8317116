"""Deletes from the databases in small transactions, between which others may write. Each step returns whether
there may be more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import NUMBER, OFFSET, UNIT, UNIT_KEY
from rmqkit_store_lmdb.database.scanning import seek_chunk

Step: TypeAlias = "Callable[[Transaction[bytes]], bool]"
#: Rows deleted per step, and units whose records are cut out of their chunks: some ms.
_ROWS = 500
_UNITS = 2_000


def rows_before(env: Environment, name: str, high: bytes) -> Step:
    """Delete the rows of a database with keys before `high`."""

    def step(txn: Transaction[bytes]) -> bool:
        db = env.db(name)
        found = _keys(txn, db, b"", high)
        for key in found:
            txn.delete(key, db=db)
        return len(found) == _ROWS

    return step


def runs_before(env: Environment, start: int) -> Step:
    """Delete the runs of keys that lie entirely before a log offset: all except the last that begins
    there."""

    def step(txn: Transaction[bytes]) -> bool:
        db = env.db("keys")
        found = _keys(txn, db, b"", OFFSET.pack(start + 1))
        for key in found[:-1]:
            txn.delete(key, db=db)
        return len(found) == _ROWS

    return step


def units_before(env: Environment, number: int, before: int, *, with_records: bool) -> Step:
    """Delete the units of a queue before a queue offset, and with them their records; the rest of a group
    begins at that offset."""
    low, high = UNIT_KEY.pack(number, 0), UNIT_KEY.pack(number, before)

    def step(txn: Transaction[bytes]) -> bool:
        log, units = env.db("log"), env.db("units")
        freed = 0
        found = _keys(txn, units, low, high)
        for key in found:
            if freed >= _UNITS:
                return True
            group = txn.pop(key, db=units) or b""
            count = min(before - UNIT_KEY.unpack(key)[1], len(group) // UNIT.size)
            if group[count * UNIT.size :]:
                txn.put(high, group[count * UNIT.size :], db=units)
            if with_records:
                cut(txn, log, ((unit[0], unit[1]) for unit in UNIT.iter_unpack(group[: count * UNIT.size])))
            freed += count
        return len(found) == _ROWS

    return step


def bury(env: Environment, number: int) -> Step:
    """Forget a deleted queue without remaining units."""

    def step(txn: Transaction[bytes]) -> bool:
        txn.delete(NUMBER.pack(number), db=env.db("dead"))
        return False

    return step


def cut(txn: Transaction[bytes], log: Any, records: Iterable[tuple[int, int]]) -> None:
    """Delete records, given by offset and size in the order of the log. The rest of a chunk is split into
    smaller ones."""
    with txn.cursor(log) as cursor:
        key, left, at = b"", b"", 0
        pieces: list[tuple[bytes, bytes]] = []
        for offset, size in records:
            if not 0 <= offset - at < len(left):
                _put_back(txn, log, key, [*pieces, (OFFSET.pack(at), left)])
                key, left, pieces = b"", b"", []
                if not seek_chunk(cursor, offset):
                    continue
                key, left = cursor.key(), cursor.value()
                at = OFFSET.unpack(key)[0]
            pieces.append((OFFSET.pack(at), left[: offset - at]))
            left, at = left[offset - at + size :], offset + size
        _put_back(txn, log, key, [*pieces, (OFFSET.pack(at), left)])


def _put_back(txn: Transaction[bytes], log: Any, key: bytes, pieces: list[tuple[bytes, bytes]]) -> None:
    if key:
        txn.delete(key, db=log)
        for piece_key, piece in pieces:
            if piece:
                txn.put(piece_key, piece, db=log)


def _keys(txn: Transaction[bytes], db: Any, low: bytes, high: bytes) -> list[bytes]:
    """The first keys in [low, high). They are collected before deletion, because a deleting cursor may lose
    its position."""
    found: list[bytes] = []
    with txn.cursor(db) as cursor:
        if cursor.set_range(low) if low else cursor.first():
            for key in cursor.iternext(keys=True, values=False):
                if key >= high or len(found) == _ROWS:
                    break
                found.append(key)
    return found
