"""The commit buffer: which records wait in memory, what a commit does, and what happens when the disk does
not take it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.errors import StoreBusy, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.flush import Flushable, FlushPolicy, Level
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    SMALL,
    CommitWhenWanted,
    NeverFlush,
    bodies,
    contents,
    message,
    running,
    store_config,
)
from rmqkit_store_mmap import reader
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.open.checkpoint import CHECKPOINT_BYTES, Checkpoint
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore

FIRST = "0" * 20


class Gate(Disk):
    """Notes the commits (thread and bytes), lets them through one by one while `closed`, and fails them with
    `error`. `begun` says that one is waiting, `marked` that a checkpoint was written."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, int]] = []
        self.error = 0
        self.closed = False
        self.begun = trio.Event()
        self.marked = trio.Event()
        self._pass = threading.Semaphore(0)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        super().write(fd, parts, offset)
        if sum(map(len, parts)) == CHECKPOINT_BYTES:
            trio.from_thread.run_sync(self.marked.set)

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self.commits.append((threading.get_ident(), sum(map(len, parts))))
        if self.closed:
            trio.from_thread.run_sync(self.begun.set)
            self._pass.acquire()
        if self.error:
            super().write_many(fd, [b"".join(parts)[:150]], offset)
            raise OSError(self.error, os.strerror(self.error))
        super().write_many(fd, parts, offset)

    def let_pass(self) -> None:
        self.begun = trio.Event()
        self._pass.release()


class Buffered(NeverFlush):
    """A commit buffer whose commits are made by the test."""

    commit_buffer_bytes = 200 * 1024


class SmallBuffer(Buffered):
    """A commit buffer that a few messages fill."""

    commit_buffer_bytes = 20 * 1024


def make(directory: Path, policy: FlushPolicy | None = None, /, **settings: Any) -> tuple[MmapStore, Gate]:
    disk = Gate()
    return MmapStore(store_config(directory, **settings), FakeClock(), policy or Buffered(), disk=disk), disk


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))


@pytest.mark.row("S335")
async def test_an_append_writes_nothing_and_a_commit_all(tmp_path: Path) -> None:
    """The records of many appends are written by one call, in another thread; until then the file has none of
    them."""
    store, disk = make(tmp_path)
    async with running(store):
        ends = [
            at.physical_offset + at.size_bytes
            for _ in range(20)
            for at in store.append([message(body=b"x" * 50)] * 3)
        ]
        assert not any(log_bytes(tmp_path))
        assert not store.is_settled(ends[0], Level.WRITTEN)
        await store._log.flush()
        assert (store.end_offset, store.statistics().flushed_physical_offset) == (ends[-1], 0)
        await store._log.commit()
        assert [size for _, size in disk.commits] == [ends[-1]]
        assert disk.commits[0][0] != threading.get_ident()
        assert store.is_settled(ends[-1], Level.WRITTEN)
        assert store.statistics().flushed_physical_offset == 0
        assert bodies(store) == [b"x" * 50] * 60
        await store._log.commit()
        assert len(disk.commits) == 1


async def test_all_that_wait_share_a_commit(tmp_path: Path) -> None:
    """A commit serves the waiters that are there when it begins, the next commit those that come meanwhile;
    appends are taken all the time."""
    store, disk = make(tmp_path, CommitWhenWanted())
    served: list[int] = []

    async def send(number: int) -> None:
        (at,) = store.append([message(body=b"%d" % number)])
        await store.settled(at.physical_offset + at.size_bytes, Level.WRITTEN)
        served.append(number)

    disk.closed = True
    async with running(store), trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(send, number)
        await disk.begun.wait()
        for number in range(50, 100):
            nursery.start_soon(send, number)
        await trio.testing.wait_all_tasks_blocked()
        assert served == []
        disk.let_pass()
        await disk.begun.wait()
        assert sorted(served) == list(range(50))
        disk.let_pass()
    assert sorted(served) == list(range(100))
    assert len(disk.commits) == 2


