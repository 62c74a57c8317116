"""Delay levels: parked until they are due, then delivered once, in order, wherever the broker stops in
between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from attrs import define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import RequestRefused, StoreNotWritable
from rmqkit.model import names, set_aside
from rmqkit.model.message import PutMessage
from rmqkit.plugin.flush import Level
from rmqkit.plugin.hooks import EachPutHook, PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack
from rmqkit_delay.park import ParkDelayed
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import BrokerHarness, bodies, open_desk
from tests.broker.slow_store import Disk

pytestmark = pytest.mark.only_store(
    "memory", "mmap", why="moves a virtual clock, which does not wait for a store's own thread"
)
PATIENCE_S = 60
#: Virtual seconds in which the service looks at every level at least once.
A_LOOK_S = 1.25


@asynccontextmanager
async def delivering(desk: BrokerHarness, *, graceful: bool = True) -> AsyncIterator[None]:
    """The delay service runs; leaving stops it, gracefully or as a crash would."""
    service = desk.broker.registry.services["delay"]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, desk.broker)
        yield
        if graceful:
            await service.stop(desk.broker)
        nursery.cancel_scope.cancel()


async def after(desk: BrokerHarness, ms: int) -> None:
    """Move the broker's clock and let the service look."""
    desk.clock.advance(ms)
    await trio.sleep(A_LOOK_S)


def found(desk: BrokerHarness, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in desk.stored(topic, queue_id)]


async def written(directory: Path) -> None:
    """Give the thread that writes the file its time. The virtual clock does not wait for a thread; it stands
    still while a task can run, as this one can."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_written(directory):
        assert time.monotonic() < end_s, "delayOffset.json was not written"
        await trio.lowlevel.checkpoint()


def is_written(directory: Path) -> bool:
    return (directory / "config" / "delayOffset.json").exists()


def progress(directory: Path) -> dict[str, int]:
    table: dict[str, int] = msgspec.json.decode((directory / "config" / "delayOffset.json").read_bytes())[
        "offsetTable"
    ]
    return table


@pytest.mark.row("S235")
@pytest.mark.parametrize("kind", ["any", pytest.param("durable", marks=pytest.mark.durable_store)])
async def test_a_message_is_delivered_when_its_level_is_over_and_not_before(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, kind: str
) -> None:
    """Under its own topic, queue, body, birth and tags, with the parking left in its stored properties as
    Java leaves it."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(
            body=b"later",
            queue_id=3,
            properties={"DELAY": "2", "TAGS": "A", "UNIQ_KEY": "K"},
            born_timestamp=5,
            flag=7,
        )
        await after(desk, 4_999)
        assert found(desk, queue_id=3) == []
        await after(desk, 1)
        (message,) = desk.stored("T", 3)
        assert (message.body, message.born_timestamp_ms, message.flag, message.queue_offset) == (
            b"later",
            5,
            7,
            0,
        )
        assert (message.properties["TAGS"], message.properties["UNIQ_KEY"], message.properties["DELAY"]) == (
            "A",
            "K",
            "2",
        )
        assert bodies(await desk.pull(queue_id=3, subscription="A")) == [b"later"]
        await after(desk, 60_000)
        assert found(desk, queue_id=3) == [b"later"]


