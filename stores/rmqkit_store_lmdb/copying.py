"""The log of this store for another one, and a store from another one's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqkit.config import Config
from rmqkit.errors import DecodeError, StoreCorrupt
from rmqkit.model.delay import deliver_time_ms, parse_levels
from rmqkit.model.message import StoredMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.properties import TAGS
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import peek_size_and_magic, unpack
from rmqkit.protocol.tags import tags_code
from rmqkit.store_tools import LogSource, PutRecords
from rmqkit_store_lmdb.batch import Batch
from rmqkit_store_lmdb.environment import Environment
from rmqkit_store_lmdb.key_index import KeyIndex
from rmqkit_store_lmdb.layout import OFFSET, UNIT, UNIT_KEY, State
from rmqkit_store_lmdb.packing import UNQUEUED
from rmqkit_store_lmdb.queues import Queue
from rmqkit_store_lmdb.readonly import EnvironmentReader
from rmqkit_store_lmdb.settings import LmdbSettings

_PIECE_BYTES = 1024 * 1024


@contextmanager
def read_log(root: Path) -> Iterator[LogSource]:
    """StoreTools.read_log. Records of deleted topics that are not freed yet are among the pieces."""
    with EnvironmentReader(root) as store:
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
def write_log(config: Config, source: LogSource) -> Iterator[PutRecords]:
    """StoreTools.write_log."""
    settings = config.plugin_settings("lmdb", LmdbSettings)
    env = Environment(config.root_path / "lmdb", settings.map_size_max_bytes, settings.max_readers, durable=False)
    env.open()
    clean = False
    try:
        writer = _Writer(env, config, source)
        yield writer.put
        writer.finish()
        env.flush(env.hold())
        clean = True
    finally:
        env.close(clean)


class _Writer:
    """One transaction for each piece; queues and state come with the last one."""

    def __init__(self, env: Environment, config: Config, source: LogSource) -> None:
        self._env = env
        self._levels_ms = parse_levels(config.message_delay_level)
        self._index_enabled = config.message_index_enable
        self._source = source
        self._keys = KeyIndex()
        self._queues = {
            key: Queue.of(*key, number, first, stop) for number, (key, (first, stop)) in enumerate(sorted(source.queues.items()), 1)
        }

    def put(self, offset: int, records: bytes) -> None:
        """Raises StoreCorrupt, StoreNotWritable."""
        batch = Batch(end=offset + len(records))
        at = 0
        while at < len(records):
            size, _ = peek_size_and_magic(records, at)
            try:
                found = unpack(records, at)
            except DecodeError as error:
                raise StoreCorrupt(f"log offset {offset + at}: {error}") from error
            batch.records.append((OFFSET.pack(offset + at), records[at : at + size]))
            self._take(found, batch)
            at += size
        self._write(batch, State(self._source.start, batch.end, batch.end, *self._keys.newest, len(self._queues) + 1))

    def _take(self, found: StoredMessage, batch: Batch) -> None:
        queue = self._queues.get((found.topic, found.queue_id))
        kind = found.sys_flag & TRANSACTION_MASK
        if queue is not None and kind not in UNQUEUED and queue.first <= found.queue_offset < queue.end:
            unit = UNIT.pack(found.physical_offset, found.size_bytes, self._tags_code(found), found.store_timestamp_ms)
            batch.units.append((UNIT_KEY.pack(queue.number, found.queue_offset), unit))
        if self._index_enabled and kind != TRANSACTION_ROLLBACK:
            code = queue.key_code if queue is not None else Queue.of(found.topic, found.queue_id, 0).key_code
            self._keys.note_record(code, found)

    def _tags_code(self, found: StoredMessage) -> int:
        if found.topic == SCHEDULE_TOPIC:
            due_ms = deliver_time_ms(found.properties, found.store_timestamp_ms, self._levels_ms)
            if due_ms is not None:
                return due_ms
        return tags_code(found.properties.get(TAGS))

    def _write(self, batch: Batch, state: State) -> None:
        newest = self._keys.newest_before(batch.end)
        keys = self._keys.before(batch.end)
        state = state._replace(key_time_ms=newest[0], key_offset=newest[1])
        self._env.write(lambda txn: batch.put(self._env, txn, state, batch.rows(), keys))
        self._keys.newest = newest
        self._keys.in_database(batch.end)

    def finish(self) -> None:
        """Raises StoreNotWritable."""
        end = self._source.end
        batch = Batch(end=end, ends={queue: queue.end for queue in self._queues.values()})
        batch.queues = {queue.key: queue for queue in self._queues.values()}
        self._write(batch, State(self._source.start, end, end, *self._keys.newest, len(self._queues) + 1))
