"""The one way into the store: hooks, append, dispatch, held pulls, and what a sender may be promised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import Factory, define, field

from rmqkit.broker.appending.acks import AckQueue
from rmqkit.broker.appending.log_appender import LogAppender
from rmqkit.broker.dispatch.manager import Dispatching
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.run.sliced_work import SlicedWork
from rmqkit.errors import MessageIllegal, RequestRefused, StoreNotWritable
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import TRANSACTION_COMMIT
from rmqkit.plugin.acks import AckCondition, Acknowledgement
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.held import HeldRequest
from rmqkit.plugin.hooks import AlreadyStored, EachPutHook, PutMessageHook, Refusals
from rmqkit.plugin.store import Appended, UnitFilter
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import request
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer
from rmqkit_flush.policies import AsyncFlush
from rmqkit_store_memory.store import MemoryStore
from tests.broker.kit import config_of

FLUSH_TIMEOUT_MS = 5_000


class Store(MemoryStore):
    """A memory store whose device the test switches: `flushed` is how far FLUSHED has come, `broken` what
    is raised."""

    def __init__(self, policy: FlushPolicy) -> None:
        super().__init__(config_of(), FakeClock(), policy)
        self.flushed = 0
        self._flushes = trio.lowlevel.ParkingLot()
        self.broken: Exception | None = None
        self.appends: list[list[bytes]] = []

    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        self.appends.append([message.body for message in messages])
        if self.broken is not None:
            raise self.broken
        if any(message.body == b"illegal" for message in messages):
            raise MessageIllegal("a body that reads illegal")
        return super().append(messages)

    def settled_offset(self, level: Level) -> int:
        return self.end_offset if level is Level.WRITTEN else self.flushed

    async def settled(self, offset: int, level: Level) -> None:
        if self.broken is not None:
            raise self.broken
        while not self.is_settled(offset, level):
            await self._flushes.park()

    def flush_to(self, offset: int) -> None:
        self.flushed = offset
        self._flushes.unpark_all()


class Hook(EachPutHook):
    """Does to a message what the test says."""

    def __init__(self, act: Callable[[PutMessage], None]) -> None:
        self._act = act

    def before_each(self, message: PutMessage) -> None:
        self._act(message)


class Wanting(Hook):
    """A hook for messages with some properties."""

    def __init__(self, wants: set[str], act: Callable[[PutMessage], None]) -> None:
        super().__init__(act)
        self.wants = frozenset(wants)


class Collect(Dispatcher):
    """Notes what it is given; raises when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entries: list[DispatchEntry] = []
        self._error = error

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.entries += entries
        if self._error is not None:
            raise self._error


@define
class Bench:
    """A log appender over an open store."""

    store: Store
    work: SlicedWork = field(factory=SlicedWork)
    held: HeldPulls = field(default=Factory(lambda self: HeldPulls(self.work), takes_self=True))

    def appender(
        self,
        *hooks: PutMessageHook,
        dispatchers: Sequence[Dispatcher] = (),
        conditions: Sequence[AckCondition] = (),
        acknowledge_at: Level = Level.WRITTEN,
        counted: Callable[[Sequence[PutMessage], Sequence[Appended]], None] = lambda run, results: None,
    ) -> LogAppender:
        named = {f"d{number}": dispatcher for number, dispatcher in enumerate(dispatchers)}
        dispatching = Dispatching(self.store, named, dict.fromkeys(named, "tests"), self.held)
        policy = AsyncFlush(config_of())
        policy.acknowledge_at = acknowledge_at
        acks = AckQueue(self.store, policy, FLUSH_TIMEOUT_MS, conditions)
        return LogAppender(hooks, self.store, dispatching, acks, counted=counted)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    store = Store(AsyncFlush(config_of()))
    await store.open()
    return Bench(store)


def message(body: bytes = b"body", topic: str = "T", **fields: object) -> PutMessage:
    made = PutMessage(topic=topic, queue_id=0, body=body, properties={}, properties_bytes=b"")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def put_one(appender: LogAppender, sent: PutMessage) -> Appended:
    """Where one message landed."""
    (result,) = appender.append(MessageRun([sent]))
    assert isinstance(result, Appended)
    return result


