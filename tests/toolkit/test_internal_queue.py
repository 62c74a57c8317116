"""The follower of an internal topic's queues: order, progress, restarts, cold reads and moved ends."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from rmqkit.config import Config
from rmqkit.errors import DecodeError, MessageIllegal, RequestRefused, StoreError, StoreNotWritable
from rmqkit.model import names, set_aside
from rmqkit.model.buffer import Buffer
from rmqkit.model.run import MessageRun
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.store import Appended, NotInMemory, QueueUnit
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, message
from rmqkit.toolkit.internal_queue import IDLE_S, MAX_RUN, POLL_S, RETRY_S, InternalQueueFollower
from rmqkit_store_memory.store import MemoryStore

TOPIC = "rmq_sys_inner"
A_LOOK_S = 1.5 * POLL_S
#: What the device needs for a read.
FETCH_S = 0.001
BUSY = RequestRefused(ResponseCode.SYSTEM_BUSY, "busy")


class Store(MemoryStore):
    """Reads of the queues in `cold` fail until `device` is set. With `one_run`, each fetch brings in a single
    read, as of a queue that is far larger than memory."""

    def __init__(self) -> None:
        super().__init__(Config(), FakeClock(), FlushWhenWanted())
        self.cold: set[int] = set()
        self.device = trio.Event()
        self.one_run = False
        self.broken: set[int] = set()

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        if queue_id in self.cold and not self.device.is_set():
            raise NotInMemory(queue_id)
        if self.one_run:
            self.device = trio.Event()
        if queue_id in self.broken:
            raise OSError(errno.EIO, "Input/output error")
        return super().read_units(topic, queue_id, offset, count)

    async def fetch(self, missed: NotInMemory) -> None:
        if self.one_run:
            await trio.sleep(FETCH_S)
            self.device.set()
        await self.device.wait()

    def add(self, *bodies: bytes, queue_id: int = 0) -> None:
        self.append([message(TOPIC, queue_id, body) for body in bodies])


class Noted(InternalQueueFollower):
    """Keeps the messages it is given. Messages after `limit` are not due."""

    service = "noted"

    def __init__(self, store: Store, saved: Mapping[int, int] | None = None, queues: int = 1) -> None:
        self.settled: Exception | None = None
        self.bodies: list[bytes] = []
        self.saves: list[dict[int, int]] = []
        #: What happens to messages with these bodies.
        self.faults: dict[bytes, Exception] = {}
        self.limit = 1 << 60
        self.on_change: list[Callable[[], None]] = []
        #: (service, kept) of records that were set aside.
        self.aside: list[tuple[str, bool]] = []
        self.full: RequestRefused | None = None
        broker = SimpleNamespace(
            store=store,
            appender=SimpleNamespace(settle_everything=self._settle, append=self._append),
            on_config_change=self.on_change,
            clock=FakeClock(),
            stats=SimpleNamespace(
                put=lambda topic, size_bytes: None,
                set_aside=lambda service, kept: self.aside.append((service, kept)),
            ),
        )
        super().__init__(cast(Broker, broker), TOPIC)
        self.begin(saved or {}, range(queues))

    async def _settle(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.settled is not None:
            raise self.settled

    def _append(self, run: MessageRun) -> Sequence[Appended | RequestRefused]:
        return self.broker.store.append(run.messages) if self.full is None else [self.full] * len(run)

    def due(self, queue_id: int, units: Sequence[QueueUnit]) -> int:
        return sum(unit.queue_offset < self.limit for unit in units)

    def take(self, queue_id: int, unit: QueueUnit, record: Buffer) -> RequestRefused | None:
        body = unpack(record).body
        if body in self.faults:
            fault = self.faults[body]
            if isinstance(fault, RequestRefused):
                return fault
            raise fault
        self.bodies.append(body)
        return None

    async def save(self, offsets: Mapping[int, int]) -> None:
        await trio.lowlevel.checkpoint()
        self.saves.append(dict(offsets))


class Prepared(Noted):
    """Needs a device before the first message."""

    fault: OSError | None = OSError(errno.EIO, "no device")

    async def prepare(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise self.fault
        if not self.bodies:
            self.bodies.append(b"ready")


class Timed(Noted):
    """Looks rarely. Messages from offset 1 on are due at a time of the test; `looks` are times of looks that
    found messages. Times in seconds since the first one."""

    pause_s = 5.0

    def __init__(self, store: Store, due_at_s: float) -> None:
        super().__init__(store)
        self.due_at_s = due_at_s
        self.looks: list[float] = []
        self._start_s = trio.current_time()

    def due(self, queue_id: int, units: Sequence[QueueUnit]) -> int:
        now_s = trio.current_time() - self._start_s
        self.looks.append(now_s)
        self.limit = 1 if now_s < self.due_at_s else 1 << 60
        return super().due(queue_id, units)

    def due_in_s(self, queue_id: int, unit: QueueUnit) -> float:
        return self.due_at_s - (trio.current_time() - self._start_s)


class Woken(Noted):
    """Is told of messages; `looks` counts its looks at empty and other queues."""

    is_woken = True

    def __init__(self, store: Store, queues: int = 1) -> None:
        super().__init__(store, queues=queues)
        self.looks = 0
        self.listening: list[Callable[[], object]] = []
        self.broker.appender.listen = self._listen  # type: ignore[method-assign]
        self.broker.appender.unlisten = self._unlisten  # type: ignore[method-assign]

    def _listen(self, topic: str, function: Callable[[], object]) -> None:
        assert topic == TOPIC
        self.listening.append(function)

    def _unlisten(self, topic: str, function: Callable[[], object]) -> None:
        self.listening.remove(function)

    def _run_of(self, queue_id: int) -> bool:
        self.looks += 1
        return super()._run_of(queue_id)

    def tell(self) -> None:
        for function in self.listening:
            function()


@pytest.fixture
async def store() -> Store:
    made = Store()
    await made.open()
    return made


@asynccontextmanager
async def running(follower: Noted) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        yield
        nursery.cancel_scope.cancel()


async def test_messages_come_in_order_in_runs(store: Store, autojump_clock: trio.testing.MockClock) -> None:
    """A queue is handed on from its offset to its end, more than one run as well, and later ones follow."""
    follower = Noted(store)
    numbers = [b"%d" % number for number in range(2 * MAX_RUN + 3)]
    store.add(*numbers)
    async with running(follower):
        await trio.sleep(4 * POLL_S)
        assert follower.bodies == numbers
        store.add(b"later")
        await trio.sleep(A_LOOK_S)
    assert follower.bodies == [*numbers, b"later"]
    assert follower.offsets == {0: len(numbers) + 1}


async def test_only_what_is_due_is_handed_on(store: Store, autojump_clock: trio.testing.MockClock) -> None:
    """The others are looked at again later and do not count as done."""
    follower = Noted(store)
    store.add(b"now", b"then")
    follower.limit = 1
    async with running(follower):
        await trio.sleep(1)
        assert follower.bodies == [b"now"]
        follower.limit = 2
        await trio.sleep(A_LOOK_S)
    assert follower.bodies == [b"now", b"then"]


async def test_a_queue_is_looked_at_when_its_first_message_is_due(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    """Not before and not later, and without a message due once in each pause."""
    follower = Timed(store, due_at_s=3.2)
    store.add(b"now", b"then")
    async with running(follower):
        await trio.sleep(3.1)
        assert (follower.bodies, follower.looks) == ([b"now"], [0])
        await trio.sleep(0.2)
        assert follower.bodies == [b"now", b"then"]
        assert follower.looks == pytest.approx([0, 3.2])
        follower.due_at_s = 60
        store.add(b"never", b"ever")
        await trio.sleep(26)
    assert follower.looks == pytest.approx([0, 3.2, 8.2, 13.2, 18.2, 23.2, 28.2])


async def test_a_follower_that_is_woken_looks_at_once(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    """It hands on what it is told of, and an idle queue costs next to nothing; what it is not told of, it
    finds a little later."""
    follower = Woken(store, queues=3)
    async with running(follower):
        await trio.sleep(1)
        assert follower.looks == 3
        await trio.sleep(3_600)
        assert follower.looks <= 3 * (3_600 / IDLE_S + 2)
        for number in range(3):
            store.add(b"%d" % number, queue_id=number)
            follower.tell()
            await trio.testing.wait_all_tasks_blocked()
            assert len(follower.bodies) == number + 1
        store.add(b"untold")
        await trio.sleep(IDLE_S + 1)
        assert follower.bodies[3:] == [b"untold"]
    assert follower.listening == []


@pytest.mark.parametrize("is_gated", [False, True])
async def test_what_is_readable_later_is_polled_for(
    store: Store, autojump_clock: trio.testing.MockClock, is_gated: bool
) -> None:
    """Where a message can be read some time after it was appended, the pauses stay short."""
    if is_gated:
        store.positions.gate([])
    else:
        store.written_by_append = False
    follower = Woken(store)
    async with running(follower):
        await trio.sleep(1)
        store.add(b"later")
        await trio.sleep(A_LOOK_S)
        assert follower.bodies == [b"later"]


async def test_what_could_not_be_done_comes_again(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    """A stuck queue is retried after a pause, from the message it was stuck at; other queues are not
    affected."""
    follower = Noted(store, queues=2)
    store.add(b"a", b"b", b"c")
    follower.faults[b"b"] = BUSY
    async with running(follower):
        await trio.sleep(A_LOOK_S)
        assert (follower.bodies, follower.offsets[0]) == ([b"a"], 1)
        follower.faults.clear()
        store.add(b"other", queue_id=1)
        await trio.sleep(RETRY_S - 1)
        assert follower.bodies == [b"a", b"other"]
        await trio.sleep(2)
    assert follower.bodies == [b"a", b"other", b"b", b"c"]


def kept(store: Store) -> list[tuple[bytes, str]]:
    """The bodies of the records that were set aside, and the reasons; their origin is that of queue 0."""
    found: list[tuple[bytes, str]] = []
    for unit in store.read_units(names.SET_ASIDE_TOPIC, 0, 0, 99):
        message = unpack(store.read_record(unit.physical_offset) or b"")
        origin, reason = set_aside.read(message.properties)
        record = unpack(message.body) if message.body else None
        assert (origin.service, origin.topic, origin.queue_id) == ("noted", TOPIC, 0)
        if record is not None:
            place = record.queue_offset, record.physical_offset
            assert (origin.queue_offset, origin.physical_offset) == place
        found.append((record.body if record else b"", reason))
    return found


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (DecodeError("no text"), "no text"),
        (MessageIllegal("too long"), "too long"),
        (RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "too large"), "too large"),
        (RequestRefused(ResponseCode.NO_PERMISSION, "not this one"), "not this one"),
        (KeyError("REAL_TOPIC"), "KeyError: 'REAL_TOPIC'"),
    ],
    ids=lambda given: type(given).__name__,
)
async def test_what_can_never_be_done_is_set_aside(
    store: Store,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
    reason: str,
) -> None:
    """With a line that names it, a count and the whole record; the messages behind it follow at once."""
    follower = Noted(store)
    store.add(b"a", b"b", b"c")
    follower.faults[b"b"] = fault
    async with running(follower):
        await trio.sleep(A_LOOK_S)
    assert (follower.bodies, follower.offsets) == ([b"a", b"c"], {0: 3})
    assert kept(store) == [(b"b", reason)]
    assert follower.aside == [("noted", True)]
    assert sum("set aside" in record.getMessage() for record in caplog.records) == 1


async def test_a_fault_of_the_store_is_no_fault_of_the_message(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The message comes again, and is not set aside; nor is one for which there is no room now."""
    follower = Noted(store)
    store.add(b"a", b"b", b"c")
    faults = OSError("no device"), StoreError("closed"), StoreNotWritable("full"), DecodeError("no text")
    async with running(follower):
        for number, fault in enumerate(faults):
            follower.faults[b"b"] = fault
            follower.full = BUSY
            await trio.sleep(RETRY_S + A_LOOK_S)
            assert (follower.bodies, follower.offsets, follower.aside) == ([b"a"], {0: 1}, []), number
        follower.full = None
        await trio.sleep(RETRY_S + A_LOOK_S)
    assert (follower.bodies, kept(store)) == ([b"a", b"c"], [(b"b", "no text")])
    assert "trying again" in caplog.text


