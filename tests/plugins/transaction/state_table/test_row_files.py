"""Rows in files, against a list."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmqkit_transaction.state_table.row_files import RowFiles

ROW_BYTES, ROWS = 4, 3


def row_of(number: int) -> bytes:
    return (number + 1).to_bytes(ROW_BYTES, "big")


class AgainstAList(RuleBasedStateMachine):
    """The same calls on both, with closed and opened files in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.rows: list[bytes] = []
        self.removed = 0
        self.files = RowFiles(Path(self.folder.name), ROW_BYTES, ROWS)
        self.files.open()

    @rule(count=st.integers(1, 7))
    def append(self, count: int) -> None:
        for _ in range(count):
            assert self.files.append(row_of(len(self.rows))) == len(self.rows)
            self.rows.append(row_of(len(self.rows)))

    @precondition(lambda self: len(self.rows) > self.removed)
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(self.removed, len(self.rows) - 1))
        self.files.change(number, 2, b"xy")
        self.rows[number] = self.rows[number][:2] + b"xy"

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.removed, len(self.rows)))
        self.files.truncate(end)
        del self.rows[end:]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.rows)))
        self.files.remove_before(number)
        self.removed = max(self.removed, number - number % ROWS)

    @rule()
    def reopen(self) -> None:
        end = self.files.end
        self.files.sync()
        self.files.close()
        self.files = RowFiles(Path(self.folder.name), ROW_BYTES, ROWS)
        self.files.open()
        # A reader finds the end by the first row of zeros.
        assert self.files.end >= end or not any(Path(self.folder.name).iterdir())
        if self.files.end >= end:
            self.files.truncate(end)
        else:
            self.rows, self.removed = [], 0

    @invariant()
    def same(self) -> None:
        found = b"".join(data for _, data in self.files.blocks(0))
        assert found == b"".join(self.rows[self.removed :])
        for number in range(self.removed, len(self.rows)):
            assert self.files.read(number) == self.rows[number]

    def teardown(self) -> None:
        self.files.close()
        self.folder.cleanup()


AgainstAList.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAgainstAList = AgainstAList.TestCase


def test_a_file_has_its_whole_size_from_the_beginning(tmp_path: Path) -> None:
    """And the name of its first byte, as files of the log have."""
    files = RowFiles(tmp_path, ROW_BYTES, ROWS)
    files.open()
    for number in range(4):
        files.append(row_of(number))
    files.close()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        f"{0:020d}": 12,
        f"{12:020d}": 12,
    }


@pytest.mark.parametrize("strange", ["notes.txt", "0000", "1" * 19])
def test_other_files_stay(tmp_path: Path, strange: str) -> None:
    """They are not rows."""
    (tmp_path / strange).write_bytes(b"mine")
    files = RowFiles(tmp_path, ROW_BYTES, ROWS)
    files.open()
    files.append(row_of(0))
    files.close()
    assert (tmp_path / strange).read_bytes() == b"mine"


def test_files_before_a_gap_are_removed(tmp_path: Path) -> None:
    """As when one of them was deleted: the rows behind the gap count."""
    files = RowFiles(tmp_path, ROW_BYTES, ROWS)
    files.open()
    for number in range(9):
        files.append(row_of(number))
    files.close()
    (tmp_path / f"{12:020d}").unlink()
    files = RowFiles(tmp_path, ROW_BYTES, ROWS)
    files.open()
    assert (files.first, files.end) == (6, 9)
    assert files.read(6) == row_of(6)
    files.close()