def batch(*messages: PutMessage) -> MessageRun:
    """Messages of one request."""
    return MessageRun(messages, [0] * len(messages))


def codes(results: Sequence[object]) -> list[int]:
    """0 for what was stored, else the code of the refusal."""
    return [int(result.code) if isinstance(result, RequestRefused) else 0 for result in results]


async def test_messages_are_stored_in_order_by_one_append(bench: Bench) -> None:
    """What arrived together lands together, and the results say where."""
    results = bench.appender().append(MessageRun([message(b"1"), message(b"2")]))
    assert [result.queue_offset for result in results if isinstance(result, Appended)] == [0, 1]
    assert bench.store.appends == [[b"1", b"2"]]


async def test_nothing_to_put_does_not_touch_the_store(bench: Bench) -> None:
    """An empty list, and a list of which every message was refused."""

    def refuse(message: PutMessage) -> None:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "no")

    assert bench.appender().append(MessageRun([])) == []
    assert codes(bench.appender(Hook(refuse)).append(MessageRun([message()]))) == [ResponseCode.NO_PERMISSION]
    assert bench.store.appends == []


async def test_hooks_run_in_order_and_may_move_a_message(bench: Bench) -> None:
    """Each sees what the one before made of the message; the store gets the last word's result."""
    seen: list[str] = []

    def first(message: PutMessage) -> None:
        seen.append(message.topic)
        message.topic = "U"

    def second(message: PutMessage) -> None:
        seen.append(message.topic)
        message.queue_id = 3

    put_one(bench.appender(Hook(first), Hook(second)), message())
    assert seen == ["T", "U"]
    assert bench.store.queues() == {"U": [3]}


async def test_who_follows_a_topic_is_told(bench: Bench) -> None:
    """Of messages that a hook has moved there, or that come from a service, once for each append, and until
    it stops listening; not of messages to other topics, of refused ones, and of a client's plain ones."""
    told: list[int] = []

    def move(message: PutMessage) -> None:
        if message.body == b"refused":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "no")
        message.topic = "U"

    appender = bench.appender(Wanting({"asks"}, move))

    def note() -> None:
        told.append(bench.store.max_offset("U", 0))

    appender.listen("U", note)
    appender.append(MessageRun([message(properties={"asks": "x"}), message(properties={"asks": "x"})]))
    assert told == [2]
    put_one(appender, message(topic="U"))
    assert told == [2, 3]
    appender.append(MessageRun([message(b"refused", properties={"asks": "x"}), message(topic="U")]))
    assert told == [2, 3, 4]
    put_one(appender, message())
    appender.append(MessageRun([message(topic="U")], special=()))
    assert told == [2, 3, 4]
    appender.unlisten("U", note)
    put_one(appender, message(topic="U"))
    assert told == [2, 3, 4]


async def test_a_hook_refuses_one_message_of_several(bench: Bench) -> None:
    """The others are stored, the results keep their places, and later hooks do not see the refused one."""
    later: list[bytes] = []

    def refuse(message: PutMessage) -> None:
        if message.body == b"2":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "not this one")

    results = bench.appender(Hook(refuse), Hook(lambda message: later.append(message.body))).append(
        MessageRun([message(b"1"), message(b"2"), message(b"3")])
    )
    assert codes(results) == [0, ResponseCode.NO_PERMISSION, 0]
    assert later == [b"1", b"3"]
    assert bench.store.max_offset("T", 0) == 2


