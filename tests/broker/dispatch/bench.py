"""Dispatchers over an open store, as in a broker, for the tests of dispatching."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, field

from rmqkit.broker.dispatch.manager import Dispatching
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.run.sliced_work import SlicedWork
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, message, running
from rmqkit_store_memory.store import MemoryStore
from tests.broker.dispatch.appends import append
from tests.broker.kit import config_of


class Noted(Dispatcher):
    """Records the bodies of its entries; raises `fails` times before it does. With `keeps` it has a
    progress."""

    def __init__(self, fails: int = 0, keeps: bool = True, progress: int = 0) -> None:
        self.bodies: list[bytes] = []
        self.batches: list[int] = []
        self.fails = fails
        self.keeps = keeps
        self.end = progress
        self.begun_with: tuple[int, int] | None = None
        self.closed = 0
        self.forgotten: list[int] = []

    @property
    def progress_offset(self) -> int | None:
        return self.end if self.keeps else None

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        self.begun_with = (log_start, log_end)

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError("boom")
        self.bodies += [entry.message.body for entry in entries]
        self.batches.append(sum(entry.at.size_bytes for entry in entries))
        self.end = entries[-1].at.physical_offset + entries[-1].at.size_bytes

    def forget_before(self, log_start: int) -> None:
        self.forgotten.append(log_start)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1


class Slow(QueuedDispatcher):
    """Takes one batch each time it is released; fails for the given first bodies."""

    def __init__(self, keeps: bool = True) -> None:
        self.bodies: list[bytes] = []
        self.may_go = trio.Semaphore(0)
        self.fails_on: list[bytes] = []
        self.keeps = keeps
        self.end = 0

    @property
    def progress_offset(self) -> int | None:
        return self.end if self.keeps else None

    async def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        await self.may_go.acquire()
        first = entries[0].message.body.rstrip(b"\0")
        if first in self.fails_on:
            self.fails_on.remove(first)
            raise ValueError("boom")
        self.bodies += [entry.message.body for entry in entries]
        self.end = entries[-1].at.physical_offset + entries[-1].at.size_bytes


@define
class Bench:
    """Dispatchers over an open store, as in a broker."""

    store: MessageStore
    dispatching: Dispatching
    sent: int = field(default=0)

    def send(self, count: int = 1, size_bytes: int = 0) -> None:
        """One append of some messages whose bodies are numbers."""
        messages = [
            message(body=b"%d" % number + bytes(size_bytes)) for number in range(self.sent, self.sent + count)
        ]
        self.sent += count
        append(self.store, self.dispatching, messages)

    @property
    def all(self) -> list[bytes]:
        return [b"%d" % number for number in range(self.sent)]

    def behind(self) -> list[tuple[int, int]]:
        """Bytes behind and failures of each of the plugins' dispatchers."""
        return [
            (each.behind_bytes, each.failures)
            for each in self.dispatching.progress()
            if each.name not in self.store.dispatch_behind()
        ]


def dispatching_of(store: MessageStore, *dispatchers: LogFollower) -> Dispatching:
    named = {f"d{number}": dispatcher for number, dispatcher in enumerate(dispatchers)}
    held = HeldPulls(SlicedWork())
    return Dispatching(store, named, dict.fromkeys(named, "mine"), held)


@asynccontextmanager
async def bench(*dispatchers: LogFollower, store: MessageStore | None = None) -> AsyncIterator[Bench]:
    store = store or MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    async with running(store):
        dispatching = dispatching_of(store, *dispatchers)
        await dispatching.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(dispatching.run)
            yield Bench(store, dispatching)
            nursery.cancel_scope.cancel()
        await dispatching.close()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()
