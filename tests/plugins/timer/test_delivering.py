"""Timers in a broker: when messages are delivered, in which order, and how often, wherever the broker stops
in between."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model import names, set_aside
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.acks import ConditionLost
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit_timer import delivering
from tests.broker.desk import BrokerHarness, bodies, open_desk
from tests.plugins.timer.kit import (
    A_LOOK_S,
    after,
    entering_of,
    found,
    parked,
    put,
    service_of,
    timed,
    timing,
)

pytestmark = pytest.mark.only_store(
    "memory", "mmap", why="moves a virtual clock, which does not wait for a store's own thread"
)
Clock = trio.testing.MockClock


# --- times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["any", pytest.param("durable", marks=pytest.mark.durable_store)])
@pytest.mark.parametrize("asked", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_message_is_delivered_at_its_time_and_not_before(
    autojump_clock: Clock, tmp_path: Path, kind: str, asked: str
) -> None:
    """Under its own topic, queue, body, birth, flags and tags, with what Java adds to its properties."""
    async with open_desk(tmp_path) as desk, timing(desk):
        now_ms = desk.clock.now_ms()
        value = {"TIMER_DELAY_SEC": 5, "TIMER_DELAY_MS": 5_000, "TIMER_DELIVER_MS": now_ms + 5_000}[asked]
        own = {asked: str(value), "TAGS": "A", "UNIQ_KEY": "K", "mine": "x"}
        await desk.sent(body=b"later", queue_id=3, properties=own, born_timestamp=5, flag=7, sys_flag=1)
        assert len(desk.stored(names.TIMER_TOPIC)) == 1
        await after(desk, 4_999)
        assert found(desk, queue_id=3) == []
        await after(desk, 1)
        (message,) = desk.stored("T", 3)
        assert (message.body, message.born_timestamp_ms, message.flag, message.sys_flag & 1) == (
            b"later",
            5,
            7,
            1,
        )
        added = {
            "TIMER_OUT_MS": str(now_ms + 4_000),
            "TIMER_ENQUEUE_MS": str(now_ms),
            "TIMER_DEQUEUE_MS": str(now_ms + 5_000),
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        }
        assert (own | added).items() <= message.properties.items()
        assert bodies(await desk.pull(queue_id=3, subscription="A")) == [b"later"]
        await after(desk, 600_000)
        assert found(desk, queue_id=3) == [b"later"]


@pytest.mark.parametrize(
    ("precision_ms", "delay_ms", "due_ms"),
    [
        (1_000, 1, 1_000),
        (1_000, 999, 1_000),
        (1_000, 1_001, 2_000),
        (100, 101, 200),
        (10, 7, 10),
        (10, 20, 20),
    ],
)
async def test_a_time_between_two_slots_is_the_later_one(
    autojump_clock: Clock, tmp_path: Path, precision_ms: int, delay_ms: int, due_ms: int
) -> None:
    """timerPrecisionMs; never early."""
    async with open_desk(tmp_path, timerPrecisionMs=precision_ms) as desk, timing(desk):
        await desk.sent(properties={"TIMER_DELAY_MS": str(delay_ms)})
        await after(desk, due_ms - 1)
        assert found(desk) == []
        await after(desk, 1)
        assert found(desk) == [b"body"]


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "9000", "TIMER_DELIVER_MS": "1"}, 2_000),
        ({"TIMER_DELAY_MS": "3000", "TIMER_DELIVER_MS": "1"}, 3_000),
        ({"TIMER_DELAY_SEC": "+4"}, 4_000),
        ({"DELAY": "2", "TIMER_DELAY_SEC": "1"}, 5_000),
        ({"DELAY": "0", "TIMER_DELAY_SEC": "1"}, 1_000),
    ],
)
async def test_the_first_of_several_times_counts(
    autojump_clock: Clock, tmp_path: Path, properties: dict[str, str], due_ms: int
) -> None:
    """Seconds before ms before a time; a delay level before all of them."""
    async with open_desk(tmp_path) as desk, timing(desk), trio.open_nursery() as nursery:
        await nursery.start(desk.broker.registry.services["delay"].run, desk.broker)
        await desk.sent(properties=properties)
        await after(desk, due_ms - 1)
        assert found(desk) == []
        await after(desk, 1)
        assert found(desk) == [b"body"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_SEC": "-1"},
        {"TIMER_DELAY_MS": "-9223372036854775808"},
        {"TIMER_DELIVER_MS": "1"},
        {"TIMER_DELIVER_MS": "-1"},
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"},
    ],
)
async def test_a_time_that_is_over_is_no_delay(
    autojump_clock: Clock, tmp_path: Path, properties: dict[str, str]
) -> None:
    """Nor is one that was delivered before, which says so, as of a consumer that sends it back."""
    async with open_desk(tmp_path) as desk:
        await desk.sent(properties=properties)
        assert found(desk) == [b"body"]


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        (
            {"TIMER_DELAY_SEC": "x"},
            ResponseCode.MESSAGE_ILLEGAL,
            "TIMER_DELAY_SEC: 'x' is not a whole number",
        ),
        ({"TIMER_DELAY_MS": "1.5"}, ResponseCode.MESSAGE_ILLEGAL, "is not a whole number"),
        ({"TIMER_DELIVER_MS": " 5"}, ResponseCode.MESSAGE_ILLEGAL, "is not a whole number"),
        ({"TIMER_DELAY_MS": "\u0663"}, ResponseCode.MESSAGE_ILLEGAL, "is not a whole number"),
        ({"TIMER_DELAY_MS": str(2**63)}, ResponseCode.MESSAGE_ILLEGAL, "is not a whole number"),
        ({"TIMER_DELAY_SEC": "259201"}, ResponseCode.MESSAGE_ILLEGAL, "max delay 259200000ms"),
        ({"TIMER_DELAY_SEC": str(2**63 - 1)}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": str(2**63 - 1)}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({"TIMER_DEL_UNIQKEY": "T+K"}, ResponseCode.MESSAGE_ILLEGAL, "needs the time"),
        (
            {"TIMER_DEL_UNIQKEY": "T+K", "TIMER_DELAY_SEC": "0"},
            ResponseCode.MESSAGE_ILLEGAL,
            "was due 0 ms ago",
        ),
    ],
)
async def test_a_time_that_cannot_be_is_refused(
    autojump_clock: Clock, tmp_path: Path, properties: dict[str, str], code: int, remark: str
) -> None:
    """With RocketMQ's code and the reason; nothing is stored. The largest delay is accepted."""
    async with open_desk(tmp_path) as desk:
        answer = await desk.send(properties=properties)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert desk.is_empty()
        await desk.sent(properties={"TIMER_DELAY_SEC": "259200"})


