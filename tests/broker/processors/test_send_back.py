"""Send-backs: to the retry topic with a delay, or to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import names, set_aside
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import PERM_READ
from rmqkit.model.topic import CustomizedRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack
from rmqkit.testing.peer import FakePeer
from rmqkit_timer.messages import due_ms
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


async def failed(desk: BrokerHarness, *, times: int = 0, **properties: str) -> StoredMessage:
    """A stored message that a consumer is about to send back."""
    await desk.sent(
        body=b"hard",
        properties={"TAGS": "A", "UNIQ_KEY": "K"} | properties,
        reconsume_times=times,
        born_timestamp=5,
        flag=3,
    )
    return desk.stored()[-1]


def parked(desk: BrokerHarness, level: int) -> list[StoredMessage]:
    return desk.stored(names.SCHEDULE_TOPIC, level - 1)


@pytest.mark.row("S102", "S105", "S107", "S109")
@pytest.mark.parametrize(
    ("asked", "times", "level"), [(0, 0, 3), (0, 4, 7), (5, 0, 5), (1, 9, 1), (99, 0, 18), (0, 15, 18)]
)
async def test_a_retry_waits_for_its_level(desk: BrokerHarness, asked: int, times: int, level: int) -> None:
    """With level 0 the broker uses 3 plus the number of retries; other levels are used as given, up to the
    last. The copy has body and birth of the original, one more reconsumption, and its origin."""
    original = await failed(desk, times=times)
    desk.clock.advance(1_000)
    answer = await desk.send_back(original.physical_offset, delay_level=asked)
    assert (answer.code, answer.remark) == (0, None)
    (copy,) = parked(desk, level)
    assert (copy.body, copy.flag, copy.born_timestamp_ms, copy.born_host) == (
        b"hard",
        3,
        5,
        original.born_host,
    )
    assert copy.reconsume_times == times + 1
    assert copy.store_timestamp_ms == desk.clock.now_ms()
    assert copy.properties["REAL_TOPIC"] == "%RETRY%g"
    assert copy.properties["REAL_QID"] == "0"
    assert copy.properties["RETRY_TOPIC"] == "T"
    assert copy.properties["TAGS"] == "A"
    origin = copy.properties["ORIGIN_MESSAGE_ID"]
    assert origin.endswith(f"{original.physical_offset:016X}")


@pytest.mark.parametrize(
    ("asked", "times", "timers", "place"),
    [
        (0, 0, True, 1_000),
        (0, 1, True, 8_000),
        (0, 7, True, 8_000),
        (4, 0, True, "level 4"),
        (0, 1, False, "level 3"),
    ],
)
async def test_a_retry_waits_as_the_policy_of_its_group_says(
    opened: Opened, asked: int, times: int, timers: bool, place: int | str
) -> None:
    """Where its consumer names no level; also a message that was timed itself. A timer ends at the end of its
    second; without timers the next delay level takes its place."""
    policy = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=(0, 0, 2_000, 9_000)))
    async with opened(timerWheelEnable=timers) as desk:
        await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", group_retry_policy=policy))
        original = await failed(desk, times=times, TIMER_OUT_MS="1", TIMER_ENQUEUE_MS="1")
        answer = await desk.send_back(original.physical_offset, delay_level=asked)
        assert answer.code == 0
        timed = desk.stored(names.TIMER_TOPIC)
        found: list[int | str] = [due_ms(each.properties) - desk.clock.now_ms() for each in timed] + [
            f"level {at}" for at in range(1, 19) for _ in parked(desk, at)
        ]
        assert found == [place]
        for each in timed:
            assert each.properties["REAL_TOPIC"] == "%RETRY%g"
            assert each.reconsume_times == times + 1


async def test_a_copy_is_counted_under_the_topic_in_which_it_is_stored(desk: BrokerHarness) -> None:
    """The schedule topic of a delayed retry, and the dead-letter topic of what is given up."""
    original = await failed(desk)
    await desk.send_back(original.physical_offset)
    await desk.send_back(original.physical_offset, delay_level=-1)
    counts = {topic: item.count for topic, item in desk.broker.stats.topics.items()}
    assert counts == {"T": 1, names.SCHEDULE_TOPIC: 1, "%DLQ%g": 1}
    assert desk.broker.stats.put_messages == 3


async def test_a_second_failure_keeps_the_first_origin(desk: BrokerHarness) -> None:
    """Topic and id of the first send are kept through all retries; the former delay is not."""
    properties = {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "F00D",
        "DELAY": "1",
        "REAL_TOPIC": "evil",
        "REAL_QID": "7",
    }
    await desk.sent("%RETRY%g", properties=properties, reconsume_times=1)
    offset = parked(desk, 1)[0].physical_offset
    assert (await desk.send_back(offset, delay_level=2)).code == 0
    (copy,) = parked(desk, 2)
    assert (copy.properties["RETRY_TOPIC"], copy.properties["ORIGIN_MESSAGE_ID"]) == ("First", "F00D")
    assert (copy.properties["REAL_TOPIC"], copy.properties["DELAY"]) == ("%RETRY%g", "2")
    assert copy.properties["REAL_QID"] in {"0", "1", "2", "3"}


@pytest.mark.row("S108")
@pytest.mark.parametrize(
    ("times", "client_limit", "version", "level", "dead"),
    [
        (15, None, 475, 0, False),
        (16, None, 475, 0, True),
        (2, 3, 475, 0, False),
        (3, 3, 475, 0, True),
        (3, 3, 121, 0, True),
        (3, 3, 120, 0, False),
        (16, 99, 475, 0, False),
        (16, 99, 120, 0, True),
        (0, None, 475, -1, True),
    ],
)
async def test_the_last_failure_is_a_dead_letter(
    desk: BrokerHarness, times: int, client_limit: int | None, version: int, level: int, dead: bool
) -> None:
    """At the limit (the client's from version 121 on, else the group's 16), or at once with a negative level,
    the message goes to %DLQ%group with one queue and no delay."""
    original = await failed(desk, times=times)
    answer = await desk.send_back(
        original.physical_offset, delay_level=level, max_reconsume_times=client_limit, version=version
    )
    assert answer.code == 0
    letters = desk.stored("%DLQ%g")
    assert len(letters) == (1 if dead else 0)
    if dead:
        assert letters[0].reconsume_times == times + 1
        assert letters[0].properties["DLQ_ORIGIN_TOPIC"] == "T"
        assert letters[0].properties["DLQ_ORIGIN_MESSAGE_ID"] == letters[0].properties["ORIGIN_MESSAGE_ID"]
        assert "DELAY" not in letters[0].properties
        topic = desk.broker.topics.get("%DLQ%g")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert sum(len(parked(desk, at)) for at in range(1, 19)) == (0 if dead else 1)
    stats = desk.broker.stats
    assert (stats.dead_lettered.count(("g", "T")), stats.sent_back.count(("g", "T"))) == (
        (1, 0) if dead else (0, 1)
    )


async def test_a_dead_letter_says_what_its_consumer_says(desk: BrokerHarness) -> None:
    """Why, after how many deliveries, and the error in one line of limited length; a retry says nothing, and
    a cause that nobody knows counts as none."""
    original = await failed(desk, times=2)
    at, error = original.physical_offset, "no\nway" + "x" * 2_000
    for level, cause in ((0, "asked"), (-1, "asked"), (-1, "?")):
        answer = await desk.send_back(at, delay_level=level, cause=cause, last_error=error)
        assert answer.code == 0
    first, second = desk.stored("%DLQ%g")
    found = {name: value for name, value in first.properties.items() if name.startswith("RMQKIT_DLQ")}
    assert found.pop("RMQKIT_DLQ_ERROR") == "no way" + "x" * 994
    assert found == {"RMQKIT_DLQ_CAUSE": "asked", "RMQKIT_DLQ_ATTEMPTS": "3"}
    retries = [each for at in range(1, 19) for each in parked(desk, at)]
    assert len(retries) == 1
    for other in (second, *retries):
        assert not any(name.startswith("RMQKIT_DLQ") for name in other.properties)


async def test_a_message_that_cannot_be_sent_back_is_set_aside(desk: BrokerHarness) -> None:
    """Its properties leave no room for those of a retry: the consumer is answered SUCCESS, for it would ask
    for ever."""
    await failed(desk)
    message = PutMessage(topic="T", queue_id=2, body=b"body", properties={}, properties_bytes=b"")
    message.set_properties({"p": "x" * (MAX_PROPERTIES_BYTES - 3)})
    (at,) = desk.broker.store.append([message])
    for level in (0, -1):
        answer = await desk.send_back(at.physical_offset, delay_level=level)
        assert (answer.code, answer.remark) == (0, None)
    assert parked(desk, 3) == desk.stored("%DLQ%g") == []
    for kept in desk.stored(names.SET_ASIDE_TOPIC):
        origin, reason = set_aside.read(kept.properties)
        assert unpack(kept.body).properties == message.properties
        assert (origin.service, origin.topic, origin.queue_id, origin.queue_offset) == (
            "send-back",
            "T",
            2,
            0,
        )
        assert origin.physical_offset == at.physical_offset
        assert reason.startswith("sent back by group g: properties of 32")
    assert desk.broker.stats.aside == {("send-back", True): 2}
    assert desk.broker.stats.dead_lettered.count(("g", "T")) == 0


@pytest.mark.row("S228")
async def test_the_retry_topic_comes_with_its_queues(desk: BrokerHarness) -> None:
    """The topic has retryQueueNums queues, at most 1024; the retry goes to one of them."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    original = await failed(desk)
    for _ in range(60):
        await desk.send_back(original.physical_offset)
    topic = desk.broker.topics.get("%RETRY%g")
    assert topic is not None
    assert topic.write_queue_nums == 3
    assert {message.properties["REAL_QID"] for message in parked(desk, 3)} == {"0", "1", "2"}
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="h", retry_queue_nums=2**31 - 1))
    assert (await desk.send_back(original.physical_offset, group="h")).code == 0
    topic = desk.broker.topics.get("%RETRY%h")
    assert topic is not None
    assert topic.write_queue_nums == 1_024


