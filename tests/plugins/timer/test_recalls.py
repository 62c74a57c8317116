"""Recalls and repeating messages in a broker: what is delivered and what is not, wherever it stops in
between."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from rmqkit.model import names
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.protocol.recall_handle import RecallHandle, decode_handle
from rmqkit_timer.schedules import HOP_MS
from tests.broker.desk import BrokerHarness, open_desk
from tests.plugins.timer.kit import after, found, timing

pytestmark = pytest.mark.only_store(
    "memory", "mmap", why="moves a virtual clock, which does not wait for a store's own thread"
)
Clock = trio.testing.MockClock
MINUTE_MS = 60_000


async def sent(desk: BrokerHarness, body: bytes = b"later", **properties: str) -> str:
    """Send a message; returns its handle."""
    answer = await desk.sent(body=body, properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "id"} | properties)
    assert answer.recall_handle is not None
    return answer.recall_handle


async def repeated(desk: BrokerHarness, rule: str = "1m", **properties: str) -> str:
    """Send a repeating message; returns its handle."""
    given = {"UNIQ_KEY": "id", "RMQKIT_REPEAT": rule} | properties
    answer = await desk.sent(body=b"again", properties=given)
    assert answer.recall_handle is not None
    return answer.recall_handle


async def recall(desk: BrokerHarness, handle: str, topic: str = "T", **fields: Any) -> Command:
    header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, **fields)
    return await desk.ask(RequestCode.RECALL_MESSAGE, header)


async def recalled(desk: BrokerHarness, handle: str) -> str:
    """The id of a message that is recalled."""
    answer = await recall(desk, handle, producer_group="p")
    assert (answer.code, answer.remark) == (0, None)
    assert answer.fields()["MSG_REGION"] == "DefaultRegion"
    return answer.header(RecallMessageResponseHeader).msg_id


def forged(handle: str, **changes: Any) -> str:
    """A handle with other parts."""
    text = decode_handle(handle)._replace(**changes).encode()
    assert text is not None
    return text


def numbers(desk: BrokerHarness) -> list[str]:
    """The numbers of the deliveries."""
    return [message.properties["RMQKIT_REPEAT_NUMBER"] for message in desk.stored()]


# --- recalls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_recalled_message_is_not_delivered(autojump_clock: Clock, tmp_path: Path, asked: str) -> None:
    """However its time was asked for; a message with another id in the same slot is delivered, and so is what
    waits in another one."""
    async with open_desk(tmp_path) as desk, timing(desk):
        now_ms = desk.clock.now_ms()
        value = {"TIMER_DELAY_SEC": 60, "TIMER_DELAY_MS": 60_000, "TIMER_DELIVER_MS": now_ms + 60_000}[asked]
        answer = await desk.sent(body=b"no", properties={asked: str(value), "UNIQ_KEY": "id"})
        await sent(desk, b"yes", UNIQ_KEY="other")
        await sent(desk, b"later", TIMER_DELAY_SEC="90", UNIQ_KEY="id")
        assert await recalled(desk, answer.recall_handle or "") == "id"
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"yes"]
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"yes", b"later"]


async def test_the_record_of_a_recall(autojump_clock: Clock, tmp_path: Path) -> None:
    """It is Apache's: body, tag, the name of the message, its id and its time."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await sent(desk)
        await recalled(desk, handle)
        record = desk.stored(names.TIMER_TOPIC)[1]
        time_ms = decode_handle(handle).deliver_ms
        assert record.body == b"0"
        expected = {
            "TAGS": "_RECALL_TAG_",
            "TIMER_DEL_UNIQKEY": "T+id",
            "UNIQ_KEY": "id",
            "TIMER_DELIVER_MS": str(time_ms),
            "TIMER_OUT_MS": str(time_ms - 1),
            "REAL_TOPIC": "T",
            "BORN_TIMESTAMP": str(desk.clock.now_ms()),
            "PGROUP": "p",
        }
        assert expected.items() <= record.properties.items()


