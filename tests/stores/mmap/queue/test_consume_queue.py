"""The units of one queue, in files of four."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import StoreNotWritable
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue, MappedFiles
from rmqkit_store_mmap.queue.units import FILLER_SIZE, UNIT, UNIT_BYTES

FILE_UNITS = 4
SIZE = 100


class FullDisk(Disk):
    """Allocates nothing while it is full."""

    reads_block = True

    def __init__(self) -> None:
        self.is_full = False

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, offset, length)


def opened(path: Path, disk: Disk | None = None) -> ConsumeQueue:
    return ConsumeQueue("T", 0, str(path), FILE_UNITS * UNIT_BYTES, disk or FullDisk(), MappedFiles())


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    """An empty queue."""
    made = opened(tmp_path / "0")
    yield made
    made.unmap()


def unit(number: int) -> bytes:
    """The unit of the record with this number: records lie one after the other in the log."""
    return UNIT.pack(number * SIZE, SIZE, number)


def put(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    queue.put_all(b"".join(map(unit, range(first, first + count))))


def codes(queue: ConsumeQueue, offset: int = 0) -> list[int]:
    """The tags codes of all units from an offset on."""
    data = b"".join(queue.data(offset, queue.next_offset))
    return [code for _, _, code in UNIT.iter_unpack(data)]


def names(queue: ConsumeQueue) -> list[int]:
    return sorted(int(path.name) // UNIT_BYTES for path in queue.directory.iterdir())


def test_units_go_from_file_to_file(queue: ConsumeQueue) -> None:
    """A run of units may fill several files; reads cross them as well, and end with the queue."""
    put(queue, 3)
    put(queue, 7, first=3)
    assert names(queue) == [0, 4, 8]
    assert codes(queue) == [*range(10)]
    assert codes(queue, 5) == [5, 6, 7, 8, 9]
    assert queue.unit(9)[:] == (9, 9 * SIZE, SIZE, 9)
    assert queue.max_physical == 10 * SIZE


@pytest.mark.parametrize("crashed", [False, True])
@given(count=st.integers(1, 18))
def test_a_loaded_queue_ends_where_it_ended(
    tmp_path_factory: pytest.TempPathFactory, crashed: bool, count: int
) -> None:
    """After an orderly stop by bisection, after a crash by reading; a unit may follow in either case."""
    place = tmp_path_factory.mktemp("queue") / "0"
    before = opened(place)
    put(before, count)
    before.unmap()
    queue = opened(place)
    queue.load(crashed=crashed)
    assert (queue.next_offset, queue.max_physical) == (count, count * SIZE)
    put(queue, 1, first=count)
    assert codes(queue) == [*range(count + 1)]
    queue.unmap()


@given(count=st.integers(1, 14), kept=st.integers(0, 14))
def test_truncated_units_are_gone_for_good(
    tmp_path_factory: pytest.TempPathFactory, count: int, kept: int
) -> None:
    """Later files are deleted, the rest of the last file is zeroed, and a load finds the same end."""
    kept = min(kept, count)
    queue = opened(tmp_path_factory.mktemp("queue") / "0")
    put(queue, count)
    assert queue.truncate(kept) == (kept < count)
    assert codes(queue) == [*range(kept)]
    queue.unmap()
    again = opened(queue.directory)
    again.load(crashed=True)
    assert again.next_offset == kept


def test_units_of_a_shorter_log_are_dropped(queue: ConsumeQueue) -> None:
    """A unit stays when its record ends at or before the end of the log."""
    put(queue, 6)
    queue.truncate_physical(4 * SIZE + 1)
    assert codes(queue) == [0, 1, 2, 3]
    queue.truncate_physical(4 * SIZE)
    assert queue.next_offset == 4


def test_a_queue_that_begins_in_a_file_has_filler_before(queue: ConsumeQueue) -> None:
    """Its smallest offset is that of the first unit, not that of the file."""
    put(queue, 3)
    queue.begin_at(6)
    assert (queue.first, queue.min_offset, queue.next_offset) == (4, 6, 6)
    put(queue, 1, first=50)
    assert [queue.unit(at).size_bytes for at in (4, 5, 6)] == [FILLER_SIZE, FILLER_SIZE, SIZE]
    assert names(queue) == [4]


def test_the_smallest_offset_follows_the_log(queue: ConsumeQueue) -> None:
    """It is that of the first unit whose record the log still has, and never goes back."""
    put(queue, 6)
    queue.correct_min(0)
    assert queue.min_offset == 0
    queue.correct_min(2 * SIZE)
    assert queue.min_offset == 2
    queue.correct_min(0)
    assert queue.min_offset == 2


def test_a_full_disk_refuses_units_before_they_are_written(tmp_path: Path) -> None:
    """Reserved units fit nevertheless."""
    disk = FullDisk()
    queue = opened(tmp_path / "0", disk)
    queue.reserve(FILE_UNITS)
    disk.is_full = True
    put(queue, FILE_UNITS)
    with pytest.raises(StoreNotWritable):
        put(queue, 1, first=FILE_UNITS)
    assert codes(queue) == [0, 1, 2, 3]
    disk.is_full = False
    put(queue, 1, first=FILE_UNITS)
    assert codes(queue) == [0, 1, 2, 3, 4]
    queue.unmap()


def test_units_of_a_damaged_range_refer_to_what_replaced_it(queue: ConsumeQueue) -> None:
    """Those before and behind the range stay; only changed files are returned."""
    put(queue, 10)
    changed = queue.redirect([(5 * SIZE, 7 * SIZE, 2 * SIZE)])
    assert [int(path.name) // UNIT_BYTES for path in changed] == [4]
    places = [queue.unit(at)[1:3] for at in range(4, 8)]
    assert places == [(4 * SIZE, SIZE), (5 * SIZE, 2 * SIZE), (5 * SIZE, 2 * SIZE), (7 * SIZE, SIZE)]
