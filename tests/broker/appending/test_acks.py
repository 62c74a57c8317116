"""Many senders that wait for conditions, and one queue that waits for the conditions on their behalf."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from rmqkit.broker.appending.acks import AckQueue
from rmqkit.config import Config
from rmqkit.errors import RequestRefused, StoreNotWritable
from rmqkit.plugin.acks import AckCondition, ConditionLost, Settled
from rmqkit.plugin.flush import Level
from rmqkit.plugin.positions import LogPosition
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, message
from rmqkit_flush.policies import AsyncFlush
from rmqkit_store_memory.store import MemoryStore

TIMEOUT_MS = 5_000
SLAVE_TIMEOUT_MS = 3_000


class Store(MemoryStore):
    """A store whose positions are where the test says; `asked` is what was waited for."""

    written_by_append = False

    def __init__(self) -> None:
        super().__init__(Config(), FakeClock(), FlushWhenWanted())
        self.at = {Level.WRITTEN: 1_000, Level.FLUSHED: 0}
        self.fault: StoreNotWritable | None = None
        self.asked: list[tuple[int, Level]] = []
        self._changed = trio.Event()

    def reach(self, offset: int, level: Level = Level.FLUSHED, fault: StoreNotWritable | None = None) -> None:
        self.at[level], self.fault = offset, fault
        self._changed.set()
        self._changed = trio.Event()
        self.positions.moved()

    def settled_offset(self, level: Level) -> int:
        return self.at[level]

    async def settled(self, offset: int, level: Level) -> None:
        self.asked.append((offset, level))
        while not self.is_settled(offset, level):
            if self.fault is not None:
                raise self.fault
            await self._changed.wait()


class Replicas(AckCondition):
    """A condition that is where the test says; `lost` is raised to all that wait."""

    title = "the replicas"
    timeout_ms = SLAVE_TIMEOUT_MS
    timeout_code = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def __init__(self) -> None:
        self.at = 0
        self.lost: Exception | None = None
        self._position = LogPosition(lambda: self.at)
        self._changed = trio.Event()

    @property
    def position(self) -> LogPosition:
        return self._position

    def reach(self, offset: int, lost: Exception | None = None) -> None:
        self.at, self.lost = offset, lost
        self._changed.set()
        self._changed = trio.Event()
        self._position.moved()

    async def wait_passed(self, offset: int) -> None:
        while self.at < offset:
            if self.lost is not None:
                raise self.lost
            await self._changed.wait()


Told = list[tuple[str, int]]


def note(told: Told, name: str) -> Settled:
    """Writes down which sender was answered with which code."""
    return lambda result: told.append(
        (name, int(result.code if isinstance(result, RequestRefused) else result))
    )


@asynccontextmanager
async def running(store: Store, *further: AckCondition) -> AsyncIterator[AckQueue]:
    async with trio.open_nursery() as nursery:
        acks = AckQueue(store, FlushWhenWanted(), TIMEOUT_MS, further)
        await nursery.start(acks.run)
        yield acks
        nursery.cancel_scope.cancel()


@pytest.mark.row("S283")
async def test_one_flush_serves_all_that_it_passed() -> None:
    """Senders are answered in the order of the log; those behind the flush wait for the next one, which is
    asked for before the answers are made."""
    store, told = Store(), Told()
    async with running(store) as acks:
        for end in (10, 20, 30):
            acks.add(end, True, note(told, str(end)))
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
    """A sender that does not want to wait is answered when its message is written, before an earlier one
    that waits for the flush."""
    store, told = Store(), Told()
    store.reach(0, Level.WRITTEN)
    async with running(store) as acks:
        acks.add(10, True, note(told, "flush"))
        acks.add(20, False, note(told, "write"))
        store.reach(20, Level.WRITTEN)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("write", 0)]


async def test_each_has_its_own_time(autojump_clock: trio.testing.MockClock) -> None:
    """The time-out counts from the append: FLUSH_DISK_TIMEOUT for what is written, a refusal for what is not.
    Later senders are acknowledged as usual."""
    store, told = Store(), Told()
    async with running(store) as acks:
        acks.add(10, True, note(told, "first"))
        await trio.sleep(3)
        acks.add(2_000, True, note(told, "second"))
        await trio.sleep(2.5)
        assert told == [("first", ResponseCode.FLUSH_DISK_TIMEOUT)]
        await trio.sleep(3)
        assert told[1:] == [("second", ResponseCode.SERVICE_NOT_AVAILABLE)]
        acks.add(3_000, True, note(told, "third"))
        store.reach(3_000, Level.WRITTEN)
        store.reach(3_000)
        await trio.testing.wait_all_tasks_blocked()
        assert told[2:] == [("third", 0)]


async def test_a_failed_device_is_told_to_all(caplog: pytest.LogCaptureFixture) -> None:
    """Every sender is refused except those whose flush was over before the device failed."""
    store, told = Store(), Told()
    async with running(store) as acks:
        for end in (10, 20, 30):
            acks.add(end, True, note(told, str(end)))
        await trio.testing.wait_all_tasks_blocked()
        store.reach(10, fault=StoreNotWritable("fsync failed"))
        await trio.testing.wait_all_tasks_blocked()
    refused = ResponseCode.SERVICE_NOT_AVAILABLE
    assert sorted(told) == [("10", 0), ("20", refused), ("30", refused)]
    assert "before log offset 30 cannot be promised: fsync failed" in caplog.text


async def test_an_answer_that_fails_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """The error of a sender's own answer is logged, and the other senders are answered."""
    store, told = Store(), Told()

    def fail(result: int | RequestRefused) -> None:
        raise ValueError("no answer")

    async with running(store) as acks:
        acks.add(10, True, fail)
        acks.add(20, True, note(told, "other"))
        store.reach(20)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("other", 0)]
    assert "no answer" in caplog.text


