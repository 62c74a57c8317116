"""Reading a store's environment without opening the store: nothing is written except an entry in LMDB's
reader table, also while a broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from rmqkit.errors import StoreCorrupt, StoreError
from rmqkit.protocol.record import BLANK_BYTES, peek_size_and_magic
from rmqkit_store_lmdb.database.layout import (
    DATABASES,
    OFFSET,
    ROW,
    STATE_KEY,
    UNIT,
    State,
    Unit,
    read_queue_key,
    unpack_state,
)
from rmqkit_store_lmdb.database.scanning import groups, record_at, seek_chunk
from rmqkit_store_lmdb.journal.journal import behind
from rmqkit_store_lmdb.journal.snapshot import synced_elsewhere
from rmqkit_store_lmdb.read.key_index import read_run


class EnvironmentReader:
    """A context manager for reads of one state of the environment. While it is open, a running broker cannot
    reuse pages, so it should be short. It does not include data that is only in the journal: the last second
    of a running broker."""

    def __init__(self, root: Path) -> None:
        """Open the environment of a store for reading. Raises StoreError when there is none, StoreCorrupt
        when it cannot be read."""
        self.directory = root / "lmdb"
        if not (self.directory / "data.mdb").is_file():
            raise StoreError(f"{root} holds no LMDB store: there is no {self.directory / 'data.mdb'}")
        if synced_elsewhere(self.directory):
            raise StoreError(
                f"{self.directory} was open when the machine died; start a broker on it and stop it, so that"
                " it is put in order"
            )
        try:
            self.env = lmdb.open(str(self.directory), readonly=True, max_dbs=len(DATABASES), create=False)
            try:
                self._db: dict[str, Any] = {
                    name: self.env.open_db(name.encode(), create=False) for name in DATABASES
                }
                self.txn = self.env.begin(buffers=True)
                self.state = self._read_state()
            except BaseException:
                self.env.close()
                raise
        except (
            lmdb.CorruptedError,
            lmdb.InvalidError,
            lmdb.VersionMismatchError,
            lmdb.NotFoundError,
            ValueError,
        ) as error:
            raise StoreCorrupt(f"{self.directory} is damaged or of another format: {error}") from error
        except lmdb.Error as error:
            raise StoreError(f"cannot open {self.directory}: {error}") from error

    def _read_state(self) -> State:
        data = self.txn.get(STATE_KEY, db=self._db["meta"])
        if data is None:
            raise ValueError("there is no state")
        return unpack_state(bytes(data))

    def is_behind(self) -> bool:
        """Whether the journal contains data that LMDB does not. Raises OSError."""
        return behind(self.directory, self.state.frame)

    def __enter__(self) -> EnvironmentReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.txn.abort()
        self.env.close()

    def entries(self) -> dict[str, int]:
        """Database -> number of its entries."""
        return {name: self.txn.stat(db)["entries"] for name, db in self._db.items()}

    def queues(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """(topic, queue id) -> number, first and next queue offset; sorted."""
        with self.txn.cursor(self._db["queues"]) as cursor:
            found = {read_queue_key(bytes(key)): ROW.unpack(value) for key, value in cursor.iternext()}
        return dict(sorted(found.items()))

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """Physical offset and record, in the order of the log; valid until the next one is requested."""
        with self.txn.cursor(self._db["log"]) as cursor:
            if cursor.set_range(OFFSET.pack(self.state.start)):
                for key, chunk in cursor.iternext():
                    (start,), at = OFFSET.unpack(key), 0
                    while at < len(chunk):
                        size = max(BLANK_BYTES, peek_size_and_magic(chunk, at)[0])
                        yield start + at, chunk[at : at + size]
                        at += size

    def record(self, offset: int) -> memoryview | None:
        """The record that begins at an offset."""
        with self.txn.cursor(self._db["log"]) as cursor:
            if not seek_chunk(cursor, offset):
                return None
            chunk = cursor.value()
            at = record_at(chunk, offset - OFFSET.unpack(cursor.key())[0])
            return None if at < 0 else chunk[at : at + peek_size_and_magic(chunk, at)[0]]

    def units(self, number: int, start: int, stop: int) -> Iterator[tuple[int, Unit]]:
        """Queue offset and unit of a queue."""
        with self.txn.cursor(self._db["units"]) as cursor:
            for first, units in groups(cursor, number, start):
                for offset, unit in enumerate(UNIT.iter_unpack(units), first):
                    if offset >= stop:
                        return
                    if offset >= start:
                        yield offset, unit

    def key_entries(self) -> Iterator[tuple[int, int, int, int]]:
        """Hash and physical offset of each key, and the earliest and latest store time of its run."""
        with self.txn.cursor(self._db["keys"]) as cursor:
            for key, value in cursor.iternext():
                base, earliest_ms, latest_ms, numbers = read_run(bytes(key), value)
                for number in numbers:
                    yield number >> 32, base + (number & 0xFFFFFFFF), earliest_ms, latest_ms
