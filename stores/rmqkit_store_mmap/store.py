"""MmapStore: RocketMQ's own disk format (Java: DefaultMessageStore)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError
from zlib import crc32

import msgspec
import trio

from rmqkit.abc import (
    Appended,
    Boundary,
    Buffer,
    Clock,
    FlushPolicy,
    KeyMatches,
    Level,
    LogPart,
    MessageStore,
    NotInMemory,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    RecordFilter,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.directory_lock import DirectoryLock
from rmqkit.dispatch import KeyLookup, QueueLookup
from rmqkit.errors import ConfigError, MessageIllegal, StoreError, StoreNotWritable
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.delay import parse_levels
from rmqkit.model.message import PutMessage
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import BLANK, BLANK_BYTES, CRC_MASK, MAGIC_BLANK
from rmqkit.protocol.record import pack as pack_record
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap import background, reader
from rmqkit_store_mmap.checkpoint import Checkpoint, Mark
from rmqkit_store_mmap.commit_buffer import BufferedLog
from rmqkit_store_mmap.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.consume_queue import ConsumeQueue
from rmqkit_store_mmap.disk import Disk
from rmqkit_store_mmap.guard import AbortMark
from rmqkit_store_mmap.key_index import EVERYTHING, MAX_BACKLOG, KeyIndex
from rmqkit_store_mmap.queue_lookup import LookedUpQueue, ReadableQueue
from rmqkit_store_mmap.queue_numbers import table_to_load, table_to_use
from rmqkit_store_mmap.queue_table import QueueTable
from rmqkit_store_mmap.recovery import Recovery
from rmqkit_store_mmap.residency import Residency
from rmqkit_store_mmap.trimming import Trimmer
from rmqkit_store_mmap.units import UNIT, UNIT_BYTES

_logger = logging.getLogger(__name__)

#: A record up to its body, IPv4 (drawn in rmqkit.protocol.record; the tests hold the two equal byte for byte).
_HEAD = Struct(">iIiiiqqiq8sq8siqi")
_pack_head = _HEAD.pack
_pack_unit = UNIT.pack_into
_new_appended = tuple.__new__
#: Messages an append indexes besides its own number when the backlog is full.
_CATCH_UP = 256
_CLOSED = "the store is closed"
#: Kinds of record that get no place in a queue.
_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


class MmapStore(MessageStore):
    """See the package for its parts. One trio task at a time appends; worker threads only flush and make files."""

    def __init__(self, config: Config, clock: Clock, policy: FlushPolicy, *, disk: Disk | None = None) -> None:
        if "," in config.store_path_commit_log:
            raise ConfigError(f"storePathCommitLog = {config.store_path_commit_log!r}: a log spread over several paths is not supported")
        self._root = config.root_path
        self.disk = disk or Disk()
        self._clock = clock
        self._policy = policy
        self._max_body_bytes = config.max_message_size
        self._levels_ms = parse_levels(config.message_delay_level)
        self._store_host = store_host(config)
        self._host_bit = STORE_HOST_V6 if len(self._store_host) > 8 else 0
        #: Records with one of these bits take the long way: other widths, or no place in a queue (prepared and rolled back share a bit).
        self._long_way = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_PREPARED
        self._lock = DirectoryLock(self._root)
        self._abort = AbortMark(self._root)
        self.written_by_append = policy.commit_buffer_bytes == 0
        self._log = self._new_log(config)
        self._queue_file_bytes = config.mapped_file_size_consume_queue
        self._queues = QueueTable(self._root / "consumequeue", self._queue_file_bytes, self.disk)
        self._queue_lookup: QueueLookup | None = None
        self._key_lookup: KeyLookup | None = None
        self._index = KeyIndex(self._root / "index", config.max_hash_slot_num, config.max_index_num, self.disk, config.message_index_enable)
        self._index_enabled = config.message_index_enable
        self._note = self._index.backlog.append if self._index_enabled else None
        self._checkpoint = Checkpoint(self._root / "checkpoint")
        self._residency = Residency(self._log)
        self._prepare_upkeep()
        self._refusal: str | None = None
        self._open = False
        self._running = trio.CancelScope()
        self._stopped = trio.Event()
        self._stopped.set()

    def _prepare_upkeep(self) -> None:
        """What works on the log, queues and checkpoint of now."""
        self._rounds = background.Rounds(self._log, self._queues, self._index, self._checkpoint, self.write_checkpoint)
        self._trimmer = Trimmer(self._log, self._queues, self._index, self._rounds)

    def _new_log(self, config: Config) -> CommitLog:
        directory, segment_bytes = config.commit_log_path, config.mapped_file_size_commit_log
        if self.written_by_append:
            return CommitLog(directory, segment_bytes, self.disk)
        return BufferedLog(directory, segment_bytes, self.disk, self._policy.commit_buffer_bytes, self._written)

    # --- what is left out --------------------------------------------------------------------------------------------

    def read_queues_from(self, lookup: QueueLookup) -> None:
        self._queue_lookup = lookup

    def look_keys_up_in(self, lookup: KeyLookup) -> None:
        self._key_lookup = lookup
        self._index.leave_out()
        self._index_enabled = False
        self._note = None

    def dispatch_behind(self) -> Mapping[str, int]:
        behind = {} if self._queue_lookup is not None else {CONSUME_QUEUE: 0}
        if self._index_enabled:
            backlog = self._index.backlog
            behind[INDEX] = self._log.position - backlog[0][3] if backlog else 0
        return behind

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._open:
            raise StoreError("the store is open already")
        await trio.to_thread.run_sync(self._open_sync)
        self._running = trio.CancelScope()

    def _open_sync(self) -> None:
        self._lock.take()
        self._index.written_to = EVERYTHING
        self._refusal = None
        try:
            crashed = self._abort.present()
            self._checkpoint = Checkpoint.load(self._root / "checkpoint")
            mark = self._checkpoint.mark
            self._log.load()
            left_out = self._queue_lookup is not None
            self._queues = table_to_load(self._queues.directory, self._queue_file_bytes, self.disk, self._log, left_out)
            # Units whose records were trimmed cannot be made again: those are taken as they are.
            self._queues.load(crashed, max(mark.queues.offset, self._log.min_offset) if mark else None)
            mark = self._checkpoint.mark = self._queues.known(mark)
            self._index.load(crashed, self._checkpoint.index_time_ms, mark.index if mark else None)
            self._abort.set(self.disk)
            index = self._index if self._index_enabled else None
            Recovery(self._log, self._queues, index, self._checkpoint, self._levels_ms, self.disk).run(crashed)
            self._queues = table_to_use(self._queues, self._queue_file_bytes, self.disk, self._log, left_out)
            self._queues.make_directory()
            self._prepare_upkeep()
            if self._index_enabled:
                self._index.directory.mkdir(exist_ok=True)
            self.write_checkpoint()
            if not self.written_by_append:
                self._index.written_to = self._log.written
        except BaseException:
            self._let_go()
            raise
        self._open = True

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = trio.Event()
        try:
            with self._running:
                await background.run(self._log, self._queues, self._index, self._policy, self._rounds, task_status)
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
                await trio.to_thread.run_sync(self._last_words)
            except (OSError, StoreNotWritable) as error:
                _logger.error("the store %s was not flushed, the next start repairs it: %s", self._root, error)
            finally:
                self._let_go()

    def _last_words(self) -> None:
        if self._queues.doubtful or self._index.doubtful:
            raise OSError(errno.EIO, "an earlier flush of queues or index failed")
        self._index.flush_all(self._log.position)
        self._queues.mark = self._queues.new_mark(self._log.position)
        self._checkpoint.confirmed_offset = self._log.position
        self.write_checkpoint(queue_time_ms=self._log.flushed_time_ms)
        self._log.remove_unused()
        self._abort.clear()

    def _let_go(self) -> None:
        self._log.close()
        self._queues.unmap()
        self._queues.by_key = {}
        self._index.close()
        self._lock.release()

    def write_checkpoint(self, queue_time_ms: int | None = None) -> None:
        """Write how far everything has come; `queue_time_ms` when all units up to then are on the device. Raises OSError."""
        checkpoint = self._checkpoint
        checkpoint.log_time_ms = self._log.flushed_time_ms or checkpoint.log_time_ms
        checkpoint.queue_time_ms = queue_time_ms or checkpoint.queue_time_ms
        checkpoint.index_time_ms = self._index.full_time_ms
        index_mark = self._index.mark
        if index_mark is not None and index_mark.offset > self._log.flushed:
            # A power failure may take records back whose keys are on the device already; an index cannot be cut to the log.
            index_mark = checkpoint.mark.index if checkpoint.mark else None
        checkpoint.mark = None if self._queues.mark is None else Mark(self._log.flushed, self._queues.mark, index_mark)
        checkpoint.write(self.disk)

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        if not self._open or self._log.refusal is not None or self._refusal is not None:
            raise self._refused()
        backlog = self._index.backlog
        noted = len(backlog)
        if noted >= MAX_BACKLOG:
            self._index.drain(_CATCH_UP + 2 * len(messages))
            noted = len(backlog)
        results: list[Appended] = []
        made: list[ConsumeQueue] = []
        now = self._clock.now_ms()
        try:
            chunks, end = self._pack(messages, now, results, made)
            self._log.write(chunks, end, now)
        except BaseException as error:
            self._take_back(messages, results, made)
            while len(backlog) > noted:
                backlog.pop()
            if isinstance(error, StructError):
                raise MessageIllegal(f"a number is out of its range: {error}") from error
            raise
        if not noted and backlog:
            self._index.wanted.set()
        return results

    def _refused(self) -> StoreNotWritable:
        if not self._open:
            return StoreNotWritable(_CLOSED)
        kind, text = self._log.refusal or (StoreNotWritable, self._refusal)
        return kind(text)

    def _pack(self, messages: Sequence[PutMessage], now: int, results: list[Appended], made: list[ConsumeQueue]) -> tuple[list[Chunk], int]:
        """The hot path: records into chunks for one write each, units into the queues, keys into the index backlog, places into `results`.

        Returns the chunks and the log position behind them. What it raises leaves units and notes to be taken back.
        """
        log, queues, store_host, long_way = self._log, self._queues.by_key, self._store_host, self._long_way
        max_body, always_long = self._max_body_bytes, self._host_bit
        note, done = self._note, results.append
        segment = log.segment_for_append()
        position = start = log.position
        room_end = log.room_end(segment)
        parts: list[Buffer] = []
        chunks: list[Chunk] = []
        for message in messages:
            body, properties, sys_flag = message.body, message.properties_bytes, message.sys_flag
            queue = queues.get((message.topic, message.queue_id))
            if queue is None:
                queue = self._queues.make(message.topic, message.queue_id)
                made.append(queue)
            body_bytes, properties_bytes = len(body), len(properties)
            if body_bytes > max_body or properties_bytes > MAX_PROPERTIES_BYTES:
                raise _too_long(body_bytes, max_body, properties_bytes)
            size = queue.fixed_bytes + body_bytes + properties_bytes
            is_long = always_long or sys_flag & long_way
            if is_long:
                message, size = self._normalised(message, size)
            elif len(message.born_host) != 8:
                raise MessageIllegal(f"a born host of {len(message.born_host)} bytes where the system flag says 8")
            if position + size > room_end:
                if position + size + BLANK_BYTES <= segment.stop:
                    room_end = log.allocate(segment, position, size)
                else:
                    parts.append(BLANK.pack(segment.stop - position, MAGIC_BLANK))
                    chunks.append((segment, start, parts))
                    segment = log.next_segment(segment, size)
                    position = start = segment.base
                    room_end = log.room_end(segment)
                    parts = []
            offset = queue.next_offset
            if is_long:
                offset = self._pack_long(message, size, offset, position, now, parts)
            else:
                parts += (
                    _pack_head(
                        size, queue.magic, crc32(body) & CRC_MASK, message.queue_id, message.flag, offset, position, sys_flag,
                        message.born_timestamp_ms, message.born_host, now, store_host, message.reconsume_times, message.prepared_offset, body_bytes,
                    ),
                    body,
                    queue.topic_field,
                    properties_bytes.to_bytes(2, "big"),
                    properties,
                )  # fmt: skip
            if not is_long or message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
                if offset >= queue.room_end:
                    queue.make_room()
                _pack_unit(queue.view, (offset - queue.base_offset) * UNIT_BYTES, position, size, message.tags_code)
                queue.next_offset = offset + 1
                queue.touched = True
            if note is not None:
                found = message.properties
                unique_key, keys = found.get(UNIQ_KEY), found.get(KEYS)
                if (unique_key or keys) and (not is_long or message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK):
                    note((queue.key_code, unique_key, keys, position, now))
            done(_new_appended(Appended, (offset, position, size, now)))
            position += size
        chunks.append((segment, start, parts))
        return chunks, position

    def _normalised(self, message: PutMessage, size_bytes: int) -> tuple[PutMessage, int]:
        """The message with the store-host bit of this store, and its size with the hosts it has."""
        sys_flag = message.sys_flag & ~STORE_HOST_V6 | self._host_bit
        born_bytes = 20 if sys_flag & BORN_HOST_V6 else 8
        if len(message.born_host) != born_bytes:
            raise MessageIllegal(f"a born host of {len(message.born_host)} bytes where the system flag says {born_bytes}")
        if sys_flag != message.sys_flag:
            message = msgspec.structs.replace(message, sys_flag=sys_flag)
        return message, size_bytes + born_bytes - 8 + len(self._store_host) - 8

    def _pack_long(self, message: PutMessage, size: int, offset: int, position: int, now: int, parts: list[Buffer]) -> int:
        """Pack a record with IPv6 hosts or of a transaction; returns its queue offset, 0 for those that get no place in a queue."""
        if message.sys_flag & TRANSACTION_MASK in _UNQUEUED:
            offset = 0
        parts.append(pack_record(message, size, offset, position, now, self._store_host))
        return offset

    def _take_back(self, messages: Sequence[PutMessage], results: Sequence[Appended], made: Sequence[ConsumeQueue]) -> None:
        """Undo in the queues what an append that failed has done to them."""
        with contextlib.suppress(OSError):
            for message, _ in zip(messages, results, strict=False):
                if message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
                    self._queues.by_key[message.topic, message.queue_id].take_back()
            for queue in made:
                self._queues.forget_queue(queue)

    # --- durability --------------------------------------------------------------------------------------------------

    def is_settled(self, offset: int, level: Level) -> bool:
        return offset <= (self._log.written if level is Level.WRITTEN else self._log.flushed)

    async def settled(self, offset: int, level: Level) -> None:
        if level is Level.WRITTEN:
            await self._log.wait_written(offset)
        else:
            await self._log.wait_flushed(offset)

    def _written(self, offset: int) -> None:
        """A commit has brought the log to `offset`: from here on it can be read."""
        self._index.written_to = offset
        if self._index.backlog:
            self._index.wanted.set()
        if self.on_written is not None and self._open:
            self.on_written(offset)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _readable(self, topic: str, queue_id: int) -> ReadableQueue | None:
        queue = self._queues.get(topic, queue_id)
        if queue is None or self._queue_lookup is None:
            return queue
        return LookedUpQueue(self._queue_lookup, topic, queue_id)

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None, record_filter: RecordFilter | None
    ) -> ReadResult:
        queue = self._readable(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        return reader.read(self._log, self._residency, queue, offset, limits, unit_filter, record_filter)

    async def warm(self, missed: NotInMemory) -> None:
        await self._residency.fetch(missed.cold)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int, wait: bool = True) -> list[QueueUnit]:
        queue = self._readable(topic, queue_id)
        high = 0 if queue is None else reader.end_offset(self._log, queue)
        if queue is None or not queue.min_offset <= offset < high:
            return []
        units = (unit for data in queue.data(offset, min(count, high - offset), wait) for unit in UNIT.iter_unpack(data))
        return [QueueUnit(at, *unit) for at, unit in enumerate(units, offset)]

    def read_record(self, physical_offset: int, wait: bool = True) -> Buffer | None:
        return reader.read_record(self._log, self._residency, physical_offset, wait)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int, wait: bool = True) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        code = extend_hash(0, f"{topic}#")
        return reader.query_by_key(self._log, self._residency, self._index, (code, key), begin_ms, end_ms, max_results, wait)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else reader.end_offset(self._log, queue)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary, wait: bool = True) -> int:
        queue = self._readable(topic, queue_id)
        return 0 if queue is None else reader.offset_by_time(self._log, self._residency, queue, timestamp_ms, boundary, wait)

    def store_time(self, topic: str, queue_id: int, offset: int, wait: bool = True) -> int:
        queue = self._readable(topic, queue_id)
        return -1 if queue is None else reader.store_time(self._log, self._residency, queue, offset, wait)

    def queues(self) -> Mapping[str, Sequence[int]]:
        return self._queues.topics()

    def delete_topic(self, topic: str) -> None:
        if self._queue_lookup is not None:
            for queue_id in self._queues.topics().get(topic, ()):
                self._queue_lookup.delete_queue(topic, queue_id)
        self._queues.forget_topic(topic)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        if self._queue_lookup is not None:
            self._queue_lookup.delete_queue(topic, queue_id)
        self._queues.forget(topic, queue_id)

    # --- clean-up ----------------------------------------------------------------------------------------------------

    @property
    def disk_paths(self) -> Sequence[Path]:
        return self._log.directory, self._root if self._queue_lookup is not None else self._queues.directory

    def refuse_writes(self, reason: str | None) -> None:
        self._refusal = reason

    async def log_parts(self) -> list[LogPart]:
        return await self._trimmer.parts()

    async def trim(self, before_offset: int) -> Trimmed:
        return await self._trimmer.trim(before_offset)

    # --- the log -----------------------------------------------------------------------------------------------------

    def read_log(self, offset: int, max_bytes: int, wait: bool = True) -> Buffer:
        return reader.read_log(self._log, self._residency, offset, max_bytes, wait)

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
        )


def _too_long(body_bytes: int, max_body_bytes: int, properties_bytes: int) -> MessageIllegal:
    if body_bytes > max_body_bytes:
        return MessageIllegal(f"a body of {body_bytes} bytes, at most {max_body_bytes} are allowed")
    return MessageIllegal(f"properties of {properties_bytes} bytes, at most {MAX_PROPERTIES_BYTES} are allowed")