# --- several conditions -------------------------------------------------------------------------------------


async def test_all_conditions_are_awaited() -> None:
    """A message is acknowledged once the last condition has passed it, whichever that is; a sender that does
    not want to wait waits for none of them."""
    store, replicas, told = Store(), Replicas(), Told()
    async with running(store, replicas) as acks:
        acks.add(10, True, note(told, "10"))
        acks.add(20, True, note(told, "20"))
        acks.add(30, False, note(told, "30"))
        assert told == [("30", 0)]
        replicas.reach(20)
        store.reach(10)
        await trio.testing.wait_all_tasks_blocked()
        assert told[1:] == [("10", 0)]
        assert acks.passed(True) < 20
        assert acks.passed(False) >= 20
        store.reach(20)
        await trio.testing.wait_all_tasks_blocked()
        assert told[2:] == [("20", 0)]
        assert acks.passed(True) >= 20
        store.reach(30)
        acks.add(30, True, note(told, "late"))
        replicas.reach(30)
        await trio.testing.wait_all_tasks_blocked()
        assert told[3:] == [("late", 0)]


def no_flush(store: Store) -> None:
    """The flush takes too long."""


def bad_device(store: Store) -> None:
    store.reach(0, fault=StoreNotWritable("fsync failed"))


def good_flush(store: Store) -> None:
    store.reach(10)


def no_answer(replicas: Replicas) -> None:
    """The replicas take too long."""


