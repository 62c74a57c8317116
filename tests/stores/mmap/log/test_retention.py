"""Trimming a mmap store, and full disks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import StoreError
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import LogPart, ReadStatus, Trimmed
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    SMALL_INDEX,
    FlushWhenWanted,
    NeverFlush,
    bodies,
    message,
    records,
    running,
    store_config,
)
from rmqkit_store_mmap.log import commit_log
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk, delete_file
from rmqkit_store_mmap.queue.queue_trim import QueueFiles, dead_files, first_kept
from rmqkit_store_mmap.queue.units import FILLER, UNIT, UNIT_BYTES
from rmqkit_store_mmap.store import MmapStore

SEGMENT_BYTES = 66_560
QUEUE_FILE_UNITS = 10


def make(directory: Path, **settings: Any) -> MmapStore:
    return MmapStore(store_config(directory, **SMALL | settings), FakeClock(), FlushWhenWanted())


async def fill(store: MmapStore, segments: int) -> list[LogPart]:
    """Fill so many segments with messages of one queue, with keys; flushed. Returns the parts that can be
    deleted."""
    while store.end_offset < segments * SEGMENT_BYTES:
        store.append([message(body=b"x" * 900, keys=f"k{store.max_offset('Orders', 0)}")])
    await store.settled(store.end_offset, Level.FLUSHED)
    return await store.log_parts()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.row("S342")
async def test_files_go_with_what_they_hold(tmp_path: Path) -> None:
    """Log files are deleted, and with them the queue and index files of their records; unread messages do not
    keep a file."""
    store = make(tmp_path, **SMALL_INDEX)
    async with running(store):
        parts = await fill(store, 4)
        store._index.drain(len(store._index.backlog))
        await store._index.flush(store.end_offset)
        queue, index = tmp_path / "consumequeue" / "Orders" / "0", tmp_path / "index"
        queue_files, index_files = names(queue), names(index)
        trimmed = await store.trim(parts[1].end)
        low = store.min_offset("Orders", 0)
        assert names(tmp_path / "commitlog")[0] == f"{2 * SEGMENT_BYTES:020d}"
        assert names(queue) == queue_files[low // QUEUE_FILE_UNITS :]
        left = names(index)
        assert left == index_files[-len(left) :]
        gone = len(queue_files) - len(names(queue)) + len(index_files) - len(left)
        assert gone > 10
        assert (trimmed.log_start, trimmed.removed_files) == (parts[1].end, 2 + gone)
        assert trimmed.removed_bytes > 2 * SEGMENT_BYTES
        assert await store.trim(parts[1].end) == Trimmed(parts[1].end)
        left_files = len(names(queue)) + len(names(index))
        trimmed = await store.trim(parts[2].end)
        assert trimmed.removed_files == 1 + left_files - len(names(queue)) - len(names(index))
        low = store.min_offset("Orders", 0)
        # Every remaining message is found by its key.
        for offset in range(low, store.max_offset("Orders", 0)):
            assert len(store.query_by_key("Orders", f"k{offset}", 0, 1 << 60, 9).physical_offsets) == 1


async def test_the_last_file_of_a_queue_stays(tmp_path: Path) -> None:
    """The queue's end is known from it, also after a restart."""
    store = make(tmp_path)
    async with running(store):
        store.append([message("Old", body=b"old") for _ in range(2 * QUEUE_FILE_UNITS)])
        parts = await fill(store, 3)
        await store.trim(parts[-1].end)
        assert names(tmp_path / "consumequeue" / "Old" / "0") == [f"{QUEUE_FILE_UNITS * UNIT_BYTES:020d}"]
    async with running(make(tmp_path)) as again:
        assert (again.min_offset("Old", 0), again.max_offset("Old", 0)) == (20, 20)


async def test_what_the_device_does_not_have_stays(tmp_path: Path) -> None:
    """Only flushed segments can be deleted."""
    store = MmapStore(store_config(tmp_path, **SMALL), FakeClock(), NeverFlush())
    async with running(store):
        store.append([message(body=b"x" * 900) for _ in range(200)])
        assert await store.log_parts() == []
        assert (await store.trim(1 << 60)).log_start == 0
        assert len(bodies(store)) == 200


def test_the_newest_segment_stays_even_if_it_is_full(tmp_path: Path) -> None:
    """It determines where the log ends."""
    log = CommitLog(tmp_path, 4_096, Disk())
    log.room()[0]
    log.position = log.flushed = 4_096
    assert log.removable() == log.detach(4_096) == []
    log.room()[0]
    assert [segment.base for segment in log.detach(4_096)] == [0]
    assert log.min_offset == 4_096
    log.close()


async def test_records_that_go_while_their_queue_is_read(tmp_path: Path) -> None:
    """Between the trims of log and queue there are entries without records: the reader is told, and continues
    after them."""
    store = make(tmp_path)
    async with running(store):
        parts = await fill(store, 3)
        assert len(store._log.detach(parts[0].end)) == 1
        result = store.read("Orders", 0, 3, ALL._replace(max_messages=10, max_scanned_units=10), None)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.MESSAGE_WAS_REMOVING, 13, [])
        result = store.read("Orders", 0, 3, ALL, None)
        assert result.status is ReadStatus.FOUND
        assert records(result)[0].physical_offset == parts[1].start


