"""What `open` reads and repairs."""

from __future__ import annotations

from pathlib import Path

from rmqkit.errors import DecodeError, StoreError
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, unpack
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.environment import Environment
from rmqkit_store_lmdb.key_index import KeyIndex
from rmqkit_store_lmdb.layout import ROW, State, read_queue_key
from rmqkit_store_lmdb.queues import Queue
from rmqkit_store_lmdb.reader import Reader

_READ_BYTES = 1024 * 1024


def refuse_other_stores(root: Path) -> None:
    """Raises StoreError when the directory has the log of another kind of store and none of ours: its messages would seem to be gone."""
    log = root / "commitlog"
    if not (root / "lmdb" / "data.mdb").exists() and log.is_dir() and any(log.iterdir()):
        raise StoreError(
            f"{root} holds a store in RocketMQ's format; copy it with `rmqkit store copy {root} OTHER --to lmdb`, or set store = mmap"
        )


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
        _index(data, keys)
        at += len(data)


def _index(data: bytes, keys: KeyIndex) -> None:
    at = 0
    while at < len(data):
        size, magic = peek_size_and_magic(data, at)
        if magic != MAGIC_BLANK:
            try:
                record = unpack(data, at, check_crc=False)
            except DecodeError as error:
                raise StoreError(f"a damaged record in the log: {error}") from error
            if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                keys.note_record(extend_hash(0, f"{record.topic}#"), record)
        at += size