async def test_a_hook_that_breaks_refuses_its_message_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin's mistake is a SYSTEM_ERROR to the sender and a log line, for single messages and for
    batches."""

    def broken(message: PutMessage) -> None:
        if message.body == b"2":
            raise ValueError("boom")

    appender = bench.appender(Hook(broken))
    assert codes(appender.append(MessageRun([message(b"1"), message(b"2")]))) == [
        0,
        ResponseCode.SYSTEM_ERROR,
    ]
    refusals = appender.append(batch(message(b"1"), message(b"2")))
    assert [str(refusal) for refusal in refusals] == ["put message hook 'Hook' failed: ValueError: boom"] * 2
    assert codes(refusals) == [ResponseCode.SYSTEM_ERROR] * 2
    assert bench.store.max_offset("T", 0) == 1
    assert len(caplog.records) == 2


async def test_a_batch_is_stored_whole_or_not_at_all(bench: Bench) -> None:
    """One refused message refuses the batch."""
    run = MessageRun([message(b"0"), message(b"1"), message(b"illegal"), message(b"3")], [0, 1, 1, 2])
    results = bench.appender().append(run)
    assert codes(results) == [0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert bench.store.appends[1:] == [[b"0"], [b"1", b"illegal"], [b"3"]]
    assert bench.store.max_offset("T", 0) == 2


async def test_a_refused_message_refuses_its_batch(bench: Bench) -> None:
    """What a put hook refuses takes the other messages of the same request with it, and no others."""

    def refuse(message: PutMessage) -> None:
        if message.body == b"2":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "not this one")

    run = MessageRun([message(b"%d" % number) for number in range(5)], [7, 8, 8, 8, 9])
    assert codes(bench.appender(Hook(refuse)).append(run)) == [0, 16, 16, 16, 0]
    assert bench.store.appends == [[b"0", b"4"]]


class Known(PutMessageHook):
    """Finds messages of the topic T with the body "old" in the log, and keeps what it is told."""

    def __init__(self, place: Appended | None) -> None:
        self.topics: set[str] = {"T"}
        self._place = place
        self.told: list[tuple[list[bytes], list[object]]] = []

    def before_put(self, run: MessageRun) -> Refusals | None:
        return {at: AlreadyStored(self._place) for at, each in enumerate(run) if each.body == b"old"}

    def after_put(self, run: MessageRun, results: Sequence[Appended | RequestRefused]) -> None:
        self.told.append(([each.body for each in run], list(results)))


async def test_a_message_that_is_stored_already(bench: Bench) -> None:
    """It is not stored, and has the place of the other one; the run is not in the order of the log then. The
    hook is told what became of all messages that it saw."""
    appender = bench.appender(Known(first := Appended(7, 0, 1, 5)))
    run = MessageRun([message(b"new"), message(b"old")])
    new, old = appender.append(run)
    assert (old, bench.store.appends) == (first, [[b"new"]])
    assert (run.in_order, run.last_of([new, old]), run.refused) == (False, new, {})
    assert appender.append_durably(MessageRun([message(b"old")])).results == [first]


async def test_a_hook_is_told_the_places_of_its_topics(bench: Bench) -> None:
    """It sees messages of its topics alone, at any time; the others cost nothing."""
    hook = Known(None)
    appender = bench.appender(hook, Hook(refuse_bad))
    assert (appender.watches("T"), appender.watches("U")) == (True, False)
    run = MessageRun([message(b"1"), message(b"2", topic="U"), message(b"bad"), message(b"old")])
    results = appender.append(run)
    assert codes(results) == [0, 0, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR]
    ((bodies, told),) = hook.told
    assert (bodies, told[:2]) == ([b"1", b"bad", b"old"], [results[0], results[2]])
    hook.topics.clear()
    appender.append(MessageRun([message(b"old")]))
    assert (len(hook.told), bench.store.appends[-1]) == (1, [b"old"])


async def test_a_known_message_of_a_batch_that_is_refused(bench: Bench) -> None:
    """Its request is refused, as without it; another request is not."""
    appender = bench.appender(Known(first := Appended(7, 0, 1, 5)))
    run = MessageRun([message(b"old"), message(b"illegal"), message(b"old")], [1, 1, 2])
    results = appender.append(run)
    assert codes(results[:2]) == [ResponseCode.MESSAGE_ILLEGAL] * 2
    assert results[2] == first
    assert sorted(run.refused) == [0, 1]


def refuse_bad(message: PutMessage) -> None:
    if message.body == b"bad":
        raise RequestRefused(ResponseCode.NO_PERMISSION, "not this one")


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"DELAY": "1"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_MS": "5"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TRAN_MSG": "true"}, ResponseCode.NO_PERMISSION),
        ({"TRAN_MSG": "false"}, 0),
    ],
)
async def test_what_no_hook_claims_is_refused(bench: Bench, properties: dict[str, str], code: int) -> None:
    """The remark names the property and says where the plugins are listed; its neighbours are stored."""
    special = message(b"2", properties=properties)
    results = bench.appender().append(MessageRun([message(b"1"), special]))
    assert codes(results) == [0, code]
    refusals = [str(result) for result in results if isinstance(result, RequestRefused)]
    assert all(next(iter(properties)) in text and "`rmqkit plugins`" in text for text in refusals)


async def test_a_committed_message_requires_no_plugin(bench: Bench) -> None:
    """It still has the property of its prepared form; its delay requires one as before."""
    committed = message(b"1", properties={"TRAN_MSG": "true"}, sys_flag=TRANSACTION_COMMIT)
    delayed = message(b"2", properties={"TRAN_MSG": "true", "DELAY": "1"}, sys_flag=TRANSACTION_COMMIT)
    results = bench.appender().append(MessageRun([committed, delayed]))
    assert codes(results) == [0, ResponseCode.MESSAGE_ILLEGAL]


async def test_what_a_hook_claims_is_its_business(bench: Bench) -> None:
    """It is shown to the hook and stored as the hook leaves it; a hook is shown what it wants alone."""

    class Claims(EachPutHook):
        wants = claims = frozenset({"DELAY"})

        def before_each(self, message: PutMessage) -> None:
            message.topic = "Parked"

    appender = bench.appender(Claims())
    results = appender.append(MessageRun([message(b"1"), message(b"2", properties={"DELAY": "1"})]))
    assert codes(results) == [0, 0]
    assert bench.store.queues() == {"T": [0], "Parked": [0]}


async def test_an_illegal_message_does_not_spoil_its_neighbours(bench: Bench) -> None:
    """The store takes all or none; the appender then asks for each by itself, in order."""
    results = bench.appender().append(MessageRun([message(b"1"), message(b"illegal"), message(b"3")]))
    assert codes(results) == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert [unit.queue_offset for unit in bench.store.read_units("T", 0, 0, 9)] == [0, 1]
    assert bench.store.appends[1:] == [[b"1"], [b"illegal"], [b"3"]]


async def test_a_store_that_takes_nothing_refuses_all_at_once(bench: Bench) -> None:
    """A full disk is not asked again for every message."""
    bench.store.broken = StoreNotWritable("the disk is full")
    assert (
        codes(bench.appender().append(MessageRun([message(), message()])))
        == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    )
    assert len(bench.store.appends) == 1


async def test_a_store_that_breaks_its_contract_is_an_answer(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """`put` never raises: what a store plugin raises besides its errors is a SYSTEM_ERROR, stored or not."""
    bench.store.broken = OSError(5, "Input/output error")
    assert (
        codes(bench.appender().append(MessageRun([message(), message()]))) == [ResponseCode.SYSTEM_ERROR] * 2
    )
    assert len(bench.store.appends) == 1
    assert len(caplog.records) == 1


@pytest.mark.row("S330")
async def test_dispatchers_see_what_was_stored(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """In order, with its place; one that raises is logged and takes nothing from the next."""
    first, second = Collect(ValueError("boom")), Collect()
    results = bench.appender(dispatchers=[first, second]).append(MessageRun([message(b"1"), message(b"2")]))
    assert codes(results) == [0, 0]
    assert [(entry.message.body, entry.at.queue_offset) for entry in second.entries] == [(b"1", 0), (b"2", 1)]
    assert first.entries == second.entries
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_refused_messages_are_not_dispatched(bench: Bench) -> None:
    """Dispatch comes behind the append."""
    collect = Collect()
    bench.appender(dispatchers=[collect]).append(MessageRun([message(b"illegal")]))
    assert collect.entries == []


@pytest.mark.row("S049")
async def test_a_stored_message_wakes_held_pulls(bench: Bench) -> None:
    """Behind the append and with the message's own tags code."""
    woken: list[int] = []
    pull = HeldRequest(
        request(11),
        FakePeer(),
        (("T", 0),),
        (0,),
        9_000,
        lambda code: code == 7,
        lambda final: woken.append(bench.store.max_offset("T", 0)),
    )
    bench.held.hold(pull)
    appender = bench.appender()
    put_one(appender, message(tags_code=8))
    bench.work.finish()
    assert woken == []
    put_one(appender, message(tags_code=7))
    bench.work.finish()
    assert woken == [2]