async def test_an_id_in_another_topic_is_not_recalled(autojump_clock: Clock, tmp_path: Path) -> None:
    """A handle with the topic of somebody else is taken for a message of that topic, as in Java, and recalls
    nothing; so is an id that nobody has."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await desk.broker.topics.put(TopicConfig(topic_name="Other"))
        handle = await sent(desk)
        assert (await recall(desk, forged(handle, topic="Other"), "Other")).code == 0
        assert (await recall(desk, forged(handle, message_id="nobody"))).code == 0
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"later"]
        assert found(desk, "Other") == []


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": "Other"}, "recall failed, topic not match"),
        ({"broker_name": "broker-b"}, "recall failed, broker service not available"),
        ({"deliver_ms": 0}, "recall failed, timestamp invalid"),
        ({"deliver_ms": -1}, "recall failed, timestamp invalid"),
        ({"deliver_ms": 2**63 - 1}, "recall failed, timestamp invalid"),
        ({"message_id": "a\x02b"}, "recall handle is invalid"),
        ({"message_id": "x" * 3_000}, None),
        ({"repeats": "1m@x"}, "recall handle is invalid"),
        ({"repeats": "often@1"}, "recall handle is invalid"),
        ({"repeats": "1m"}, "recall handle is invalid"),
        ({"repeats": "0~0~30~2~*@1"}, "recall handle is invalid"),
    ],
)
async def test_a_forged_handle_changes_nothing(
    autojump_clock: Clock, tmp_path: Path, changes: dict[str, Any], why: str | None
) -> None:
    """It is refused with RocketMQ's code and text, or recalls nothing; the message is delivered."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await sent(desk)
        answer = await recall(desk, forged(handle, **changes))
        if why is None:
            assert answer.code == 0
        else:
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            assert why in (answer.remark or "")
            assert len(desk.stored(names.TIMER_TOPIC)) == 1
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"later"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "djEg",
        encoded("v1 T broker-a 1"),
        encoded("v2 T broker-a 1 id"),
        encoded("x" * 5_000),
        "\u0661" * 8,
    ],
)
async def test_what_is_no_handle(autojump_clock: Clock, tmp_path: Path, text: str) -> None:
    """The code and the text are RocketMQ's, and nothing is stored."""
    async with open_desk(tmp_path) as desk, timing(desk):
        answer = await recall(desk, text)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert (answer.remark or "").startswith("recall handle is invalid")
        assert desk.is_empty()


async def test_what_was_delivered_is_not_recalled(autojump_clock: Clock, tmp_path: Path) -> None:
    """Once the time has come the handle is refused; before it, it may be used twice."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await sent(desk)
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"later"]
        answer = await recall(desk, handle)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "timestamp invalid: the message was delivered" in (answer.remark or "")
        again = await sent(desk, UNIQ_KEY="two")
        for _ in range(2):
            assert await recalled(desk, again) == "two"
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"later"]


async def test_who_may_recall(autojump_clock: Clock, tmp_path: Path) -> None:
    """recallMessageEnable, brokerPermission with allowRecallWhenBrokerNotWriteable, and an unknown topic,
    each with RocketMQ's code."""
    async with open_desk(tmp_path, recallMessageEnable=False) as desk, timing(desk):
        answer = await recall(desk, await sent(desk))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "recall failed, operation is forbidden" in (answer.remark or "")
    for allowed in (True, False):
        async with (
            open_desk(
                tmp_path / str(allowed), brokerPermission=4, allowRecallWhenBrokerNotWriteable=allowed
            ) as desk,
            timing(desk),
        ):
            handle = RecallHandle("T", "broker-a", desk.clock.now_ms() + 5_000, "id").encode() or ""
            answer = await recall(desk, handle)
            assert answer.code == (0 if allowed else ResponseCode.SERVICE_NOT_AVAILABLE)
            answer = await recall(desk, forged(handle, topic="None"), "None")
            assert answer.code == (
                ResponseCode.TOPIC_NOT_EXIST if allowed else ResponseCode.SERVICE_NOT_AVAILABLE
            )


