"""Flushing, failing devices, and background work."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.errors import StoreInUse, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.flush import Level
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
from rmqkit_store_mmap import appending
from rmqkit_store_mmap.index import key_index
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.store import MmapStore


def forget_mark(directory: Path) -> None:
    """Remove from the checkpoint what Java does not write."""
    path = directory / "checkpoint"
    path.write_bytes(path.read_bytes()[:40].ljust(4096, b"\0"))


class FaultyDisk(Disk):
    """Counts flushes and fails on demand: `errors` maps "sync", "write" (of the log) or "allocate" to an
    errno."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.syncs = 0

    def _check(self, what: str) -> None:
        if what in self.errors:
            raise OSError(self.errors[what], os.strerror(self.errors[what]))

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self._check("sync")
        super().sync(fd)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._check("allocate")
        super().allocate(fd, offset, length)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        if "write" in self.errors and "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            super().write(fd, [b"".join(parts)[:150]], offset)
            self._check("write")
        super().write(fd, parts, offset)


def make(directory: Path, **settings: Any) -> MmapStore:
    return MmapStore(store_config(directory, **settings), FakeClock(), FlushWhenWanted(), disk=FaultyDisk())


def disk_of(store: MmapStore) -> FaultyDisk:
    assert isinstance(store.disk, FaultyDisk)
    return store.disk


@pytest.mark.row("S283", "S333")
async def test_all_that_wait_share_a_flush(tmp_path: Path) -> None:
    """A hundred waiters that are there when the flush begins cause one flush of the log."""
    store = make(tmp_path)
    async with running(store):
        ends = [at.physical_offset + at.size_bytes for at in store.append([message()] * 100)]
        assert not store.is_settled(ends[0], Level.FLUSHED)
        before = disk_of(store).syncs
        async with trio.open_nursery() as nursery:
            for end in ends:
                nursery.start_soon(store.settled, end, Level.FLUSHED)
        assert disk_of(store).syncs - before == 1
        assert store.is_settled(ends[-1], Level.FLUSHED)


async def test_a_waiter_that_is_cancelled_changes_nothing(tmp_path: Path) -> None:
    """Cancelling a wait keeps the data; the next waiter is served."""
    store = MmapStore(store_config(tmp_path), FakeClock(), NeverFlush())
    async with running(store):
        (at,) = store.append([message()])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.settled, at.size_bytes, Level.FLUSHED)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert bodies(store) == [b"body"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.settled, at.size_bytes, Level.FLUSHED)
            await trio.testing.wait_all_tasks_blocked()
            await store._log.flush()


