"""The flush policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.config import Config, load
from rmqkit.errors import ConfigError, StoreNotWritable
from rmqkit.limits import COMMIT_BUFFER_BYTES
from rmqkit.plugin.flush import Flushable, FlushPolicy, FlushPolicyFactory, Level
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.loader import load as load_plugins
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import SendMessageRequestHeader
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit_flush import plugin
from rmqkit_flush.policies import AsyncFlush, BufferedAsyncFlush, SyncFlush


class FakeLog:
    """A log whose flush takes a tenth of a second and whose commit takes a fiftieth; remembers when that
    was done, in s since the start."""

    def __init__(self) -> None:
        self.appended_offset = 0
        self.written_offset = 0
        self.flushed_offset = 0
        self.commits: list[float] = []
        self.flushes: list[float] = []
        self.full = self.broken = False
        self._start = trio.current_time()
        self._wanted = trio.Event()

    async def commit(self) -> int:
        target = self.appended_offset
        self.commits.append(round(trio.current_time() - self._start, 3))
        await trio.sleep(0.02)
        if self.full:
            raise StoreNotWritable("the disk is full")
        self.written_offset = target
        return target

    async def flush(self) -> int:
        target = self.written_offset
        self.flushes.append(round(trio.current_time() - self._start, 3))
        await trio.sleep(0.1)
        if self.broken:
            raise StoreNotWritable("the device failed")
        self.flushed_offset = target
        return target

    def want(self) -> None:
        self._wanted.set()

    async def wanted(self) -> None:
        await self._wanted.wait()
        self._wanted = trio.Event()


def config(**flags: object) -> Config:
    return load(environ={}, flags=flags)


@pytest.mark.row("S240")
async def test_async_flush_waits_for_pages_or_for_the_thorough_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Every 500 ms from four pages on; anything at all after ten seconds; nothing sooner because somebody
    waits."""
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
    policy = AsyncFlush(
        config(flushIntervalCommitLog=150, flushCommitLogLeastPages=1, flushCommitLogThoroughInterval=950)
    )
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


async def test_sync_flush_does_not_forget_those_that_do_not_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
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


async def test_a_commit_begins_when_somebody_waits(autojump_clock: trio.testing.MockClock) -> None:
    """At once; those that come during a commit share the next one, also while the log is being flushed."""
    log = FakeLog()
    async with trio.open_nursery() as nursery:
        await nursery.start(BufferedAsyncFlush(config()).run, log, log.wanted)
        await trio.sleep(0.11)
        log.appended_offset = 10
        log.want()
        await trio.sleep(0.01)
        assert log.commits == [0.11]
        for _ in range(3):
            log.appended_offset += 10_000
            log.want()
        await trio.sleep(0.2)
        assert log.commits == [0.11, 0.13]
        assert log.written_offset == 30_010
        await trio.sleep(0.2)  # a flush began at half a second
        assert log.flushes == [0.5]
        log.appended_offset += 10
        log.want()
        await trio.sleep(0.01)
        assert log.commits == [0.11, 0.13, 0.52]
        nursery.cancel_scope.cancel()


@pytest.mark.row("S335")
async def test_what_nobody_waits_for_is_committed_by_the_clock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Every 200 ms, whatever there is; then it is flushed as without a buffer. An idle log is left alone."""
    log = FakeLog()
    async with trio.open_nursery() as nursery:
        await nursery.start(BufferedAsyncFlush(config()).run, log, log.wanted)
        await trio.sleep(1.1)
        assert log.commits == []
        log.appended_offset = 1
        await trio.sleep(0.2)
        assert log.commits == [1.2]
        assert log.flushes == []
        await trio.sleep(9)
        assert log.flushes == [10.0]
        nursery.cancel_scope.cancel()


async def test_commits_take_their_times_from_the_settings(autojump_clock: trio.testing.MockClock) -> None:
    """commitIntervalCommitLog, commitCommitLogLeastPages and commitCommitLogThoroughInterval count;
    transientStorePoolSize is the buffer's size."""
    log = FakeLog()
    settings = {
        "commitIntervalCommitLog": 100,
        "commitCommitLogLeastPages": 2,
        "commitCommitLogThoroughInterval": 950,
    }
    policy = BufferedAsyncFlush(config(transientStorePoolSize=3, **settings))
    assert policy.commit_buffer_bytes == 3 * COMMIT_BUFFER_BYTES
    async with trio.open_nursery() as nursery:
        await nursery.start(policy.run, log, log.wanted)
        log.appended_offset = 2 * 4096 - 1
        await trio.sleep(0.55)
        assert log.commits == []
        log.appended_offset += 1
        await trio.sleep(0.1)
        assert log.commits == [0.6]
        log.appended_offset += 1
        await trio.sleep(0.5)
        assert len(log.commits) == 2
        assert 0.95 <= log.commits[1] <= 1.05
        nursery.cancel_scope.cancel()


