"""What `open` reads and repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import unpack as unpack_numbers

from rmqkit.errors import DecodeError, StoreCorrupt, StoreError
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, unpack
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.commits import Commits
from rmqkit_store_lmdb.environment import Environment
from rmqkit_store_lmdb.journal import DELETED, RECORDS, Frame
from rmqkit_store_lmdb.key_index import KeyIndex
from rmqkit_store_lmdb.layout import ROW, State, read_queue_key
from rmqkit_store_lmdb.packing import UNQUEUED, Packed
from rmqkit_store_lmdb.queues import Queue
from rmqkit_store_lmdb.reader import Reader

_READ_BYTES = 1024 * 1024


def load_queues(env: Environment) -> dict[tuple[str, int], Queue]:
    """All queues, by topic and queue id; takes as long as there are queues."""
    found = {}
    with env.begin() as txn, txn.cursor(env.db("queues")) as cursor:
        for key, value in cursor.iternext():
            topic, queue_id = read_queue_key(bytes(key))
            found[topic, queue_id] = Queue.of(topic, queue_id, *ROW.unpack(value))
    return found


def index_tail(reader: Reader, keys: KeyIndex, state: State) -> None:
    """Note the keys that were kept back when the process died, out of the log."""
    at = max(keys.indexed_to, state.start)
    while at < state.end:
        data = reader.log(at, _READ_BYTES)
        if not data:
            raise StoreError(f"the log cannot be read at {at}, it ends at {state.end}")
        for record in _records(data):
            _note(keys, extend_hash(0, f"{record.topic}#"), record)
        at += len(data)


def replay(frames: Iterator[Frame], commits: Commits, queues: dict[tuple[str, int], Queue], keys: KeyIndex | None) -> None:
    """Do again what the journal says. Raises StoreCorrupt when it does not fit what LMDB holds."""
    for frame in frames:
        if frame.kind == RECORDS:
            packed = _unpacked(frame, commits, queues, keys)
            commits.take(packed)
            queues |= packed.made
        elif frame.kind == DELETED:
            queue = queues.pop(read_queue_key(frame.data), None)
            if queue is None:
                raise StoreCorrupt(f"frame {frame.number} of the journal deletes a queue that is not there")
            commits.forget(queue)
        else:
            raise StoreCorrupt(f"frame {frame.number} of the journal is of an unknown kind, {frame.kind}")
    commits.loaded()


def _unpacked(frame: Frame, commits: Commits, queues: Mapping[tuple[str, int], Queue], keys: KeyIndex | None) -> Packed:
    packed = Packed(commits.tail.end)
    records_at = 8 * frame.records
    codes = unpack_numbers(f">{frame.records}q", frame.data[:records_at])
    for code, record in zip(codes, _records(frame.data[records_at:]), strict=True):
        key = (record.topic, record.queue_id)
        queue = queues.get(key) or packed.made.get(key)
        if queue is None:
            queue = packed.made[key] = Queue.of(*key, commits.next_number + len(packed.made))
        offset, size = record.physical_offset, record.size_bytes
        units = packed.units.setdefault(queue, [])
        data = frame.data[records_at : records_at + size]
        records_at += size
        if record.sys_flag & TRANSACTION_MASK not in UNQUEUED:
            if record.queue_offset != queue.end + len(units):
                raise StoreCorrupt(f"frame {frame.number} of the journal: {key} ends at {queue.end}, the record is {record.queue_offset}")
            units.append((offset, size, code, record.store_timestamp_ms, data))
        if offset < packed.end:
            raise StoreCorrupt(f"frame {frame.number} of the journal: a record at {offset}, the log ends at {packed.end}")
        packed.offsets.append(offset)
        packed.records.append(data)
        packed.end = offset + size
        if keys is not None:
            _note(keys, queue.key_code, record)
    return packed


def _note(keys: KeyIndex, topic_code: int, record: StoredMessage) -> None:
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        keys.note_record(topic_code, record)


def _records(data: bytes) -> Iterator[StoredMessage]:
    """The records among those side by side that are not blank. Raises StoreCorrupt."""
    at = 0
    while at < len(data):
        size, magic = peek_size_and_magic(data, at)
        if magic != MAGIC_BLANK:
            try:
                yield unpack(data, at, check_crc=False)
            except DecodeError as error:
                raise StoreCorrupt(f"a damaged record: {error}") from error
        at += size