async def test_a_recall_waits_for_what_a_send_waits_for(autojump_clock: Clock, tmp_path: Path) -> None:
    """A refused append is the answer, with its code, and the message is delivered."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await sent(desk)
        desk.broker.store.refuse_writes("a test")
        answer = await recall(desk, handle)
        desk.broker.store.refuse_writes(None)
        assert answer.code != 0
        await after(desk, MINUTE_MS)
        assert found(desk) == [b"later"]


# --- repeating messages -------------------------------------------------------------------------------------


async def test_a_message_comes_again_and_again(autojump_clock: Clock, tmp_path: Path) -> None:
    """At each time the same message is delivered, in its own queue."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await repeated(desk, mine="x")
        assert found(desk) == []
        for _ in range(3):
            await after(desk, MINUTE_MS)
        assert found(desk) == [b"again"] * 3
        assert numbers(desk) == ["1", "2", "3"]
        messages = desk.stored()
        assert {message.properties["UNIQ_KEY"] for message in messages} == {"id"}
        assert {message.properties["mine"] for message in messages} == {"x"}


async def test_as_often_as_its_sender_wants(autojump_clock: Clock, tmp_path: Path) -> None:
    """After the last delivery nothing waits."""
    async with open_desk(tmp_path) as desk, timing(desk) as service:
        await repeated(desk, RMQKIT_REPEAT_TIMES="2", TIMER_DELAY_SEC="5")
        await after(desk, 5_000)
        assert numbers(desk) == ["1"]
        for _ in range(3):
            await after(desk, MINUTE_MS)
        assert numbers(desk) == ["1", "2"]
        assert service.timers is not None
        assert service.timers.waiting == 0


async def test_a_cron_expression(autojump_clock: Clock, tmp_path: Path) -> None:
    """The times are those of the broker's clock, in UTC."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await repeated(desk, "*/10 * * * *")
        await after(desk, 10 * MINUTE_MS - desk.clock.now_ms() % (10 * MINUTE_MS) - 1)
        assert found(desk) == []
        await after(desk, 1)
        assert numbers(desk) == ["1"]
        await after(desk, 10 * MINUTE_MS)
        assert numbers(desk) == ["1", "2"]


async def test_a_day_between_two_deliveries(autojump_clock: Clock, tmp_path: Path) -> None:
    """The message waits an hour at a time, and no consumer sees that."""
    async with open_desk(tmp_path) as desk, timing(desk):
        await repeated(desk, "1d")
        for hour in range(49):
            assert len(found(desk)) == hour // 24
            await after(desk, HOP_MS)
        assert numbers(desk) == ["1", "2"]


async def test_a_recall_ends_it(autojump_clock: Clock, tmp_path: Path) -> None:
    """The handle of the first send is good for ever, also for a long wait; others go on."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await repeated(desk)
        long = await repeated(desk, "1d", UNIQ_KEY="long")
        await repeated(desk, UNIQ_KEY="other")
        for _ in range(3):
            await after(desk, MINUTE_MS)
        assert len(found(desk)) == 6
        assert await recalled(desk, handle) == "id"
        await after(desk, 3 * HOP_MS)
        assert await recalled(desk, long) == "long"
        for _ in range(30):
            await after(desk, HOP_MS)
        keys = [message.properties["UNIQ_KEY"] for message in desk.stored()]
        assert keys.count("id") == 3
        assert keys.count("long") == 0
        assert keys.count("other") > 30


