"""The journal of the LMDB store by itself: what is read again of what was written, whatever became of the files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqkit.errors import StoreCorrupt
from rmqkit_store_lmdb import journal as journal_module
from rmqkit_store_lmdb.journal import RECORDS, Frame, Journal, behind, journal_files, remove


def written(directory: Path, count: int, number: int = 0) -> list[Frame]:
    """Frames of different sizes behind one with a number, as they are to be read again."""
    journal = Journal(directory)
    assert list(journal.load(number)) == []
    frames = [Frame(number + at, RECORDS, at, b"%d" % at * (at * 7)) for at in range(1, count + 1)]
    for frame in frames:
        journal.put(frame.kind, frame.records, frame.data)
    assert journal.number == number + count
    journal.close()
    return frames


def read(directory: Path, after: int = 0) -> list[Frame]:
    journal = Journal(directory)
    found = list(journal.load(after))
    assert journal.number == after + len(found)
    journal.close()
    return found


@pytest.mark.parametrize("file_bytes", [1, 300, 1 << 20])
def test_frames_are_read_again(tmp_path: Path, file_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All behind a number, from any number of files; the journal goes on behind the last one."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", file_bytes)
    frames = written(tmp_path, 12)
    for after in range(13):
        assert read(tmp_path, after) == frames[after:]
        assert behind(tmp_path, after) == (after < 12)
    journal = Journal(tmp_path)
    list(journal.load(12))
    journal.put(RECORDS, 1, b"more")
    journal.close()
    assert read(tmp_path, 10) == [*frames[10:], Frame(13, RECORDS, 1, b"more")]


def test_a_torn_frame_ends_the_journal(tmp_path: Path) -> None:
    """Whichever of its bytes is wrong, and though whole frames follow; what is written then takes its place, and those that followed never come back."""
    frames = written(tmp_path, 4)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    starts = [data.index(frame.data) - 24 for frame in frames]
    for at in range(starts[2], starts[3]):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert read(tmp_path) == frames[:2]
    journal = Journal(tmp_path)
    list(journal.load(0))
    journal.put(RECORDS, 1, b"third")
    journal.close()
    assert read(tmp_path) == [*frames[:2], Frame(3, RECORDS, 1, b"third")]


def test_files_behind_a_tear_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be read again once frames have their numbers."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 1)
    frames = written(tmp_path, 6)
    files = sorted(tmp_path.iterdir())
    files[2].write_bytes(b"")
    assert read(tmp_path) == frames[:2]
    assert sorted(tmp_path.iterdir()) == files[:2]


def test_a_journal_that_begins_too_late_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that was promised is missing then."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 1)
    written(tmp_path, 3)
    min(tmp_path.iterdir()).unlink()
    with pytest.raises(StoreCorrupt, match="frame 1 of the journal is missing"):
        read(tmp_path)
    assert len(read(tmp_path, 1)) == 2


def test_files_that_are_not_needed_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without a frame behind a number go; the one that is written stays."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 60)
    journal = Journal(tmp_path)
    list(journal.load(0))
    for number in range(6):
        journal.put(RECORDS, 1, b"%d" % number * 20)
    firsts = [file.first for file in journal_files(tmp_path)]
    assert firsts == [1, 2, 3, 4, 5, 6]
    remove(journal.drop(2))
    assert [file.first for file in journal_files(tmp_path)] == [3, 4, 5, 6]
    files = journal.hold()
    journal.flush(files)
    journal.flushed(files)
    remove(journal.drop(99))
    assert [file.first for file in journal_files(tmp_path)] == [6]
    journal.close(clean=True)
    assert journal_files(tmp_path) == []


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than usual is taken ahead when there is no more; a frame for which there is no room is none, and the next one gets its number."""
    left = 1_000

    def allocate(fd: int, offset: int, size: int) -> None:
        nonlocal left
        if size > left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= size

    journal = Journal(tmp_path)
    list(journal.load(0))
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    journal.put(RECORDS, 1, bytes(800))
    with pytest.raises(OSError, match="No space left"):
        journal.put(RECORDS, 1, bytes(800))
    journal.put(RECORDS, 1, bytes(100))
    journal.close()
    assert [(frame.number, len(frame.data)) for frame in read(tmp_path)] == [(1, 800), (2, 100)]