@pytest.mark.row("S106")
async def test_a_group_without_retry_queues_drops_the_message(desk: BrokerHarness) -> None:
    """The answer is SUCCESS and nothing is stored, as in Java."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
    original = await failed(desk)
    end = desk.broker.store.statistics().max_physical_offset
    assert (await desk.send_back(original.physical_offset)).code == 0
    assert desk.broker.store.statistics().max_physical_offset == end


@pytest.mark.row("S107")
@pytest.mark.parametrize("offset", [-1, 1, 10**9, 2**63 - 1, -(2**63)])
async def test_an_offset_where_no_message_begins(desk: BrokerHarness, offset: int) -> None:
    """Negative offsets, offsets inside a record and beyond the end are answered with SYSTEM_ERROR."""
    await failed(desk)
    answer = await desk.send_back(offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(offset) in (answer.remark or "")
    assert parked(desk, 3) == []


@pytest.mark.row("S104")
async def test_an_unknown_or_illegal_group(opened: Opened) -> None:
    """The answer is SUBSCRIPTION_GROUP_NOT_EXIST, and no topic is created."""
    async with opened(autoCreateSubscriptionGroup=False) as desk:
        original = await failed(desk)
        assert (
            await desk.send_back(original.physical_offset)
        ).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with opened() as desk:
        before = set(desk.broker.topics.configs)
        for group in ("../x", "a/b", "", "g" * 121):
            assert (await desk.send_back(0, group=group)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert set(desk.broker.topics.configs) == before


@pytest.mark.row("S104", "S106")
async def test_permissions(opened: Opened) -> None:
    """A broker without write permission and a retry topic without it are answered with NO_PERMISSION."""
    async with opened(brokerPermission=PERM_READ) as desk:
        original = await failed(desk)
        assert (await desk.send_back(original.physical_offset)).code == ResponseCode.NO_PERMISSION
    async with opened() as desk:
        original = await failed(desk)
        await desk.broker.topics.put(TopicConfig(topic_name="%RETRY%g", perm=PERM_READ))
        assert (await desk.send_back(original.physical_offset)).code == ResponseCode.NO_PERMISSION


async def test_ipv6_births_survive(desk: BrokerHarness) -> None:
    """The flag bit is kept with the host."""
    await desk.sent(peer=FakePeer("fe80::1", 5))
    (original,) = desk.stored()
    await desk.send_back(original.physical_offset)
    (copy,) = parked(desk, 3)
    assert copy.born_host == original.born_host
    assert len(copy.born_host) == 20


@pytest.mark.parametrize("without", ["disabledServices", "disabledPlugins"])
async def test_without_the_delay_service_a_retry_comes_at_once(opened: Opened, without: str) -> None:
    """A parked retry would never be delivered."""
    async with opened(**{without: ("delay",)}) as desk:
        original = await failed(desk)
        assert (await desk.send_back(original.physical_offset)).code == 0
        (copy,) = desk.stored("%RETRY%g")
        assert copy.reconsume_times == 1
