"""LmdbStore: the store contract over LMDB."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.limits import COMMIT_BUFFER_BYTES
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.store import (
    Appended,
    Boundary,
    KeyLookup,
    KeyMatches,
    LogPart,
    MessageStore,
    NotInMemory,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.protocol.packed import next_place_in_files
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit.protocol.record_packer import RecordPacker
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit.toolkit.directory_lock import DirectoryLock
from rmqkit.toolkit.read_faults import ReadFaults
from rmqkit_store_lmdb.database import opening
from rmqkit_store_lmdb.database.environment import Environment
from rmqkit_store_lmdb.database.layout import UNIT, Unit
from rmqkit_store_lmdb.database.trimming import Trimmer
from rmqkit_store_lmdb.journal.commits import Commits
from rmqkit_store_lmdb.journal.journal import Journal
from rmqkit_store_lmdb.journal.packing import Packed
from rmqkit_store_lmdb.read.cold import WARM_BYTES, WARM_UNITS, ColdCall, ColdUnits, Warmer
from rmqkit_store_lmdb.read.key_index import KeyIndex, stored
from rmqkit_store_lmdb.read.queues import HOT_BYTES, Queue
from rmqkit_store_lmdb.read.reader import Reader
from rmqkit_store_lmdb.read.reading import Gatherer, refused
from rmqkit_store_lmdb.settings import LmdbSettings

_logger = logging.getLogger(__name__)
_READERS_CHECK_S = 60.0
_CLOSED = "the store is closed"


class LmdbStore(MessageStore):
    """The package docstring lists the parts. Everything is in the directory `lmdb` below the store
    directory."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        policy: FlushPolicy,
        *,
        env: Environment | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Make a closed store. Raises ConfigError for wrong settings."""
        settings = config.plugin_settings("lmdb", LmdbSettings)
        self._root = config.root_path
        self._clock = clock
        self._policy = policy
        self._env = env or environment(config)
        self._lock = DirectoryLock(self._root)
        self._keys = KeyIndex(unindexed=frozenset(config.unindexed_topics))
        self._index_enabled = config.message_index_enable
        self._key_lookup: KeyLookup | None = None
        self._queues: dict[tuple[str, int], Queue] = {}
        limit_bytes = (
            policy.commit_buffer_bytes or max(1, config.transient_store_pool_size) * COMMIT_BUFFER_BYTES
        )
        self._journal = journal or Journal(self._env.directory)
        segment_bytes = config.mapped_file_size_commit_log
        self._commits = Commits(
            self._env, self._journal, self._keys, limit_bytes, segment_bytes, self._progressed
        )
        self._packer = RecordPacker(config.largest_body_bytes, store_host(config), config.unindexed_topics)
        self._next_place = next_place_in_files(segment_bytes)
        self._warmer = Warmer(self._go_through)
        self._trimmer = Trimmer(
            self._commits,
            self._queues,
            self._warmer,
            config.mapped_file_size_commit_log,
            settings.retention,
            clock,
            self._reader,
        )
        self._hot_from = 0
        self._faults = ReadFaults(self._env.directory)
        self._reads_block = False
        self._cutting = False
        self._refusal: str | None = None
        self._open = False
        self._running = trio.CancelScope()
        self._stopped = trio.Event()
        self._stopped.set()

    # --- what is left out -----------------------------------------------------------------------------------

    def use_external_index(self, lookup: KeyLookup) -> None:
        self._key_lookup = lookup
        self._index_enabled = False

    def dispatch_behind(self) -> Mapping[str, int]:
        return {CONSUME_QUEUE: 0, INDEX: 0} if self._index_enabled else {CONSUME_QUEUE: 0}

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._open:
            raise StoreError("the store is open already")
        await trio.to_thread.run_sync(self._open_sync)
        self._running = trio.CancelScope()

    def _open_sync(self) -> None:
        self._lock.take()
        try:
            state = self._env.open()
            self._commits.load(state)
            self._queues.clear()
            self._queues.update(opening.load_queues(self._env))
            self._keys.load(
                state.indexed_to if self._index_enabled else state.end, (state.key_time_ms, state.key_offset)
            )
            if self._index_enabled:
                with self._reader() as reader:
                    opening.index_tail(reader, self._keys, state)
            keys = self._keys if self._index_enabled else None
            opening.replay(self._journal.load(state.frame), state.frame, self._commits, self._queues, keys)
            self._hot_from = state.end
            self._refusal = None
        except BaseException:
            self._journal.close()
            self._env.close(clean=False)
            self._lock.release()
            raise
        self._open = True

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = trio.Event()
        try:
            with self._running:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._run_policy)
                    nursery.start_soon(self._commits.run)
                    nursery.start_soon(self._trimmer.run)
                    nursery.start_soon(self._check_readers)
                    task_status.started()
        finally:
            self._stopped.set()

    async def _run_policy(self, task_status: trio.TaskStatus[None]) -> None:
        commits = self._commits
        try:
            await self._policy.run(commits, commits.progress_wanted, task_status)
        except* StoreNotWritable as errors:
            _logger.error("no message is taken any more: %s", errors.exceptions[0])
            commits.give_up(commits.fault or str(errors.exceptions[0]))

    async def _check_readers(self) -> None:
        """Clear the reader table of dead processes: a tool that was killed during a read would otherwise
        prevent the reuse of pages for ever."""
        while True:
            await trio.sleep(_READERS_CHECK_S)
            cleared = await trio.to_thread.run_sync(self._env.clear_stale_readers)
            if cleared:
                _logger.warning("cleared %s readers of processes that are gone", cleared)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._running.cancel()
        with trio.CancelScope(shield=True):
            await self._stopped.wait()
            clean = False
            try:
                await self._commits.flush()
                await self._commits.drain(all_keys=True)
                await self._commits.checkpoint()
                clean = not self._env.dirty
            except StoreNotWritable as error:
                _logger.error(
                    "the store %s was not closed cleanly, the next start goes on with its journal: %s",
                    self._root,
                    error,
                )
            try:
                async with self._warmer.without_readers():
                    self._env.close(clean)  # not in a worker thread: it could unmap during a read
                self._journal.close(clean=clean)
            except OSError as error:
                _logger.error("the store %s was not closed cleanly: %s", self._root, error)
            finally:
                self._lock.release()

    # --- appending ------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        commits = self._commits
        self._require_writable()
        made: dict[tuple[str, int], Queue] = {}
        now_ms = self._clock.now_ms()
        run = self._packer.pack(
            messages,
            now_ms,
            self._queues,
            self._new_queue,
            *self._next_place(commits.tail.end, 0),
            self._next_place,
            made,
            self.queue_codes,
        )
        if run.results:
            commits.append(Packed.of(run, messages, made, now_ms))
            if made:
                self._queues.update(made)
            if self._index_enabled:
                self._keys.note_all(run.notes)
        return run.results

    def _new_queue(self, topic: str, queue_id: int, number: int) -> Queue:
        return Queue.of(topic, queue_id, self._commits.next_number + number)

    def _require_writable(self) -> None:
        """Check that messages can be appended. Raises StoreNotWritable."""
        if not self._open:
            raise StoreNotWritable(_CLOSED)
        if self._commits.refusal is not None:
            kind, text = self._commits.refusal
            raise kind(text)
        if self._refusal is not None or self._cutting or self.positions.going_back:
            raise StoreNotWritable(self._refusal or "the log is being cut")

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        commits = self._commits
        self._require_writable()
        if offset != commits.tail.end and commits.start != commits.tail.end:
            raise StoreError(f"the log ends at {commits.tail.end}, bytes for offset {offset} cannot follow")
        packed, messages = opening.received(offset, data, self.queue_codes, commits, self._queues)
        if not data:
            return ()
        commits.append(packed)
        made = [key for key in packed.made if key not in self._queues]
        self._queues.update(packed.made)
        for message in messages if self._index_enabled else ():
            opening.note_keys(self._keys, message)
        self.positions.moved()
        return made

    async def truncate(self, offset: int) -> None:
        commits = self._commits
        if not self._open:
            raise StoreNotWritable(_CLOSED)
        if offset == commits.tail.end:
            await commits.flush()
            return
        if await read_when_cached(self, partial(self.read_record, offset)) is None:
            raise StoreError(f"the log cannot be cut at {offset}: no record begins there")
        self._cutting = True
        try:
            async with self._trimmer.exclusive():
                with trio.CancelScope(shield=True):
                    await commits.cut(offset, self._was_cut)
                    await self.positions.truncated(offset)
        finally:
            self._cutting = False

    def _was_cut(self, offset: int, ends: Mapping[int, int]) -> None:
        """Called when LMDB was cut at a log offset; `ends` are the new ends of queues by their numbers."""
        self._warmer.forget()
        self._hot_from = min(self._hot_from, offset)
        for key, queue in list(self._queues.items()):
            if queue.number in ends:
                queue.cut(ends[queue.number])
                if queue.next_offset == 0:
                    del self._queues[key]

    # --- durability -----------------------------------------------------------------------------------------

    def settled_offset(self, level: Level) -> int:
        return self._commits.reached(level)

    async def settled(self, offset: int, level: Level) -> None:
        await self._commits.wait(offset, level)

    async def flush(self) -> None:
        if self.settled_offset(Level.FLUSHED) < self.end_offset:
            await self._commits.flush()

    def _progressed(self) -> None:
        if self._open:
            self.positions.moved()

    # --- reading --------------------------------------------------------------------------------------------

    def _reader(self) -> Reader:
        commits = self._commits
        return Reader(self._env, commits.start, commits.tail.start, commits.tail.segment_bytes)

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        refusal = refused(queue, offset)
        if refusal is not None:
            return refusal
        stop = self._warm_end(queue, offset)
        stop = min(stop, offset + max(limits.max_scanned_units, limits.max_messages))
        stored = queue.stored
        end = self._commits.tail.end
        gatherer = Gatherer(limits, unit_filter, end - limits.memory_bytes, offset, end)
        if offset < stored:
            with self._reader() as reader:
                for units in reader.packed_units(queue.number, offset, min(stop, stored) - offset):
                    gatherer.take(units, reader)
                    if gatherer.full:
                        break
                first = reader.unit(queue.number, offset)
            if first is not None and first[0] < self._hot_from:
                self._faults.check_bodies(gatherer.slices)
        if not gatherer.full and stored <= gatherer.at < stop:
            gatherer.take(queue.tail_units(gatherer.at, stop), self._commits.tail)
        for at, log_offset, size in gatherer.wrong:
            self._faults.note_unit(f"{topic}:{queue_id}", at, log_offset, size)
        return gatherer.result(queue)

    @property
    def read_faults(self) -> int:
        return self._faults.count

    def _warm_end(self, queue: Queue, offset: int) -> int:
        """The end of the units that may be read from an offset on. Raises NotInMemory when there are none."""
        if self._reads_block or not queue.first <= offset < queue.stored:
            return queue.next_offset
        stop = queue.may_read(offset, self._commits.tail.end)
        if stop <= offset:
            raise NotInMemory(ColdUnits(queue, offset))
        return stop

    async def fetch(self, missed: NotInMemory) -> None:
        await self._warmer.fetch(missed.cold)

    @contextmanager
    def blocking_reads(self) -> Iterator[None]:
        before, self._reads_block = self._reads_block, True
        try:
            yield
        finally:
            self._reads_block = before

    def _go_through(self, queue: Queue, offset: int) -> int:
        with self._reader() as reader:
            return reader.warm(queue.number, offset, min(WARM_UNITS, queue.stored - offset), WARM_BYTES)

    def _is_cold(self, offset: int) -> bool:
        """Whether a read of the record at an offset must go to a worker thread."""
        tail = self._commits.tail
        warm_from = min(tail.start, max(self._hot_from, tail.end - HOT_BYTES))
        return not self._reads_block and self._commits.start <= offset < warm_from

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.first <= offset < queue.next_offset:
            return []
        stop = min(offset + count, self._warm_end(queue, offset))
        stored = queue.stored
        found: list[Unit] = []
        if offset < stored:
            with self._reader() as reader:
                found += reader.units(queue.number, offset, min(stop, stored) - offset)
        if offset + len(found) >= stored:
            found += UNIT.iter_unpack(queue.tail_units(offset + len(found), stop))
        return [QueueUnit(at, *unit[:3]) for at, unit in enumerate(found, offset)]

    def read_record(self, physical_offset: int) -> Buffer | None:
        tail = self._commits.tail
        if physical_offset >= tail.start:
            return tail.record(physical_offset)
        if self._is_cold(physical_offset):
            found: Buffer | None = self._warmer.answer(ColdCall(self._stored_record, (physical_offset,)))
            return found
        return self._stored_record(physical_offset)

    def _stored_record(self, physical_offset: int) -> bytes | None:
        with self._reader() as reader:
            record = reader.record(physical_offset)
            return None if record is None else bytes(record)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        if not self._index_enabled:
            return KeyMatches([], 0, 0)
        start, indexed_to = self._commits.start, self._keys.indexed_to
        code = absolute_hash(extend_hash(0, f"{topic}#{key}"))
        found: dict[int, None] = {}
        for offset, time_ms in self._keys.kept(code) if key and max_results > 0 else ():
            if begin_ms <= time_ms <= end_ms and offset >= start:
                found[offset] = None
        arguments = (code, begin_ms, end_ms, max_results, indexed_to)
        if key and len(found) < max_results and indexed_to > start:
            if not self._is_cold(start):
                found |= dict.fromkeys(self._stored_keys(*arguments))
            else:
                found |= dict.fromkeys(self._warmer.answer(ColdCall(self._stored_keys, arguments, (start,))))
        return KeyMatches(list(found)[: max(0, max_results)], *self._keys.newest_noted())

    def _stored_keys(
        self, code: int, begin_ms: int, end_ms: int, max_results: int, indexed_to: int
    ) -> list[int]:
        """Offsets of existing records, from the database, newest first."""
        found: dict[int, None] = {}
        with self._reader() as reader:
            for offset in stored(
                self._env, reader.txn, code, self._commits.start, indexed_to, begin_ms, end_ms
            ):
                record = reader.record(offset)
                if record is not None and begin_ms <= peek_store_timestamp(record) <= end_ms:
                    found[offset] = None
                    if len(found) >= max_results:
                        break
        return list(found)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.first

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        first, stored, stop = queue.first, queue.stored, queue.next_offset
        look = bisect_left if boundary is Boundary.LOWER else bisect_right
        if first >= stored or (stop > stored and look([queue.tail_unit(stored)[3]], timestamp_ms)):
            found = look(
                range(stop), timestamp_ms, max(stored, first), key=lambda offset: queue.tail_unit(offset)[3]
            )
        elif self._reads_block or queue.hot_from(self._commits.tail.end) <= first:
            found = self._stored_offset(queue.number, first, stored, timestamp_ms, boundary)
        else:
            found = int(
                self._warmer.answer(
                    ColdCall(self._stored_offset, (queue.number, first, stored, timestamp_ms, boundary))
                )
            )
        return found if boundary is Boundary.LOWER else max(first, found - 1)

    def _stored_offset(
        self, number: int, first: int, stop: int, timestamp_ms: int, boundary: Boundary
    ) -> int:
        """The first unit in the database stored at or after (LOWER) or after (UPPER) a time, else `stop`."""
        look = bisect_left if boundary is Boundary.LOWER else bisect_right
        with self._reader() as reader:
            return look(range(stop), timestamp_ms, first, key=lambda offset: reader.time(number, offset))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.first <= offset < queue.next_offset:
            return -1
        if offset >= queue.stored:
            return queue.tail_unit(offset)[3]
        self._warm_end(queue, offset)
        with self._reader() as reader:
            return reader.time(queue.number, offset)

    def queues(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        queues = self.queues().get(topic, ())
        for queue_id in queues:
            self.delete_queue(topic, queue_id)
        if queues:
            self._commits.flush_deletions()

    def delete_queue(self, topic: str, queue_id: int) -> None:
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            if not self._open:
                raise StoreNotWritable(_CLOSED)
            self._commits.delete(queue)
            del self._queues[topic, queue_id]

    # --- clean-up -------------------------------------------------------------------------------------------

    @property
    def disk_paths(self) -> Sequence[Path]:
        """Empty: freed space is reused but not returned to the file system, so deletion cannot reduce the
        usage of a full disk."""
        return ()

    def refuse_writes(self, reason: str | None) -> None:
        self._refusal = reason

    async def log_parts(self) -> list[LogPart]:
        return await self._trimmer.parts()

    async def trim(self, before_offset: int) -> Trimmed:
        return await self._trimmer.trim(self.pins.limit(before_offset))

    # --- the log --------------------------------------------------------------------------------------------

    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        tail = self._commits.tail
        if offset >= tail.start:
            return tail.read(offset, max_bytes)
        if self._is_cold(offset):
            found: Buffer = self._warmer.answer(ColdCall(self._stored_log, (offset, max_bytes)))
            return found
        return self._stored_log(offset, max_bytes)

    def _stored_log(self, offset: int, max_bytes: int) -> bytes:
        with self._reader() as reader:
            return reader.log(offset, max_bytes)

    @property
    def start_offset(self) -> int:
        return self._commits.start

    @property
    def end_offset(self) -> int:
        return self._commits.tail.end

    def statistics(self) -> StoreStatistics:
        files: list[os.stat_result] = []
        for path in self._env.directory.glob("*"):
            with suppress(FileNotFoundError):
                files.append(path.stat())
        return StoreStatistics(
            min_physical_offset=self._commits.start,
            max_physical_offset=self._commits.tail.end,
            flushed_physical_offset=self._commits.flushed,
            queue_count=len(self._queues),
            disk_bytes=sum(status.st_blocks for status in files) * 512,
            file_count=len(files),
            read_faults=self.read_faults,
        )


def environment(config: Config) -> Environment:
    """The environment according to the settings, not opened yet."""
    settings = config.plugin_settings("lmdb", LmdbSettings)
    return Environment(config.root_path / "lmdb", settings.map_size_max_bytes, settings.max_readers)