async def test_dispatchers_see_the_queue_code_of_a_message(bench: Bench) -> None:
    """A dispatcher is given the code that the store wrote into the unit, also after a put hook has moved the
    message to a topic with a function of its own."""
    seen: list[int] = []

    class Noted(Dispatcher):
        def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
            seen.extend(entry.message.tags_code for entry in entries)

    def park(message: PutMessage) -> None:
        message.topic = "Parked"

    bench.store.queue_codes = {"Parked": lambda properties, store_timestamp_ms: store_timestamp_ms + 5_000}
    stored = put_one(bench.appender(Hook(park), dispatchers=[Noted()]), message())
    (unit,) = bench.store.read_units("Parked", 0, 0, 1)
    assert seen == [unit.tags_code] == [stored.store_timestamp_ms + 5_000]


async def settled(appender: LogAppender, wait: bool, at: Appended) -> int:
    """The code when a message may be acknowledged. Raises RequestRefused."""
    done = trio.Event()
    results: list[int | RequestRefused] = []

    def then(result: int | RequestRefused) -> None:
        results.append(result)
        done.set()

    appender.when_settled(wait, at, then)
    await done.wait()
    (result,) = results
    if isinstance(result, RequestRefused):
        raise result
    return result


async def settle(appender: LogAppender, wait: bool, at: Appended) -> int:
    """What a sender is told that waits. Raises RequestRefused."""
    async with trio.open_nursery() as nursery:
        await nursery.start(appender.acks.run)
        refusal: RequestRefused | None = None
        code = -1
        try:
            code = await settled(appender, wait, at)
        except RequestRefused as error:
            refusal = error
        nursery.cancel_scope.cancel()
    if refusal is not None:
        raise refusal
    return code


