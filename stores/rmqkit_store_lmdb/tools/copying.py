"""Copies the log of this store to another one, and another store's log to this store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqkit.config import Config
from rmqkit.errors import DecodeError, StoreCorrupt, StoreError
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.plugin.queue_code import QueueCodes, queue_code
from rmqkit.plugin.store_tools import LogSource, PutRecords
from rmqkit.protocol.record import unpack
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.database.environment import Environment
from rmqkit_store_lmdb.database.layout import UNIT, UNIT_KEY, State
from rmqkit_store_lmdb.journal.batch import Batch
from rmqkit_store_lmdb.journal.tail import chunks
from rmqkit_store_lmdb.read.key_index import KeyIndex
from rmqkit_store_lmdb.read.queues import Queue
from rmqkit_store_lmdb.read.readonly import EnvironmentReader
from rmqkit_store_lmdb.settings import LmdbSettings

_PIECE_BYTES = 1024 * 1024


@contextmanager
def read_log(root: Path) -> Iterator[LogSource]:
    """StoreTools.read_log. Records of deleted topics that are not freed yet are among the pieces."""
    with EnvironmentReader(root) as store:
        if store.is_behind():
            raise StoreError(
                f"{root} was not closed; start a broker on it and stop it, so that what is in its journal"
                " gets into LMDB"
            )
        queues = {key: (first, stop) for key, (_, first, stop) in store.queues().items()}
        yield LogSource(store.state.start, store.state.end, queues, _pieces(store))


def _pieces(store: EnvironmentReader) -> Iterator[tuple[int, bytes]]:
    start = at = store.state.start
    found: list[bytes] = []
    for offset, record in store.records():
        if found and (offset != at or at - start >= _PIECE_BYTES):
            yield start, b"".join(found)
            found = []
        if not found:
            start = offset
        found.append(bytes(record))
        at = offset + len(record)
    if found:
        yield start, b"".join(found)


@contextmanager
def write_log(config: Config, source: LogSource, queue_codes: QueueCodes) -> Iterator[PutRecords]:
    """StoreTools.write_log."""
    settings = config.plugin_settings("lmdb", LmdbSettings)
    env = Environment(config.root_path / "lmdb", settings.map_size_max_bytes, settings.max_readers)
    env.open()
    clean = False
    try:
        writer = _Writer(env, config, source, queue_codes)
        yield writer.put
        writer.finish()
        env.sync(env.hold())
        clean = True
    finally:
        env.close(clean)


class _Writer:
    """One transaction for each piece; queues come with the last one."""

    def __init__(self, env: Environment, config: Config, source: LogSource, codes: QueueCodes) -> None:
        self._env = env
        self._queue_codes = codes
        self._index_enabled = config.message_index_enable
        self._start = source.start
        self._end = source.end
        self._keys = KeyIndex(unindexed=frozenset(config.unindexed_topics))
        self._queues = {
            key: Queue.of(*key, number, first, stop)
            for number, (key, (first, stop)) in enumerate(sorted(source.queues.items()), 1)
        }

    def put(self, offset: int, records: bytes) -> None:
        """Add a stretch of records. Raises StoreCorrupt, StoreNotWritable."""
        offsets: list[int] = []
        found: list[StoredMessage] = []
        at = 0
        while at < len(records):
            try:
                message = unpack(records, at)
            except DecodeError as error:
                raise StoreCorrupt(f"log offset {offset + at}: {error}") from error
            offsets.append(offset + at)
            found.append(message)
            at += message.size_bytes
        self._note_keys(found)
        batch = self._batch(offset + at)
        batch.log = chunks(
            offsets,
            [
                records[place - offset :][: message.size_bytes]
                for place, message in zip(offsets, found, strict=True)
            ],
        )
        batch.units = self._groups(found)
        self._write(batch)

    def _groups(self, found: list[StoredMessage]) -> list[tuple[bytes, bytes]]:
        groups: dict[tuple[int, int], list[bytes]] = {}
        ends: dict[int, tuple[int, int]] = {}
        for message in found:
            queue = self._queues.get((message.topic, message.queue_id))
            is_queued = not message.sys_flag & UNQUEUED
            if queue is None or not is_queued or not queue.first <= message.queue_offset < queue.next_offset:
                continue
            first, end = ends.get(queue.number, (message.queue_offset, message.queue_offset))
            if message.queue_offset != end:
                first = end = message.queue_offset
            ends[queue.number] = first, end + 1
            unit = UNIT.pack(
                message.physical_offset,
                message.size_bytes,
                queue_code(self._queue_codes, message.topic, message.properties, message.store_timestamp_ms),
                message.store_timestamp_ms,
            )
            groups.setdefault((queue.number, first), []).append(unit)
        return [(UNIT_KEY.pack(*key), b"".join(units)) for key, units in groups.items()]

    def _note_keys(self, found: list[StoredMessage]) -> None:
        for message in found:
            if self._index_enabled and message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                self._keys.note_record(extend_hash(0, f"{message.topic}#"), message)

    def _batch(self, end: int, *, last: bool = False) -> Batch:
        takes_keys = last or self._keys.wants_writing(end)
        newest = self._keys.newest_noted() if takes_keys else self._keys.newest
        batch = Batch(
            State(
                self._start, end, end if takes_keys else self._keys.indexed_to, *newest, len(self._queues) + 1
            )
        )
        batch.keys = self._keys.before(end) if takes_keys else []
        return batch

    def _write(self, batch: Batch) -> None:
        self._env.write(lambda txn: batch.put(self._env, txn))
        if batch.state.indexed_to == batch.state.end:
            self._keys.newest = batch.state.key_time_ms, batch.state.key_offset
            self._keys.in_database(batch.state.end)

    def finish(self) -> None:
        """Write what is left, with the ends of the queues. Raises StoreNotWritable."""
        batch = self._batch(self._end, last=True)
        batch.queues = {queue.key: queue.row(queue.next_offset) for queue in self._queues.values()}
        self._write(batch)
