"""The journal of the LMDB store by itself: which frames are read again, whatever happened to the files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqkit.errors import StoreCorrupt
from rmqkit_store_lmdb.journal import journal as journal_module
from rmqkit_store_lmdb.journal.journal import DAMAGED, RECORDS, Frame, Journal, behind, journal_files, remove


def written(directory: Path, count: int, number: int = 0) -> list[Frame]:
    """Writes frames of different sizes after one with a number, and returns them as they must be read
    again."""
    journal = Journal(directory)
    assert list(journal.load(number)) == []
    frames = [Frame(number + at, RECORDS, at, b"%d" % at * (at * 99)) for at in range(1, count + 1)]
    for frame in frames:
        journal.put(frame.kind, frame.records, [frame.data])
    assert journal.number == number + count
    journal.close()
    return frames


def load(directory: Path) -> list[Frame]:
    journal = Journal(directory)
    found = list(journal.load(0))
    journal.close()
    return found


def read(directory: Path, after: int = 0) -> list[Frame]:
    journal = Journal(directory)
    found = list(journal.load(after))
    assert journal.number == after + len(found)
    journal.close()
    return found


@pytest.mark.parametrize("file_bytes", [1, 300, 1 << 20])
def test_frames_are_read_again(tmp_path: Path, file_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames after a number are read, from any number of files; the journal continues after the last
    one."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", file_bytes)
    frames = written(tmp_path, 12)
    for after in range(13):
        assert read(tmp_path, after) == frames[after:]
        assert behind(tmp_path, after) == (after < 12)
    journal = Journal(tmp_path)
    list(journal.load(12))
    journal.put(RECORDS, 1, [b"more"])
    journal.close()
    assert read(tmp_path, 10) == [*frames[10:], Frame(13, RECORDS, 1, b"more")]


def test_a_torn_frame_ends_the_journal(tmp_path: Path) -> None:
    """Whichever byte of the last frame is wrong, the journal ends before it, and the next frame overwrites
    it."""
    frames = written(tmp_path, 4)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    start = data.index(frames[3].data) - 24
    for at in range(start, start + 24 + len(frames[3].data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert read(tmp_path) == frames[:3]
    journal = Journal(tmp_path)
    list(journal.load(0))
    journal.put(RECORDS, 1, [b"fourth"])
    journal.close()
    assert read(tmp_path) == [*frames[:3], Frame(4, RECORDS, 1, b"fourth")]


def test_a_damaged_frame_with_others_behind_it(tmp_path: Path) -> None:
    """Whichever of its bytes is wrong, later frames are read; its content is returned as damaged as long as
    its header is legible."""
    frames = written(tmp_path, 5)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    starts = [data.index(frame.data) - 24 for frame in frames]
    for at in range(starts[1], starts[2]):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = load(tmp_path)
        assert [frame for frame in found if frame.kind != DAMAGED] == [frames[0], *frames[2:]]
        if at >= starts[1] + 24:
            assert [(frame.number, frame.records) for frame in found if frame.kind == DAMAGED] == [(2, 2)]
    for stop in range(starts[1] + 1, starts[4] + 1):
        path.write_bytes(data[: starts[1]] + bytes(stop - starts[1]) + data[stop:])
        kept = [frame for frame, start in zip(frames[2:], starts[2:], strict=True) if start >= stop]
        assert [frame for frame in load(tmp_path) if frame.kind != DAMAGED] == [frames[0], *kept]


def test_a_damaged_end_of_a_file_with_another_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of the later file are read; bytes after the last frame are removed, so that a later start
    does not find them."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 1)
    frames = written(tmp_path, 6)
    files = sorted(tmp_path.iterdir())
    files[2].write_bytes(b"")
    files[5].write_bytes(files[5].read_bytes()[:30])
    assert load(tmp_path) == [*frames[:2], *frames[3:5]]
    assert sorted(tmp_path.iterdir()) == files[:5]
    journal = Journal(tmp_path)
    list(journal.load(0))
    journal.put(RECORDS, 1, [b"sixth"])
    journal.close()
    assert load(tmp_path) == [*frames[:2], *frames[3:5], Frame(6, RECORDS, 1, b"sixth")]


def test_a_journal_that_begins_too_late_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged frames are missing in that case."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 1)
    written(tmp_path, 3)
    min(tmp_path.iterdir()).unlink()
    with pytest.raises(StoreCorrupt, match="frame 1 of the journal is missing"):
        read(tmp_path)
    assert len(read(tmp_path, 1)) == 2


def test_files_that_are_not_needed_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a frame after a number are deleted; the file being written stays."""
    monkeypatch.setattr(journal_module, "FILE_BYTES", 60)
    journal = Journal(tmp_path)
    list(journal.load(0))
    for number in range(6):
        journal.put(RECORDS, 1, [b"%d" % number * 20])
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


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When less than the usual space is free, less is allocated ahead; a frame without space is not written,
    and the next one gets its number."""
    left = 1_000

    def allocate(fd: int, offset: int, size: int) -> None:
        nonlocal left
        if size > left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= size

    journal = Journal(tmp_path)
    list(journal.load(0))
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    journal.put(RECORDS, 1, [bytes(800)])
    with pytest.raises(OSError, match="No space left"):
        journal.put(RECORDS, 1, [bytes(800)])
    journal.put(RECORDS, 1, [bytes(100)])
    journal.close()
    assert [(frame.number, len(frame.data)) for frame in read(tmp_path)] == [(1, 800), (2, 100)]