@pytest.mark.parametrize(
    ("acknowledge_at", "wait", "must"),
    [(Level.WRITTEN, True, False), (Level.FLUSHED, True, True), (Level.FLUSHED, False, False)],
)
async def test_who_waits_for_the_disk(bench: Bench, acknowledge_at: Level, wait: bool, must: bool) -> None:
    """Only with a policy that flushes first, and only messages that want to wait (property WAIT)."""
    appender = bench.appender(acknowledge_at=acknowledge_at)
    assert appender.are_settled([wait], [put_one(appender, message(wait=wait))]) == [not must]


async def test_a_flushed_message_is_a_success(bench: Bench) -> None:
    """Once the flush has passed its end, and not before."""
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    at = put_one(appender, message())
    bench.store.flushed = at.size_bytes - 1
    assert appender.are_settled([True], [at]) == [False]
    bench.store.flushed = at.size_bytes
    assert appender.are_settled([True], [at]) == [True]
    assert await settle(appender, True, at) == ResponseCode.SUCCESS


async def test_a_durable_append_waits_for_its_own_messages(bench: Bench) -> None:
    """It is settled when the flush has passed its last message, whatever was appended behind it; a function
    that is added later is called at once."""
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(appender.acks.run)
        own = appender.append_durably(MessageRun([message(), message()]))
        own.when_settled(outcomes.append)
        waiting: list[object] = []
        nursery.start_soon(_note, own, waiting)
        behind = appender.append_durably(MessageRun([message()]))
        assert (own.outcome, behind.outcome, codes(own.results)) == (None, None, [0, 0])
        bench.store.flush_to(_end_of(own.results[-1]))
        await trio.testing.wait_all_tasks_blocked()
        assert (own.outcome, behind.outcome) == (ResponseCode.SUCCESS, None)
        own.when_settled(outcomes.append)
        assert outcomes == [ResponseCode.SUCCESS] * 2
        assert waiting == [ResponseCode.SUCCESS]
        nursery.cancel_scope.cancel()


