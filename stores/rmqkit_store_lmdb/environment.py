"""The LMDB environment of a store: opening it, one write after the other, flushing, and what its errors mean."""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit_store_lmdb.layout import DATABASES, STATE_KEY, State, unpack_state
from rmqkit_store_lmdb.snapshot import Snapshot, boot_id

_logger = logging.getLogger(__name__)
#: With a full map even deleting takes some pages: it may go this far over the limit.
TRIM_RESERVE_BYTES = 64 * 1024 * 1024
_KEPT_TRANSACTIONS = 4
#: With less than this a file system counts as full.
_FULL_BYTES = 128 * 1024

Transaction = lmdb.Transaction
Held: TypeAlias = "tuple[Transaction[bytes], bytes]"


class Environment:
    """Commits are not flushed: `sync` brings things to the device, and a machine that dies takes the environment back to the last one.

    All but `begin` is for worker threads, one at a time but for `sync`, which may run beside `write`.
    """

    def __init__(self, directory: Path, map_bytes: int, max_readers: int, boot: str | None = None) -> None:
        self.directory = directory
        self.restored = False
        #: Whether something was committed since `hold`.
        self.dirty = False
        self._map_bytes = map_bytes
        self._max_readers = max_readers
        self._snapshot = Snapshot(directory, mmap.PAGESIZE, boot_id() if boot is None else boot)
        self._env: lmdb.Environment | None = None
        self._pin: Transaction[bytes] | None = None
        self._db: dict[str, Any] = {}

    def open(self) -> State:
        """Raises StoreCorrupt, StoreError, OSError; nothing is held then."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.restored = self._snapshot.restore()
        if self.restored:
            _logger.warning("the machine died: %s is taken back to its last checkpoint, the rest is in the journal", self.directory)
        try:
            self._env = lmdb.open(
                str(self.directory),
                map_size=self._map_bytes,
                max_dbs=len(DATABASES),
                max_readers=self._max_readers,
                max_spare_txns=_KEPT_TRANSACTIONS,
                sync=False,
                metasync=False,
                readahead=False,
            )
            self._env.reader_check()
            self._begin_life()
            return self._open_databases()
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, ValueError) as error:
            self.close(clean=False)
            raise StoreCorrupt(f"{self.directory} is damaged or of another format: {error}") from error
        except lmdb.Error as error:
            self.close(clean=False)
            raise StoreError(f"cannot open {self.directory}: {_reason(error)}") from error
        except BaseException:
            self.close(clean=False)
            raise

    def _open_databases(self) -> State:
        assert self._env is not None
        for name in DATABASES:
            self._db[name] = self._env.open_db(name.encode())
        with self._env.begin(write=True) as txn:
            data = txn.get(STATE_KEY, db=self._db["meta"])
            self.dirty = True
            if data is None:
                txn.put(STATE_KEY, State().pack(), db=self._db["meta"])
                return State()
            return unpack_state(data)

    def _begin_life(self) -> None:
        """Before anything is written, for that may use pages again to which an older snapshot leads."""
        self.env.sync(True)
        self._pin = self.env.begin()
        self._snapshot.save(self._snapshot.take())

    @property
    def env(self) -> lmdb.Environment:
        """Raises StoreError when it is closed."""
        if self._env is None:
            raise StoreError(f"{self.directory} is closed")
        return self._env

    def db(self, name: str) -> Any:
        return self._db[name]

    def begin(self) -> Transaction[memoryview]:
        """A read transaction over all that is committed; its buffers end with it, so whoever keeps one copies it. Raises StoreError."""
        try:
            return self.env.begin(buffers=True)
        except lmdb.Error as error:
            raise StoreError(f"cannot read {self.directory}: {_reason(error)}") from error

    def write(self, work: Callable[[Transaction[bytes]], None]) -> None:
        """Run `work` in a write transaction and commit it. Raises StoreNotWritable, and then none of it is there."""
        self.dirty = True
        try:
            with self.env.begin(write=True) as txn:
                work(txn)
        except lmdb.Error as error:
            raise self._refusal(error) from error

    def _refusal(self, error: lmdb.Error) -> StoreNotWritable:
        reason = _reason(error)
        if isinstance(error, lmdb.MapFullError):
            reason = f"it holds {self._map_bytes} bytes, the most that plugins.lmdb.mapSizeMaxBytes allows"
        elif self._free_bytes() < _FULL_BYTES:
            reason = f"{os.strerror(errno.ENOSPC)} ({reason})"  # LMDB calls a write that was cut short an input/output error
        return StoreNotWritable(f"cannot write {self.directory}: {reason}")

    def _free_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    # --- the device --------------------------------------------------------------------------------------------------

    def hold(self) -> Held:
        """Hold what is committed now, for `sync`; nothing may be committed meanwhile, and it takes no time. Raises OSError, lmdb.Error."""
        held = self.env.begin(), self._snapshot.take()
        self.dirty = False
        return held

    def sync(self, held: Held) -> None:
        """Bring what `hold` held to the device, and make it what a dead machine comes back to. Raises OSError, lmdb.Error."""
        pin, pages = held
        try:
            self.env.sync(True)
            self._snapshot.save(pages)
        except BaseException:
            pin.abort()
            raise
        if self._pin is not None:
            self._pin.abort()
        self._pin = pin

    def clear_stale_readers(self) -> int:
        """Give the places of dead processes in the reader table back; how many."""
        return self.env.reader_check()

    def used_bytes(self) -> int:
        info = self.env.info()
        return (info["last_pgno"] + 1) * mmap.PAGESIZE

    def take_reserve(self) -> None:
        """Let the map grow over its limit for a trim that found it full. Quick. Right behind a `sync` of all that is committed, and no transaction may be
        active besides the one that holds that. Raises lmdb.Error."""
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        try:
            self.env.set_mapsize(self._map_bytes + TRIM_RESERVE_BYTES)
        finally:
            self._pin = self.env.begin()

    def close(self, clean: bool) -> None:
        """`clean`: everything is flushed, nothing will have to be put back. A second call does nothing. Raises OSError, and then it is closed."""
        env, self._env = self._env, None
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        self._db = {}
        if env is not None:
            env.close()
            if clean:
                self._snapshot.remove()


def _reason(error: lmdb.Error) -> str:
    return str(error).removeprefix("mdb_")
