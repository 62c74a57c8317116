"""Log bytes that were not appended by the broker, as on a replica: followers get them from the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from rmqkit.broker.dispatch.manager import Dispatching
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.run.sliced_work import SlicedWork
from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.model.message import PutMessage
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, QueuedDispatcher
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.command import request
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import FlushWhenWanted, message, running
from rmqkit_store_memory.store import MemoryStore
from tests.broker.dispatch.appends import append
from tests.broker.kit import config_of


class Direct(Dispatcher):
    """Records the bodies of its entries."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.bodies += [entry.message.body for entry in entries]


class Queued(QueuedDispatcher):
    """The same behind the answers; with `may_go` each batch waits for it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.may_go: trio.Event | None = None

    async def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        await trio.lowlevel.checkpoint()
        if self.may_go is not None:
            await self.may_go.wait()
        self.bodies += [entry.message.body for entry in entries]


@define
class Replica:
    """A store with followers; messages come by the appender or past it, and their bodies are numbers."""

    store: MessageStore
    dispatching: Dispatching
    held: HeldPulls
    work: SlicedWork
    woken: list[int] = field(factory=list)
    sent: int = 0

    def _next(self, count: int) -> list[PutMessage]:
        self.sent += count
        return [message(body=b"%d" % number) for number in range(self.sent - count, self.sent)]

    def append(self, count: int = 1) -> None:
        append(self.store, self.dispatching, self._next(count))

    def copy(self, count: int = 1) -> None:
        """As a replica takes what its master sends."""
        self.store.append(self._next(count))
        self.store.positions.moved()

    def hold(self) -> None:
        """Hold a pull at the end of the queue, which notes how far the queue has grown when it wakes."""
        end = self.store.max_offset("Orders", 0)

        def retry(final: bool) -> None:
            self.woken.append(self.store.max_offset("Orders", 0))

        self.held.hold(HeldRequest(request(11), FakePeer(), (("Orders", 0),), (end,), 9_000, None, retry))

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self.work.finish()

    @property
    def all(self) -> list[bytes]:
        return [b"%d" % number for number in range(self.sent)]


@pytest.fixture
def dispatchers() -> tuple[Direct, Queued]:
    return Direct(), Queued()


@pytest.fixture
async def replica(dispatchers: tuple[Direct, Queued]) -> AsyncIterator[Replica]:
    store = MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    named = {type(each).__name__: each for each in dispatchers}
    work = SlicedWork()
    held = HeldPulls(work)
    async with running(store):
        dispatching = Dispatching(store, named, dict.fromkeys(named, "tests"), held)
        await dispatching.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(dispatching.run)
            yield Replica(store, dispatching, held, work)
            nursery.cancel_scope.cancel()
        await dispatching.close()


async def test_dispatchers_and_held_pulls_are_given_what_was_copied(
    replica: Replica, dispatchers: tuple[Direct, Queued]
) -> None:
    """Dispatchers of both kinds see every record once and in order, and a held pull wakes, whether records
    came by the appender or past it."""
    direct, queued = dispatchers
    replica.hold()
    replica.copy(2)
    await replica.settle()
    assert (direct.bodies, queued.bodies, replica.woken) == (replica.all, replica.all, [2])
    replica.hold()
    replica.append()
    replica.copy()
    replica.append(2)
    await replica.settle()
    assert (direct.bodies, queued.bodies, replica.woken) == (replica.all, replica.all, [2, 6])
    assert {each.behind_bytes for each in replica.dispatching.progress()} == {0}


async def test_a_pull_is_not_woken_by_what_came_before_it(replica: Replica) -> None:
    """A pull that is held at the end of the queue waits for the next record."""
    replica.copy()
    replica.hold()
    await replica.settle()
    assert replica.woken == []
    replica.copy()
    await replica.settle()
    assert replica.woken == [2]


@pytest.mark.parametrize("dispatchers", [()])
async def test_a_held_pull_alone_follows_what_is_copied(replica: Replica) -> None:
    """Without dispatchers nothing follows the log until a pull is held."""
    replica.append(3)
    replica.copy(3)
    for count in (7, 8):
        replica.hold()
        replica.copy()
        await replica.settle()
        assert replica.woken[-1] == count
    replica.hold()
    replica.append()
    await replica.settle()
    assert replica.woken == [7, 8, 9]


async def test_a_run_wakes_each_queue_once(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages of a run a queue gets, its held pulls are woken by one call, with the codes of
    all of them; queues without held pulls are not."""
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(replica.held, "arrived", lambda *call: calls.append(call))
    replica.hold()
    run = [message(queue_id=at % 2, body=b"%d" % at, tags_code=at % 4) for at in range(12)]
    append(replica.store, replica.dispatching, run)
    await replica.settle()
    assert [(call[:3], {*call[3:]}) for call in calls] == [(("Orders", 0, 6), {0, 2})]


