"""The files of the log, its ends, and flushing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.protocol.record import BLANK_BYTES
from rmqkit_store_mmap.log.commit_log import CommitLog, FileMissing, checked_files
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.segment import offset_name

SEGMENT_BYTES = 4096


class BrokenDisk(Disk):
    """Notes what is flushed, and fails writes or flushes while told to."""

    def __init__(self) -> None:
        self.fails_writes = self.fails_syncs = False
        self.synced: list[str] = []

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.fails_writes:
            os.pwrite(fd, bytes(parts[0]), offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        if self.fails_syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        super().sync(fd)


@pytest.fixture
def disk() -> BrokenDisk:
    return BrokenDisk()


@pytest.fixture
def log(tmp_path: Path, disk: BrokenDisk) -> Iterator[CommitLog]:
    """A log without files."""
    made = CommitLog(tmp_path, SEGMENT_BYTES, disk)
    made.load()
    yield made
    made.close()


def append(log: CommitLog, data: bytes, time_ms: int = 1) -> None:
    """Write data at the end of the log, in the segment there."""
    segment, reserved_until = log.room()
    if log.position + len(data) > reserved_until:
        log.allocate(segment, log.position, len(data))
    log.write([(segment, log.position, [data])], log.position + len(data), time_ms)


def fill(log: CommitLog, files: int) -> None:
    """Write whole segments."""
    for _ in range(files):
        append(log, b"x" * SEGMENT_BYTES)


def test_what_is_written_can_be_read_within_a_segment(log: CommitLog) -> None:
    """Nothing is returned before the log, behind its written end, or across the end of a segment."""
    fill(log, 1)
    append(log, b"abc")
    stop = SEGMENT_BYTES
    assert log.position == log.written == stop + 3
    assert bytes(log.record(stop, 3) or b"") == b"abc"
    assert log.record(stop, 4) is None
    assert log.record(stop - 1, 2) is None
    assert log.record(0, 0) is None
    assert log.stretch_at(10) == (0, stop)
    assert log.stretch_at(stop + 1) == (stop, stop + 3)
    assert log.stretch_at(3 * stop) == (0, 0)


def test_room_leaves_place_for_a_blank_record(log: CommitLog) -> None:
    """Allocated space ends with a blank record, in this segment and in the next one."""
    segment, _ = log.room()
    assert log.allocate(segment, 0, 100) == SEGMENT_BYTES - BLANK_BYTES
    following = log.next_segment(segment, 100)
    assert (following.base, log.reserved_until(following)) == (SEGMENT_BYTES, 2 * SEGMENT_BYTES - BLANK_BYTES)
    assert log.next_segment(segment, 100) is following


def test_a_failed_write_leaves_zeros_and_the_end_where_it_was(log: CommitLog, disk: BrokenDisk) -> None:
    """The log takes the next append at the same place."""
    append(log, b"first")
    disk.fails_writes = True
    with pytest.raises(StoreNotWritable, match="cannot write"):
        append(log, b"lost")
    assert (log.position, log.written, log.last_time_ms) == (5, 5, 1)
    assert (log.directory / offset_name(0)).read_bytes()[5:9] == bytes(4)
    disk.fails_writes = False
    append(log, b"next")
    assert bytes(log.record(0, 9) or b"") == b"firstnext"


async def test_a_flush_covers_the_files_that_changed(log: CommitLog, disk: BrokenDisk) -> None:
    """Full and flushed files are not flushed again, and without new data nothing is."""
    fill(log, 2)
    append(log, b"abc", time_ms=7)
    assert await log.flush() == log.flushed == 2 * SEGMENT_BYTES + 3
    assert log.flushed_time_ms == 7
    assert disk.synced == [offset_name(base) for base in (0, SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    append(log, b"d")
    await log.flush()
    await log.flush()
    assert disk.synced[3:] == [offset_name(2 * SEGMENT_BYTES)]


async def test_a_failed_flush_ends_the_log(log: CommitLog, disk: BrokenDisk) -> None:
    """The state of the device is unknown: appends, flushes and those who wait are refused, also when the
    device works again."""
    append(log, b"abc")
    disk.fails_syncs = True
    with pytest.raises(StoreNotWritable, match="failed to flush"):
        await log.flush()
    disk.fails_syncs = False
    assert log.refusal is not None
    with pytest.raises(StoreNotWritable):
        await log.flush()
    with pytest.raises(StoreNotWritable):
        await log.wait_flushed(3)
    assert log.flushed == 0


async def test_a_task_that_waits_asks_for_a_flush(log: CommitLog) -> None:
    """It continues when its data is flushed; beyond the end of the log there is nothing to wait for."""
    append(log, b"abc")
    done: list[str] = []

    async def wait() -> None:
        await log.wait_flushed(3)
        done.append("flushed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await log.progress_wanted()
        assert not done
        await log.flush()
    assert done == ["flushed"]
    with pytest.raises(StoreError, match="behind the end of the log"):
        await log.wait_flushed(4)


async def test_only_full_and_flushed_segments_are_removable(log: CommitLog) -> None:
    """The newest one stays; the log begins after what was detached."""
    fill(log, 3)
    assert log.removable() == []
    await log.flush()
    assert [segment.base for segment in log.removable()] == [0, SEGMENT_BYTES]
    assert log.removable_end(2 * SEGMENT_BYTES - 1) == SEGMENT_BYTES
    gone = log.detach(2 * SEGMENT_BYTES - 1)
    assert [segment.base for segment in gone] == [0]
    assert log.min_offset == SEGMENT_BYTES
    assert log.record(0, 1) is None
    for segment in gone:
        segment.remove()


async def test_a_cut_log_ends_with_zeros(log: CommitLog) -> None:
    """Segments behind the new end are deleted, and all ends go back with it."""
    fill(log, 3)
    await log.flush()
    log.free(log.cut(SEGMENT_BYTES + 10))
    assert log.position == log.written == log.flushed == SEGMENT_BYTES + 10
    assert sorted(path.name for path in log.directory.iterdir()) == [
        offset_name(0),
        offset_name(SEGMENT_BYTES),
    ]
    assert (log.directory / offset_name(SEGMENT_BYTES)).read_bytes() == b"x" * 10 + bytes(SEGMENT_BYTES - 10)


def test_a_start_counts_what_it_drops(log: CommitLog) -> None:
    """Bytes up to the last one that is not zero, and whole segments."""
    fill(log, 1)
    append(log, b"abc" + bytes(5))
    fill_behind = 2 * SEGMENT_BYTES
    (log.directory / offset_name(fill_behind)).write_bytes(bytes(SEGMENT_BYTES))
    log.close()
    log.load()
    assert log.start_at(SEGMENT_BYTES + 1) == (2, 1)
    assert log.position == SEGMENT_BYTES + 1
    assert not (log.directory / offset_name(fill_behind)).exists()


def test_a_loaded_log_begins_with_its_first_file(log: CommitLog, tmp_path: Path) -> None:
    """An empty last file, which a crash may leave, is deleted."""
    for base, size in ((2, SEGMENT_BYTES), (3, SEGMENT_BYTES), (4, 0)):
        (tmp_path / offset_name(base * SEGMENT_BYTES)).write_bytes(bytes(size))
    log.load()
    assert log.min_offset == log.position == 2 * SEGMENT_BYTES
    assert [*log.segments] == [2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
    assert not (tmp_path / offset_name(4 * SEGMENT_BYTES)).exists()


@pytest.mark.parametrize(
    ("files", "error", "text"),
    [
        ({"other": 0}, StoreCorrupt, "does not belong"),
        ({offset_name(0): 10}, StoreCorrupt, "has 10 bytes, the settings say 4096"),
        ({offset_name(0): SEGMENT_BYTES, offset_name(2 * SEGMENT_BYTES): SEGMENT_BYTES}, FileMissing, "4096"),
    ],
)
def test_a_wrong_file_is_named(
    tmp_path: Path, files: dict[str, int], error: type[StoreCorrupt], text: str
) -> None:
    """A wrong name or size, and a gap, which a recovery treats by itself."""
    for name, size in files.items():
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(error, match=text):
        checked_files(tmp_path, SEGMENT_BYTES)
