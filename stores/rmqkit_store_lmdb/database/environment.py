"""The LMDB environment of a store: opening, serial writes, flushing, and the translation of its errors."""

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
from rmqkit_store_lmdb.database.layout import DATABASES, STATE_KEY, State, unpack_state
from rmqkit_store_lmdb.journal.snapshot import Snapshot, boot_id

_logger = logging.getLogger(__name__)
#: With a full map even deleting needs pages, so it may exceed the limit by this much.
TRIM_RESERVE_BYTES = 64 * 1024 * 1024
_KEPT_TRANSACTIONS = 4
#: A file system with less free space counts as full.
_FULL_BYTES = 128 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)

Transaction = lmdb.Transaction
Held: TypeAlias = "tuple[Transaction[bytes], bytes]"


class Environment:
    """Commits are not flushed: `sync` flushes, and after a machine failure the environment returns to the
    last `sync`.

    All methods except `begin` are for worker threads, one at a time; `sync` may run concurrently with
    `write`.
    """

    def __init__(self, directory: Path, map_bytes: int, max_readers: int, boot: str | None = None) -> None:
        self.directory = directory
        self.restored = False
        #: Whether there was a commit since `hold`.
        self.dirty = False
        self._map_bytes = map_bytes
        self._max_readers = max_readers
        self._snapshot = Snapshot(directory, mmap.PAGESIZE, boot_id() if boot is None else boot)
        self._env: lmdb.Environment | None = None
        self._pin: Transaction[bytes] | None = None
        self._db: dict[str, Any] = {}
        #: Whether the snapshot was taken in this run; before that nothing may be written.
        self._begun = False

    def open(self) -> State:
        """Open the environment, from a snapshot if there is a new one, and give its state. Raises
        StoreCorrupt, StoreError, OSError; the environment is then closed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._begun = False
        self.restored = self._snapshot.restore()
        if self.restored:
            _logger.warning(
                "the machine died: %s is taken back to its last checkpoint, the rest is in the journal",
                self.directory,
            )
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
        except (
            lmdb.CorruptedError,
            lmdb.InvalidError,
            lmdb.VersionMismatchError,
            lmdb.PageNotFoundError,
            ValueError,
        ) as error:
            self.close(clean=False)
            raise StoreCorrupt(f"{self.directory} is damaged or of another format: {error}") from error
        except lmdb.Error as error:
            self.close(clean=False)
            raise StoreError(f"cannot open {self.directory}: {_reason(error)}") from error
        except OSError as error:
            self.close(clean=False)
            raise StoreError(
                f"cannot open {error.filename or self.directory}: {error.strerror or error}"
            ) from error
        except BaseException:
            self.close(clean=False)
            raise

    def _open_databases(self) -> State:
        assert self._env is not None
        for name in DATABASES:
            self._db[name] = self._env.open_db(name.encode())
        with self._env.begin(write=True) as txn:
            data = txn.get(STATE_KEY, db=self._db["meta"])
            self.dirty = self._begun
            if data is None:
                if not self._begun:
                    self._begin_now()
                txn.put(STATE_KEY, State().pack(), db=self._db["meta"])
                return State()
            return unpack_state(data)

    def _begin_life(self) -> None:
        """Take the snapshot before anything is written, because writing may reuse pages of an older
        snapshot."""
        self.env.sync(True)
        self._pin = self.env.begin()
        try:
            self._snapshot.save(self._snapshot.take())
            self._begun = True
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _logger.error(
                "cannot write %s: %s; messages are read, and none is taken until there is space",
                error.filename,
                error.strerror,
            )

    def _begin_now(self) -> None:
        """Take the snapshot that a start on a full disk could not. Raises StoreNotWritable."""
        try:
            self._snapshot.save(self._snapshot.take())
        except OSError as error:
            raise StoreNotWritable(
                f"cannot write {error.filename or self.directory}: {error.strerror or error}"
            ) from error
        self._begun = True

    @property
    def env(self) -> lmdb.Environment:
        """The open environment of the package lmdb. Raises StoreError when the environment is closed."""
        if self._env is None:
            raise StoreError(f"{self.directory} is closed")
        return self._env

    def db(self, name: str) -> Any:
        return self._db[name]

    def begin(self) -> Transaction[memoryview]:
        """A read transaction over all commits; its buffers end with it and must be copied to be kept. Raises
        StoreError."""
        try:
            return self.env.begin(buffers=True)
        except lmdb.Error as error:
            raise StoreError(f"cannot read {self.directory}: {_reason(error)}") from error

    def write(self, work: Callable[[Transaction[bytes]], None]) -> None:
        """Run `work` in a write transaction and commit it. Raises StoreNotWritable, without effect."""
        if not self._begun:
            self._begin_now()
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
            # LMDB reports an incomplete write as an input/output error.
            reason = f"{os.strerror(errno.ENOSPC)} ({reason})"
        return StoreNotWritable(f"cannot write {self.directory}: {reason}")

    def _free_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    # --- the device -----------------------------------------------------------------------------------------

    def hold(self) -> Held:
        """Hold the present commits for `sync`; nothing may be committed during the call, which is quick.
        Raises OSError, lmdb.Error."""
        held = self.env.begin(), self._snapshot.take()
        self.dirty = False
        return held

    def sync(self, held: Held) -> None:
        """Flush the held commits, and make them the state after a machine failure. Raises OSError,
        lmdb.Error."""
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
        """Free the reader table entries of dead processes; returns their number."""
        return self.env.reader_check()

    def take_reserve(self) -> None:
        """Let the map exceed its limit for a trim that found it full. Quick. To be called right after a
        `sync` of all commits, without other transactions than the one that holds them. Raises lmdb.Error."""
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        try:
            self.env.set_mapsize(self._map_bytes + TRIM_RESERVE_BYTES)
        finally:
            self._pin = self.env.begin()

    def close(self, clean: bool) -> None:
        """Close; `clean`: everything is flushed and nothing will have to be restored. A second call does
        nothing. Raises OSError, and is closed then."""
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