async def test_followers_go_back_with_a_truncated_log(
    replica: Replica, dispatchers: tuple[Direct, Queued]
) -> None:
    """What follows in the place of records that were taken off the log is given to dispatchers of both kinds,
    and wakes held pulls, whether it comes by the appender or past it."""
    direct, queued = dispatchers
    replica.append(2)
    end = replica.store.end_offset
    replica.append(3)
    await replica.settle()
    for copied in (False, True):
        taken = len(direct.bodies)
        await replica.store.truncate(end)
        replica.hold()
        if copied:
            replica.copy(2)
        else:
            replica.append(2)
        await replica.settle()
        assert direct.bodies[taken:] == queued.bodies[taken:] == replica.all[-2:]
        assert replica.woken[-1] == 4
        assert {each.behind_bytes for each in replica.dispatching.progress()} == {0}


async def test_work_for_records_that_are_gone_is_cancelled(replica: Replica) -> None:
    """A dispatcher with a queue that is at work on records when they are taken off the log is interrupted,
    and is given what comes in their place."""
    cursor: Any = replica.dispatching.cursors[1]
    queued: Queued = cursor.dispatcher
    queued.may_go = trio.Event()
    replica.append(1)
    end = replica.store.end_offset
    replica.append(2)
    await replica.settle()
    await replica.store.truncate(end)
    replica.append(3)
    queued.may_go.set()
    await replica.settle()
    assert queued.bodies == [replica.all[0], *replica.all[-3:]]
    assert not cursor.is_behind


async def test_a_dispatcher_forgets_before_others_take_the_place(
    replica: Replica, dispatchers: tuple[Direct, Queued]
) -> None:
    """Dispatchers of both kinds get the new end while nothing can be appended, and then entries from the
    place that they name."""
    direct, queued = dispatchers
    replica.append(3)
    await replica.settle()
    end = replica.store.end_offset
    replica.append(2)
    await replica.settle()
    seen: list[int] = []

    async def forget_from(log_end: int) -> int:
        with pytest.raises(StoreNotWritable):
            replica.append()
        await trio.testing.wait_all_tasks_blocked()
        seen.append(log_end)
        return 0

    direct.forget_from = forget_from  # type: ignore[method-assign]
    queued.forget_from = forget_from  # type: ignore[method-assign]
    direct.bodies, queued.bodies = [], []
    await replica.store.truncate(end)
    assert seen == [end, end]
    replica.append(1)
    await replica.settle()
    left = [*replica.all[:3], replica.all[-1]]
    assert (direct.bodies, queued.bodies) == (left, left)


async def test_a_dispatcher_that_cannot_forget_stops_the_store(
    replica: Replica, dispatchers: tuple[Direct, Queued]
) -> None:
    """The truncation fails, and nothing is appended after it, because the dispatcher still knows records that
    do not exist."""
    direct, _ = dispatchers
    replica.append(2)

    async def forget_from(log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        raise OSError("no")

    direct.forget_from = forget_from  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="cannot go back to 0: no"):
        await replica.store.truncate(0)
    with pytest.raises(StoreNotWritable):
        replica.append()


async def test_a_closed_broker_hands_on_nothing(replica: Replica, dispatchers: tuple[Direct, Queued]) -> None:
    """A store that writes while it closes gives its dispatchers nothing any more."""
    direct, _ = dispatchers
    await replica.dispatching.close()
    replica.copy()
    await replica.settle()
    assert direct.bodies == []
