"""Looking into a store's environment without opening the store: nothing is written but a place in LMDB's reader table, beside a running broker too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from rmqkit.errors import StoreCorrupt, StoreError
from rmqkit_store_lmdb.layout import DATABASES, OFFSET, ROW, STATE_KEY, UNIT, UNIT_KEY, State, read_queue_key, unpack_state
from rmqkit_store_lmdb.snapshot import synced_elsewhere


class EnvironmentReader:
    """One look, at one moment: a context manager. As long as it lasts a running broker uses no page again, so it should not last long."""

    def __init__(self, root: Path) -> None:
        """Raises StoreError, StoreCorrupt."""
        self.directory = root / "lmdb"
        if not (self.directory / "data.mdb").is_file():
            raise StoreError(f"{root} holds no LMDB store: there is no {self.directory / 'data.mdb'}")
        if synced_elsewhere(self.directory):
            raise StoreError(
                f"{self.directory} was open when the machine died; start a broker on it and stop it, so that it is put in order"
            )
        try:
            self.env = lmdb.open(str(self.directory), readonly=True, max_dbs=len(DATABASES), create=False)
            try:
                self._db: dict[str, Any] = {name: self.env.open_db(name.encode(), create=False) for name in DATABASES}
                self.txn = self.env.begin(buffers=True)
                self.state = self._read_state()
            except BaseException:
                self.env.close()
                raise
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.NotFoundError, ValueError) as error:
            raise StoreCorrupt(f"{self.directory} is damaged or of another format: {error}") from error
        except lmdb.Error as error:
            raise StoreError(f"cannot open {self.directory}: {error}") from error

    def _read_state(self) -> State:
        data = self.txn.get(STATE_KEY, db=self._db["meta"])
        if data is None:
            raise ValueError("there is no state")
        return unpack_state(bytes(data))

    def __enter__(self) -> EnvironmentReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.txn.abort()
        self.env.close()

    def entries(self) -> dict[str, int]:
        """Database -> how many entries it has."""
        return {name: self.txn.stat(db)["entries"] for name, db in self._db.items()}

    def queues(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """(topic, queue id) -> number, first and next queue offset; in order."""
        with self.txn.cursor(self._db["queues"]) as cursor:
            found = {read_queue_key(bytes(key)): ROW.unpack(value) for key, value in cursor.iternext()}
        return dict(sorted(found.items()))

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """Physical offset and record, in the order of the log; valid until the next one is asked for."""
        with self.txn.cursor(self._db["log"]) as cursor:
            if cursor.set_range(OFFSET.pack(self.state.start)):
                for key, value in cursor.iternext():
                    yield OFFSET.unpack(key)[0], value

    def record(self, offset: int) -> memoryview | None:
        return self.txn.get(OFFSET.pack(offset), db=self._db["log"])

    def units(self, number: int, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Queue offset and unit (physical offset, size, tags code, store time) of a queue."""
        with self.txn.cursor(self._db["units"]) as cursor:
            there = cursor.set_range(UNIT_KEY.pack(number, start))
            while there:
                found, offset = UNIT_KEY.unpack(cursor.key())
                if found != number or offset >= stop:
                    return
                yield offset, UNIT.unpack(cursor.value())
                there = cursor.next()

    def key_entries(self) -> Iterator[bytes]:
        with self.txn.cursor(self._db["keys"]) as cursor:
            yield from (bytes(key) for key in cursor.iternext(keys=True, values=False))