async def test_a_commit_over_several_segments(tmp_path: Path) -> None:
    """One write for each segment, including the blank record that ends it."""
    store, disk = make(tmp_path, **SMALL)
    async with running(store):
        results = [at for _ in range(100) for at in store.append([message(body=b"x" * 900)])]
        assert store.read_log(0, 1 << 20) == b""
        await store._log.commit()
        segments = 1 + results[-1].physical_offset // SMALL["mapped_file_size_commit_log"]
        assert len(disk.commits) == segments > 1
        assert sum(size for _, size in disk.commits) == sum(at.size_bytes for at in results) + 8 * (
            segments - 1
        )
        assert bodies(store) == [b"x" * 900] * 100


async def test_a_full_buffer_refuses(tmp_path: Path) -> None:
    """SYSTEM_BUSY with the reason, and nothing of the append is kept; after a commit appends are taken again.
    An append larger than the buffer is taken."""
    store, _ = make(tmp_path, SmallBuffer())
    async with running(store):
        (first,) = store.append([message(body=b"x" * 30_000)])
        with pytest.raises(
            StoreBusy, match=f"the commit buffer is full: {first.size_bytes} bytes wait"
        ) as refused:
            store.append([message(queue_id=1, keys="k")])
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        assert not (tmp_path / "consumequeue" / "Orders" / "1").exists()
        await store._log.commit()
        assert store.append([message(queue_id=1)])[0].physical_offset == first.size_bytes


async def test_a_buffer_that_fills_during_a_commit(tmp_path: Path) -> None:
    """Bytes being written count until they are written; bytes that came meanwhile count afterwards."""
    store, disk = make(tmp_path, SmallBuffer())
    disk.closed = True
    async with running(store):
        store.append([message(body=b"x" * 12_000)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._log.commit)
            await disk.begun.wait()
            store.append([message(body=b"x" * 12_000)])
            with pytest.raises(StoreBusy):
                store.append([message()])
            disk.let_pass()
        store.append([message(body=b"x" * 12_000)])
        with pytest.raises(StoreBusy):
            store.append([message()])
        disk.closed = False
        await store._log.commit()
        assert store.append([message()])[0].queue_offset == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_commit_that_fails(tmp_path: Path, error: int, caplog: pytest.LogCaptureFixture) -> None:
    """Waiters get the reason, the records cannot be read, no append is taken; the next successful commit
    stores all of them in their places, and later appends follow. The log has two lines in all."""
    store, disk = make(tmp_path)
    async with running(store):
        store.append([message(body=b"kept", keys="k")])
        await store._log.commit()
        before = contents(store)
        (at,) = store.append([message(body=b"late %d" % number * 30, keys="k") for number in range(3)])[-1:]
        end = at.physical_offset + at.size_bytes
        disk.error = error
        told = []

        async def wait() -> None:
            with pytest.raises(StoreNotWritable, match=os.strerror(error)):
                await store.settled(end, Level.WRITTEN)
            told.append(end)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                with pytest.raises(StoreNotWritable, match="cannot write the log"):
                    await store._log.commit()
        assert told == [end, end]
        await wait()
        with pytest.raises(StoreNotWritable, match=os.strerror(error)) as refused:
            store.append([message()])
        assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert contents(store) == before
        disk.error = 0
        await store._log.commit()
        await store.settled(end, Level.WRITTEN)
        assert bodies(store) == [b"kept", *(b"late %d" % number * 30 for number in range(3))]
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets) == 4
        (at,) = store.append([message(body=b"next")])
        assert (at.queue_offset, at.physical_offset) == (4, end)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    async with running(make(tmp_path)[0]) as again:
        assert again.max_offset("Orders", 0) == 5