async def test_a_record_that_is_not_there_is_told(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is set aside without a record; of what was removed with the log there is a count and a line
    alone."""
    follower = Noted(store)
    store.add(b"a", b"b", b"c")
    offsets = [unit.physical_offset for unit in store.read_units(TOPIC, 0, 0, 3)]
    del store._log.records[offsets[1]]
    async with running(follower):
        await trio.sleep(A_LOOK_S)
    assert (follower.bodies, kept(store)) == ([b"a", b"c"], [(b"", "no record begins at its offset")])
    again = Noted(store)
    store._log.start = offsets[2]
    async with running(again):
        await trio.sleep(A_LOOK_S)
    assert (again.bodies, len(kept(store)), again.aside) == ([b"a", b"c"], 1, [("noted", False)])
    assert "removed with the log" in caplog.text


async def test_a_queue_that_cannot_be_read_is_read_again(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the device ends neither the service nor the other queues."""
    follower = Noted(store, queues=2)
    store.add(b"a")
    store.add(b"other", queue_id=1)
    store.broken.add(0)
    async with running(follower):
        await trio.sleep(A_LOOK_S)
        assert follower.bodies == [b"other"]
        store.broken.clear()
        await trio.sleep(RETRY_S)
    assert follower.bodies == [b"other", b"a"]
    assert "cannot be read, trying again: [Errno 5]" in caplog.text


async def test_what_has_to_be_ready_first(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is passed on before it, and an error of it is one of the queue."""
    follower = Prepared(store)
    store.add(b"a")
    async with running(follower):
        await trio.sleep(A_LOOK_S)
        assert (follower.bodies, follower.offsets) == ([], {0: 0})
        follower.fault = None
        await trio.sleep(RETRY_S)
        assert follower.bodies == [b"ready", b"a"]
    assert "trying again: [Errno 5]" in caplog.text


async def test_cold_queues_hold_up_no_other(store: Store, autojump_clock: trio.testing.MockClock) -> None:
    """A queue whose data is fetched from the device is handed on afterwards, once, while others go on."""
    follower = Noted(store, queues=2)
    store.add(b"old")
    store.add(b"new", queue_id=1)
    store.cold.add(0)
    async with running(follower):
        await trio.sleep(1)
        assert follower.bodies == [b"new"]
        store.device.set()
        await trio.sleep(A_LOOK_S)
    assert follower.bodies == [b"new", b"old"]


@pytest.mark.parametrize("queues", [1, 2])
async def test_a_cold_queue_is_read_as_fast_as_the_device(
    store: Store, autojump_clock: trio.testing.MockClock, queues: int
) -> None:
    """Each run follows its fetch at once, whether another queue is warm or there is none."""
    follower = Noted(store, queues=queues)
    follower.pause_s = 5.0
    store.add(*(b"%d" % number for number in range(10 * MAX_RUN)))
    store.cold.add(0)
    store.one_run = True
    async with running(follower):
        await trio.sleep(12 * FETCH_S)
    assert len(follower.bodies) == 10 * MAX_RUN


@pytest.mark.parametrize(("saved", "expected"), [(-3, b"0"), (2, b"2"), (99, b"new")])
async def test_it_goes_on_at_the_saved_offset(
    store: Store, autojump_clock: trio.testing.MockClock, saved: int, expected: bytes
) -> None:
    """A saved offset outside the queue is moved to the nearest end of the queue."""
    store.add(b"0", b"1", b"2")
    follower = Noted(store, {0: saved})
    store.add(b"new")
    async with running(follower):
        await trio.sleep(A_LOOK_S)
    assert follower.bodies[0] == expected


async def test_a_queue_whose_front_was_removed_goes_on_at_its_minimum(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    """Messages that retention has removed are passed over, and the new offset is saved."""
    store.add(b"0", b"1", b"2")
    follower = Noted(store)
    queue = store._queues[TOPIC, 0]
    queue.first, queue.units = 2, queue.units[2:]
    async with running(follower):
        await trio.sleep(3 * POLL_S)
    assert follower.bodies == [b"2"]
    await follower.persist()
    assert follower.saves == [{0: 3}]


async def test_progress_is_saved_once_what_was_put_is_safe(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Changed offsets are saved regularly, but not before the messages stored meanwhile are safe, and again
    after a failed save."""
    store.add(b"0", b"1")
    follower = Noted(store)
    follower.settled = StoreNotWritable("no disk")
    async with running(follower), trio.open_nursery() as nursery:
        nursery.start_soon(follower.persist_regularly, lambda: 1_000)
        await trio.sleep(1.5)
        assert follower.saves == []
        assert "no disk" in caplog.text
        follower.settled = None
        await trio.sleep(3)
        assert follower.saves == [{0: 2}]
        nursery.cancel_scope.cancel()


async def test_a_stop_hands_on_nothing_more_and_saves(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    """A follower started again from the saved offsets repeats nothing."""
    store.add(b"0")
    first = Noted(store)
    async with running(first):
        await trio.sleep(A_LOOK_S)
        await first.stop()
        store.add(b"1")
        await trio.sleep(A_LOOK_S)
    second = Noted(store, first.saves[-1])
    async with running(second):
        await trio.sleep(A_LOOK_S)
    assert (first.bodies, second.bodies) == ([b"0"], [b"1"])
