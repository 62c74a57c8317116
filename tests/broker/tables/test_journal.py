"""The journal of a table: the changes read by a start after every kind of end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqkit.broker.tables.journal import TableJournal
from rmqkit.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.journal"


@pytest.fixture
def journal(path: Path) -> TableJournal:
    journal = TableJournal(path)
    journal.append([b"1", b"2"])
    return journal


def read(path: Path) -> list[bytes]:
    return TableJournal(path).load()


def test_without_files_there_are_no_changes(path: Path) -> None:
    """There is none at a first start and after a clean stop, and reading creates none."""
    assert read(path) == []
    assert not path.parent.exists()


def test_changes_are_read_in_their_order(journal: TableJournal, path: Path) -> None:
    """The order is kept, also by a journal that continues another one."""
    again = TableJournal(path)
    assert again.load() == [b"1", b"2"]
    again.append([b"3"])
    assert read(path) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_line_that_is_not_whole_is_left_out(
    journal: TableJournal, path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that died while writing leaves part of a line, which was never acknowledged. The next change
    takes its place."""
    path.write_bytes(path.read_bytes()[:-cut])
    again = TableJournal(path)
    assert again.load() == [b"1"]
    assert not caplog.records
    again.append([b"3"])
    assert read(path) == [b"1", b"3"]


@pytest.mark.parametrize("damage", [bytes(9), b"00000000 1", b"zzzzzzzz 1", b""])
def test_a_damaged_line_costs_no_other(
    journal: TableJournal, path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged line in the middle is skipped with an error in the log; later changes apply."""
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damage + b"\n" + second + first)
    assert read(path) == [b"2", b"1"]
    assert f"{path}: 1 of its 3 changes are damaged and left out" in caplog.text


def test_a_file_that_cannot_be_read_stops_the_start(path: Path) -> None:
    """The start fails with the file's name instead of losing its changes."""
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"topics\.journal cannot be read"):
        read(path)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_write_leaves_nothing(
    journal: TableJournal, path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused change does not exist after a restart, whether writing or flushing failed."""
    real, calls = getattr(os, call), 0

    def failing(fd: int, *rest: object) -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and call == "pwrite":
            data, offset = rest
            assert isinstance(data, bytes)
            return int(real(fd, data[:4], offset))
        if calls <= 2 - (call == "fdatasync"):
            raise OSError(28, "No space left on device")
        return int(real(fd, *rest) or 0)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(OSError, match="No space left"):
            journal.append([b"refused"])
    assert not journal.is_ragged
    assert read(path) == [b"1", b"2"]
    journal.append([b"3"])
    assert read(path) == [b"1", b"2", b"3"]


def test_what_cannot_be_cut_off_is_cut_off_later(
    journal: TableJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If truncation fails too, the journal reports it, and the next repair or write removes the rest."""

    def broken(fd: int, *rest: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(OSError, match="Input/output"):
            journal.append([b"refused"])
    assert journal.is_ragged
    assert read(path) == [b"1", b"2", b"refused"]
    journal.repair()
    assert read(path) == [b"1", b"2"]


def test_folding_keeps_what_comes_meanwhile(journal: TableJournal, path: Path) -> None:
    """The old file is deleted when the table is written; the new one stays."""
    journal.rotate()
    journal.append([b"3"])
    assert read(path) == [b"1", b"2", b"3"]
    journal.drop_old()
    assert read(path) == [b"3"]
    assert journal.exists
    journal.rotate()
    journal.drop_old()
    assert not journal.exists


def test_an_old_file_of_a_failed_fold_is_never_replaced(journal: TableJournal, path: Path) -> None:
    """The changes in the old file may not be in a table yet."""
    journal.rotate()
    journal.append([b"3"])
    journal.rotate()
    journal.append([b"4"])
    assert read(path) == [b"1", b"2", b"3", b"4"]