async def _note(appended: Acknowledgement, outcomes: list[object]) -> None:
    outcomes.append(await appended.wait())


def _end_of(at: object) -> int:
    assert isinstance(at, Appended)
    return at.physical_offset + at.size_bytes


async def test_a_durable_append_is_settled_at_once_where_nothing_is_awaited(bench: Bench) -> None:
    """With a policy that does not flush first, and for messages that do not wait; also an empty run."""
    assert bench.appender().append_durably(MessageRun([message()])).outcome == ResponseCode.SUCCESS
    flushing = bench.appender(acknowledge_at=Level.FLUSHED)
    assert flushing.append_durably(MessageRun([message(wait=False)])).outcome == ResponseCode.SUCCESS
    assert flushing.append_durably(MessageRun([])).outcome == ResponseCode.SUCCESS


async def test_a_durable_append_of_what_is_refused(bench: Bench) -> None:
    """The outcome is the refusal when nothing was stored; else it is that of what was stored."""
    appender = bench.appender()
    refused = appender.append_durably(MessageRun([message(b"illegal")]))
    assert isinstance(refused.outcome, RequestRefused)
    assert (refused.outcome.code, codes(refused.results)) == (
        ResponseCode.MESSAGE_ILLEGAL,
        [ResponseCode.MESSAGE_ILLEGAL],
    )
    partly = appender.append_durably(MessageRun([message(), message(b"illegal")]))
    assert (partly.outcome, codes(partly.results)) == (
        ResponseCode.SUCCESS,
        [0, ResponseCode.MESSAGE_ILLEGAL],
    )


