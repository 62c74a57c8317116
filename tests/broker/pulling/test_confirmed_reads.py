"""Messages that a condition gates: nobody sees them before the condition has passed them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from attrs import define, field

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.run import MessageRun
from rmqkit.plugin.acks import AckCondition
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower
from rmqkit.plugin.flush import Level
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.positions import LogPosition
from rmqkit.plugin.store import Appended, Boundary, MessageStore, ReadLimits, ReadStatus
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import OffsetResponseHeader, QueueRequestHeader, ViewMessageRequestHeader
from rmqkit.testing.store import message
from tests.broker.desk import BrokerHarness, open_desk


class Gate(AckCondition):
    """A condition that is where the test says."""

    title = "the gate"
    timeout_ms = 30_000
    timeout_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    gates_reads = True

    def __init__(self) -> None:
        self.at = 0
        self._position = LogPosition(lambda: self.at)

    @property
    def position(self) -> LogPosition:
        return self._position

    def move(self, offset: int) -> None:
        self.at = offset
        self._position.moved()


class Seen(Dispatcher):
    """Records the bodies of its entries."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.bodies += [entry.message.body for entry in entries]


@define
class Plugin:
    """A gate, and a dispatcher with effects outside of the broker."""

    gate: Gate = field(factory=Gate)
    seen: Seen = field(factory=Seen)

    @hookimpl
    def rmqkit_register_ack_conditions(self, register: Register[AckCondition], config: Config) -> None:
        register("gate", self.gate)

    @hookimpl
    def rmqkit_register_dispatchers(self, register: Register[LogFollower], config: Config) -> None:
        register("seen", self.seen)


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
async def desk(tmp_path: Path, plugin: Plugin) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path, extra=[("gate", plugin)]) as opened:
        yield opened


def append(desk: BrokerHarness, count: int, first: int = 0) -> list[Appended]:
    """Append messages of one queue, with their numbers as bodies and one key."""
    run = [message("T", 0, b"%d" % number, keys="k") for number in range(first, first + count)]
    return [at for at in desk.broker.appender.append(MessageRun(run)) if isinstance(at, Appended)]


def read(store: MessageStore, offset: int) -> tuple[ReadStatus, int, int, int]:
    """Status, next offset, end and number of messages of a read."""
    with store.blocking_reads():
        found = store.read("T", 0, offset, ReadLimits(), None)
    return found.status, found.next_offset, found.max_offset, found.message_count


async def test_reads_end_where_the_gate_is(desk: BrokerHarness, plugin: Plugin) -> None:
    """Wherever the gate is, reads, units, ends, times, keys and single records are those of a log that ends
    there; the raw log, which replicas read, does not."""
    store = desk.broker.store
    places = append(desk, 20)
    await store.settled(store.end_offset, Level.WRITTEN)
    for count in (0, 1, 7, 19, 20):
        plugin.gate.move(places[count].physical_offset if count < 20 else store.end_offset)
        assert store.max_offset("T", 0) == count
        for offset in range(22):
            if offset < count:
                expected = ReadStatus.FOUND, count, count, count - offset
            elif count == 0:
                expected = ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0
            elif offset == count:
                expected = ReadStatus.OFFSET_OVERFLOW_ONE, count, count, 0
            else:
                expected = ReadStatus.OFFSET_OVERFLOW_BADLY, count, count, 0
            assert read(store, offset) == expected
            with store.blocking_reads():
                assert len(store.read_units("T", 0, offset, 50)) == max(0, count - offset)
                is_there = store.read_record(places[min(offset, 19)].physical_offset) is not None
                assert is_there == (min(offset, 19) < count)
                assert (store.store_time("T", 0, offset) >= 0) == (offset < count)
        with store.blocking_reads():
            assert store.offset_by_time("T", 0, 1 << 60, Boundary.LOWER) == count
            assert store.offset_by_time("T", 0, 1 << 60, Boundary.UPPER) == max(0, count - 1)
            assert len(store.query_by_key("T", "k", 0, 1 << 60, 99).physical_offsets) == count
            assert len(store.read_log(0, 1 << 20)) == store.end_offset


