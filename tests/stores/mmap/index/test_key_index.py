"""The index of keys over its files: the backlog, its order, and which files a start and a trim remove."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqkit.errors import StoreNotWritable
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap.index import key_index
from rmqkit_store_mmap.index.key_index import EVERYTHING, KeyIndex
from rmqkit_store_mmap.log.disk import Disk

CODE = extend_hash(0, "T#")
EVER = 1 << 60
NOW_MS = 1_700_000_000_000


def index_of(directory: Path, disk: Disk | None = None, *, entries: int = 5) -> KeyIndex:
    """An open index whose files have room for four keys."""
    index = KeyIndex(directory / "index", 7, entries, disk or Disk())
    index.load(False, 0, None)
    return index


def noted(index: KeyIndex, first: int, last: int) -> None:
    """A record each hundred bytes and each second, with one key."""
    for number in range(first, last):
        index.note(CODE, None, f"k{number}", number * 100, NOW_MS + number * 1000)


def found(index: KeyIndex, key: str, begin_ms: int = 0, end_ms: int = EVER) -> list[int]:
    return list(index.find(CODE, key, begin_ms, end_ms))


def test_keys_are_found_before_and_after_they_are_in_a_file(tmp_path: Path) -> None:
    """The newest record comes first, whether its key is noted or indexed; the keys of one message are indexed
    together."""
    index = index_of(tmp_path)
    index.note(CODE, "u", "a b", 0, NOW_MS)
    index.drain(1)
    assert len(index.backlog) == 0
    index.note(CODE, None, "a", 100, NOW_MS + 1000)
    assert found(index, "a") == [100, 0]
    assert found(index, "u") == found(index, "b") == [0]
    assert index.newest == (NOW_MS + 1000, 100)
    assert index.last == (NOW_MS, 0)
    index.close()


def test_what_is_not_written_is_not_indexed(tmp_path: Path) -> None:
    """An entry cannot be removed, so keys of records that may be lost stay noted."""
    index = index_of(tmp_path)
    noted(index, 0, 3)
    index.written_to = 200
    index.drain(9)
    assert [index.backlog[at][1] for at in range(len(index.backlog))] == [200]
    assert not index.ready
    assert index.newest == (NOW_MS + 1000, 100)
    index.written_to = EVERYTHING
    assert index.ready
    index.close()


def test_files_follow_each_other_and_are_removed_with_the_log(tmp_path: Path) -> None:
    """A trim takes the files whose records are gone, but never an unflushed one, nor the newest."""
    index = index_of(tmp_path)
    noted(index, 0, 10)
    index.drain(10)
    assert [file.end_offset for file in index.files] == [300, 700, 900]
    assert index.full_waits
    assert index.detach(EVER) == []
    index.flush_all(1000)
    assert not index.full_waits
    assert [file.end_offset for file in index.detach(700)] == [300]
    assert [file.end_offset for file in index.detach(EVER)] == [700]
    assert found(index, "k9") == [900]
    index.close()


def test_a_full_disk_keeps_what_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append is refused with the reason, and the keys are indexed when there is room again."""

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    index = index_of(tmp_path)
    noted(index, 0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(key_index, "IndexFile", full)
        with pytest.raises(StoreNotWritable, match=r"no disk for the index in .*index.*No space left"):
            index.drain(3)
    assert len(index.backlog) == 3
    index.drain(3)
    assert len(index.backlog) == 0
    assert [found(index, f"k{number}") for number in range(3)] == [[0], [100], [200]]
    index.close()


def test_a_backlog_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the append indexes the keys itself."""
    monkeypatch.setattr(key_index, "MAX_BACKLOG", 3)
    index = index_of(tmp_path)
    noted(index, 0, 2)
    assert len(index.backlog) == 2
    noted(index, 2, 3)
    assert len(index.backlog) == 0
    index.close()


def test_a_crash_without_a_mark_keeps_full_flushed_files_only(tmp_path: Path) -> None:
    """The others are deleted, and their records have to be indexed again; a closed index is complete."""
    index = index_of(tmp_path)
    noted(index, 0, 6)
    index.drain(6)
    index.flush_all(600)
    full_time_ms = index.full_time_ms
    index.close()
    index.load(False, full_time_ms, None)
    assert (len(index.files), index.next_offset) == (2, None)
    index.close()
    index.load(True, full_time_ms, None)
    assert ([file.end_offset for file in index.files], index.next_offset) == ([300], 300)
    assert found(index, "k5") == []
    index.close()


@pytest.mark.parametrize("crashed", [True, False])
def test_a_mark_brings_the_files_back_to_its_state(tmp_path: Path, crashed: bool) -> None:
    """What was indexed after the mark is indexed again from there, and files that the mark does not know are
    deleted."""
    index = index_of(tmp_path)
    noted(index, 0, 3)
    index.drain(3)
    index.flush_all(300)
    mark = index.mark
    noted(index, 3, 9)
    index.drain(6)
    index.close()
    index.load(crashed, 0, mark)
    assert (len(index.files), index.next_offset, index.incomplete) == (1, 300, False)
    assert [found(index, f"k{number}") for number in range(5)] == [[0], [100], [200], [], []]
    index.close()


def test_a_cut_forgets_noted_and_indexed_keys(tmp_path: Path) -> None:
    """Files behind the cut go, entries of the last one are removed, and what follows is found."""
    index = index_of(tmp_path)
    noted(index, 0, 6)
    index.drain(6)
    noted(index, 6, 8)
    index.free(index.cut(200), 200, lambda offset: NOW_MS + offset * 10)
    assert index.mark is None
    assert len(list(index.directory.iterdir())) == 1
    assert [found(index, f"k{number}") for number in (1, 2, 5, 7)] == [[100], [], [], []]
    noted(index, 2, 3)
    index.drain(1)
    assert found(index, "k2") == [200]
    assert not index.ends_behind(201)
    assert index.ends_behind(200)
    index.close()
