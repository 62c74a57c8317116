"""Acknowledgement conditions: the contract over those of the flush policies and over a plugin's, and what a
plugin's condition does to the answers of a broker."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit import hookimpl
from rmqkit.broker.appending.acks import LogCondition
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.acks import AckCondition, ConditionLost
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.positions import LogPosition
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rmqkit.testing.acks import AckConditionContract
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import message, running, store_config
from rmqkit_flush.policies import BufferedAsyncFlush, SyncFlush
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore


class BadDisk(Disk):
    """A device that fails once `broken` is set."""

    broken = False

    def sync(self, fd: int) -> None:
        self._check()
        super().sync(fd)

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self._check()
        super().write_many(fd, parts, offset)

    def _check(self) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")


class PolicyCondition(AckConditionContract):
    """The condition of a flush policy, over a store that the policy works for."""

    policy: Callable[[Config], FlushPolicy]

    @pytest.fixture(autouse=True)
    def at(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.disk = BadDisk()

    @asynccontextmanager
    async def made(self) -> AsyncIterator[AckCondition]:
        config = store_config(self.directory)
        policy = type(self).policy(config)
        async with running(MmapStore(config, FakeClock(), policy, disk=self.disk)) as store:
            store.append([message(body=bytes(100))])
            yield LogCondition(store, policy.acknowledge_at, 5_000)
            self.disk.broken = False

    async def lose(self, condition: AckCondition) -> None:
        self.disk.broken = True
        await trio.lowlevel.checkpoint()


class TestSyncFlush(PolicyCondition):
    policy = SyncFlush


class TestBufferedAsyncFlush(PolicyCondition):
    policy = BufferedAsyncFlush


class Replicas(AckCondition):
    """A condition that is where the test says."""

    title = "the replicas"
    timeout_ms = 50
    timeout_code = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def __init__(self) -> None:
        self.at = 0
        self.lost: ConditionLost | None = None
        self.refuses = False
        self._position = LogPosition(lambda: self.at)
        self._changed = trio.Event()

    @property
    def position(self) -> LogPosition:
        return self._position

    def change(self, at: int, lost: ConditionLost | None = None) -> None:
        self.at, self.lost = at, lost
        self._changed.set()
        self._changed = trio.Event()
        self._position.moved()

    async def wait_passed(self, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.at < offset:
            if self.lost is not None:
                raise self.lost
            await self._changed.wait()

    def refusal(self) -> RequestRefused | None:
        if not self.refuses:
            return None
        return RequestRefused(ResponseCode.SYSTEM_ERROR, "the in-sync replicas are not enough: 1 of 2")


class TestReplicas(AckConditionContract):
    @asynccontextmanager
    async def made(self) -> AsyncIterator[AckCondition]:
        yield Replicas()

    async def pass_to(self, condition: Replicas, offset: int) -> None:
        condition.change(offset)
        await trio.lowlevel.checkpoint()

    async def lose(self, condition: Replicas) -> None:
        condition.change(0, ConditionLost(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica"))
        await trio.lowlevel.checkpoint()


class Hasty(Replicas):
    """Waits for nothing."""

    async def wait_passed(self, offset: int) -> None:
        await trio.lowlevel.checkpoint()


class Silent(Replicas):
    """Says nothing to the followers of its position."""

    def change(self, at: int, lost: ConditionLost | None = None) -> None:
        self.at = at
        self._changed.set()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(Hasty, "test_a_wait_ends_when_the_log_has_passed"), (Silent, "test_followers_learn_of_it")],
)
async def test_a_broken_condition_is_found(kind: type[Replicas], rule: str) -> None:
    """A condition that breaks a rule fails the test of that rule."""

    class Broken(TestReplicas):
        @asynccontextmanager
        async def made(self) -> AsyncIterator[AckCondition]:
            yield kind()

        async def passed(self, condition: AckCondition, offset: int) -> None:
            await condition.wait_passed(0)
            if kind is Silent:
                await super().passed(condition, offset)

    with pytest.raises((AssertionError, IndexError)):
        await getattr(Broken(), rule)()


# --- a plugin's condition in a broker -----------------------------------------------------------------------


class Plugin:
    def __init__(self) -> None:
        self.replicas = Replicas()

    @hookimpl
    def rmqkit_register_ack_conditions(self, register: Register[AckCondition], config: Config) -> None:
        register("replicas", self.replicas)


def send(properties: str = "") -> Command:
    header = SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0, properties=properties)
    return request(RequestCode.SEND_MESSAGE, header, b"x")


async def test_a_send_waits_for_the_condition_of_a_plugin(tmp_path: Path) -> None:
    """A send is answered with success once the condition has passed it, with the condition's code and the
    place of the message after its time-out or a loss, and is refused where the condition refuses beforehand;
    with WAIT = false nothing of this applies."""
    plugin = Plugin()
    async with (
        running_broker(tmp_path, extra=[("replication", plugin)], scheme="memory") as broker,
        calling_broker(broker) as call,
    ):
        store, replicas, confirmed = (
            broker.context.store,
            plugin.replicas,
            broker.context.appender.acks.confirmed,
        )
        answer = await call(send())
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert answer.header(SendMessageResponseHeader).queue_offset == 0
        assert confirmed.offset == 0
        assert (await call(send("WAIT\x01false\x02"))).code == ResponseCode.SUCCESS
        replicas.change(0, ConditionLost(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica"))
        assert (await call(send())).code == ResponseCode.SLAVE_NOT_AVAILABLE
        replicas.change(1 << 40)
        assert (await call(send())).code == ResponseCode.SUCCESS
        assert 0 < confirmed.offset <= store.end_offset
        end = store.end_offset
        replicas.refuses = True
        answer = await call(send())
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the in-sync replicas are not enough: 1 of 2",
        )
        assert store.end_offset == end
        assert (await call(send("WAIT\x01false\x02"))).code == ResponseCode.SUCCESS
