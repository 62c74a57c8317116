"""The redo log and the state table (store-format sheet, section 11.2).

    redo log, 20 bytes       physical offset i64, size i32, i64: -1 for a prepared message, else the offset of
    the prepared one that it commits or rolls back state table, 24 bytes    physical offset i64, size i32,
    store time i32 in seconds, hash of the producer group i32, state i32: 4 prepared, 8 committed, 12 rolled
    back

Prepared messages and their outcomes enter both in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit_transaction.state_table.row_files import RowFiles

_REDO = Struct(">qiq")
_STATE = Struct(">qiiii")
_I32 = Struct(">i")
_STATE_AT = 20
PREPARED = -1
STATES = frozenset({TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK})


class Redo(NamedTuple):
    """A row of the redo log. `prepared_offset` is PREPARED for a prepared message."""

    physical_offset: int
    size_bytes: int
    prepared_offset: int


class State(NamedTuple):
    """A row of the state table."""

    physical_offset: int
    size_bytes: int
    store_time_s: int
    group_hash: int
    state: int


class RedoLog:
    """The redo log of one broker; OSError as RowFiles."""

    def __init__(self, directory: Path, rows_per_file: int) -> None:
        self.files = RowFiles(directory, _REDO.size, rows_per_file)
        #: The offset of the last message.
        self.last_offset = -1

    def open(self, end_offset: int) -> None:
        """Open the files, and let the rows end before the first one of a message from `end_offset` on."""
        self.files.open()
        end = self.files.first
        self.last_offset = -1
        for row in self.rows():
            if row.physical_offset >= end_offset:
                break
            end, self.last_offset = end + 1, row.physical_offset
        self.files.truncate(end)

    def rows(self) -> Iterator[Redo]:
        """All rows, up to the first that is none."""
        for _, data in self.files.blocks(0):
            for values in _REDO.iter_unpack(data):
                row = Redo(*values)
                if row.size_bytes <= 0 or row.physical_offset < 0:
                    return
                yield row

    def append(self, row: Redo) -> None:
        self.files.append(_REDO.pack(*row))
        self.last_offset = row.physical_offset

    def remove_before(self, log_start: int) -> None:
        """Remove the files whose messages are all before the start of the log."""
        _remove_before(self.files, _REDO, log_start)


class StateTable:
    """The state table of one broker; OSError as RowFiles."""

    def __init__(self, directory: Path, rows_per_file: int) -> None:
        self.files = RowFiles(directory, _STATE.size, rows_per_file)

    def open(self) -> list[tuple[int, State]]:
        """Open the files; the table ends before the first row that is none. Returns the rows of prepared
        messages with their numbers."""
        self.files.open()
        prepared: list[tuple[int, State]] = []
        end = self.files.first
        for number, row in self._rows():
            end = number + 1
            if row.state == TRANSACTION_PREPARED:
                prepared.append((number, row))
        self.files.truncate(end)
        return prepared

    def _rows(self) -> Iterator[tuple[int, State]]:
        for first, data in self.files.blocks(0):
            for number, values in enumerate(_STATE.iter_unpack(data), first):
                row = State(*values)
                if row.physical_offset < 0 or row.size_bytes <= 0 or row.state not in STATES:
                    return
                yield number, row

    def append(self, row: State) -> int:
        """Add a row; returns its number."""
        return self.files.append(_STATE.pack(*row))

    def read(self, number: int) -> State | None:
        data = self.files.read(number)
        return State(*_STATE.unpack(data)) if data else None

    def set_state(self, number: int, state: int) -> None:
        self.files.change(number, _STATE_AT, _I32.pack(state))

    def remove_before(self, log_start: int) -> None:
        """Remove the files whose messages are all before the start of the log."""
        _remove_before(self.files, _STATE, log_start)

    def clear(self) -> None:
        """Remove all rows, and number the next ones from 0 on."""
        self.files.truncate(0)


def _remove_before(files: RowFiles, row: Struct, log_start: int) -> None:
    gone = [end for end, data in files.last_rows() if data and row.unpack(data)[0] < log_start]
    if gone:
        files.remove_before(gone[-1])