async def test_a_commit_that_fails_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    """By the clock, until it succeeds; the policy goes on, for a disk that was full gets space again."""
    log = FakeLog()
    log.full = True
    async with trio.open_nursery() as nursery:
        await nursery.start(BufferedAsyncFlush(config()).run, log, log.wanted)
        log.appended_offset = 1
        await trio.sleep(1)
        assert 3 <= len(log.commits) <= 5
        log.full = False
        await trio.sleep(0.3)
        assert log.written_offset == 1
        nursery.cancel_scope.cancel()


async def test_a_device_that_fails_ends_the_policy_with_the_buffer_as_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As without: after that nobody knows what the device has."""
    log = FakeLog()
    log.broken = True
    log.written_offset = log.appended_offset = 1 << 20
    with pytest.raises(ExceptionGroup) as raised:
        await BufferedAsyncFlush(config()).run(log, log.wanted, trio.TASK_STATUS_IGNORED)
    assert raised.group_contains(StoreNotWritable, match="the device failed")


@pytest.mark.row("S281")
@pytest.mark.parametrize(
    ("name", "pool", "kind", "level"),
    [
        ("ASYNC_FLUSH", False, AsyncFlush, Level.WRITTEN),
        ("ASYNC_FLUSH", True, BufferedAsyncFlush, Level.WRITTEN),
        ("SYNC_FLUSH", False, SyncFlush, Level.FLUSHED),
        ("SYNC_FLUSH", True, SyncFlush, Level.FLUSHED),
    ],
)
def test_flush_disk_type_chooses_the_policy(
    name: str, pool: bool, kind: type[FlushPolicy], level: Level
) -> None:
    """`flushDiskType` and `transientStorePoolEnable` name the policy, and the policy says what a send waits
    for. Like Java, a commit buffer that could not be has no effect; but that is said."""
    settings = config(flushDiskType=name, transientStorePoolEnable=pool)
    registry = load_plugins(settings, extra=[("flush", plugin)], entry_points=False)
    policy = registry.chosen("flush_policies", settings.flush_policy)(settings)
    assert type(policy) is kind
    assert policy.acknowledge_at is level
    assert bool(policy.commit_buffer_bytes) == (kind is BufferedAsyncFlush)
    ignored = "transientStorePoolEnable has no effect with flushDiskType = SYNC_FLUSH, only with ASYNC_FLUSH"
    assert settings.warnings == ((ignored,) if pool and name == "SYNC_FLUSH" else ())


def test_a_buffer_of_nothing_is_refused() -> None:
    """A buffer without memory stops the start, and so do commits without a pause between them."""
    with pytest.raises(ConfigError, match=r"transientStorePoolSize = 0 .*must be positive"):
        config(transientStorePoolSize=0)
    with pytest.raises(ConfigError, match=r"commitIntervalCommitLog = 0 .*Expected `int` >= 1"):
        BufferedAsyncFlush(config(commitIntervalCommitLog=0))


class Noting(FlushPolicy):
    """Notes that it runs, and flushes when somebody waits."""

    acknowledge_at = Level.FLUSHED

    def __init__(self) -> None:
        self.flushes = 0

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        while True:
            await wanted()
            self.flushes += 1
            await log.flush()


class NotingPlugin:
    def __init__(self) -> None:
        self.policy = Noting()

    @hookimpl
    def rmqkit_register_flush_policies(self, register: Register[FlushPolicyFactory], config: Config) -> None:
        register("noting", lambda config: self.policy)


@pytest.mark.durable_store
async def test_a_policy_of_a_plugin_is_chosen_by_its_name(tmp_path: Path) -> None:
    """`flushDiskType` takes any name that a plugin brings; sends wait for what that policy says."""
    mine = NotingPlugin()
    async with running_broker(
        tmp_path, extra=[("mine", mine)], flushDiskType="noting", scheme="memory"
    ) as broker:
        async with calling_broker(broker) as call:
            header = SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0)
            assert (await call(request(RequestCode.SEND_MESSAGE, header, b"x"))).code == 0
        assert broker.context.store.is_settled(broker.context.store.end_offset, Level.FLUSHED)
    assert mine.policy.flushes


async def test_a_policy_that_nobody_brings_stops_the_start(tmp_path: Path) -> None:
    """With the nearest name there is."""
    said = "no plugin brings 'SNYC_FLUSH'.*did you mean 'SYNC_FLUSH'"
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=said), flatten_subgroups=True):
        async with running_broker(tmp_path, flushDiskType="SNYC_FLUSH"):
            raise AssertionError("it started")