async def test_a_device_that_fails_to_flush(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All waiters get an error, no message is taken any more although later flushes would succeed, reads
    work; the next start repairs the store."""
    store = make(tmp_path)
    async with running(store):
        (kept,) = store.append([message(body=b"kept")])
        await store.settled(kept.size_bytes, Level.FLUSHED)
        store.append([message(body=b"doubtful")])
        end = store.statistics().max_physical_offset
        disk_of(store).errors["sync"] = errno.EIO
        refused = []

        async def wait() -> None:
            with pytest.raises(StoreNotWritable, match="failed to flush"):
                await store.settled(end, Level.FLUSHED)
            refused.append(end)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
        assert refused == [end, end]
        del disk_of(store).errors["sync"]
        assert not store.is_settled(end, Level.FLUSHED)
        assert store.is_settled(kept.size_bytes, Level.FLUSHED)
        with pytest.raises(StoreNotWritable):
            await store.settled(end, Level.FLUSHED)
        with pytest.raises(StoreNotWritable):
            store.append([message()])
        assert bodies(store) == [b"kept", b"doubtful"]
    assert (tmp_path / "abort").exists()
    assert "was not flushed" in caplog.text
    async with running(make(tmp_path)) as again:
        assert bodies(again) == [b"kept", b"doubtful"]
        assert again.append([message()])[0].queue_offset == 2


async def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """The written bytes are erased: not even a crash right afterwards brings them back."""
    store = make(tmp_path)
    async with running(store):
        store.append([message(body=b"kept")])
        end = store.statistics().max_physical_offset
        disk_of(store).errors["write"] = errno.EIO
        with pytest.raises(StoreNotWritable, match="cannot write"):
            store.append([message(body=b"lost"), message(body=b"lost", queue_id=1)])
        del disk_of(store).errors["write"]
        assert b"lost" not in (tmp_path / "commitlog" / ("0" * 20)).read_bytes()
        assert (store.queues(), store.max_offset("Orders", 0)) == ({"Orders": [0]}, 1)
        assert not (tmp_path / "consumequeue" / "Orders" / "1").exists()
        assert not any((tmp_path / "consumequeue" / "Orders" / "0" / ("0" * 20)).read_bytes()[20:])
        assert store.append([message(body=b"next")])[0].physical_offset == end


async def test_a_full_disk_under_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that cannot be indexed wait; when too many wait, appends are refused, and no key is lost once
    there is space."""
    for module in (appending, key_index):
        monkeypatch.setattr(module, "MAX_BACKLOG", most := 500)
    store = make(tmp_path, mapped_file_size_commit_log=32 << 20, max_hash_slot_num=100, max_index_num=40_000)
    await store.open()
    store.append([message(body=b"", keys=f"k{number}") for number in range(most)])
    disk_of(store).errors["allocate"] = errno.ENOSPC
    with pytest.raises(StoreNotWritable, match="index"):
        store.append([message()])
    assert store.max_offset("Orders", 0) == most
    disk_of(store).errors.clear()
    store.append([message(keys="last")])
    for key in ("k0", "k1", f"k{most - 1}", "last"):
        assert len(store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets) == 1
    await store.close()


@pytest.mark.parametrize("indexed", [0, 1, 3_000])
async def test_queries_while_the_disk_is_full(tmp_path: Path, indexed: int) -> None:
    """Queries write nothing: they find waiting keys in memory, together with those in the index."""
    store = make(tmp_path, mapped_file_size_commit_log=32 << 20, max_hash_slot_num=100, max_index_num=40_000)
    await store.open()
    results = store.append(
        [message(body=b"", keys=f"k{number} all  ", unique_key=f"U{number}") for number in range(5_000)]
    )
    places = [at.physical_offset for at in results]
    keys_of_each = 3
    store._index.drain(keys_of_each * indexed)
    disk_of(store).errors["allocate"] = errno.ENOSPC
    before = {path: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    for number in (0, 1, 2_999, 3_000, 4_999):
        for key in (f"k{number}", f"U{number}"):
            assert store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets == [places[number]]
    assert store.query_by_key("Orders", "all", 0, 1 << 60, 5_000).physical_offsets == places[::-1]
    assert store.query_by_key("Orders", "all", 0, 1 << 60, 7).physical_offsets == places[:-8:-1]
    stored_ms = results[0].store_timestamp_ms
    assert store.query_by_key("Orders", "all", 0, stored_ms - 1, 9) == ([], stored_ms, places[-1])
    for topic, key in (("Orders", "none"), ("Orders", ""), ("Bills", "all")):
        assert store.query_by_key(topic, key, 0, 1 << 60, 9).physical_offsets == []
    assert len(store._index.backlog) == keys_of_each * (5_000 - indexed)
    assert {path: path.read_bytes() for path in (tmp_path / "index").iterdir()} == before
    disk_of(store).errors.clear()
    await store.close()


@pytest.mark.row("S050")
async def test_the_index_is_built_in_the_background(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The index catches up without any query."""
    store = make(tmp_path)
    async with running(store):
        store.append([message(keys="k")] * 1000)
        assert len(store._index.backlog) == 1000
        await trio.sleep(1)
        assert not store._index.backlog
        assert (
            store._index.last[1]
            == store.statistics().max_physical_offset - store.read_units("Orders", 0, 0, 1)[0].size_bytes
        )


@pytest.mark.row("S249")
async def test_the_next_segment_is_made_before_it_is_needed(tmp_path: Path) -> None:
    """When most of a segment is allocated, a worker makes the next one; the append that reaches it finds it,
    and a stop deletes it when unused."""
    store = make(tmp_path, **SMALL | {"mapped_file_size_consume_queue": 20_000})
    path = tmp_path / "commitlog" / f"{66_560:020d}"
    async with running(store):
        store.append([message()])
        assert store._log.next_wanted.is_set()
        await store._log.prepare_next()
        assert path.stat().st_size == 66_560
        assert path.stat().st_blocks * 512 >= 66_560
        disk_of(store).errors["allocate"] = errno.ENOSPC
        await store._log.prepare_next()
        assert store.append([message(body=b"x" * 900)] * 40)[-1].physical_offset < 66_560
    assert not path.exists()


@pytest.mark.row("S290")
async def test_checkpoint_and_full_index_files_are_flushed(tmp_path: Path) -> None:
    """An index file that became full moves the checkpoint's index time. Where Java wrote the checkpoint, and
    thereby took the mark away, such a file survives a crash, and the last one is made again."""
    store = make(tmp_path, **SMALL_INDEX)
    async with running(store):
        store.append([message(keys=f"k{number}") for number in range(5)])
        store._index.drain(5)
        assert store._index.full_waits
        await store._index.flush(store.end_offset)
        assert not store._index.full_waits
        await store._queues.flush(everything=True)
        store.write_checkpoint()
        assert Checkpoint.load(tmp_path / "checkpoint").index_time_ms == FakeClock().now_ms()
        names = sorted(path.name for path in (tmp_path / "index").iterdir())
        assert len(names) == 2
        first = (tmp_path / "index" / names[0]).stat().st_ino
    (tmp_path / "abort").write_text("1")
    forget_mark(tmp_path)
    with (tmp_path / "index" / names[1]).open("r+b") as file:
        file.seek(40)
        file.write(bytes(12))  # its slots, as if they had not reached the disk
    async with running(make(tmp_path, **SMALL_INDEX)) as again:
        assert (tmp_path / "index" / names[0]).stat().st_ino == first
        for number in range(5):
            assert len(again.query_by_key("Orders", f"k{number}", 0, 1 << 60, 9).physical_offsets) == 1


@pytest.mark.row("S240")
async def test_queues_are_flushed_from_two_pages_on(tmp_path: Path) -> None:
    """Regular rounds flush only queues with at least 8 KiB of new units (Java:
    flushConsumeQueueLeastPages)."""
    store = make(tmp_path)
    async with running(store):
        store.append([message(queue_id=0)] * 409 + [message(queue_id=1)] * 410)
        await store._queues.flush(everything=False)
        first, second = (store._queues.by_key["Orders", queue_id] for queue_id in (0, 1))
        assert (first.flushed_offset, second.flushed_offset) == (0, 410)
        await store._queues.flush(everything=True)
        assert first.flushed_offset == 409


@pytest.mark.parametrize("part", ["_queues", "_index"])
async def test_units_or_keys_that_could_not_be_flushed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """Units and keys that a device may have lost are not trusted, though a later flush succeeds: the next
    start reads the log."""
    store = make(tmp_path, **SMALL_INDEX)
    async with running(store):
        store.append([message(keys=f"k{number}") for number in range(5)])
        store._index.drain(5)
        disk_of(store).errors["sync"] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            await (
                store._queues.flush(everything=True)
                if part == "_queues"
                else store._index.flush(store.end_offset)
            )
        disk_of(store).errors.clear()
        assert getattr(store, part).doubtful
        await store._index.flush(store.end_offset)
        assert (store._index.mark is None) == (part == "_index")
    assert "was not flushed" in caplog.text
    assert (tmp_path / "abort").exists()
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    assert checkpoint.queue_time_ms == 0
    assert checkpoint.index_time_ms == 0
    async with running(make(tmp_path, **SMALL_INDEX)) as again:
        assert again.max_offset("Orders", 0) == 5
        assert len(again.query_by_key("Orders", "k4", 0, 1 << 60, 9).physical_offsets) == 1


async def test_the_checkpoint_moves_while_the_store_runs(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Once a second the time of the flushed log is written; the time of the queues every ten seconds, when
    all of them were flushed."""
    written: list[tuple[int, int]] = []
    flushed = trio.Event()

    class Watched(FaultyDisk):
        def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
            super().write(fd, parts, offset)
            if sum(map(len, parts)) == 4096:
                written.append(struct.unpack_from(">qq", parts[0]))
                if written[-1][1]:
                    trio.from_thread.run_sync(flushed.set)

    store = MmapStore(store_config(tmp_path), FakeClock(), FlushWhenWanted(), disk=Watched())
    async with running(store):
        (at,) = store.append([message()])
        await store.settled(at.size_bytes, Level.FLUSHED)
        mock_clock.rate = 1000
        await flushed.wait()
        mock_clock.rate = 0
        now = FakeClock().now_ms()
        assert written == [(0, 0)] + [(now, 0)] * (len(written) - 2) + [(now, now)]
        assert 2 < len(written) <= 1 + 10


_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
sys.stdout.write("held")
sys.stdout.flush()
sys.stdin.read()
"""


async def test_another_process_holds_the_directory(tmp_path: Path) -> None:
    """The lock is Java's: a record lock on byte 0 of `lock`. It is taken before any file is touched."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "lock")]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdout:
        assert await process.stdout.receive_some(4) == b"held"
        with pytest.raises(StoreInUse, match="another process"):
            await make(tmp_path).open()
        assert os.listdir(tmp_path) == ["lock"]
        await process.stdin.aclose()
        await process.wait()
    async with running(make(tmp_path)) as store:
        assert store.append([message()])[0].queue_offset == 0