def deleted_maps(name: str) -> int:
    """How many maps of a deleted file this process has."""
    return sum(
        name in line and line.rstrip().endswith("(deleted)")
        for line in Path("/proc/self/maps").read_text().splitlines()
    )


async def test_a_file_somebody_reads(tmp_path: Path) -> None:
    """Its name is removed at once, its map at a trim after the last slice is released: never in the loop."""
    store = make(tmp_path)
    async with running(store):
        parts = await fill(store, 3)
        directory = tmp_path / "commitlog"
        name = "0" * 20
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=5), None)
        await store.trim(parts[0].end)
        assert name not in names(directory)
        assert deleted_maps(str(directory / name)) == 1
        assert [found.body for found in records(result)] == [b"x" * 900] * 5
        del result
        assert deleted_maps(str(directory / name)) == 1
        await store.trim(0)
        assert deleted_maps(str(directory / name)) == 0


async def test_a_file_that_cannot_be_deleted(tmp_path: Path) -> None:
    """The error names it, later files wait for it so that there is no gap, and the next trim tries again."""
    store = make(tmp_path)
    async with running(store):
        parts = await fill(store, 4)
        path = tmp_path / "commitlog" / ("0" * 20)
        path.unlink()
        path.mkdir()
        with pytest.raises(StoreError, match=str(path)):
            await store.trim(parts[1].end)
        assert store.statistics().min_physical_offset == parts[1].end
        assert names(tmp_path / "commitlog")[:3] == [f"{number * SEGMENT_BYTES:020d}" for number in range(3)]
        path.rmdir()
        assert (await store.trim(0)).log_start == parts[1].end
        assert names(tmp_path / "commitlog")[0] == f"{2 * SEGMENT_BYTES:020d}"
        assert store.min_offset("Orders", 0) > 0


async def test_a_file_that_is_gone_already(tmp_path: Path) -> None:
    """A file deleted by hand counts as very old, and a trim makes the store agree with its directory."""
    store = make(tmp_path)
    async with running(store):
        parts = await fill(store, 3)
        (tmp_path / "commitlog" / ("0" * 20)).unlink()
        found = await store.log_parts()
        assert (found[0].modified_ms, found[1]) == (0, parts[1])
        assert (await store.trim(found[0].end)).log_start == parts[1].start


async def test_a_store_that_is_opened_again_forgets_what_it_could_not_delete(tmp_path: Path) -> None:
    """The file is part of the log again, and the next trim deletes it."""
    store = make(tmp_path)
    path = tmp_path / "commitlog" / ("0" * 20)
    async with running(store):
        parts = await fill(store, 3)
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        with pytest.raises(StoreError):
            await store.trim(parts[0].end)
        path.rmdir()
        path.write_bytes(content)
    async with running(store):
        assert store.statistics().min_physical_offset == 0
        assert (await store.trim(0)).log_start == 0
        assert bodies(store)[0] == b"x" * 900
        await store.trim(parts[0].end)
        assert not path.exists()


# --- queues -------------------------------------------------------------------------------------------------


def queue_files(
    directory: Path, offsets: list[int | None], *, first: int = 0, min_offset: int = 0
) -> QueueFiles:
    """A queue of files of four units; a unit is a physical offset, or None for filler."""
    units = [FILLER if offset is None else UNIT.pack(offset, 100, 0) for offset in offsets]
    for at in range(0, len(units), 4):
        data = b"".join(units[at : at + 4]).ljust(4 * UNIT_BYTES, b"\0")
        (directory / f"{(first + at) * UNIT_BYTES:020d}").write_bytes(data)
    return QueueFiles(directory, 4, first, min_offset, first + len(units))


@pytest.mark.parametrize(
    ("offsets", "log_start", "kept"),
    [
        ([100, 200, 300, 400, 500, 600], 0, 0),
        ([100, 200, 300, 400, 500, 600], 100, 0),
        ([100, 200, 300, 400, 500, 600], 101, 1),
        ([100, 200, 300, 400, 500, 600], 500, 4),
        ([100, 200, 300, 400, 500, 600], 600, 5),
        ([100, 200, 300, 400, 500, 600], 601, 6),
        ([100], 101, 1),
        ([], 101, 0),
        ([None, None, None, 400, 500], 0, 3),
        ([None, None, None, None, None, 600, 700], 650, 6),
        ([100, None, None, None, None, None, 700], 150, 6),
        ([100, 200, None, None, 500, None, 700], 200, 1),
        ([100, 200, None, None, 500, None, 700], 500, 4),
        ([100, None, None], 150, 3),
        ([100, None, None], 50, 0),
    ],
)
def test_the_first_unit_that_is_kept(
    tmp_path: Path, offsets: list[int | None], log_start: int, kept: int
) -> None:
    """The first unit whose record is still in the log; filler counts as the unit after it and is never the
    first."""
    assert first_kept(queue_files(tmp_path, offsets), log_start) == kept


