"""Frees old data: the front of the log, the queues of deleted topics, messages of topics with a shorter
retention.

Data is first made invisible to readers, then deleted in small transactions between which others may write.
Remains after a crash are invisible and removed by the next trim. Freed pages are reused by later messages;
the file does not shrink.

A record in the middle of the log may be removed before its neighbours. The gap is read as a blank record, as
at the ends of RocketMQ's log files, which replicas and dispatchers skip.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import lmdb
import trio

from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.store import LogPart, Trimmed
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_store_lmdb.database.environment import Transaction
from rmqkit_store_lmdb.database.freeing import Step, bury, rows_before, runs_before, units_before
from rmqkit_store_lmdb.database.layout import MAX_OFFSET, NUMBER, OFFSET, STATE_KEY
from rmqkit_store_lmdb.database.retention import Retainer, Retention, Span
from rmqkit_store_lmdb.journal.commits import Commits
from rmqkit_store_lmdb.read.cold import Warmer
from rmqkit_store_lmdb.read.queues import Queue
from rmqkit_store_lmdb.read.reader import Reader

_logger = logging.getLogger(__name__)
_SWEEP_INTERVAL_S = 10.0


class Trimmer:
    """`part_bytes`: the log can be cut at the first record behind each multiple of it. `limits` are by topic,
    for topics with their own limits."""

    def __init__(
        self,
        commits: Commits,
        queues: dict[tuple[str, int], Queue],
        warmer: Warmer,
        part_bytes: int,
        limits: Mapping[str, Retention],
        clock: Clock,
        reader: Callable[[], Reader],
    ) -> None:
        self._commits = commits
        self._env = commits.env
        self._queues = queues
        self._warmer = warmer
        self._part_bytes = part_bytes
        self._limits = limits
        self._retainer = Retainer()
        self._clock = clock
        self._reader = reader
        self._working = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Check for data to free every few seconds, until cancelled."""
        while True:
            await trio.sleep(_SWEEP_INTERVAL_S)
            try:
                await self.sweep()
            except StoreError as error:
                _logger.error("what is old cannot be freed, trying again: %s", error)

    # --- the front of the log -------------------------------------------------------------------------------

    def exclusive(self) -> trio.Lock:
        """Prevents trims and sweeps while it is held."""
        return self._working

    async def parts(self) -> list[LogPart]:
        """MessageStore.log_parts. A part was modified when its last record was stored."""
        await self._drained()
        end = min(self._commits.tail.start, self._commits.flushed)
        return await trio.to_thread.run_sync(self._parts, end, limiter=self._thread)

    def _parts(self, log_end: int) -> list[LogPart]:
        found: list[LogPart] = []
        start = self._commits.start
        with self._reader() as reader:
            while True:
                boundary = start - start % self._part_bytes + self._part_bytes
                end = reader.first_record_from(boundary)
                last = reader.last_record_before(end)
                if end >= log_end:
                    return found
                found.append(LogPart(start, end, 0 if last is None else peek_store_timestamp(last)))
                start = end

    async def trim(self, before_offset: int) -> Trimmed:
        """MessageStore.trim."""
        async with self._working:
            before = self._commits.start
            start = max(
                (part.end for part in await self.parts() if part.end <= before_offset), default=before
            )
            if start == before:
                return Trimmed(start)
            stops = {queue: queue.stored for queue in self._queues.values()}
            firsts = await trio.to_thread.run_sync(self._firsts, start, stops, limiter=self._thread)
            self._commits.start = start
            await self._move(firsts)
            await self._free(rows_before(self._env, "log", OFFSET.pack(start)))
            await self._free(runs_before(self._env, start))
            for queue, first in firsts.items():
                await self._free(units_before(self._env, queue.number, first, with_records=False))
            await self._commits.checkpoint()
            return Trimmed(start, start - before)

    def _firsts(self, start: int, stops: Mapping[Queue, int]) -> dict[Queue, int]:
        with self._reader() as reader:
            firsts = {
                queue: reader.first_kept(queue.number, queue.first, stop, start)
                for queue, stop in stops.items()
            }
        return {queue: first for queue, first in firsts.items() if first > queue.first}

    async def _move(self, firsts: Mapping[Queue, int]) -> None:
        """Make the data invisible to readers, then store the new first offsets and the start of the log."""
        for queue, first in firsts.items():
            queue.first = first
        await self._free(self._move_step(firsts))

    def _move_step(self, firsts: Mapping[Queue, int]) -> Step:
        state = self._commits.state
        there = {(queue.topic, queue.queue_id): queue for queue in firsts}

        def step(txn: Transaction[bytes]) -> bool:
            for key, queue in there.items():
                if self._queues.get(key) is queue:
                    txn.put(queue.key, queue.row(queue.stored), db=self._env.db("queues"))
            txn.put(STATE_KEY, state().pack(), db=self._env.db("meta"))
            return False

        return step

    # --- topics ---------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Free deleted queues, and messages beyond their topics' limits. Raises StoreError."""
        async with self._working:
            await self._drained()
            freed = False
            for number in await trio.to_thread.run_sync(self._dead, limiter=self._thread):
                await self._free(units_before(self._env, number, MAX_OFFSET, with_records=True))
                await self._free(bury(self._env, number))
                freed = True
            for queue, first in (await self._outlived()).items():
                await self._move({queue: first})
                await self._free(units_before(self._env, queue.number, first, with_records=True))
                freed = True
            if freed:
                await self._commits.checkpoint()

    def _dead(self) -> list[int]:
        with self._env.begin() as txn, txn.cursor(self._env.db("dead")) as cursor:
            return [NUMBER.unpack(key)[0] for key in cursor.iternext(keys=True, values=False)]

    async def _outlived(self) -> dict[Queue, int]:
        """Queues of topics with their own limits, and the first queue offsets to keep."""
        topics: dict[str, dict[int, Queue]] = {}
        for queue in self._queues.values():
            if queue.topic in self._limits:
                topics.setdefault(queue.topic, {})[queue.number] = queue
        self._retainer.forget({number for queues in topics.values() for number in queues})
        now = self._clock.now_ms()
        found: dict[Queue, int] = {}
        for topic, queues in topics.items():
            spans = {number: Span(number, queue.first, queue.stored) for number, queue in queues.items()}
            firsts = await trio.to_thread.run_sync(self._firsts_of, topic, spans, now, limiter=self._thread)
            found |= {
                queue: firsts[number]
                for number, queue in queues.items()
                if firsts[number] > spans[number].first
            }
        return found

    def _firsts_of(self, topic: str, spans: dict[int, Span], now_ms: int) -> dict[int, int]:
        with self._reader() as reader:
            return self._retainer.firsts(reader, self._limits[topic], spans, now_ms)

    # --- steps ----------------------------------------------------------------------------------------------

    async def _drained(self) -> None:
        """Move everything appended so far into LMDB if that is possible; with a full map it is not, and a
        trim helps."""
        with suppress(StoreNotWritable):
            await self._commits.drain()

    async def _free(self, step: Step) -> None:
        """Repeat a step until there is no more. Raises StoreError. When cancelled, completed steps remain."""
        more = True
        while more:
            async with self._commits.writing:
                try:
                    more = await trio.to_thread.run_sync(self._run_step, step, limiter=self._thread)
                except StoreNotWritable as error:
                    if not isinstance(error.__cause__, lmdb.MapFullError):
                        raise
                    async with self._warmer.without_readers():
                        await self._commits.take_reserve()
                    more = await trio.to_thread.run_sync(self._run_step, step, limiter=self._thread)

    def _run_step(self, step: Step) -> bool:
        more = False

        def work(txn: Transaction[bytes]) -> None:
            nonlocal more
            more = step(txn)

        self._env.write(work)
        return more
