"""MmapStore: RocketMQ's own disk format (Java: DefaultMessageStore)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import trio

from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.positions import LogPositions
from rmqkit.plugin.queue_code import LOWEST_CODE, queue_code
from rmqkit.plugin.store import (
    Boundary,
    KeyLookup,
    KeyMatches,
    LogPart,
    NotInMemory,
    QueueLookup,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.protocol.record_packer import RecordPacker
from rmqkit.protocol.tags import extend_hash
from rmqkit.toolkit.directory_lock import DirectoryLock
from rmqkit_store_mmap import reader
from rmqkit_store_mmap.appending import CLOSED, AppendingStore, SegmentChanges
from rmqkit_store_mmap.index.key_index import EVERYTHING, KeyIndex
from rmqkit_store_mmap.log.commit_buffer import BufferedLog
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.read_faults import ReadFaults
from rmqkit_store_mmap.log.residency import Residency
from rmqkit_store_mmap.log.scan import parse_record
from rmqkit_store_mmap.open import background
from rmqkit_store_mmap.open.abort_file import AbortMark
from rmqkit_store_mmap.open.checkpoint import Checkpoint, Mark
from rmqkit_store_mmap.open.recovery import Recovery
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.open.trimming import Trimmer
from rmqkit_store_mmap.queue.deletions import ALL_QUEUES, Deletions
from rmqkit_store_mmap.queue.extension import DIRECTORY, Extensions, QueueExtension
from rmqkit_store_mmap.queue.queue_lookup import ExternalQueue, ReadableQueue
from rmqkit_store_mmap.queue.queue_numbers import table_to_load, table_to_use
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import UNIT
from rmqkit_store_mmap.replication import ReplicaLog
from rmqkit_store_mmap.settings import MmapSettings

_logger = logging.getLogger(__name__)


class MmapStore(AppendingStore):
    """The package docstring lists the parts. Only one trio task at a time appends; worker threads only flush
    and create files."""

    def __init__(
        self, config: Config, clock: Clock, policy: FlushPolicy, *, disk: Disk | None = None
    ) -> None:
        given = config.owned(MmapSettings)
        self._root = config.root_path
        self.disk = disk or Disk()
        self._clock = clock
        self._policy = policy
        self._packer = RecordPacker(config.largest_body_bytes, store_host(config), config.unindexed_topics)
        self._lock = DirectoryLock(self._root)
        self._abort = AbortMark(self._root)
        self.written_by_append = policy.commit_buffer_bytes == 0
        self._log = self._new_log(config)
        self._changes = SegmentChanges(self._log)
        self._queue_file_bytes = given.mapped_file_size_consume_queue
        self._extensions = Extensions(
            self._root / DIRECTORY, given.mapped_file_size_consume_queue_ext, given.enable_consume_queue_ext
        )
        self.has_extensions = given.enable_consume_queue_ext
        self._queues = QueueTable(
            self._root / "consumequeue", self._queue_file_bytes, self.disk, self._extensions
        )
        self._queue_lookup: QueueLookup | None = None
        self._key_lookup: KeyLookup | None = None
        self._index = KeyIndex(
            self._root / "index",
            given.max_hash_slot_num,
            given.max_index_num,
            self.disk,
            config.message_index_enable,
            config.unindexed_topics,
        )
        self._index_enabled = config.message_index_enable
        self._checkpoint = Checkpoint(self._root / "checkpoint")
        self._deletions = Deletions(self._root, self.disk)
        self._residency = Residency(self._log, self.disk)
        self._faults = ReadFaults(self._log.directory)
        self._prepare_upkeep()
        self._refusal = None
        self._damaged_from: int | None = None
        self._open = False
        self._running = trio.CancelScope()
        self._stopped = trio.Event()
        self._stopped.set()

    def _prepare_upkeep(self) -> None:
        """Create the objects that work on the present log, queues and checkpoint."""
        self._rounds = background.Rounds(
            self._log, self._queues, self._index, self._checkpoint, self.write_checkpoint
        )
        self._trimmer = Trimmer(self._log, self._queues, self._index, self._rounds, self.pins)
        index = self._index if self._index_enabled else None
        self._replication = ReplicaLog(
            self._log,
            self._queues,
            self._index,
            Redispatch(self._log.directory, self._queues, index, self.queue_codes, self._deletions),
            self._checkpoint,
            self._rounds,
            self._trimmer,
            self.disk,
            lambda end: self.positions.truncated(end),
        )

    def _new_log(self, config: Config) -> CommitLog:
        directory, segment_bytes = config.commit_log_path, config.mapped_file_size_commit_log
        log = (
            CommitLog(directory, segment_bytes, self.disk)
            if self.written_by_append
            else BufferedLog(directory, segment_bytes, self.disk, self._policy.commit_buffer_bytes)
        )
        log.on_progress = self._progressed
        return log

    # --- what is left out -----------------------------------------------------------------------------------

    def use_external_consume_queue(self, lookup: QueueLookup) -> None:
        self._queue_lookup = lookup

    def use_external_index(self, lookup: KeyLookup) -> None:
        self._key_lookup = lookup
        self._index.leave_out()
        self._index_enabled = False

    @property
    def damaged_from(self) -> int | None:
        return self._damaged_from

    def dispatch_behind(self) -> Mapping[str, int]:
        behind = {} if self._queue_lookup is not None else {CONSUME_QUEUE: 0}
        if self._index_enabled:
            backlog = self._index.backlog
            behind[INDEX] = self._log.position - backlog[0][1] if backlog else 0
        return behind

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._open:
            raise StoreError("the store is open already")
        with self.disk.blocking_reads():
            await trio.to_thread.run_sync(self._open_sync)
        self._running = trio.CancelScope()

    def _open_sync(self) -> None:
        self._lock.take()
        self._index.written_to = EVERYTHING
        self._refusal = self._damaged_from = None
        try:
            crashed = self._abort.present()
            self._checkpoint = Checkpoint.load(self._root / "checkpoint")
            mark = self._checkpoint.mark
            self._log.load()
            self._deletions.load()
            left_out = self._queue_lookup is not None
            self._queues = table_to_load(
                self._queues.directory,
                self._queue_file_bytes,
                self.disk,
                self._log,
                left_out,
                self._extensions,
            )
            # Units whose records were trimmed cannot be rebuilt, so they are accepted as they are.
            self._queues.load(crashed, max(mark.queues.offset, self._log.min_offset) if mark else None)
            self._queues.forget_dead(self._deletions.is_dead)
            mark = self._checkpoint.mark = self._queues.known(mark)
            self._index.load(crashed, self._checkpoint.index_time_ms, mark.index if mark else None)
            self._abort.set(self.disk)
            index = self._index if self._index_enabled else None
            recovery = Recovery(
                self._log, self._queues, index, self._checkpoint, self.queue_codes, self.disk, self._deletions
            )
            recovery.run(crashed)
            self._damaged_from = recovery.damaged_from
            self._deletions.settle(self._log.min_offset, self._log.position)
            self._queues = table_to_use(self._queues, self._queue_file_bytes, self.disk, self._log, left_out)
            self._queues.make_directory()
            self._prepare_upkeep()
            if self._index_enabled:
                self._index.directory.mkdir(exist_ok=True)
            self.write_checkpoint()
            if not self.written_by_append:
                self._index.written_to = self._log.written
        except BaseException:
            self._release_files()
            raise
        self._open = True

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = trio.Event()
        try:
            with self._running:
                await background.run(
                    self._log, self._queues, self._index, self._policy, self._rounds, task_status
                )
        finally:
            self._stopped.set()

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._running.cancel()
        with trio.CancelScope(shield=True):
            await self._stopped.wait()
            try:
                await self._log.commit()
                self._index.drain(len(self._index.backlog))
                await self._log.flush()
                await self._queues.flush(everything=True)
                await trio.to_thread.run_sync(self._write_final_checkpoint)
            except (OSError, StoreNotWritable) as error:
                _logger.error(
                    "the store %s was not flushed, the next start repairs it: %s", self._root, error
                )
            finally:
                self._release_files()

    def _write_final_checkpoint(self) -> None:
        if self._queues.doubtful or self._index.doubtful:
            raise OSError(errno.EIO, "an earlier flush of queues or index failed")
        self._index.flush_all(self._log.position)
        self._queues.mark = self._queues.new_mark(self._log.position)
        self._checkpoint.confirmed_offset = self._log.position
        self.write_checkpoint(queue_time_ms=self._log.flushed_time_ms)
        self._log.remove_unused()
        self._abort.clear()

    def _release_files(self) -> None:
        self._log.close()
        self._queues.unmap()
        self._queues.by_key = {}
        self._index.close()
        self._lock.release()

    def write_checkpoint(self, queue_time_ms: int | None = None, log_start: int | None = None) -> None:
        """Update and write the checkpoint. `queue_time_ms`: all units of records stored up to this time are
        on the device. `log_start`: the log is about to begin there. Raises OSError."""
        checkpoint = self._checkpoint
        checkpoint.log_time_ms = self._log.flushed_time_ms or checkpoint.log_time_ms
        checkpoint.queue_time_ms = queue_time_ms or checkpoint.queue_time_ms
        checkpoint.index_time_ms = self._index.full_time_ms
        index_mark = self._index.mark
        if index_mark is not None and index_mark.offset > self._log.flushed:
            # A power failure could lose records whose keys are on the device, and the index cannot be cut to
            # the log.
            index_mark = checkpoint.mark.index if checkpoint.mark else None
        checkpoint.mark = (
            None if self._queues.mark is None else Mark(self._log.flushed, self._queues.mark, index_mark)
        )
        # The position first: an empty log may get another start meanwhile, in the event loop.
        position, start = self._log.position, log_start or self._log.min_offset
        checkpoint.log_start = start if position > start else None
        checkpoint.write(self.disk)

    # --- appending ------------------------------------------------------------------------------------------

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        if not self._open or self._log.refusal is not None or self._refusal is not None:
            raise self._refused()
        made = self._replication.append(offset, data)
        self.positions.moved()
        return made

    async def truncate(self, offset: int) -> None:
        if not self._open:
            raise StoreNotWritable(CLOSED)
        await self._replication.truncate(offset)

    @cached_property
    def positions(self) -> LogPositions:
        log = self._log
        return LogPositions(lambda: log.position, lambda: log.written, lambda: log.flushed)

    # --- durability -----------------------------------------------------------------------------------------

    def settled_offset(self, level: Level) -> int:
        return self._log.written if level is Level.WRITTEN else self._log.flushed

    def is_settled(self, offset: int, level: Level) -> bool:
        return offset <= (self._log.written if level is Level.WRITTEN else self._log.flushed)

    async def settled(self, offset: int, level: Level) -> None:
        if level is Level.WRITTEN:
            await self._log.wait_written(offset)
        else:
            await self._log.wait_flushed(offset)

    async def flush(self) -> None:
        end = self.end_offset
        await self._log.wait_written(end)
        if self._log.flushed < end:
            await self._log.flush()

    def _progressed(self) -> None:
        """Called after a commit or a flush: written records can be read and indexed."""
        if not self.written_by_append and self._index.written_to < self._log.written:
            self._index.written_to = self._log.written
            if self._index.backlog:
                self._index.wanted.set()
        if self._open:
            self.positions.moved()

    # --- reading --------------------------------------------------------------------------------------------

    def _readable(self, topic: str, queue_id: int) -> ReadableQueue | None:
        queue = self._queues.get(topic, queue_id)
        if queue is None or self._queue_lookup is None:
            return queue
        return ExternalQueue(self._queue_lookup, topic, queue_id)

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        queue = self._readable(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        if queue.extension is not None and unit_filter is not None:
            unit_filter = queue.extension.filter(unit_filter)
        return reader.read(self._log, self._residency, self._faults, queue, offset, limits, unit_filter)

    async def fetch(self, missed: NotInMemory) -> None:
        await self._residency.fetch(missed.cold)

    def blocking_reads(self) -> AbstractContextManager[None]:
        return self.disk.blocking_reads()

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        queue = self._readable(topic, queue_id)
        high = 0 if queue is None else reader.end_offset(self._log, queue)
        if queue is None or not queue.min_offset <= offset < high:
            return []
        units = (
            unit for data in queue.data(offset, min(count, high - offset)) for unit in UNIT.iter_unpack(data)
        )
        found = [QueueUnit(at, *unit) for at, unit in enumerate(units, offset)]
        return found if queue.extension is None else self._with_codes(topic, queue.extension, found)

    def _with_codes(
        self, topic: str, extension: QueueExtension, units: Sequence[QueueUnit]
    ) -> list[QueueUnit]:
        """Units with their tags codes in place of addresses; a code that the extension lacks is computed from
        the record. Raises NotInMemory, OSError."""
        look_up, found = extension.look_up(), []
        for unit in units:
            if unit.tags_code < LOWEST_CODE:
                extended = look_up(unit.tags_code)
                code = self._code_of(topic, unit) if extended is None else extended.tags_code
                unit = unit._replace(tags_code=code)
            found.append(unit)
        return found

    def _code_of(self, topic: str, unit: QueueUnit) -> int:
        record = self.read_record(unit.physical_offset)
        if record is None:
            return 0
        stored = parse_record(memoryview(record), 0)
        return queue_code(self.queue_codes, topic, stored.properties, stored.store_timestamp_ms)

    def read_record(self, physical_offset: int) -> Buffer | None:
        return reader.read_record(self._log, self._residency, physical_offset)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        code = extend_hash(0, f"{topic}#")
        return reader.query_by_key(
            self._log, self._residency, self._index, (code, key), begin_ms, end_ms, max_results
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else reader.end_offset(self._log, queue)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        queue = self._readable(topic, queue_id)
        return (
            0
            if queue is None
            else reader.offset_by_time(self._log, self._residency, queue, timestamp_ms, boundary)
        )

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._readable(topic, queue_id)
        return -1 if queue is None else reader.store_time(self._log, self._residency, queue, offset)

    def queues(self) -> Mapping[str, Sequence[int]]:
        return self._queues.topics()

    def delete_topic(self, topic: str) -> None:
        if any(known == topic for known, _ in self._queues.by_key):
            self._deletions.add(topic, ALL_QUEUES, self._log.position)
        if self._queue_lookup is not None:
            for queue_id in self._queues.topics().get(topic, ()):
                self._queue_lookup.delete_queue(topic, queue_id)
        self._queues.forget_topic(topic)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        if (topic, queue_id) in self._queues.by_key:
            self._deletions.add(topic, queue_id, self._log.position)
        if self._queue_lookup is not None:
            self._queue_lookup.delete_queue(topic, queue_id)
        self._queues.forget(topic, queue_id)

    # --- clean-up -------------------------------------------------------------------------------------------

    @property
    def disk_paths(self) -> Sequence[Path]:
        return self._log.directory, self._root if self._queue_lookup is not None else self._queues.directory

    @property
    def read_faults(self) -> int:
        return self._faults.count

    def refuse_writes(self, reason: str | None) -> None:
        self._refusal = reason

    async def log_parts(self) -> list[LogPart]:
        return await self._trimmer.parts()

    async def trim(self, before_offset: int) -> Trimmed:
        trimmed = await self._trimmer.trim(before_offset)
        try:
            await trio.to_thread.run_sync(self._deletions.settle, trimmed.log_start, self._log.position)
        except OSError as error:
            _logger.warning("deletions that are not needed any more are kept in %s: %s", self._root, error)
        return trimmed

    # --- the log --------------------------------------------------------------------------------------------

    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        return reader.read_log(self._log, self._residency, offset, max_bytes)

    @property
    def start_offset(self) -> int:
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        return self._log.position

    def statistics(self) -> StoreStatistics:
        log = self._log
        blocks = {}
        for root in (self._root, log.directory):
            for directory, _, names in os.walk(root):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(os.path.join(directory, name))
                        blocks[status.st_dev, status.st_ino] = status.st_blocks
        return StoreStatistics(
            min_physical_offset=log.min_offset,
            max_physical_offset=log.position,
            flushed_physical_offset=log.flushed,
            queue_count=len(self._queues.by_key),
            disk_bytes=sum(blocks.values()) * 512,
            file_count=len(blocks),
            read_faults=self.read_faults,
        )
