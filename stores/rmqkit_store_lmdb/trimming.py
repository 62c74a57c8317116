"""Freeing what is old or not wanted any more: the front of the log, the queues of deleted topics, messages of topics that are kept for a shorter time.

Readers are told first that something is gone, then it goes, in small transactions between which others may write. What a crash leaves of that lies
where nobody looks, and goes with the next trim. Pages that become free are used again by later messages; the file does not shrink.

A record in the middle of the log may go before its neighbours. The gap it leaves is read as a blank record, as RocketMQ's log has them at the ends
of its files, so that replicas and dispatchers pass over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import lmdb
import trio

from rmqkit.abc import Boundary, Clock, LogPart, Trimmed
from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_store_lmdb.cold import Warmer
from rmqkit_store_lmdb.commits import Commits
from rmqkit_store_lmdb.environment import Transaction
from rmqkit_store_lmdb.layout import KEY, NUMBER, OFFSET, STATE_KEY, STRIPE_BYTES, UNIT, UNIT_KEY
from rmqkit_store_lmdb.queues import Queue
from rmqkit_store_lmdb.reader import Reader

_logger = logging.getLogger(__name__)
#: Entries one transaction deletes: some ms, during which messages wait to be written.
_STEP = 1000
_SWEEP_INTERVAL_S = 10.0

#: Deletes some entries in a transaction; whether there may be more.
_Step: TypeAlias = "Callable[[Transaction[bytes]], bool]"


class Trimmer:
    """`part_bytes`: the log can be cut at the first record behind each multiple of it. `retention_ms` by topic, for topics with a time of their own."""

    def __init__(
        self,
        commits: Commits,
        queues: dict[tuple[str, int], Queue],
        warmer: Warmer,
        part_bytes: int,
        retention_ms: Mapping[str, int],
        clock: Clock,
        reader: Callable[[], Reader],
    ) -> None:
        self._commits = commits
        self._env = commits.env
        self._queues = queues
        self._warmer = warmer
        self._part_bytes = part_bytes
        self._retention_ms = retention_ms
        self._clock = clock
        self._reader = reader
        self._working = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Look every few seconds for what is to go, until cancelled."""
        while True:
            await trio.sleep(_SWEEP_INTERVAL_S)
            try:
                await self.sweep()
            except StoreError as error:
                _logger.error("what is old cannot be freed, trying again: %s", error)

    # --- the front of the log ----------------------------------------------------------------------------------------

    async def parts(self) -> list[LogPart]:
        """MessageStore.log_parts. A part was modified when its last record was stored."""
        return await trio.to_thread.run_sync(self._parts, self._commits.flushed, limiter=self._thread)

    def _parts(self, flushed: int) -> list[LogPart]:
        found: list[LogPart] = []
        start = self._commits.start
        with self._reader() as reader:
            while True:
                boundary = start - start % self._part_bytes + self._part_bytes
                end = reader.first_record_from(boundary)
                last = reader.last_record_before(end)
                if end >= self._commits.written or end > flushed:
                    return found
                found.append(LogPart(start, end, 0 if last is None else peek_store_timestamp(last)))
                start = end

    async def trim(self, before_offset: int) -> Trimmed:
        """MessageStore.trim."""
        async with self._working:
            before = self._commits.start
            start = max((part.end for part in await self.parts() if part.end <= before_offset), default=before)
            firsts = await trio.to_thread.run_sync(self._firsts, start, list(self._queues.values()), limiter=self._thread)
            self._commits.start = start
            await self._move(firsts)
            await self._free(self._log_step(start))
            await self._free(self._keys_step(start // STRIPE_BYTES))
            for queue, first in firsts.items():
                await self._free(self._units_step(queue.number, first))
            return Trimmed(start, start - before)

    def _firsts(self, start: int, queues: list[Queue]) -> dict[Queue, int]:
        with self._reader() as reader:
            firsts = {queue: reader.first_kept(queue, start) for queue in queues}
        return {queue: first for queue, first in firsts.items() if first > queue.first}

    async def _move(self, firsts: Mapping[Queue, int]) -> None:
        """Tell readers, then write it down: new first offsets, and where the log begins."""
        for queue, first in firsts.items():
            queue.first = first
        await self._free(self._move_step(firsts))

    def _move_step(self, firsts: Mapping[Queue, int]) -> _Step:
        state = self._commits.state
        there = {(queue.topic, queue.queue_id): queue for queue in firsts}

        def step(txn: Transaction[bytes]) -> bool:
            for key, queue in there.items():
                if self._queues.get(key) is queue:
                    txn.put(queue.key, queue.row(queue.end), db=self._env.db("queues"))
            txn.put(STATE_KEY, state().pack(), db=self._env.db("meta"))
            return False

        return step

    # --- topics ------------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Free the queues that were deleted, and what has outlived the time of its topic. Raises StoreError."""
        async with self._working:
            for number in await trio.to_thread.run_sync(self._dead, limiter=self._thread):
                await self._free(self._units_step(number, 1 << 62))
                await self._free(self._bury_step(number))
            now = self._clock.now_ms()
            for queue in [queue for queue in self._queues.values() if queue.topic in self._retention_ms]:
                old_ms = now - self._retention_ms[queue.topic]
                first = await trio.to_thread.run_sync(self._first_since, queue, old_ms, limiter=self._thread)
                if first > queue.first:
                    await self._move({queue: first})
                    await self._free(self._units_step(queue.number, first))

    def _dead(self) -> list[int]:
        with self._env.begin() as txn, txn.cursor(self._env.db("dead")) as cursor:
            return [NUMBER.unpack(key)[0] for key in cursor.iternext(keys=True, values=False)]

    def _first_since(self, queue: Queue, time_ms: int) -> int:
        with self._reader() as reader:
            return reader.offset_by_time(queue, time_ms, Boundary.LOWER)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _free(self, step: _Step) -> None:
        """Run a step until there is no more. Raises StoreError. Cancelled: what was done stays done."""
        more = True
        while more:
            async with self._commits.writing:
                try:
                    more = await trio.to_thread.run_sync(self._run_step, step, limiter=self._thread)
                except StoreNotWritable as error:
                    if not isinstance(error.__cause__, lmdb.MapFullError):
                        raise
                    async with self._warmer.nobody_reading():
                        await self._commits.take_reserve()
                    more = await trio.to_thread.run_sync(self._run_step, step, limiter=self._thread)

    def _run_step(self, step: _Step) -> bool:
        more = False

        def work(txn: Transaction[bytes]) -> None:
            nonlocal more
            more = step(txn)

        self._env.write(work)
        return more

    def _log_step(self, start: int) -> _Step:
        return self._range_step("log", b"", OFFSET.pack(start))

    def _keys_step(self, stripe: int) -> _Step:
        return self._range_step("keys", b"", KEY.pack(stripe, 0, 0))

    def _range_step(self, name: str, low: bytes, high: bytes) -> _Step:
        """Delete the entries of a database with keys in [low, high)."""

        def step(txn: Transaction[bytes]) -> bool:
            db = self._env.db(name)
            found = _keys(txn, db, low, high)
            for key in found:
                txn.delete(key, db=db)
            return len(found) == _STEP

        return step

    def _units_step(self, number: int, before: int) -> _Step:
        """Delete the units of a queue before a queue offset, and their records."""
        low, high = UNIT_KEY.pack(number, 0), UNIT_KEY.pack(number, before)

        def step(txn: Transaction[bytes]) -> bool:
            log, units = self._env.db("log"), self._env.db("units")
            found = _keys(txn, units, low, high)
            for key in found:
                unit = txn.pop(key, db=units) or b""
                txn.delete(OFFSET.pack(UNIT.unpack(unit)[0]), db=log)
            return len(found) == _STEP

        return step

    def _bury_step(self, number: int) -> _Step:
        def step(txn: Transaction[bytes]) -> bool:
            txn.delete(NUMBER.pack(number), db=self._env.db("dead"))
            return False

        return step


def _keys(txn: Transaction[bytes], db: Any, low: bytes, high: bytes) -> list[bytes]:
    """The first keys in [low, high). They are collected before one is deleted: a cursor that deletes may lose its place."""
    found: list[bytes] = []
    with txn.cursor(db) as cursor:
        if cursor.set_range(low) if low else cursor.first():
            for key in cursor.iternext(keys=True, values=False):
                if key >= high or len(found) == _STEP:
                    break
                found.append(key)
    return found
