"""Many that wait for the disk, and one task that waits for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from rmqkit.abc import Level
from rmqkit.broker.settling import Settled, Settling
from rmqkit.config import Config
from rmqkit.errors import RequestRefused, StoreNotWritable
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit_flush.policies import AsyncFlush
from rmqkit_store_memory.store import MemoryStore

TIMEOUT_MS = 5_000


class Store(MemoryStore):
    """A store whose device stands where the test says; `asked` is what was waited for."""

    def __init__(self) -> None:
        super().__init__(Config(), FakeClock(), AsyncFlush(Config()))
        self.at = {Level.WRITTEN: 1_000, Level.FLUSHED: 0}
        self.fault: StoreNotWritable | None = None
        self.asked: list[tuple[int, Level]] = []
        self._changed = trio.Event()

    def reach(self, offset: int, level: Level = Level.FLUSHED, fault: StoreNotWritable | None = None) -> None:
        self.at[level], self.fault = offset, fault
        self._changed.set()
        self._changed = trio.Event()

    def is_settled(self, offset: int, level: Level) -> bool:
        return offset <= self.at[level]

    async def settled(self, offset: int, level: Level) -> None:
        self.asked.append((offset, level))
        while not self.is_settled(offset, level):
            if self.fault is not None:
                raise self.fault
            await self._changed.wait()


Told = list[tuple[str, int]]


def note(told: Told, name: str) -> Settled:
    """Writes down who was told what code."""
    return lambda result: told.append((name, int(result.code if isinstance(result, RequestRefused) else result)))


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Settling]:
    async with trio.open_nursery() as nursery:
        settling = Settling(store, TIMEOUT_MS)
        await nursery.start(settling.run)
        yield settling
        nursery.cancel_scope.cancel()


@pytest.mark.row("S283")
async def test_one_flush_serves_all_that_it_passed() -> None:
    """In the order of the log; those behind it wait for the next one, which was asked for before the answers are made."""
    store, told = Store(), Told()
    async with running(store) as settling:
        for end in (10, 20, 30):
            settling.add(end, Level.FLUSHED, note(told, str(end)))
        await trio.testing.wait_all_tasks_blocked()
        assert (told, store.asked) == ([], [(10, Level.FLUSHED)])
        store.reach(25)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("10", 0), ("20", 0)]
        assert store.asked[1:] == [(30, Level.FLUSHED)]
        store.reach(30)
        await trio.testing.wait_all_tasks_blocked()
        assert told[2:] == [("30", 0)]


async def test_who_waits_for_the_write_does_not_wait_for_the_flush() -> None:
    """The two kinds do not hold each other up."""
    store, told = Store(), Told()
    store.reach(0, Level.WRITTEN)
    async with running(store) as settling:
        settling.add(10, Level.FLUSHED, note(told, "flush"))
        settling.add(20, Level.WRITTEN, note(told, "write"))
        store.reach(20, Level.WRITTEN)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("write", 0)]


async def test_each_has_its_own_time(autojump_clock: trio.testing.MockClock) -> None:
    """Counted from when it came: FLUSH_DISK_TIMEOUT for what is written, a refusal for what is not. Those that come later are served as ever."""
    store, told = Store(), Told()
    async with running(store) as settling:
        settling.add(10, Level.FLUSHED, note(told, "first"))
        await trio.sleep(3)
        settling.add(2_000, Level.FLUSHED, note(told, "second"))
        await trio.sleep(2.5)
        assert told == [("first", ResponseCode.FLUSH_DISK_TIMEOUT)]
        await trio.sleep(3)
        assert told[1:] == [("second", ResponseCode.SERVICE_NOT_AVAILABLE)]
        settling.add(3_000, Level.FLUSHED, note(told, "third"))
        store.reach(3_000)
        await trio.testing.wait_all_tasks_blocked()
        assert told[2:] == [("third", 0)]


async def test_a_failed_device_is_told_to_all(caplog: pytest.LogCaptureFixture) -> None:
    """But for those whose flush was over before it failed."""
    store, told = Store(), Told()
    async with running(store) as settling:
        for end in (10, 20, 30):
            settling.add(end, Level.FLUSHED, note(told, str(end)))
        await trio.testing.wait_all_tasks_blocked()
        store.reach(10, fault=StoreNotWritable("fsync failed"))
        await trio.testing.wait_all_tasks_blocked()
    refused = ResponseCode.SERVICE_NOT_AVAILABLE
    assert sorted(told) == [("10", 0), ("20", refused), ("30", refused)]
    assert "before log offset 30 cannot be promised: fsync failed" in caplog.text


async def test_an_answer_that_fails_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, the others are told."""
    store, told = Store(), Told()

    def fail(result: int | RequestRefused) -> None:
        raise ValueError("no answer")

    async with running(store) as settling:
        settling.add(10, Level.FLUSHED, fail)
        settling.add(20, Level.FLUSHED, note(told, "other"))
        store.reach(20)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("other", 0)]
    assert "no answer" in caplog.text