async def test_timers_may_be_off(autojump_clock: Clock, tmp_path: Path) -> None:
    """timerWheelEnable: a time is refused then, as by Java."""
    async with open_desk(tmp_path, timerWheelEnable="false") as desk, timing(desk):
        answer = await desk.send(properties={"TIMER_DELAY_SEC": "5"})
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
        assert desk.is_empty()
    async with open_desk(tmp_path, disabledServices="timer") as desk:
        assert (await desk.send(properties={"TIMER_DELAY_SEC": "5"})).code == ResponseCode.MESSAGE_ILLEGAL


async def test_nobody_sends_to_the_topic_of_timers(autojump_clock: Clock, tmp_path: Path) -> None:
    """Its records name other topics, to which the sender may not send."""
    async with open_desk(tmp_path) as desk, timing(desk):
        answer = await desk.send(
            names.TIMER_TOPIC, properties={"TIMER_OUT_MS": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
        )
        assert answer.code == ResponseCode.NO_PERMISSION


# --- order, windows, clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [delivering.CHUNK, 7])
async def test_messages_of_one_time_are_delivered_in_their_order(
    autojump_clock: Clock, tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they are more than are looked at together; earlier times come first."""
    monkeypatch.setattr(delivering, "CHUNK", chunk)
    async with open_desk(tmp_path) as desk, timing(desk):
        put(desk, *(timed(b"%d" % number, {"TIMER_DELAY_SEC": "3"}) for number in range(300)))
        put(desk, timed(b"early", {"TIMER_DELAY_SEC": "2"}))
        await after(desk, 60_000)
        await trio.sleep(2)
        assert found(desk) == [b"early", *(b"%d" % number for number in range(300))]


async def test_a_time_beyond_the_window_is_reached_in_steps(autojump_clock: Clock, tmp_path: Path) -> None:
    """A message is stored anew after a window, or half of one, and says how often; it is delivered once, at
    its time."""
    async with open_desk(tmp_path, timerRollWindowSlot=10) as desk, timing(desk):
        await desk.sent(properties={"TIMER_DELAY_SEC": "25"})
        for _ in range(24):
            await after(desk, 1_000)
        assert found(desk) == []
        await after(desk, 1_000)
        (message,) = desk.stored()
        assert message.properties[props.TIMER_ROLL_TIMES] == "2"
        assert len(desk.stored(names.TIMER_TOPIC)) == 3
        await after(desk, 60_000)
        assert found(desk) == [b"body"]


async def test_a_clock_that_is_set_back_and_forth(autojump_clock: Clock, tmp_path: Path) -> None:
    """Nothing comes early, nothing is lost, nothing comes twice."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await desk.sent(body=b"1", properties={"TIMER_DELAY_SEC": "1"})
        await desk.sent(body=b"60", properties={"TIMER_DELAY_SEC": "60"})
        await after(desk, 10_000)
        assert found(desk) == [b"1"]
        await after(desk, -9_000)
        await desk.sent(body=b"5", properties={"TIMER_DELAY_SEC": "4"})
        await after(desk, 3_999)
        assert found(desk) == [b"1"]
        await after(desk, 1)
        assert found(desk) == [b"1", b"5"]
        await after(desk, 86_400_000)
        assert found(desk) == [b"1", b"5", b"60"]
        await after(desk, -86_400_000)
        assert found(desk) == [b"1", b"5", b"60"]
        await desk.sent(body=b"1 again", properties={"TIMER_DELAY_SEC": "1"})
        await after(desk, 1_000)
        assert found(desk) == [b"1", b"5", b"60", b"1 again"]


async def test_a_delivery_wakes_a_held_pull(autojump_clock: Clock, tmp_path: Path) -> None:
    """Whoever waits for the queue gets the message at its time."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await desk.sent(body=b"later", properties={"TIMER_DELAY_SEC": "1"})
        assert await desk.outcome(desk.pull_request(sys_flag=6, suspend_timeout_millis=60_000)) is None
        await after(desk, 1_000)
        desk.broker.work.finish()
        assert bodies(desk.peer.answers[0]) == [b"later"]


async def change(desk: BrokerHarness, **settings: str) -> None:
    """Change settings of the running broker."""
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())).code == 0


async def test_entering_and_delivering_can_be_stopped(autojump_clock: Clock, tmp_path: Path) -> None:
    """timerStopEnqueue and timerStopDequeue, while the broker runs."""
    async with open_desk(tmp_path) as desk, timing(desk) as service:
        await change(desk, timerStopDequeue="true")
        await desk.sent(properties={"TIMER_DELAY_SEC": "1"})
        await after(desk, 5_000)
        assert found(desk) == []
        await change(desk, timerStopDequeue="false", timerStopEnqueue="true")
        await desk.sent(body=b"second", properties={"TIMER_DELAY_SEC": "1"})
        await after(desk, 5_000)
        assert found(desk) == [b"body"]
        assert service.figures()["timerOffsetBehind"] == 1
        await change(desk, timerStopEnqueue="false")
        await after(desk, 0)
        assert found(desk) == [b"body", b"second"]


# --- deletion -----------------------------------------------------------------------------------------------


def deletion(key: str, due_ms: int, topic: str = "T") -> PutMessage:
    return timed(b"0", {"TIMER_DEL_UNIQKEY": key, "TIMER_DELIVER_MS": str(due_ms)}, topic)


@pytest.mark.parametrize("window", [172_800, 10])
async def test_a_message_that_was_deleted_is_not_delivered(
    autojump_clock: Clock, tmp_path: Path, window: int
) -> None:
    """By topic and unique key, or by the key alone as old clients do; others of its slot are delivered, and
    the deletion is not. Also when both wait beyond the window."""
    async with open_desk(tmp_path, timerRollWindowSlot=window) as desk, timing(desk) as service:
        due_ms = desk.clock.now_ms() + 25_000
        for key in ("A", "B", "C"):
            put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
        await after(desk, 5_000)
        put(desk, deletion("T+A", due_ms), deletion("B", due_ms))
        for _ in range(21):
            await after(desk, 1_000)
        assert found(desk) == [b"C"]
        assert service.figures()["timerCongestNum"] == 0


async def test_a_deletion_of_another_topic_or_time_deletes_nothing(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    """Who may send to one topic alone cannot delete the messages of another one."""
    async with open_desk(tmp_path) as desk, timing(desk):
        due_ms = desk.clock.now_ms() + 5_000
        put(desk, timed(b"kept", {"UNIQ_KEY": "A", "TIMER_DELIVER_MS": str(due_ms)}))
        put(desk, deletion("T+A", due_ms, "mine"), deletion("A", due_ms, "mine"))
        put(desk, deletion("T+A", due_ms + 1_000), deletion("T+B", due_ms), deletion("U+A", due_ms))
        await after(desk, 10_000)
        assert found(desk) == [b"kept"]
        assert found(desk, "mine") == []


@pytest.mark.durable_store
async def test_a_deletion_that_the_wheel_does_not_have_counts(autojump_clock: Clock, tmp_path: Path) -> None:
    """A kill after its acknowledgement and before the next checkpoint, and a start when the time is over."""
    async with open_desk(tmp_path) as desk:
        due_ms = desk.clock.now_ms() + 5_000
        async with timing(desk):
            for key in ("A", "B"):
                put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
            await after(desk, 0)
        put(desk, deletion("T+A", due_ms), deletion("T+B", due_ms - 1_000))
        desk.clock.advance(9_000)
        async with timing(desk):
            await after(desk, 1_000)
            assert found(desk) == [b"B"]


@pytest.mark.durable_store
async def test_a_deletion_beyond_the_window_counts_at_a_late_start(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    """Message and deletion wait for their next steps in different slots, and both are overdue then."""
    async with open_desk(tmp_path, timerRollWindowSlot=10) as desk:
        due_ms = desk.clock.now_ms() + 25_000
        async with timing(desk):
            put(desk, timed(b"A", {"UNIQ_KEY": "A", "TIMER_DELIVER_MS": str(due_ms)}))
            put(desk, timed(b"B", {"UNIQ_KEY": "B", "TIMER_DELIVER_MS": str(due_ms)}))
            await after(desk, 3_000)
            put(desk, deletion("T+A", due_ms))
            await after(desk, 0)
        desk.clock.advance(60_000)
        async with timing(desk):
            await after(desk, 1_000)
            assert found(desk) == [b"B"]


async def test_a_deletion_counts_while_the_topic_is_not_read(autojump_clock: Clock, tmp_path: Path) -> None:
    """Its message waits in the wheel already, and nothing enters it while a slow device is written."""
    async with open_desk(tmp_path) as desk, timing(desk):
        due_ms = desk.clock.now_ms() + 5_000
        for key in ("A", "B"):
            put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
        await after(desk, 1_000)
        await change(desk, timerStopEnqueue="true")
        put(desk, deletion("T+A", due_ms))
        await after(desk, 6_000)
        assert found(desk) == [b"B"]
        await change(desk, timerStopEnqueue="false")
        await after(desk, 2_000)
        assert found(desk) == [b"B"]


@pytest.mark.parametrize("between_ms", [0, 3_000])
async def test_a_deletion_beyond_the_window_counts_after_a_halt(
    autojump_clock: Clock, tmp_path: Path, between_ms: int
) -> None:
    """Message and deletion wait for their next steps, in one slot or in two, and both are overdue when the
    process goes on."""
    async with open_desk(tmp_path, timerRollWindowSlot=10) as desk, timing(desk):
        due_ms = desk.clock.now_ms() + 25_000
        for key in ("A", "B"):
            put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
        await after(desk, between_ms)
        put(desk, deletion("T+A", due_ms))
        await after(desk, 0)
        await after(desk, 60_000)
        await after(desk, 1_000)
        assert found(desk) == [b"B"]


async def test_a_deletion_behind_an_overdue_message_counts(autojump_clock: Clock, tmp_path: Path) -> None:
    """Both are taken when their time is over."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await change(desk, timerStopEnqueue="true")
        due_ms = desk.clock.now_ms() + 5_000
        for key in ("A", "B"):
            put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
        put(desk, deletion("T+A", due_ms))
        await after(desk, 9_000)
        await change(desk, timerStopEnqueue="false")
        await after(desk, 1_000)
        assert found(desk) == [b"B"]


async def test_a_deletion_counts_while_nobody_runs(autojump_clock: Clock, tmp_path: Path) -> None:
    """A message that is overdue at the start of the service, and its deletion behind it: neither is
    delivered; others are."""
    async with open_desk(tmp_path) as desk:
        due_ms = desk.clock.now_ms() + 5_000
        for key in ("A", "B"):
            put(desk, timed(key.encode(), {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}))
        put(desk, deletion("T+A", due_ms))
        desk.clock.advance(9_000)
        async with timing(desk):
            await after(desk, 1_000)
            put(desk, timed(b"A again", {"UNIQ_KEY": "A", "TIMER_DELAY_SEC": "1"}))
            await after(desk, 1_000)
            assert found(desk) == [b"B", b"A again"]


# --- restarts -----------------------------------------------------------------------------------------------


@pytest.mark.durable_store
@pytest.mark.parametrize("graceful", [True, False])
async def test_a_restart_neither_loses_nor_repeats(
    autojump_clock: Clock, tmp_path: Path, graceful: bool
) -> None:
    """Whether the broker stops or is killed: what was delivered is not delivered again, what was not is; also
    what came due while the broker was away."""
    async with open_desk(tmp_path) as desk, timing(desk, graceful=graceful):
        for number in range(5):
            await desk.sent(body=b"%d" % number, properties={"TIMER_DELAY_SEC": str(number + 1)})
        for _ in range(3):
            await after(desk, 1_000)
        await desk.sent(body=b"late", properties={"TIMER_DELAY_SEC": "60"})
        await desk.sent(body=b"last", properties={"TIMER_DELAY_SEC": "1"})
        now_ms = desk.clock.now_ms()
        assert found(desk) == [b"0", b"1", b"2"]
    async with open_desk(tmp_path) as desk:
        desk.clock.advance(now_ms - desk.clock.now_ms() + 1_000)
        async with timing(desk):
            await after(desk, 5_000)
            assert sorted(found(desk)) == [b"0", b"1", b"2", b"3", b"4", b"last"]
            await after(desk, 60_000)
            assert found(desk)[-1] == b"late"
            assert len(found(desk)) == 7


@pytest.mark.durable_store
async def test_a_checkpoint_that_failed_is_made_good(
    autojump_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the replicas had not got at one checkpoint is in the next one, from which a killed broker
    starts."""
    async with open_desk(tmp_path) as desk, timing(desk, graceful=False):
        entering, appender = entering_of(desk), type(desk.broker.appender)
        with monkeypatch.context() as patched:
            patched.setattr(appender, "settle_everything", _unsettled)
            await desk.sent(body=b"early", properties={"TIMER_DELAY_SEC": "60"})
            await trio.sleep(A_LOOK_S)
            with pytest.raises(ConditionLost, match="no replica"):
                await entering.persist()
        await desk.sent(body=b"later", properties={"TIMER_DELAY_SEC": "2000"})
        await trio.sleep(A_LOOK_S)
        await entering.persist()
        now_ms = desk.clock.now_ms()
    async with open_desk(tmp_path) as desk:
        desk.clock.advance(now_ms - desk.clock.now_ms())
        async with timing(desk):
            await after(desk, 2_100_000)
            assert found(desk) == [b"early", b"later"]


async def _unsettled(appender: object) -> None:
    raise ConditionLost(ResponseCode.SLAVE_NOT_AVAILABLE, "no replica has it")


@define
class Killer(EachPutHook):
    """Cancels a scope when so many messages have been delivered to T."""

    scope: trio.CancelScope
    left: int

    def before_each(self, message: PutMessage) -> None:
        if message.topic == "T" and props.TIMER_DEQUEUE_MS in message.properties:
            self.left -= 1
            if not self.left:
                self.scope.cancel()


@pytest.mark.durable_store
@pytest.mark.parametrize("killed_at", [1, 2, 7, 8, 20])
@pytest.mark.parametrize("chunk", [delivering.CHUNK, 7])
async def test_a_kill_between_a_delivery_and_its_checkpoint_repeats_nothing(
    autojump_clock: Clock, tmp_path: Path, killed_at: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliveries are found in the log, wherever in a slot the broker was killed; two messages that are
    alike are two."""
    monkeypatch.setattr(delivering, "BATCH", 1)
    monkeypatch.setattr(delivering, "CHUNK", chunk)
    scope = trio.CancelScope()
    extra = [("killer", Plugin(Killer(scope, killed_at)))]
    async with open_desk(tmp_path, extra=extra, timerFlushIntervalMs=86_400_000) as desk:
        with scope:
            async with timing(desk, graceful=False):
                put(desk, *(timed(b"%d" % (number // 2), {"TIMER_DELAY_SEC": "1"}) for number in range(20)))
                await entering_of(desk).persist()
                await after(desk, 2_000)
        assert len(found(desk)) == killed_at
        async with timing(desk, graceful=False):
            await after(desk, 1_000)
        async with timing(desk):
            await after(desk, 1_000)
            assert sorted(found(desk)) == sorted(b"%d" % (number // 2) for number in range(20))


def timer_files(directory: Path) -> list[Path]:
    return [*directory.rglob("timer*")]


async def test_a_broker_without_timers_writes_nothing(autojump_clock: Clock, tmp_path: Path) -> None:
    """The files are made with the first message that waits."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await desk.sent()
        await after(desk, 60_000)
    assert timer_files(tmp_path) == []


# --- trouble ------------------------------------------------------------------------------------------------


@define
class Full(EachPutHook):
    """Refuses messages of one body while `full`; `error` is what it raises."""

    error: Exception
    full: bool = True
    asked: int = 0

    def before_each(self, message: PutMessage) -> None:
        if message.body == b"unwanted" and message.topic == "T":
            self.asked += 1
            if self.full:
                raise self.error


@define
class Plugin:
    """Registers a put hook."""

    hook: PutMessageHook

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("full", self.hook, order=200)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    "error", [RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "disk full"), ValueError("boom")]
)
async def test_a_delivery_that_is_refused_is_tried_again(
    autojump_clock: Clock, tmp_path: Path, error: Exception, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it succeeds, whether it has waited or was overdue at once; what was delivered meanwhile is not
    delivered again."""
    hook = Full(error)
    async with open_desk(tmp_path, extra=[("full", Plugin(hook))]) as desk:
        if not waits:
            put(desk, *(timed(body, {"TIMER_DELAY_SEC": "1"}) for body in (b"first", b"unwanted", b"behind")))
            desk.clock.advance(5_000)
        async with timing(desk):
            if waits:
                put(
                    desk,
                    *(timed(body, {"TIMER_DELAY_SEC": "1"}) for body in (b"first", b"unwanted", b"behind")),
                )
            await after(desk, 1_000)
            assert b"unwanted" not in found(desk)
            assert hook.asked
            hook.full = False
            await trio.sleep(12)
            assert sorted(found(desk)) == [b"behind", b"first", b"unwanted"]
    assert "trying again" in caplog.text


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_OUT_MS": ""},
        {"TIMER_OUT_MS": "x"},
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "../x"},
        {"REAL_TOPIC": names.HALF_TOPIC},
        {"REAL_QID": "x"},
        {"REAL_QID": "-1"},
    ],
)
@pytest.mark.parametrize("waits", [True, False])
async def test_a_record_that_leads_nowhere_is_set_aside(
    autojump_clock: Clock, tmp_path: Path, properties: dict[str, str], waits: bool
) -> None:
    """With its bytes and the reason; the next one is delivered. Nobody takes transactions here."""
    async with open_desk(tmp_path, disabledPlugins="transaction") as desk, timing(desk):
        slot_ms = desk.clock.now_ms() + (4_000 if waits else -4_000)
        desk.broker.store.append([parked(b"bad", slot_ms, **properties)])
        await desk.sent(body=b"good", properties={"TIMER_DELAY_SEC": "5"})
        await after(desk, 5_000)
        assert found(desk) == [b"good"]
        (kept,) = desk.stored(names.SET_ASIDE_TOPIC)
        origin, _ = set_aside.read(kept.properties)
        assert (origin.service, origin.topic) == ("timer", names.TIMER_TOPIC)
        assert desk.broker.stats.aside == {("timer", True): 1}


async def test_a_crowded_slot_takes_no_more(
    autojump_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timerCongestNumEachSlot: beyond it a part is refused, beyond twice its number everything, as Java
    does."""
    async with open_desk(tmp_path, timerCongestNumEachSlot=10) as desk, timing(desk):
        wanted = {"TIMER_DELIVER_MS": str(desk.clock.now_ms() + 60_000)}
        put(desk, *(timed(b"x", wanted) for _ in range(15)))
        await trio.sleep(A_LOOK_S)
        monkeypatch.setattr("random.random", lambda: 0.6)
        assert (await desk.send(properties=wanted)).code == 0
        monkeypatch.setattr("random.random", lambda: 0.2)
        refused = await desk.send(properties=wanted)
        assert (refused.code, "flow control" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        monkeypatch.setattr("random.random", lambda: 0.99)
        put(desk, *(timed(b"x", wanted) for _ in range(4)))
        await trio.sleep(A_LOOK_S)
        assert (await desk.send(properties=wanted)).code == ResponseCode.SYSTEM_ERROR
        assert (await desk.send(properties={"TIMER_DELAY_SEC": "5"})).code == 0


async def test_what_waits_is_told(autojump_clock: Clock, tmp_path: Path) -> None:
    """In the run-time information, with Java's keys."""
    async with open_desk(tmp_path) as desk:
        assert service_of(desk).figures() == {}
        async with timing(desk) as service:
            put(desk, *(timed(b"x", {"TIMER_DELAY_SEC": "9"}) for _ in range(3)))
            assert service.figures()["timerOffsetBehind"] == 3
            await trio.sleep(A_LOOK_S)
            figures = service.figures()
            assert (figures["timerOffsetBehind"], figures["timerCongestNum"]) == (0, 3)
            await after(desk, 9_000)
            assert service.figures()["timerCongestNum"] == 0
