"""The files after one append, and the offsets that the store reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from struct import Struct
from threading import get_ident

import pytest
import trio

from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.record import unpack
from rmqkit.protocol.tags import java_hash
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    SMALL,
    SMALL_INDEX,
    FlushWhenWanted,
    NeverFlush,
    bodies,
    message,
    running,
    store_config,
)
from rmqkit_flush.policies import PAGE_BYTES
from rmqkit_store_mmap.index.index_file import IndexFile
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.store import MmapStore

#: Physical offset, size, hash of the tag.
UNIT = Struct(">qiq")


class CountingDisk(Disk):
    """Counts how often something was flushed to the device."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


@pytest.mark.row("S041", "S251", "S252", "S330", "S331")
async def test_a_message_is_in_its_queue_and_its_index_as_soon_as_it_is_in_the_log(tmp_path: Path) -> None:
    """The append itself writes record and consume-queue entry; the index follows, at the latest at a
    query."""
    async with running(MmapStore(store_config(tmp_path), FakeClock(), NeverFlush())) as store:
        store.append([message(body=b"before")])
        (at,) = store.append([message(queue_id=2, body=b"new", tag="A", keys="k1 k2", unique_key="U")])
        assert store.read_units("Orders", 2, 0, 9) == [
            QueueUnit(0, at.physical_offset, at.size_bytes, java_hash("A"))
        ]
        on_disk = (tmp_path / "consumequeue" / "Orders" / "2" / "00000000000000000000").read_bytes()[
            : UNIT.size
        ]
        assert UNIT.unpack(on_disk) == (at.physical_offset, at.size_bytes, java_hash("A"))
        log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
        assert unpack(log[at.physical_offset : at.physical_offset + at.size_bytes]).body == b"new"
        assert list((tmp_path / "index").iterdir()) == []
        for key in ("k1", "k2", "U"):
            assert store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets == [at.physical_offset]


@pytest.mark.row("S250")
async def test_where_the_log_begins_ends_and_is_safe(tmp_path: Path) -> None:
    """Minimum, maximum and flushed offset; written records are beyond the flushed offset until a flush."""
    store = MmapStore(store_config(tmp_path, **SMALL), FakeClock(), FlushWhenWanted())
    async with running(store):
        sizes = [at.size_bytes for at in store.append([message(body=b"x" * 100) for _ in range(3)])]
        found = store.statistics()
        assert (found.min_physical_offset, found.max_physical_offset, found.flushed_physical_offset) == (
            0,
            sum(sizes),
            0,
        )
        await store.settled(sum(sizes), Level.FLUSHED)
        assert store.statistics().flushed_physical_offset == sum(sizes)


@pytest.mark.row("S239", "S244")
async def test_what_is_written_lies_in_the_page_cache(tmp_path: Path) -> None:
    """A file's map and its bytes as others read them are the same, long before anything reaches the device;
    pages have 4 KiB."""
    disk = CountingDisk()
    async with running(MmapStore(store_config(tmp_path), FakeClock(), NeverFlush(), disk=disk)) as store:
        before = disk.syncs
        (at,) = store.append([message(body=b"x" * 10_000)])
        record = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()[: at.size_bytes]
        assert unpack(record).body == b"x" * 10_000
        assert bodies(store) == [b"x" * 10_000]
        assert store.statistics().flushed_physical_offset == 0
        assert disk.syncs == before
    assert PAGE_BYTES == 4096


@pytest.mark.row("S244")
def test_a_segment_is_a_file_of_full_size_with_a_descriptor_and_a_map(tmp_path: Path) -> None:
    """It is named by its first offset; writes through the descriptor are visible through the map."""
    segment = Segment(tmp_path, 8192, 4096)
    Disk().write(segment.open(), [b"abc", b"de"], 100)
    assert segment.path == tmp_path / "00000000000000008192"
    assert segment.path.stat().st_size == 4096
    assert bytes(segment.view()[98:107]) == b"\0\0abcde\0\0"
    assert (segment.view().readonly, len(segment.view()), segment.stop) == (True, 4096, 12_288)
    segment.close()


@pytest.mark.row("S291")
async def test_a_query_looks_into_the_newest_files_first_and_only_where_the_times_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newest messages come first; a file whose times lie outside the range of the query is not searched."""
    looked: list[str] = []
    find = IndexFile.find

    def noting(file: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        looked.append(file.path.name)
        return find(file, key_hash, begin_ms, end_ms)

    monkeypatch.setattr(IndexFile, "find", noting)
    clock = FakeClock()
    async with running(MmapStore(store_config(tmp_path, **SMALL_INDEX), clock, NeverFlush())) as store:
        places, times = [], []
        for _ in range(9):
            (at,) = store.append([message(keys="k")])
            places.append(at.physical_offset)
            times.append(clock.now_ms())
            clock.advance(10_000)
        store._index.drain(9)
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 99).physical_offsets == places[::-1]
        files = sorted(path.name for path in (tmp_path / "index").iterdir())
        assert len(files) == 3
        assert looked == files[::-1]
        looked.clear()
        assert store.query_by_key("Orders", "k", times[3], times[4], 99).physical_offsets == [
            places[4],
            places[3],
        ]
        assert looked == [files[1]]
        looked.clear()
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 2).physical_offsets == [places[8], places[7]]
        assert looked == [files[2]]


class ThreadsDisk(Disk):
    """Records the threads that change or flush files."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def punch(self, fd: int, start: int, stop: int) -> None:
        self.threads.add(get_ident())
        super().punch(fd, start, stop)

    def sync(self, fd: int) -> None:
        self.threads.add(get_ident())
        super().sync(fd)


async def test_a_log_is_cut_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments and index files of a truncated log are cut, flushed and deleted in worker threads, and other
    tasks run between the queues."""
    disk, deleted, turns = ThreadsDisk(), set[int](), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def unlink(path: Path) -> None:
        deleted.add(get_ident())
        os.unlink(path)

    config = store_config(tmp_path, **SMALL, **SMALL_INDEX)
    store = MmapStore(config, FakeClock(), FlushWhenWanted(), disk=disk)
    async with running(store), trio.open_nursery() as nursery:
        store.append([message(queue_id=at % 8, body=bytes(900), keys="k", tag="A") for at in range(8)])
        end = store.end_offset
        store.append([message(queue_id=at % 8, body=bytes(900), keys="k", tag="A") for at in range(200)])
        await store.settled(store.end_offset, Level.FLUSHED)
        segments = len(list(config.commit_log_path.iterdir()))
        disk.threads.clear()
        monkeypatch.setattr(Segment, "remove", partialmethod(_remove_by, unlink))
        nursery.start_soon(count_turns)
        await store.truncate(end)
        nursery.cancel_scope.cancel()
    assert len(list(config.commit_log_path.iterdir())) < segments
    assert len(disk.threads) > 0 < len(deleted)
    assert get_ident() not in disk.threads | deleted
    assert turns >= 8


def _remove_by(segment: Segment, unlink: Callable[[Path], None]) -> None:
    segment.close()
    unlink(segment.path)
