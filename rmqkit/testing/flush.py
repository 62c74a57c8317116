"""Contract of a flush policy as tests. Subclass `FlushPolicyContract` and define how the policy is made;
pytest then runs the tests.

    class TestMine(FlushPolicyContract):
        def make_policy(self, config: Config) -> FlushPolicy:
            return MyPolicy(config)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from rmqkit.config import Config, load
from rmqkit.errors import StoreNotWritable
from rmqkit.plugin.flush import FlushPolicy, Level

_MESSAGE_BYTES = 1_000
_COMMIT_S, _FLUSH_S = 0.02, 0.1


class FakeLog:
    """A log whose commit takes a fiftieth of a second and whose flush takes a tenth. `commits` and `flushes`
    are the times when they began, in s since the log was made.

    With `buffered` false an append writes, as for a policy without a commit buffer. `full` makes commits
    fail, `broken` flushes.
    """

    def __init__(self, buffered: bool = False) -> None:
        self.buffered = buffered
        self.appended_offset = self.written_offset = self.flushed_offset = 0
        self.commits: list[float] = []
        self.flushes: list[float] = []
        self.full = self.broken = False
        self._start_s = trio.current_time()
        self._wanted = trio.Event()

    def append(self, size_bytes: int = _MESSAGE_BYTES) -> int:
        """The new end of the log."""
        self.appended_offset += size_bytes
        if not self.buffered:
            self.written_offset = self.appended_offset
        return self.appended_offset

    async def commit(self) -> int:
        if not self.buffered:
            await trio.lowlevel.checkpoint()
            return self.written_offset
        target = self.appended_offset
        self.commits.append(trio.current_time() - self._start_s)
        await trio.sleep(_COMMIT_S)
        if self.full:
            raise StoreNotWritable("the disk is full")
        self.written_offset = target
        return target

    async def flush(self) -> int:
        target = self.written_offset
        if target == self.flushed_offset:
            await trio.lowlevel.checkpoint()
            return target
        self.flushes.append(trio.current_time() - self._start_s)
        await trio.sleep(_FLUSH_S)
        if self.broken:
            raise StoreNotWritable("the device failed")
        self.flushed_offset = target
        return target

    def want(self) -> None:
        """Tell the policy that a task waits."""
        self._wanted.set()

    async def wanted(self) -> None:
        await self._wanted.wait()
        self._wanted = trio.Event()


class FlushPolicyContract(ABC):
    """Tests of every flush policy; they run under a mock clock."""

    #: Everything is flushed within this time, with or without waiting tasks. None for a policy that does not
    #: flush by itself.
    flushed_within_s: float | None = 60
    #: Longest wait for `acknowledge_at`.
    acknowledged_within_s: float = 2

    @abstractmethod
    def make_policy(self, config: Config) -> FlushPolicy:
        """A new policy; `config` has the default settings."""

    @pytest.fixture
    def policy(self) -> FlushPolicy:
        return self.make_policy(load(environ={}))

    @pytest.fixture
    def flushing(self, policy: FlushPolicy) -> FlushPolicy:
        """The policy, for tests of those that flush by themselves."""
        if self.flushed_within_s is None:
            pytest.skip("this policy does not flush by itself")
        return policy

    @pytest.fixture
    def buffered(self, policy: FlushPolicy) -> FlushPolicy:
        """The policy, for tests of those with a commit buffer."""
        if not policy.commit_buffer_bytes:
            pytest.skip("this policy has no commit buffer")
        return policy

    @asynccontextmanager
    async def running(self, policy: FlushPolicy) -> AsyncIterator[FakeLog]:
        log = FakeLog(policy.commit_buffer_bytes > 0)
        async with trio.open_nursery() as nursery:
            with trio.fail_after(10):
                await nursery.start(policy.run, log, log.wanted)
            yield log
            nursery.cancel_scope.cancel()

    def reached(self, policy: FlushPolicy, log: FakeLog) -> int:
        """The offset before which the log has reached `acknowledge_at`."""
        return log.flushed_offset if policy.acknowledge_at is Level.FLUSHED else log.written_offset

    async def test_what_it_says_of_itself(
        self, policy: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """A policy has a level to acknowledge at, and a commit buffer of zero or more bytes."""
        assert isinstance(policy.acknowledge_at, Level)
        assert policy.commit_buffer_bytes >= 0

    async def test_who_waits_is_acknowledged(
        self, policy: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """Every waiting task is served soon, also one that begins to wait during a commit or a flush."""
        async with self.running(policy) as log:
            for _ in range(20):
                log.append()
                log.want()
                await trio.sleep(0.03)
            end = log.append()
            log.want()
            await trio.sleep(self.acknowledged_within_s)
            assert self.reached(policy, log) == end

    async def test_what_nobody_waits_for_reaches_the_device_too(
        self, flushing: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """Small and large amounts of data are flushed without a waiting task."""
        assert self.flushed_within_s is not None
        async with self.running(flushing) as log:
            for size_bytes in (1, 10_000_000):
                end = log.append(size_bytes)
                await trio.sleep(self.flushed_within_s)
                assert log.flushed_offset == end

    async def test_a_device_that_fails_ends_the_policy(
        self, policy: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """The content of the device is unknown after a failed flush: the policy raises the error."""
        log = FakeLog(policy.commit_buffer_bytes > 0)
        log.broken = True
        with pytest.RaisesGroup(
            pytest.RaisesExc(StoreNotWritable, match="the device failed"),
            allow_unwrapped=True,
            flatten_subgroups=True,
        ):
            async with trio.open_nursery() as nursery:
                await nursery.start(policy.run, log, log.wanted)
                log.append(10_000_000)
                log.want()
                await trio.sleep(self.flushed_within_s or 0)
                nursery.cancel_scope.cancel()

    async def test_a_full_disk_is_tried_again(
        self, buffered: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """A failed commit does not end a policy with a buffer; once there is space again, the waiting data is
        written."""
        async with self.running(buffered) as log:
            log.full = True
            end = log.append()
            log.want()
            await trio.sleep(5)
            assert log.commits
            log.full = False
            await trio.sleep(5)
            assert log.written_offset == end

    async def test_it_can_be_cancelled_at_any_time(
        self, policy: FlushPolicy, autojump_clock: trio.testing.MockClock
    ) -> None:
        """Cancelling ends the policy at once, also in the middle of a flush."""
        async with trio.open_nursery() as nursery:
            log = FakeLog(policy.commit_buffer_bytes > 0)
            await nursery.start(policy.run, log, log.wanted)
            log.append()
            log.want()
            await trio.sleep(_FLUSH_S / 2)
            began_s = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() == began_s