async def test_a_flush_that_nobody_committed_for(tmp_path: Path) -> None:
    """Waiters for FLUSHED get an error as well when the commit before the flush fails."""
    store, disk = make(tmp_path)
    async with running(store):
        store.append([message()])
        disk.error = errno.EIO
        with pytest.raises(StoreNotWritable):
            await store._log.commit()
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            await store.settled(store.end_offset, Level.FLUSHED)
        disk.error = 0


async def test_a_commit_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    """A cancelled commit is not made when it has not begun; one that has begun is finished."""
    store, _ = make(tmp_path)
    async with running(store):
        store.append([message(body=b"kept")])
        with trio.CancelScope() as scope:
            scope.cancel()
            await store._log.commit()
        assert scope.cancelled_caught
        assert bodies(store) == []
        await store._log.commit()
        assert bodies(store) == [b"kept"]


async def test_closing_commits(tmp_path: Path) -> None:
    """Records waiting at the close are there when the store is opened again, with their keys, and the stop
    counts as clean."""
    async with running(make(tmp_path)[0]) as store:
        store.append([message(body=b"%d" % number, keys=f"k{number}") for number in range(5)])
    assert not (tmp_path / "abort").exists()
    async with running(make(tmp_path)[0]) as store:
        assert bodies(store) == [b"%d" % number for number in range(5)]
        assert len(store.query_by_key("Orders", "k3", 0, 1 << 60, 9).physical_offsets) == 1


async def test_closing_on_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The abort mark stays, and the next start finds the written records and appends after them, for the same
    store opened again and for another one."""
    store, disk = make(tmp_path)
    async with running(store):
        store.append([message(body=b"kept", keys="k")])
        await store._log.commit()
        store.append([message(body=b"lost" * 100, keys="k"), message(body=b"lost", queue_id=1)])
        disk.error = errno.ENOSPC
    assert "was not flushed" in caplog.text
    assert (tmp_path / "abort").exists()
    disk.error = 0
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    for again in (store, make(copy)[0]):
        async with running(again):
            assert bodies(again) == [b"kept"]
            assert again.max_offset("Orders", 1) == 0
            assert again.append([message(body=b"next")])[0].queue_offset == 1
            await again._log.commit()
            assert bodies(again) == [b"kept", b"next"]
            assert len(again.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets) == 1
            assert not any(log_bytes(again._log.directory.parent)[again.end_offset :])


@pytest.mark.parametrize("indexed", [False, True])
async def test_what_waited_when_the_process_died_is_gone_without_a_trace(
    tmp_path: Path, indexed: bool
) -> None:
    """Their units were in the queue files already; their keys never reach the index, so that it need not be
    built again."""
    async with running(make(tmp_path / "before")[0]) as store:
        store.append(
            [message(body=b"written", keys=f"w{number}", queue_id=number % 2) for number in range(10)]
        )
    store, _ = make(tmp_path / "before")
    async with running(store):
        store.append(
            [message(body=b"waiting", keys=f"l{number}", queue_id=number % 4) for number in range(10)]
        )
        if indexed:
            store._index.drain(1_000)
            assert len(store._index.backlog) == 10
            await store._index.flush(store._log.written)
            await trio.to_thread.run_sync(store.write_checkpoint)
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    names = [path.name for path in (tmp_path / "after" / "index").iterdir()]
    assert len(names) == 1
    async with running(make(tmp_path / "after")[0]) as again:
        assert [bodies(again, queue_id=number) for number in range(2)] == [[b"written"] * 5] * 2
        assert [again.max_offset("Orders", number) for number in range(4)] == [5, 5, 0, 0]
        for number in range(10):
            assert len(again.query_by_key("Orders", f"w{number}", 0, 1 << 60, 9).physical_offsets) == 1
            assert again.query_by_key("Orders", f"l{number}", 0, 1 << 60, 9).physical_offsets == []
        assert names == [path.name for path in (tmp_path / "after" / "index").iterdir()]
        assert again._index.last[1] < again.end_offset


@pytest.mark.real_threads
async def test_the_mark_of_a_recovery_waits_for_the_records(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """While commits fail, no flush round moves the mark beyond the written records; the first round after
    that moves it to the end."""
    store, disk = make(tmp_path)

    async def marks(rounds: int) -> list[int]:
        """The log offsets up to which the queues are safe, from the checkpoints of so many seconds."""
        found = []
        for _ in range(rounds):
            disk.marked = trio.Event()
            await disk.marked.wait()
            mark = Checkpoint.load(tmp_path / "checkpoint").mark
            assert mark is not None
            found.append(mark.queues.offset)
        return found

    async with running(store):
        store.append([message(keys="k")])
        await store._log.commit()
        written = store.end_offset
        assert (await marks(13))[-1] == written
        store.append([message(keys="k")])
        disk.error = errno.EIO
        assert set(await marks(25)) == {written}
        assert len(disk.commits) >= 3
        disk.error = 0
        assert (await marks(13))[-1] == store.end_offset > written


class Once(FlushPolicy):
    """Commits when asked to, and ends at the first failure."""

    commit_buffer_bytes = 200 * 1024

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            while True:
                await wanted()
                await log.commit()


async def test_without_a_policy_nothing_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the policy has ended nothing would ever be written: waiters get an error, and all appends are
    refused."""
    store, disk = make(tmp_path, Once())
    async with running(store):
        store.append([message()])
        disk.error = errno.EIO
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            await store.settled(store.end_offset, Level.WRITTEN)
        disk.error = 0
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            await store._log.commit()
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            store.append([message()])
        with pytest.raises(StoreNotWritable):
            await store.settled(store.end_offset, Level.WRITTEN)
    assert "no message is taken any more" in caplog.text