async def test_a_durable_append_that_the_device_does_not_take(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    """The code of the time-out, for the message is stored; nothing waits any longer."""
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    async with trio.open_nursery() as nursery:
        await nursery.start(appender.acks.run)
        appended = appender.append_durably(MessageRun([message()]))
        assert await appended.wait() == ResponseCode.FLUSH_DISK_TIMEOUT
        nursery.cancel_scope.cancel()


async def test_what_is_stored_is_counted_once(bench: Bench) -> None:
    """By the appender, whoever appends: not what is refused, and under the topic that hooks choose."""
    counted: list[str] = []

    def park(each: PutMessage) -> None:
        if each.body == b"park":
            each.topic = "parked"

    appender = bench.appender(
        Hook(park), counted=lambda run, results: counted.extend(each.topic for each in run)
    )
    appender.append(MessageRun([message(), message(b"illegal"), message(b"park")]))
    appender.append_durably(MessageRun([message(topic="U")]))
    bench.store.broken = OSError("broken")
    appender.append(MessageRun([message()]))
    assert counted == ["T", "parked", "U"]


async def test_a_slow_disk_is_a_flush_time_out(bench: Bench, autojump_clock: trio.testing.MockClock) -> None:
    """After syncFlushTimeout the sender is told FLUSH_DISK_TIMEOUT: the message is stored all the same."""
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    sent = message()
    at = put_one(appender, sent)
    began = trio.current_time()
    assert await settle(appender, True, at) == ResponseCode.FLUSH_DISK_TIMEOUT
    assert trio.current_time() - began == pytest.approx(FLUSH_TIMEOUT_MS / 1000)
    assert bench.store.read_record(at.physical_offset) is not None


async def test_a_failed_device_promises_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """SERVICE_NOT_AVAILABLE with the reason, which producers retry elsewhere, and a log line."""
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    at = put_one(appender, message())
    bench.store.broken = StoreNotWritable("fsync failed")
    with pytest.raises(RequestRefused, match="may or may not be stored: fsync failed") as refusal:
        await settle(appender, True, at)
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "fsync failed" in caplog.text


class LaterStore(Store):
    """A store that writes when the test says: `written` is how far it has come."""

    written_by_append = False
    written = 0

    def write(self, offset: int | None = None) -> None:
        self.written = self.end_offset if offset is None else offset
        self.positions.moved()

    def settled_offset(self, level: Level) -> int:
        return self.written if level is Level.WRITTEN else self.flushed

    def max_offset(self, topic: str, queue_id: int) -> int:
        units = self.read_units(topic, queue_id, 0, 1_000)
        return sum(unit.physical_offset + unit.size_bytes <= self.written for unit in units)


def hold(bench: Bench, woken: list[int], unit_filter: UnitFilter | None = None) -> None:
    """Hold a pull for the end of queue 0, which notes what it finds when it wakes."""

    def retry(final: bool) -> None:
        woken.append(bench.store.max_offset("T", 0))

    end = bench.store.max_offset("T", 0)
    bench.held.hold(HeldRequest(request(11), FakePeer(), (("T", 0),), (end,), 9_000, unit_filter, retry))


@pytest.fixture
async def later() -> LaterStore:
    store = LaterStore(AsyncFlush(config_of()))
    await store.open()
    return store


async def test_others_are_told_when_a_message_is_written(later: LaterStore) -> None:
    """Dispatchers and held pulls hear nothing of what is only appended: they could not read it, and it
    might never come to be."""
    collect, woken = Collect(), list[int]()
    bench = Bench(later)
    appender = bench.appender(dispatchers=[collect])
    hold(bench, woken)
    ends = [
        at.physical_offset + at.size_bytes
        for _ in range(3)
        for at in appender.append(batch(message(b"1"), message(b"2")))
        if isinstance(at, Appended)
    ]
    bench.work.finish()
    assert (collect.entries, woken) == ([], [])
    later.write(ends[1])
    bench.work.finish()
    assert ([entry.at.queue_offset for entry in collect.entries], woken) == ([0, 1], [2])
    hold(bench, woken)
    later.write()
    bench.work.finish()
    assert ([entry.at.queue_offset for entry in collect.entries], woken) == ([0, 1, 2, 3, 4, 5], [2, 6])


async def test_a_pull_that_is_held_between_append_and_write_is_woken(later: LaterStore) -> None:
    """It came too late for the append and too early for the write; only by messages that its filter lets
    pass."""
    woken = list[int]()
    bench = Bench(later)
    appender = bench.appender()
    async with trio.open_nursery() as nursery:
        await nursery.start(appender._dispatching.run)
        appender.append(MessageRun([message(tags_code=8)]))
        hold(bench, woken, lambda code: code == 7)
        later.write()
        await trio.testing.wait_all_tasks_blocked()
        bench.work.finish()
        assert woken == []
        given = [message(tags_code=7)]
        appender.append(MessageRun(given))
        given.clear()  # the list is the caller's
        later.write()
        await trio.testing.wait_all_tasks_blocked()
        bench.work.finish()
        assert woken == [2]
        later.write()
        assert len(bench.held) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wait", [False, True])
async def test_nobody_is_promised_what_is_not_written(
    later: LaterStore, wait: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither at once nor after the time-out of a flush, which would count as sent."""
    bench = Bench(later)
    appender = bench.appender()
    at = put_one(appender, message(wait=wait))
    assert appender.are_settled([wait, True], [at, at]) == [False, False]
    with pytest.raises(
        RequestRefused, match="may or may not be stored: the disk has not taken it within 5000 ms"
    ) as refusal:
        await settle(appender, wait, at)
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    later.write()
    assert appender.are_settled([wait], [at]) == [True]
    assert await settle(appender, wait, at) == ResponseCode.SUCCESS


async def test_a_slow_flush_of_what_is_written(
    later: LaterStore, autojump_clock: trio.testing.MockClock
) -> None:
    """FLUSH_DISK_TIMEOUT is for those who wait for the flush; the others are served by the write."""
    bench = Bench(later)
    appender = bench.appender(acknowledge_at=Level.FLUSHED)
    at = put_one(appender, message())
    later.write()
    assert await settle(appender, True, at) == ResponseCode.FLUSH_DISK_TIMEOUT
    assert await settle(appender, False, at) == ResponseCode.SUCCESS
