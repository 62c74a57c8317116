"""Cuts off the end of everything in LMDB, in one transaction."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import NUMBER, OFFSET, ROW, STATE_KEY, TIMES, UNIT, UNIT_KEY, State
from rmqkit_store_lmdb.database.scanning import groups, seek_chunk

_LOW_32 = (1 << 32) - 1


def cut_log(env: Environment, state: State) -> tuple[tuple[int, int], dict[int, int]]:
    """Delete everything about the log from `state.end` on, and write that state with the remaining keys.
    Returns store time and offset of the newest key, and the new ends of queues by their numbers. For a worker
    thread, without concurrent writes. Raises StoreNotWritable, without effect."""
    newest = (0, 0)
    ends: dict[int, int] = {}

    def work(txn: Transaction[bytes]) -> None:
        nonlocal newest
        last = _cut_keys(txn, env.db("keys"), state.end)
        newest = (0, 0) if last is None else (_time_at(txn, env.db("log"), last), last)
        _cut_chunks(txn, env.db("log"), state.end)
        _cut_queues(txn, env, state.end, ends)
        left = state._replace(indexed_to=state.end, key_time_ms=newest[0], key_offset=newest[1])
        txn.put(STATE_KEY, left.pack(), db=env.db("meta"))

    env.write(work)
    return newest, ends


def _delete(txn: Transaction[bytes], db: Any, low: bytes, prefix: bytes = b"") -> None:
    """Delete the rows with this prefix, from a key on."""
    with txn.cursor(db) as cursor:
        there = cursor.set_range(low)
        while there and cursor.key().startswith(prefix):
            there = cursor.delete()


def _cut_chunks(txn: Transaction[bytes], log: Any, end: int) -> None:
    with txn.cursor(log) as cursor:
        if seek_chunk(cursor, end):
            key, start = cursor.key(), OFFSET.unpack(cursor.key())[0]
            if start < end:
                txn.put(key, cursor.value()[: end - start], db=log)
    _delete(txn, log, OFFSET.pack(end))


def _time_at(txn: Transaction[bytes], log: Any, offset: int) -> int:
    """Store time in ms of a record; 0 if it has been freed."""
    with txn.cursor(log) as cursor:
        if not seek_chunk(cursor, offset):
            return 0
        return peek_store_timestamp(cursor.value(), offset - OFFSET.unpack(cursor.key())[0])


def _cut_keys(txn: Transaction[bytes], keys: Any, end: int) -> int | None:
    """The log offset of the newest remaining key. Runs follow each other in the log, so at most one has keys
    on both sides."""
    _delete(txn, keys, OFFSET.pack(end))
    with txn.cursor(keys) as cursor:
        if not cursor.last():
            return None
        key, run = cursor.key(), cursor.value()
    base = int(OFFSET.unpack(key)[0])
    numbers = array("Q", run[TIMES.size :])
    left = array("Q", [number for number in numbers if base + (number & _LOW_32) < end])
    if len(left) < len(numbers):
        txn.put(key, run[: TIMES.size] + left.tobytes(), db=keys)
    return base + max(number & _LOW_32 for number in left)


def _cut_queues(txn: Transaction[bytes], env: Environment, end: int, ends: dict[int, int]) -> None:
    units, queues = env.db("units"), env.db("queues")
    with txn.cursor(queues) as cursor:
        rows = [(key, *ROW.unpack(value)) for key, value in cursor.iternext()] if cursor.first() else []
    for key, number, first, stop in rows:
        left = _end_before(txn, units, number, first, stop, end)
        if left == stop:
            continue
        ends[number] = left
        if left == 0:
            txn.delete(key, db=queues)
        else:
            txn.put(key, ROW.pack(number, min(first, left), left), db=queues)
        _cut_groups(txn, units, number, left)


def _end_before(txn: Transaction[bytes], units: Any, number: int, first: int, stop: int, end: int) -> int:
    """The queue offset of the first unit whose record lies at or after a log offset."""

    def lies_behind(offset: int) -> bool:
        with txn.cursor(units) as cursor:
            for start, group in groups(cursor, number, offset):
                return bool(UNIT.unpack_from(group, (offset - start) * UNIT.size)[0] >= end)
        return True

    return bisect_left(range(stop), True, min(first, stop), key=lies_behind)


def _cut_groups(txn: Transaction[bytes], units: Any, number: int, left: int) -> None:
    with txn.cursor(units) as cursor:
        for start, group in groups(cursor, number, left):
            if start < left:
                txn.put(UNIT_KEY.pack(number, start), group[: (left - start) * UNIT.size], db=units)
            break
    _delete(txn, units, UNIT_KEY.pack(number, left), NUMBER.pack(number))
