"""The policies of asynchronous flushing over the mmap store, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.config import with_texts
from rmqkit.plugin.flush import Level
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import message, running, store_config
from rmqkit_flush.policies import AsyncFlush, BufferedAsyncFlush
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore

PAGE_BYTES = 4096
ROUNDS = 100_000
PATIENCE_S = 60


class CountingDisk(Disk):
    """Counts what reaches the device."""

    syncs = 0

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.syncs += 1


async def until(condition: Callable[[], bool]) -> None:
    """Flushes are done by threads, whose end the mock clock does not know; the loop is given turns until
    they are through."""
    for _ in range(ROUNDS):
        if condition():
            return
        await trio.lowlevel.checkpoint()
    raise AssertionError("the condition was not met")


def flushed(store: MmapStore) -> int:
    return store.statistics().flushed_physical_offset


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("policy", [AsyncFlush, BufferedAsyncFlush])
@pytest.mark.parametrize("kind", [MmapStore, LmdbStore])
async def test_a_flush_that_is_asked_for_does_not_wait_for_the_clock(
    tmp_path: Path, kind: type[MmapStore | LmdbStore], policy: type[AsyncFlush]
) -> None:
    """The policy would flush in an hour."""
    late = dict.fromkeys(["flushIntervalCommitLog", "flushCommitLogThoroughInterval"], "3600000")
    config = with_texts(store_config(tmp_path), late, dict.fromkeys(late, "test"))
    async with running(kind(config, FakeClock(), policy(config))) as store:
        store.append([message()])
        with trio.fail_after(PATIENCE_S):
            await store.flush()
        assert store.is_settled(store.end_offset, Level.FLUSHED)


@pytest.mark.row("S284", "S336")
async def test_the_log_is_flushed_by_the_clock(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Every 500 ms from four pages on, and whatever there is every ten seconds: then it is on the device."""
    disk = CountingDisk()
    config = store_config(tmp_path)
    async with running(MmapStore(config, FakeClock(), AsyncFlush(config), disk=disk)) as store:
        store.append([message(body=bytes(3 * PAGE_BYTES))])
        await quiet()
        mock_clock.jump(0.6)
        await quiet()
        assert flushed(store) == 0
        store.append([message(body=bytes(PAGE_BYTES))])
        synced = disk.syncs
        mock_clock.jump(0.6)
        await until(lambda: flushed(store) == store.end_offset)
        assert disk.syncs > synced
        await quiet()
        before = flushed(store)
        store.append([message(body=b"few")])
        for _ in range(16):
            mock_clock.jump(0.5)
            await quiet()
        assert flushed(store) == before
        for _ in range(4):
            mock_clock.jump(0.5)
            await quiet()
        await until(lambda: flushed(store) == store.end_offset)


@pytest.mark.row("S334")
async def test_with_a_commit_buffer_one_service_commits_and_one_flushes(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Appends are in memory until the commit, 200 ms later, writes them to the file; the flush by the
    clock brings them to the device."""
    config = store_config(tmp_path, transient_store_pool_enable=True)
    async with running(MmapStore(config, FakeClock(), BufferedAsyncFlush(config))) as store:
        store.append([message(body=b"x" * 5 * PAGE_BYTES)])
        log = next((tmp_path / "commitlog").iterdir())
        assert b"xxxx" not in log.read_bytes()
        await quiet()
        mock_clock.jump(0.25)
        await until(lambda: store.is_settled(store.end_offset, Level.WRITTEN))
        assert b"xxxx" in log.read_bytes()
        assert flushed(store) == 0
        mock_clock.jump(0.3)
        await until(lambda: flushed(store) == store.end_offset)