async def test_a_held_pull_wakes_when_the_gate_has_passed(desk: BrokerHarness, plugin: Plugin) -> None:
    """A message that is stored wakes nobody and reaches no dispatcher, and requests do not see it; when the
    gate passes it, it is delivered."""
    store = desk.broker.store
    held = desk.pull_request(sys_flag=6, suspend_timeout_millis=30_000)
    assert await desk.outcome(held) is None
    (at,) = append(desk, 1)
    await store.settled(store.end_offset, Level.WRITTEN)
    desk.broker.work.finish()
    header = QueueRequestHeader(topic="T", queue_id=0)
    assert (await desk.ask(RequestCode.GET_MAX_OFFSET, header)).header(OffsetResponseHeader).offset == 0
    view = ViewMessageRequestHeader(offset=at.physical_offset)
    assert (await desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == ResponseCode.SYSTEM_ERROR
    assert (desk.peer.answers, plugin.seen.bodies) == ([], [])
    plugin.gate.move(store.end_offset)
    await trio.testing.wait_all_tasks_blocked()
    desk.broker.work.finish()
    assert [answer.code for answer in desk.peer.answers] == [0]
    assert plugin.seen.bodies == [b"0"]
    assert (await desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == 0


async def test_a_pull_that_is_held_later_gets_what_was_not_confirmed(tmp_path: Path) -> None:
    """Without dispatchers and held pulls nothing is kept in memory; a message that was stored before the pull
    came wakes it when the gate passes it."""
    gate, registering = Gate(), SimpleNamespace()
    registering.rmqkit_register_ack_conditions = hookimpl(lambda register, config: register("gate", gate))
    async with open_desk(tmp_path, extra=[("gate", registering)]) as desk, trio.open_nursery() as nursery:
        await nursery.start(desk.broker.dispatching.run)
        store = desk.broker.store
        append(desk, 2)
        assert not desk.broker.dispatching._runs
        held = desk.pull_request(sys_flag=6, suspend_timeout_millis=30_000)
        assert await desk.outcome(held) is None
        append(desk, 1, first=2)
        await store.settled(store.end_offset, Level.WRITTEN)
        gate.move(store.end_offset)
        await trio.testing.wait_all_tasks_blocked()
        desk.broker.work.finish()
        assert [answer.code for answer in desk.peer.answers] == [0]
        nursery.cancel_scope.cancel()


async def test_a_gate_that_is_far_behind(
    desk: BrokerHarness, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that wait for the gate are kept in memory up to a limit, and the rest comes from the log: a
    dispatcher gets every message once, in order, and none before the gate."""
    monkeypatch.setattr("rmqkit.broker.dispatch.manager.MAX_DISPATCH_QUEUE_BYTES", 1_000)
    places = [append(desk, 3, first)[0].physical_offset for first in range(0, 60, 3)]
    store = desk.broker.store
    await store.settled(store.end_offset, Level.WRITTEN)
    assert len(desk.broker.dispatching._runs) < 20
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.broker.dispatching.run)
        for end, count in ((places[2], 6), (places[15], 45), (store.end_offset, 60)):
            plugin.gate.move(end)
            while len(plugin.seen.bodies) < count:
                await trio.testing.wait_all_tasks_blocked()
            assert plugin.seen.bodies == [b"%d" % number for number in range(count)]
        nursery.cancel_scope.cancel()


async def test_nobody_gates_by_default(tmp_path: Path) -> None:
    """Without a gating condition the broker uses the store itself, and the confirmed position is the written
    one."""
    async with open_desk(tmp_path) as desk:
        positions = desk.broker.store.positions
        assert isinstance(desk.broker.store, MessageStore)
        assert positions.confirmed is positions.written