def test_files_of_a_queue_that_nobody_needs(tmp_path: Path) -> None:
    """All files whose units are before the minimum, except the last file."""
    files = queue_files(tmp_path, list(range(100, 1_100, 100)), first=8)

    def dead(min_offset: int) -> list[int]:
        return [int(path.name) // UNIT_BYTES for path in dead_files(files, min_offset)]

    assert [dead(offset) for offset in (8, 11, 12, 15, 16, 18)] == [[], [], [8], [8], [8, 12], [8, 12]]
    full = queue_files(tmp_path, list(range(100, 900, 100)), first=8)
    assert [path.name for path in dead_files(full, 16)] == [f"{8 * UNIT_BYTES:020d}"]


def test_a_queue_that_was_made_anew_keeps_its_file(tmp_path: Path) -> None:
    """A deletion applies to the directory it was made for, not to its name."""
    old = tmp_path / "0"
    old.mkdir()
    (old / "file").write_bytes(b"old")
    fd = os.open(old, os.O_RDONLY)
    (old / "file").unlink()
    old.rmdir()
    old.mkdir()
    (old / "file").write_bytes(b"new")
    assert delete_file(old / "file", fd) == 0
    os.close(fd)
    assert (old / "file").read_bytes() == b"new"
    assert delete_file(old / "file") > 0


async def test_queues_that_go_while_the_log_is_trimmed(tmp_path: Path) -> None:
    """A queue deleted during the trim does not make the trim fail."""
    store = make(tmp_path)
    async with running(store):
        store.append([message("Gone") for _ in range(3 * QUEUE_FILE_UNITS)])
        parts = await fill(store, 3)
        for path in (tmp_path / "consumequeue" / "Gone" / "0").iterdir():
            path.unlink()
        await store.trim(parts[1].end)
        assert store.min_offset("Orders", 0) > 0


# --- disk ahead of need -------------------------------------------------------------------------------------


class WatchedDisk(Disk):
    """Counts the allocations for the log, separately for those the loop waited for."""

    def __init__(self) -> None:
        self.on_loop = 0
        self.in_threads = 0

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            if threading.current_thread() is threading.main_thread():
                self.on_loop += 1
            else:
                self.in_threads += 1
        super().allocate(fd, offset, length)


@pytest.mark.row("S249")
async def test_no_append_waits_for_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first append of a store allocates disk itself; after that the next step or segment is
    allocated before it is needed."""
    monkeypatch.setattr(commit_log, "ALLOCATION_STEP_BYTES", 8_192)
    disk = WatchedDisk()
    store = MmapStore(store_config(tmp_path, **SMALL), FakeClock(), NeverFlush(), disk=disk)
    async with running(store):
        while store.end_offset < 3 * SEGMENT_BYTES:
            store.append([message(body=b"x" * 900)])
            if store._log.next_wanted.is_set():
                await store._log.prepare_next()
        assert disk.on_loop == 1
        assert disk.in_threads >= 3 * SEGMENT_BYTES // 8_192 - 1
        assert len(bodies(store)) > 150


# --- full disks ---------------------------------------------------------------------------------------------

FULL_DISK = """
import sys
from pathlib import Path
import trio
from rmqkit.errors import StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, bodies, message, running, store_config
from rmqkit_store_mmap.store import MmapStore

async def main(directory: Path) -> None:
    config = store_config(
        directory / "store",
        max_message_size=20_000,
        mapped_file_size_commit_log=4 << 20,
        message_index_enable=True,
    )
    async with running(MmapStore(config, FakeClock(), FlushWhenWanted())) as store:
        body, stored = bytes(range(256)) * 64, 0
        for _ in range(2):
            try:
                while True:
                    queue_id = stored % 50
                    store.append([message(queue_id=queue_id, body=body, keys=f"k{stored}")])
                    stored += 1
                    await trio.lowlevel.checkpoint()
            except StoreNotWritable as error:
                print(stored, error)
            assert sum(len(bodies(store, queue_id=queue_id)) for queue_id in range(50)) == stored
            for ballast in directory.glob("ballast*"):
                ballast.unlink()
        await store.settled(store.end_offset, Level.FLUSHED)
        parts = await store.log_parts()
        await store.trim(parts[1].end)
        for _ in range(100):
            store.append([message("New", body=body)])
        assert bodies(store, "New") == [body] * 100
    async with running(MmapStore(config, FakeClock(), FlushWhenWanted())) as store:
        assert bodies(store, "New") == [body] * 100

trio.run(main, Path(sys.argv[1]))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.row("S341")
def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    """Sends are refused with the name of the file that has no space, and the process never dies; stored
    messages can be read; with space again sends succeed."""
    (small_disk / "ballast").write_bytes(bytes(30 << 20))
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(small_disk)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    refusals = result.stdout.splitlines()
    assert len(refusals) == 2
    stored = [int(line.split()[0]) for line in refusals]
    assert 1_000 < stored[0] < stored[1]
    assert all("No space left on device" in line and str(small_disk / "store") in line for line in refusals)