async def test_levels_do_not_wait_for_each_other(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Each is a queue of its own; within one the order is kept."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        for body, level in ((b"slow", "3"), (b"fast", "1"), (b"slow too", "3"), (b"fast too", "1")):
            await desk.sent(body=body, properties={"DELAY": level})
        await after(desk, 1_000)
        assert found(desk) == [b"fast", b"fast too"]
        await after(desk, 9_000)
        assert found(desk) == [b"fast", b"fast too", b"slow", b"slow too"]


async def test_many_messages_of_one_moment_are_all_delivered(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """More than one look takes."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        for number in range(300):
            await desk.sent(body=b"%d" % number, properties={"DELAY": "1"})
        await after(desk, 1_000)
        await trio.sleep(2)
        assert found(desk) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize(("level", "queue_id"), [("18", 17), ("19", 17), ("2147483648", 17)])
async def test_a_level_beyond_the_last_is_the_last(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, level: str, queue_id: int
) -> None:
    """18 of them by default, the last two hours."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(properties={"DELAY": level})
        assert len(desk.stored(names.SCHEDULE_TOPIC, queue_id)) == 1
        await after(desk, 2 * 3_600_000 - 1)
        assert found(desk) == []
        await after(desk, 1)
        assert found(desk) == [b"body"]


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_no_level_is_no_delay(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, level: str
) -> None:
    """Zero and below are delivered at once."""
    async with open_desk(tmp_path) as desk:
        await desk.sent(properties={"DELAY": level})
        assert found(desk) == [b"body"]


async def test_the_table_of_levels_is_a_setting(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """messageDelayLevel."""
    async with open_desk(tmp_path, messageDelayLevel="7s 1d") as desk, delivering(desk):
        await desk.sent(body=b"week", properties={"DELAY": "9"})
        await desk.sent(body=b"seven", properties={"DELAY": "1"})
        await after(desk, 7_000)
        assert found(desk) == [b"seven"]
        await after(desk, 86_400_000)
        assert found(desk) == [b"seven", b"week"]


async def test_a_delivery_wakes_a_held_pull(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """Whoever waits for the queue gets the message at its time."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(body=b"later", properties={"DELAY": "1", "TAGS": "A"})
        assert (
            await desk.outcome(desk.pull_request(sys_flag=6, subscription="A", suspend_timeout_millis=60_000))
            is None
        )
        await after(desk, 1_000)
        desk.broker.work.finish()
        assert bodies(desk.peer.answers[0]) == [b"later"]


@pytest.mark.row("S109")
async def test_a_message_that_was_sent_back_comes_again(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """After the level of its retry, in the retry topic; a second time after the next level."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(body=b"hard")
        assert (await desk.send_back(desk.stored()[0].physical_offset)).code == 0
        await after(desk, 9_999)
        assert found(desk, "%RETRY%g") == []
        await after(desk, 1)
        (retry,) = desk.stored("%RETRY%g")
        assert (retry.body, retry.reconsume_times) == (b"hard", 1)
        assert (await desk.send_back(retry.physical_offset)).code == 0
        await after(desk, 29_999)
        assert len(found(desk, "%RETRY%g")) == 1
        await after(desk, 1)
        assert [message.reconsume_times for message in desk.stored("%RETRY%g")] == [1, 2]


async def test_a_clock_that_was_set_back_delivers_at_once(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A time further away than the level is long cannot be meant."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(properties={"DELAY": "1"})
        await after(desk, -86_400_000)
        assert found(desk) == [b"body"]


# --- progress -----------------------------------------------------------------------------------------------


@pytest.mark.durable_store
async def test_a_graceful_restart_neither_loses_nor_repeats(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """What was delivered is not delivered again, what was not is; also what came due while the broker was
    away."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        for number in range(3):
            await desk.sent(body=b"%d" % number, properties={"DELAY": "1"})
        await after(desk, 1_000)
        await desk.sent(body=b"3", properties={"DELAY": "1"})
        now = desk.clock.now_ms()
    assert progress(tmp_path)["1"] == 3
    async with open_desk(tmp_path) as desk:
        desk.clock.advance(now - desk.clock.now_ms() + 1_000)
        async with delivering(desk):
            await after(desk, 0)
            assert found(desk) == [b"0", b"1", b"2", b"3"]


async def test_nothing_is_delivered_once_the_service_has_stopped(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Between its stop and the end of the broker its progress would not be written any more."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        await desk.sent(properties={"DELAY": "1"})
        await desk.broker.registry.services["delay"].stop(desk.broker)
        await after(desk, 1_000)
        assert found(desk) == []


@pytest.mark.durable_store
async def test_progress_is_written_while_the_broker_runs(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Every flushDelayOffsetInterval; a crash repeats at most what was delivered since, and loses nothing."""
    async with open_desk(tmp_path) as desk, delivering(desk, graceful=False):
        await desk.sent(body=b"1", properties={"DELAY": "1"})
        await after(desk, 1_000)
        await trio.sleep(10)
        await written(tmp_path)
        assert progress(tmp_path)["1"] == 1
        await desk.sent(body=b"2", properties={"DELAY": "1"})
        await after(desk, 1_000)
        now = desk.clock.now_ms()
    async with open_desk(tmp_path) as desk:
        desk.clock.advance(now - desk.clock.now_ms())
        async with delivering(desk):
            await after(desk, 0)
            assert found(desk) == [b"1", b"2", b"2"]


@pytest.mark.only_store(why="brings its own store")
async def test_progress_is_not_written_before_what_was_delivered_is_safe(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash would lose a message whose delivery is on disk as a number and not as a message."""
    disk = Disk(flushed=True)
    async with (
        open_desk(tmp_path, extra=[("disk", disk)], store="slow", flushDiskType="SYNC_FLUSH") as desk,
        delivering(desk),
    ):
        await desk.sent(properties={"DELAY": "1"})
        await after(desk, 1_000)
        assert found(desk) == [b"body"]
        disk.fault = StoreNotWritable("fsync failed")
        await trio.sleep(25)
        assert disk.levels == [Level.FLUSHED, Level.FLUSHED]
        assert not (tmp_path / "config" / "delayOffset.json").exists()
        assert "fsync failed" in caplog.text
        disk.fault = None
        await trio.sleep(10)
        await written(tmp_path)
        assert progress(tmp_path)["1"] == 1


@pytest.mark.parametrize(("offset", "delivered"), [(-7, [b"0", b"1"]), (1, [b"1"]), (99, [])])
async def test_progress_outside_the_queue_is_moved_into_it(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, offset: int, delivered: list[bytes]
) -> None:
    """As after a restored or foreign file."""
    async with open_desk(tmp_path) as desk:
        for number in range(2):
            await desk.sent(body=b"%d" % number, properties={"DELAY": "1"})
        (tmp_path / "config" / "delayOffset.json").write_bytes(b'{"offsetTable":{1:%d,40:3}}' % offset)
        async with delivering(desk):
            await after(desk, 1_000)
            assert found(desk) == delivered
            await desk.sent(body=b"new", properties={"DELAY": "1"})
            await after(desk, 1_000)
            assert found(desk) == [*delivered, b"new"]


# --- trouble ------------------------------------------------------------------------------------------------


@define
class Full(EachPutHook):
    """Refuses messages of one body while `full`; `error` is what it raises."""

    error: Exception
    full: bool = True
    asked: int = 0

    def before_each(self, message: PutMessage) -> None:
        if message.body == b"unwanted" and message.topic == "T" and "REAL_TOPIC" in message.properties:
            self.asked += 1
            if self.full:
                raise self.error


@define
class Plugin:
    """Registers a put hook."""

    hook: PutMessageHook

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("full", self.hook)


@pytest.mark.parametrize(
    "error", [RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "disk full"), ValueError("boom")]
)
async def test_a_delivery_that_is_refused_is_tried_again(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """After 10 s, though the broker's clock is set back meanwhile; the messages behind it in its level wait,
    so that the order is kept, and other levels go on."""
    hook = Full(error)
    async with open_desk(tmp_path, extra=[("full", Plugin(hook))]) as desk, delivering(desk):
        for body, level in ((b"first", "1"), (b"unwanted", "1"), (b"behind", "1"), (b"other", "2")):
            await desk.sent(body=body, properties={"DELAY": level})
        await after(desk, 5_000)
        assert found(desk) == [b"first", b"other"]
        desk.clock.advance(-3_000)
        await trio.sleep(8)
        assert hook.asked == 1
        await trio.sleep(3)
        assert hook.asked == 2
        hook.full = False
        await trio.sleep(11)
        assert found(desk) == [b"first", b"other", b"unwanted", b"behind"]
    assert "trying again" in caplog.text


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "1"},
        {"DELAY": "1", "REAL_TOPIC": "T"},
        {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "x"},
        {"DELAY": "1", "REAL_TOPIC": "../x", "REAL_QID": "0"},
        {"DELAY": "1", "REAL_TOPIC": names.HALF_TOPIC, "REAL_QID": "0"},
        {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": str(1 << 40)},
    ],
)
async def test_a_parked_message_that_leads_nowhere_is_set_aside(
    autojump_clock: trio.testing.MockClock,
    tmp_path: Path,
    properties: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a log line and a count; the next one is delivered. Half messages least of all may come out that
    way."""
    async with open_desk(tmp_path) as desk, delivering(desk):
        bad = PutMessage(
            topic=names.SCHEDULE_TOPIC, queue_id=0, body=b"bad", properties={}, properties_bytes=b""
        )
        bad.set_properties(properties)
        desk.broker.store.append([bad])
        await desk.sent(body=b"good", properties={"DELAY": "1"})
        before = set(desk.broker.store.queues())
        await after(desk, 1_000)
        assert found(desk) == [b"good"]
        assert set(desk.broker.store.queues()) - before == {"T", names.SET_ASIDE_TOPIC}
        (kept,) = desk.stored(names.SET_ASIDE_TOPIC)
        origin, _ = set_aside.read(kept.properties)
        assert unpack(kept.body).properties_bytes == bad.properties_bytes
        assert (origin.service, origin.topic, origin.queue_offset) == ("delay", names.SCHEDULE_TOPIC, 0)
        assert desk.broker.stats.aside == {("delay", True): 1}
        assert bodies(await desk.pull(topic=names.SET_ASIDE_TOPIC)) == [kept.body]
        refused = await desk.send(names.SET_ASIDE_TOPIC)
        assert refused.code == ResponseCode.NO_PERMISSION
    assert "set aside" in caplog.text


async def test_a_damaged_message_is_set_aside_with_its_bytes(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A body whose checksum is wrong is delivered to nobody as if it were whole."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk, delivering(desk):
        for body in (b"before", b"damaged", b"behind"):
            await desk.sent(body=body, properties={"DELAY": "1"})
        records = store_of(desk)._log.records
        (at,) = (offset for offset, record in records.items() if b"damaged" in record)
        records[at] = records[at].replace(b"damaged", b"dAmaged")
        await after(desk, 1_000)
        assert found(desk) == [b"before", b"behind"]
        (kept,) = desk.stored(names.SET_ASIDE_TOPIC)
        assert kept.body == records[at]
        assert "CRC" in set_aside.read(kept.properties)[1]


def test_a_message_is_parked_once() -> None:
    """What is in the schedule topic already stays as it is."""
    message = PutMessage(topic="T", queue_id=3, body=b"x", properties={}, properties_bytes=b"")
    message.set_properties({"DELAY": "5"})
    hook = ParkDelayed([1_000, 2_000])
    for _ in range(2):
        hook.before_each(message)
        assert (message.topic, message.queue_id) == (names.SCHEDULE_TOPIC, 1)
        assert message.properties == {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "3"}


def test_a_client_cannot_choose_where_it_comes_out() -> None:
    """REAL_TOPIC and REAL_QID of the sender are overwritten."""
    message = PutMessage(topic="T", queue_id=3, body=b"x", properties={}, properties_bytes=b"")
    message.set_properties({"DELAY": "1", "REAL_TOPIC": names.HALF_TOPIC, "REAL_QID": "99"})
    ParkDelayed([1_000]).before_each(message)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")


@pytest.mark.only_store(why="brings its own store")
async def test_a_level_whose_messages_left_the_memory_holds_up_nobody(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Others deliver while the device is waited for; then it delivers, once, in order, without ever having
    waited in the loop."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk, delivering(desk):
        store = store_of(desk)
        for body, level in ((b"old", "2"), (b"old too", "2"), (b"new", "1")):
            await desk.sent(body=body, properties={"DELAY": level})
        desk.clock.advance(5_000)
        await desk.sent(body=b"newer", properties={"DELAY": "1"})
        store.waits.clear()
        store.cold_queues[names.SCHEDULE_TOPIC, 1] = 2
        await trio.sleep(A_LOOK_S)
        assert not any(store.waits)
        assert found(desk) == [b"new"]
        await after(desk, 1_000)
        assert found(desk) == [b"new", b"newer"]
        assert store.warmed == []
        store.waits.clear()
        store.device.set()
        await trio.sleep(A_LOOK_S)
        assert not any(store.waits)
        assert len(store.warmed) == 2
        assert found(desk) == [b"new", b"newer", b"old", b"old too"]


@pytest.mark.only_store(why="brings its own store")
async def test_a_service_that_stops_while_messages_are_waited_for(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """It delivers no more; after the next start they come."""
    async with cold_desk(partial(open_desk, tmp_path)) as desk:
        async with delivering(desk):
            await desk.sent(body=b"late", properties={"DELAY": "1"})
            store_of(desk).cold_queues[names.SCHEDULE_TOPIC, 0] = 1
            await after(desk, 1_000)
            await desk.broker.registry.services["delay"].stop(desk.broker)
            store_of(desk).device.set()
            await trio.sleep(A_LOOK_S)
            assert len(store_of(desk).warmed) == 1
            assert found(desk) == []
        async with delivering(desk):
            await trio.sleep(A_LOOK_S)
            assert found(desk) == [b"late"]


async def test_the_offsets_of_levels_are_figures_of_the_broker(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A level that has had messages has a figure: the next offset and the end of its queue."""
    async with open_desk(tmp_path) as desk:
        service = desk.broker.registry.services["delay"]
        assert service.figures() == {}
        async with delivering(desk):
            await desk.sent(properties={"DELAY": "1"})
            await desk.sent(properties={"DELAY": "3"})
            assert service.figures() == {"scheduleMessageOffset_1": "0,1", "scheduleMessageOffset_3": "0,1"}
            await after(desk, 1_000)
            assert service.figures() == {"scheduleMessageOffset_1": "1,1", "scheduleMessageOffset_3": "0,1"}