@pytest.mark.parametrize("late_ms", [0, 1, 500, 999])
async def test_a_recall_at_the_last_moment(autojump_clock: Clock, tmp_path: Path, late_ms: int) -> None:
    """Whatever is due in that second, nothing comes afterwards, of the shortest interval as well."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await repeated(desk, "1s")
        for _ in range(5):
            await after(desk, 1_000)
        desk.clock.advance(late_ms)
        await recalled(desk, handle)
        for _ in range(5):
            await after(desk, 1_000)
        ended = found(desk)
        assert 4 <= len(ended) <= 8
        for _ in range(30):
            await after(desk, 1_000)
        assert found(desk) == ended


@pytest.mark.durable_store
@pytest.mark.parametrize("graceful", [True, False])
async def test_it_goes_on_after_a_restart(autojump_clock: Clock, tmp_path: Path, graceful: bool) -> None:
    """Nothing is delivered twice at one time, and of the times without a broker one is made up for. What was
    recalled before the restart stays recalled."""
    async with open_desk(tmp_path) as desk, timing(desk, graceful=graceful):
        handle = await repeated(desk)
        await repeated(desk, UNIQ_KEY="other")
        await after(desk, MINUTE_MS)
        assert numbers(desk) == ["1", "1"]
        await recalled(desk, handle)
        await after(desk, 0)
        end_ms = desk.clock.now_ms()
    async with open_desk(tmp_path) as desk:
        desk.clock.advance(end_ms + 10 * MINUTE_MS + 500 - desk.clock.now_ms())
        async with timing(desk, graceful=graceful):
            await after(desk, 0)
            assert numbers(desk) == ["1", "1", "2"]
            await after(desk, MINUTE_MS)
            assert numbers(desk) == ["1", "1", "2", "3"]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"RMQKIT_REPEAT": "often"}, "neither an interval"),
        ({"RMQKIT_REPEAT": "10ms"}, "not between 1 s and 366 days"),
        ({"RMQKIT_REPEAT": "61 * * * *"}, "Bad minute"),
        ({"RMQKIT_REPEAT": "Mars/Base 0 9 * * *"}, "no time zone"),
        ({"RMQKIT_REPEAT": "1m", "RMQKIT_REPEAT_TIMES": "0"}, "RMQKIT_REPEAT_TIMES is 0"),
        ({"RMQKIT_REPEAT": "1m", "TIMER_DELAY_SEC": "soon"}, "TIMER_DELAY_SEC"),
        ({"RMQKIT_REPEAT": "1m", "TIMER_DELAY_SEC": "-1"}, "first time"),
        ({"RMQKIT_REPEAT": "1m", "DELAY": "3"}, "no delay level"),
    ],
)
async def test_a_fault_is_refused(
    autojump_clock: Clock, tmp_path: Path, properties: dict[str, str], why: str
) -> None:
    """The remark names it, and nothing is stored."""
    async with open_desk(tmp_path) as desk, timing(desk):
        answer = await desk.send(properties=properties)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert why in (answer.remark or "")
        assert desk.is_empty()


async def test_a_delivery_that_is_sent_again_does_not_repeat(autojump_clock: Clock, tmp_path: Path) -> None:
    """A consumer's retry, and a copy with all properties, are delivered once."""
    async with open_desk(tmp_path) as desk, timing(desk):
        handle = await repeated(desk)
        await after(desk, MINUTE_MS)
        await recalled(desk, handle)
        (message,) = desk.stored()
        copy = {name: value for name, value in message.properties.items() if not name.startswith("MSG_")}
        assert (await desk.send(properties=copy, queue_id=1)).code == 0
        await desk.subscribe()
        assert (await desk.send_back(message.physical_offset, delay_level=0)).code == 0
        for _ in range(5):
            await after(desk, MINUTE_MS)
        assert len(found(desk)) == len(found(desk, queue_id=1)) == 1


async def test_no_repetitions_without_timers(tmp_path: Path) -> None:
    """A broker without the plugin refuses them and names what is missing; so does one whose timers are
    off."""
    async with open_desk(tmp_path / "without", disabledPlugins="timer") as desk:
        answer = await desk.send(properties={"RMQKIT_REPEAT": "1m"})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "asks for repeated delivery" in (answer.remark or "")
        answer = await recall(desk, "x")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    async with open_desk(tmp_path / "off", timerWheelEnable=False) as desk:
        answer = await desk.send(properties={"RMQKIT_REPEAT": "1m"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable" in (answer.remark or "")
