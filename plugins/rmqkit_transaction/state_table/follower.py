"""Follows the log and keeps the redo log and the state table (Java: the dispatch of DefaultMessageStore
before version 4.3, TransactionStateService)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from rmqkit.errors import ConfigError, StoreError
from rmqkit.log_limit import limited_logger
from rmqkit.model.properties import PRODUCER_GROUP
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher
from rmqkit.protocol.tags import java_hash
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_transaction.state_table.files import PREPARED, Redo, RedoLog, State, StateTable

_log: Final[logging.Logger] = limited_logger(__name__)
#: Pause between two writes of the progress, in seconds: what a start may have to read again of the log.
_SAVE_S = 1.0


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    """Everything before `offset` of the log is in the redo log. `clean` says that the state table belongs to
    it."""

    offset: int = 0
    clean: bool = False


class StateFollower(Dispatcher):
    """Enters prepared messages and their outcomes, in the order of the log, also on a slave.

    open_rows  log offset of each prepared message whose transaction is open, in order -> the number
               of its row
    known      whether these and the state table are complete; else whoever needs them makes them anew, from
               the redo log

    Memory: 150 bytes for each open transaction.
    """

    def __init__(self, directory: Path, rows_per_file: int) -> None:
        self._redo = RedoLog(directory / "redolog", rows_per_file)
        self.table = StateTable(directory / "statetable", rows_per_file)
        self._file = JsonFile(directory / "progress.json", _Progress)
        self._offset = self._saved = 0
        self.open_rows: dict[int, int] = {}
        #: Those of `open_rows` whose outcome was appended.
        self._ending: dict[int, int] = {}
        self.known = False

    @property
    def progress_offset(self) -> int:
        return self._saved

    async def open(self, log_start: int, log_end: int) -> None:
        try:
            found = self._file.load() or _Progress()
        except ConfigError as error:
            _log.error("transactions are read from the log anew, for their progress is lost: %s", error)
            found = _Progress()
        self._offset = self._saved = min(found.offset, log_end)
        is_clean = found.clean and found.offset <= log_end
        await trio.to_thread.run_sync(self._open_files, log_start, is_clean)

    def _open_files(self, log_start: int, is_clean: bool) -> None:
        self._redo.open(self._saved)
        rows = self.table.open()
        self.known = is_clean
        if is_clean:
            rows = [each for each in rows if each[1].physical_offset >= log_start]
            self.open_rows, self._ending = {row.physical_offset: number for number, row in rows}, {}
        else:
            self.begin_table()
        # Until `close` a death leaves the table behind the log.
        self._file.save(_Progress(self._saved))

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        for message, at in entries:
            kind = message.sys_flag & TRANSACTION_MASK
            if kind and at.physical_offset > self._redo.last_offset:
                is_prepared = kind == TRANSACTION_PREPARED
                prepared = PREPARED if is_prepared else message.prepared_offset
                if self.known and is_prepared:
                    group = message.properties.get(PRODUCER_GROUP, "")
                    self.enter(at.physical_offset, at.size_bytes, at.store_timestamp_ms, group)
                elif self.known:
                    self._set_state(prepared, kind)
                # Last, so that after an error the entry comes again.
                self._redo.append(Redo(at.physical_offset, at.size_bytes, prepared))
            self._offset = at.physical_offset + at.size_bytes

    def enter(self, physical_offset: int, size_bytes: int, store_time_ms: int, group: str) -> None:
        """Add the row of a prepared message, unless it is there. Raises OSError."""
        if physical_offset not in self.open_rows:
            seconds = store_time_ms // 1000
            row = State(physical_offset, size_bytes, seconds, java_hash(group), TRANSACTION_PREPARED)
            self.open_rows[physical_offset] = self.table.append(row)

    def close_row(self, physical_offset: int) -> None:
        """Let a transaction count as ended before its outcome is confirmed and comes to `dispatch`."""
        number = self.open_rows.pop(physical_offset, None)
        if number is not None:
            self._ending[physical_offset] = number

    def _set_state(self, physical_offset: int, state: int) -> None:
        self.close_row(physical_offset)
        number = self._ending.get(physical_offset)
        if number is not None:
            self.table.set_state(number, state)
            del self._ending[physical_offset]

    def begin_table(self) -> None:
        """Forget all rows, and number the next ones from 0 on. Raises OSError."""
        self.table.clear()
        self.open_rows, self._ending = {}, {}

    def open_in_redo_log(self) -> dict[int, int]:
        """The prepared messages of the redo log without an outcome: log offset -> size."""
        found: dict[int, int] = {}
        for row in self._redo.rows():
            if row.prepared_offset == PREPARED:
                found[row.physical_offset] = row.size_bytes
            else:
                found.pop(row.prepared_offset, None)
        return found

    async def run(self) -> None:
        while True:
            await trio.sleep(_SAVE_S)
            try:
                await self._save(clean=False)
            except OSError as error:
                _log.error("the redo log of transactions cannot be saved, trying again: %s", error)

    async def _save(self, *, clean: bool) -> None:
        offset = self._offset
        if offset != self._saved or clean:
            await trio.to_thread.run_sync(self._write, _Progress(offset, clean))
            self._saved = offset

    def _write(self, progress: _Progress) -> None:
        self._redo.files.sync()
        self.table.files.sync()
        self._file.save(progress)

    async def close(self) -> None:
        await self._save(clean=self.known)
        self._redo.files.close()
        self.table.files.close()

    def forget_before(self, log_start: int) -> None:
        for physical_offset in [offset for offset in self.open_rows if offset < log_start]:
            del self.open_rows[physical_offset]
        try:
            self._redo.remove_before(log_start)
            self.table.remove_before(log_start)
        except OSError as error:
            _log.error("old files of transactions cannot be removed, trying again: %s", error)

    async def forget_from(self, log_end: int) -> int:
        self.known = False
        self._offset = min(self._offset, log_end)
        try:
            await trio.to_thread.run_sync(self._forget, self._offset)
        except OSError as error:
            raise StoreError(f"the redo log of transactions cannot be cut: {error}") from error
        self._saved = self._offset
        return self._offset

    def _forget(self, end_offset: int) -> None:
        self._redo.files.close()
        self._redo.open(end_offset)
        self.begin_table()
        self._write(_Progress(end_offset))