def gone(replicas: Replicas) -> None:
    replicas.reach(0, ConditionLost(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica"))


def fenced(replicas: Replicas) -> None:
    replicas.reach(0, ConditionLost(ResponseCode.SYSTEM_ERROR, "another broker is master"))


def broken(replicas: Replicas) -> None:
    replicas.reach(0, ValueError("a mistake"))


def good_replicas(replicas: Replicas) -> None:
    replicas.reach(10)


@pytest.mark.parametrize(
    ("device", "replicas", "code"),
    [
        (good_flush, good_replicas, ResponseCode.SUCCESS),
        (no_flush, good_replicas, ResponseCode.FLUSH_DISK_TIMEOUT),
        (good_flush, no_answer, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (good_flush, gone, ResponseCode.SLAVE_NOT_AVAILABLE),
        (no_flush, no_answer, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (no_flush, gone, ResponseCode.SLAVE_NOT_AVAILABLE),
        (bad_device, good_replicas, ResponseCode.SERVICE_NOT_AVAILABLE),
        (bad_device, no_answer, ResponseCode.SERVICE_NOT_AVAILABLE),
        (bad_device, fenced, ResponseCode.SERVICE_NOT_AVAILABLE),
        (no_flush, fenced, ResponseCode.SYSTEM_ERROR),
        (good_flush, broken, ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
async def test_which_failure_counts(
    device: Callable[[Store], None],
    replicas: Callable[[Replicas], None],
    code: int,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A refusal goes before the codes of stored messages, of several refusals the first in the list; of the
    codes the replicas' replaces the flush's (store-format sheet, section 6.3)."""
    store, condition, told = Store(), Replicas(), Told()
    async with running(store, condition) as acks:
        acks.add(10, True, note(told, "sender"))
        device(store)
        replicas(condition)
        await trio.sleep(TIMEOUT_MS / 1000 + 1)
        assert told == [("sender", code)]


async def test_each_condition_has_its_own_time_out(autojump_clock: trio.testing.MockClock) -> None:
    """A sender is answered when the last condition has passed or has failed, not at the first time-out."""
    store, replicas, told = Store(), Replicas(), Told()
    async with running(store, replicas) as acks:
        acks.add(10, True, note(told, "sender"))
        await trio.sleep(4)
        assert told == []
        store.reach(10)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [("sender", ResponseCode.FLUSH_SLAVE_TIMEOUT)]


async def test_everything_that_was_appended() -> None:
    """`settle_everything` waits for all conditions, and raises what is lost."""
    store, replicas = Store(), Replicas()
    store.at = dict.fromkeys(Level, 1_000)
    async with running(store, replicas) as acks:
        await acks.settle_everything()
        store._log.end = 1_000
        replicas.reach(0, ConditionLost(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica"))
        with pytest.raises(ConditionLost, match="no replica"):
            await acks.settle_everything()
        replicas.reach(1_000)
        await acks.settle_everything()


def test_what_is_confirmed() -> None:
    """The log is confirmed as far as it has passed every condition."""
    store, replicas, offsets = Store(), Replicas(), list[int]()
    acks = AckQueue(store, FlushWhenWanted(), TIMEOUT_MS, [replicas])
    acks.confirmed.follow(lambda: offsets.append(acks.confirmed.offset))
    store.reach(500)
    replicas.reach(300)
    replicas.reach(700)
    assert offsets == [300, 500]


def test_without_conditions_everything_written_is_confirmed() -> None:
    """With a policy that does not flush first and a store whose appends write, no message waits."""
    store = Store()
    store.written_by_append = True
    acks = AckQueue(store, AsyncFlush(Config()), TIMEOUT_MS)
    assert acks.confirmed.offset == 1_000
    assert acks.passed(True) >= 1_000
    assert acks.refusal() is None


async def test_nothing_is_acknowledged_after_the_deadline() -> None:
    """A message that passes its conditions after the deadline may or may not be stored, and so may one that
    needs not wait."""
    store, told = Store(), Told()
    async with running(store) as acks:
        acks.gate.open(trio.current_time() + 3_600)
        acks.add(10, True, note(told, "waits"))
        await trio.testing.wait_all_tasks_blocked()
        acks.gate.until_s = trio.current_time()
        assert acks.passed(False) < 10
        acks.add(10, False, note(told, "waits not"))
        store.reach(10)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [
            ("waits not", ResponseCode.SERVICE_NOT_AVAILABLE),
            ("waits", ResponseCode.SERVICE_NOT_AVAILABLE),
        ]


async def test_pending_messages_are_refused_when_the_role_ends() -> None:
    """All pending messages are answered at once, each of them once; those of a later term, whose log may be
    shorter, wait for themselves alone."""
    store, told, replicas = Store(), Told(), Replicas()
    async with running(store, replicas) as acks:
        for end in (20, 30):
            acks.add(end, True, note(told, str(end)))
        await trio.testing.wait_all_tasks_blocked()
        acks.gate.close("no master")
        acks.abandon()
        refused = [(str(end), int(ResponseCode.SERVICE_NOT_AVAILABLE)) for end in (20, 30)]
        assert told == refused
        acks.gate.open(trio.current_time() + 3_600)
        acks.add(10, True, note(told, "10"))
        store.reach(10)
        replicas.reach(10)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [*refused, ("10", 0)]
        store.reach(30)
        replicas.reach(30)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [*refused, ("10", 0)]


async def test_nobody_waits_for_a_log_that_may_be_cut() -> None:
    """Where the gate is closed, what has not passed may never pass: a service that stops learns it at
    once."""
    store = Store()
    await store.open()
    store.append([message("T")])
    async with running(store) as acks:
        acks.gate.close("no master")
        with trio.fail_after(0), pytest.raises(ConditionLost, match="no master"):
            await acks.settle_everything()


async def test_the_whole_log_does_not_settle_across_terms() -> None:
    """A service that waits for the log learns that the role has ended meanwhile."""
    store = Store()
    await store.open()
    store.append([message("T")])
    async with running(store) as acks:

        async def settle() -> None:
            with pytest.raises(ConditionLost, match="may have been cut"):
                await acks.settle_everything()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            await trio.testing.wait_all_tasks_blocked()
            acks.gate.close("no master")
            acks.gate.open(trio.current_time() + 3_600)
            store.reach(store.end_offset)
