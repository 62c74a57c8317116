"""Progress of groups, and which groups consume what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from rmqkit.broker.processors import consume_stats
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SubscriptionData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
)
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


def content(answer: Command) -> Any:
    assert (answer.code, answer.remark) == (0, None)
    return loose_json.loads(answer.body)


def offsets(body: Any) -> dict[tuple[str, int], Any]:
    """The table of offsets, by topic and queue id."""
    queues = {
        msgspec.json.decode(key, type=MessageQueue): found for key, found in body["offsetTable"].items()
    }
    assert all(queue.broker_name == "broker-a" for queue in queues)
    return {(queue.topic, queue.queue_id): found for queue, found in queues.items()}


def key(queue_id: int, topic: str = "T") -> tuple[str, int]:
    return topic, queue_id


@pytest.mark.row("S011")
async def test_consume_statistics(desk: BrokerHarness) -> None:
    """The answer has the broker's and the group's offset of every queue of its topics, and the time of the
    last consumed message."""
    for _ in range(3):
        await desk.sent()
    desk.broker.offsets.commit("g", "T", 0, 2)
    body = content(
        await desk.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g"))
    )
    assert set(offsets(body)) == {key(queue_id) for queue_id in range(4)}
    assert offsets(body)[key(0)] == {
        "brokerOffset": 3,
        "consumerOffset": 2,
        "pullOffset": 2,
        "lastTimestamp": desk.clock.now_ms(),
    }
    assert offsets(body)[key(1)] == {
        "brokerOffset": 0,
        "consumerOffset": 0,
        "pullOffset": 0,
        "lastTimestamp": 0,
    }
    for topic, group in (("Nothing", "g"), (None, "nobody")):
        body = content(
            await desk.ask(
                RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
            )
        )
        assert offsets(body) == {}


@pytest.mark.row("S011")
async def test_who_consumes_what(desk: BrokerHarness) -> None:
    """Groups of a topic and topics of a group are found for online groups by subscription, for others by
    committed offsets."""
    await desk.subscribe("online", SubscriptionData(topic="T"), SubscriptionData(topic="U"))
    desk.broker.offsets.commit("offline", "T", 0, 1)
    found = content(
        await desk.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GetTopicStatsInfoRequestHeader(topic="T"))
    )
    assert found == {"groupList": ["offline", "online"]}
    for group, topics in (("online", ["T", "U"]), ("offline", ["T"]), ("nobody", [])):
        found = content(await desk.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequestHeader(group=group)))
        assert found == {"brokerAddr": desk.broker.address, "topicList": topics}


@pytest.mark.row("S011")
async def test_the_pull_offset_is_that_of_the_last_pull(desk: BrokerHarness) -> None:
    """The pull offset is never below the committed offset; the rate of consumption is that of the last
    minute."""
    for _ in range(6):
        await desk.sent()
    assert (await desk.pull(max_msg_nums=4)).code == 0
    desk.broker.offsets.commit("g", "T", 0, 2)
    desk.clock.advance(60_000)
    desk.broker.stats.advance(desk.clock.now_ms())
    header = GetConsumeStatsRequestHeader(consumer_group="g", topic_list="T;Nothing")
    body = content(await desk.ask(RequestCode.GET_CONSUME_STATS, header))
    assert (offsets(body)[key(0)]["consumerOffset"], offsets(body)[key(0)]["pullOffset"]) == (2, 4)
    assert body["consumeTps"] == pytest.approx(4 / 60)
    desk.broker.offsets.commit("g", "T", 0, 5)
    body = content(await desk.ask(RequestCode.GET_CONSUME_STATS, header))
    assert offsets(body)[key(0)]["pullOffset"] == 5


async def test_topics_an_online_group_has_left_are_not_counted(desk: BrokerHarness) -> None:
    """Subscriptions count for an online group, committed offsets for an offline one."""
    for topic in ("T", "U"):
        await desk.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
        desk.broker.offsets.commit("g", topic, 0, 0)
    assert (
        len(
            offsets(
                content(
                    await desk.ask(
                        RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g")
                    )
                )
            )
        )
        == 2
    )
    await desk.subscribe("g", SubscriptionData(topic="U"))
    body = content(
        await desk.ask(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g"))
    )
    assert set(offsets(body)) == {key(0, "U")}


@pytest.mark.row("S011")
async def test_statistics_of_all_groups(desk: BrokerHarness) -> None:
    """Every group is listed with every topic with committed offsets, and their total lag."""
    await desk.broker.topics.put(
        TopicConfig(topic_name="O", read_queue_nums=1, write_queue_nums=1, order=True)
    )
    for topic in ("T", "T", "T", "O"):
        await desk.sent(topic)
    for group in ("g", "h"):
        await desk.broker.groups.put(SubscriptionGroupConfig(group_name=group))
    desk.broker.offsets.commit("g", "T", 0, 1)
    desk.broker.offsets.commit("g", "O", 0, 1)
    desk.broker.offsets.commit("h", "Gone", 0, 1)
    body = content(
        await desk.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False))
    )
    assert (body["brokerAddr"], body["totalDiff"], body["totalInflightDiff"]) == (desk.broker.address, 2, 0)
    found = {group: stats for entry in body["consumeStatsList"] for group, stats in entry.items()}
    assert [set(offsets(stats)) for stats in found["g"]] == [
        {key(queue_id) for queue_id in range(4)},
        {key(0, "O")},
    ]
    assert found["h"] == []
    body = content(
        await desk.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=True))
    )
    found = {group: stats for entry in body["consumeStatsList"] for group, stats in entry.items()}
    assert [set(offsets(stats)) for stats in found["g"]] == [{key(0, "O")}]


async def test_statistics_that_no_frame_could_hold(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics that are too large are refused with a hint."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g"))
    desk.broker.offsets.commit("g", "T", 0, 1)
    monkeypatch.setattr(consume_stats, "MAX_BODY_BYTES", 100)
    refused = await desk.ask(
        RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False)
    )
    assert (refused.code, "group by group" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


@pytest.mark.row("S011")
async def test_the_span_of_time_a_group_is_in(desk: BrokerHarness) -> None:
    """The answer has the times of the first, last and last consumed message of every queue, and how long the
    next one has been waiting."""
    times = []
    for _ in range(3):
        times.append(desk.clock.now_ms())
        await desk.sent()
        desk.clock.advance(1_000)
    desk.broker.offsets.commit("g", "T", 0, 2)
    header = QueryConsumeTimeSpanRequestHeader(topic="T", group="g")
    spans = content(await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header))["consumeTimeSpanSet"]
    assert spans[0] == {
        "messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 0},
        "minTimeStamp": times[0],
        "maxTimeStamp": times[2],
        "consumeTimeStamp": times[1],
        "delayTime": 1_000,
    }
    empty = {"minTimeStamp": -1, "maxTimeStamp": -1, "consumeTimeStamp": -1, "delayTime": 0}
    assert spans[1] | empty == spans[1]
    desk.broker.offsets.commit("g", "T", 0, 3)
    spans = content(await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header))["consumeTimeSpanSet"]
    assert spans[0]["delayTime"] == 0
    header = QueryConsumeTimeSpanRequestHeader(topic="Nothing", group="g")
    assert (await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_to_correct(desk: BrokerHarness) -> None:
    """The answer is the smallest offset of all groups except excluded ones; none where the compared group is
    behind. No offset changes."""
    for group, offset in (("g", 5), ("h", 3), ("slow", 1)):
        desk.broker.offsets.commit(group, "T", 0, offset)
    desk.broker.offsets.commit("g", "T", 1, 7)
    header = QueryCorrectionOffsetHeader(topic="T", compare_group="h", filter_groups="slow,none")
    assert content(await desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)) == {
        "correctionOffsets": {"0": 3, "1": 7}
    }
    header = QueryCorrectionOffsetHeader(topic="T", compare_group="slow", filter_groups="slow")
    assert (
        content(await desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header))["correctionOffsets"]["0"]
        == 2**63 - 1
    )
    assert desk.broker.offsets.get("slow", "T", 0) == 1


async def test_a_group_takes_over_the_offsets_of_another(desk: BrokerHarness) -> None:
    """Offsets of one topic or of all consumed topics are copied; missing topics are skipped."""
    for topic, queue_id, offset in (("T", 0, 5), ("T", 3, 7), ("Gone", 0, 9)):
        desk.broker.offsets.commit("g", topic, queue_id, offset)
    for target in "abcd":
        await desk.broker.groups.put_all([SubscriptionGroupConfig(group_name=target)])
    for target, wanted in (("a", None), ("b", "T"), ("c", "Gone")):
        header = CloneGroupOffsetRequestHeader(src_group="g", dest_group=target, topic=wanted, offline=True)
        assert (await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code == 0
    known = desk.broker.offsets
    assert (known.queues("a", "T"), known.queues("b", "T"), known.topics_of("c")) == (
        {0: 5, 3: 7},
        {0: 5, 3: 7},
        [],
    )
    assert known.queues("a", "Gone") == {}
    await desk.subscribe("g", SubscriptionData(topic="U"))
    header = CloneGroupOffsetRequestHeader(src_group="g", dest_group="d", topic="T")
    assert (await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code == 0
    assert known.queues("d", "T") == {}
    for unknown in ("../x", "unknown"):
        header = CloneGroupOffsetRequestHeader(src_group="g", dest_group=unknown, topic="T")
        refused = await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "create it first" in (refused.remark or "")
    assert set(desk.broker.groups.configs) >= {"a", "b", "c", "d"}
    assert "unknown" not in desk.broker.groups.configs
    assert known.topics_of("unknown") == []


async def test_the_units_of_a_queue(desk: BrokerHarness) -> None:
    """The units are those shown by mqadmin's queryCq, with the subscription of an online group."""
    for _ in range(3):
        await desk.sent(properties={"TAGS": "A"})
    units = desk.broker.store.read_units("T", 0, 1, 9)

    async def query(index: int, group: str | None = None, queue_id: int = 0, topic: str = "T") -> Command:
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=9, consumer_group=group
        )
        return await desk.ask(RequestCode.QUERY_CONSUME_QUEUE, header)

    body = content(await query(1))
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert body["queueData"] == [
        {"eval": False, "physicOffset": unit.physical_offset, "physicSize": unit.size_bytes, "tagsCode": 65}
        for unit in units
    ]
    assert content(await query(0, "g"))["filterData"] == "g@T is not online!"
    await desk.subscribe("g")
    assert content(await query(0, "g"))["subscriptionData"]["subString"] == "*"
    beyond = await query(3)
    assert (beyond.code, beyond.remark, beyond.body) == (0, "Index 3 of 0@T is not exist!", b"")
    assert (await query(0, queue_id=4)).remark == "4@T is not exist!"
    assert (await query(0, topic="U")).code == ResponseCode.SYSTEM_ERROR


async def test_the_subscription_of_a_group(desk: BrokerHarness) -> None:
    """The subscription of an online group is returned; nothing for others."""
    await desk.subscribe("g")
    found = content(
        await desk.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupRequestHeader(group="g", topic="T"))
    )
    assert (found["group"], found["topic"], found["subscriptionData"]["topic"]) == ("g", "T", "T")
    found = content(
        await desk.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupRequestHeader(group="h", topic="T"))
    )
    assert found == {"group": "h", "topic": "T"}