async def test_the_end_that_can_be_read_is_found_in_any_queue(tmp_path: Path) -> None:
    """It is found however many units follow it, in however many files (ten units each here), and equals a
    count."""
    store, _ = make(tmp_path, **SMALL)
    rng = Random(7)
    async with running(store):
        written = [0, 0, 0]
        for _ in range(12):
            appended = list(written)
            for _ in range(rng.choice((0, 1, 5, 60))):
                queue_id = rng.randrange(3)
                store.append([message(queue_id=queue_id)])
                appended[queue_id] += 1
                for number in range(3):
                    queue = store._queues.get("Orders", number)
                    assert (0 if queue is None else reader.end_offset(store._log, queue)) == written[number]
                    assert len(store.read_units("Orders", number, 0, 1_000)) == written[number]
            await store._log.commit()
            written = appended
        assert [store.max_offset("Orders", number) for number in range(3)] == written


async def test_reading_files_beside_a_buffered_store(tmp_path: Path) -> None:
    """A reader without the store returns no offset whose record is still in the broker's memory."""
    store, _ = make(tmp_path)
    async with running(store):
        store.append([message(body=b"written")] * 3)
        await store._log.commit()
        store.append([message(body=b"waiting")] * 40)
        with StoreReader(tmp_path) as files:
            queue = files.queue("Orders", 0)
            assert (queue.end_offset, files.readable_end(queue)) == (43, 3)
            assert [found.body for found in files.messages("Orders", 0)] == [b"written"] * 3
            await store._log.commit()
            assert files.readable_end(queue) == 43


def test_many_parts_go_out_by_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call writes as many buffers as the system allows; bytes that a call leaves over are written
    too."""
    parts = [bytes([number % 256]) * (number % 7) for number in range(3_000)]
    calls = []
    pwritev = os.pwritev

    def short(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        calls.append(len(buffers))
        return (
            pwritev(fd, buffers[: len(buffers) // 2], offset)
            if len(calls) == 2
            else pwritev(fd, buffers, offset)
        )

    monkeypatch.setattr(os, "pwritev", short)
    path = tmp_path / "file"
    with path.open("wb") as file:
        Disk().write_many(file.fileno(), parts, 100)
    assert path.read_bytes() == bytes(100) + b"".join(parts)
    assert calls == [1024, 1024, 952]
