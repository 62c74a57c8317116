"""The flush policies."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.abc import FlushPolicy, Level
from rmqkit.config import Config, load
from rmqkit.plugins import load as load_plugins
from rmqkit_flush import plugin
from rmqkit_flush.policies import AsyncFlush, SyncFlush


class FakeLog:
    """A log whose flush takes a tenth of a second; remembers when it was flushed, in s since the start."""

    def __init__(self) -> None:
        self.written_offset = 0
        self.flushed_offset = 0
        self.flushes: list[float] = []
        self._start = trio.current_time()
        self._wanted = trio.Event()

    async def flush(self) -> int:
        target = self.written_offset
        self.flushes.append(round(trio.current_time() - self._start, 3))
        await trio.sleep(0.1)
        self.flushed_offset = target
        return target

    def want(self) -> None:
        self._wanted.set()

    async def wanted(self) -> None:
        await self._wanted.wait()
        self._wanted = trio.Event()


def config(**flags: object) -> Config:
    return load(environ={}, flags=flags)


@pytest.mark.row("S240", "S284", "S336")
async def test_async_flush_waits_for_pages_or_for_the_thorough_interval(autojump_clock: trio.testing.MockClock) -> None:
    """Every 500 ms from four pages on; anything at all after ten seconds; nothing sooner because somebody waits."""
    log = FakeLog()
    async with trio.open_nursery() as nursery:
        await nursery.start(AsyncFlush(config()).run, log, log.wanted)
        log.written_offset = 4 * 4096 - 1
        log.want()
        await trio.sleep(2.2)
        assert log.flushes == []
        log.written_offset = 4 * 4096
        await trio.sleep(0.6)
        assert log.flushes == [2.5]
        log.written_offset += 1
        await trio.sleep(8)
        assert log.flushes == [2.5, 10.1]
        nursery.cancel_scope.cancel()


async def test_async_flush_takes_its_times_from_the_settings(autojump_clock: trio.testing.MockClock) -> None:
    """flushIntervalCommitLog, flushCommitLogLeastPages and flushCommitLogThoroughInterval count."""
    log = FakeLog()
    policy = AsyncFlush(config(flushIntervalCommitLog=150, flushCommitLogLeastPages=1, flushCommitLogThoroughInterval=950))
    async with trio.open_nursery() as nursery:
        await nursery.start(policy.run, log, log.wanted)
        log.written_offset = 4096
        await trio.sleep(0.2)
        log.written_offset += 1
        await trio.sleep(1)
        assert log.flushes == [0.15, 1.0]
        nursery.cancel_scope.cancel()


@pytest.mark.row("S283")
async def test_sync_flush_flushes_when_somebody_waits(autojump_clock: trio.testing.MockClock) -> None:
    """At once for the first that waits; those that come during a flush share the next one."""
    log = FakeLog()
    async with trio.open_nursery() as nursery:
        await nursery.start(SyncFlush(config()).run, log, log.wanted)
        await trio.sleep(0.2)
        log.written_offset = 10
        log.want()
        await trio.sleep(0.05)
        assert log.flushes == [0.2]
        for _ in range(3):
            log.written_offset += 10
            log.want()
        await trio.sleep(0.2)
        assert log.flushes == [0.2, 0.3]
        assert log.flushed_offset == 40
        nursery.cancel_scope.cancel()


async def test_sync_flush_does_not_forget_those_that_do_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    """Messages nobody waits for are flushed by the interval; an idle log is left alone."""
    log = FakeLog()
    async with trio.open_nursery() as nursery:
        await nursery.start(SyncFlush(config()).run, log, log.wanted)
        await trio.sleep(3.1)
        assert log.flushes == []
        log.written_offset = 1
        await trio.sleep(1)
        assert log.flushes == [3.5]
        nursery.cancel_scope.cancel()


@pytest.mark.row("S281")
@pytest.mark.parametrize(("name", "kind", "level"), [("ASYNC_FLUSH", AsyncFlush, Level.WRITTEN), ("SYNC_FLUSH", SyncFlush, Level.FLUSHED)])
def test_flush_disk_type_chooses_the_policy(tmp_path: Path, name: str, kind: type[FlushPolicy], level: Level) -> None:
    """`flushDiskType` names the policy, and the policy says what a send waits for."""
    settings = config(flushDiskType=name)
    registry = load_plugins(settings, extra=[("flush", plugin)], entry_points=False)
    policy = registry.chosen("flush_policies", settings.flush_disk_type)(settings)
    assert isinstance(policy, kind)
    assert policy.acknowledge_at is level
