"""Pulls that are answered at once: codes, offsets, limits, filters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.subscription import BROADCASTING, SubscriptionData, tag_subscription
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.tags import java_hash
from tests.broker.desk import BrokerHarness, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


async def fill(desk: BrokerHarness, count: int, *, size: int = 10, tags: str = "A", start: int = 0) -> None:
    for number in range(start, start + count):
        await desk.sent(body=b"%04d" % number + bytes(size - 4), properties={"TAGS": tags, "UNIQ_KEY": "K"})


@pytest.mark.row("S006", "S021", "S112", "S114", "S116")
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_messages_are_found(desk: BrokerHarness, code: int) -> None:
    """Messages are returned from the offset on, in order, with next, minimum and maximum offset; the remark
    is the store's status."""
    await fill(desk, 5)
    answer = await desk.pull(offset=2, code=code)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert [body[:4] for body in bodies(answer)] == [b"0002", b"0003", b"0004"]
    assert places(answer) == (5, 0, 5)


@pytest.mark.row("S112")
async def test_a_pull_is_limited_by_count_and_bytes(desk: BrokerHarness) -> None:
    """Limits are the requested count, at most 32; 256 KiB, but at least one message; and the client's own
    byte limit."""
    await fill(desk, 40)
    assert len(bodies(await desk.pull(max_msg_nums=3))) == 3
    assert len(bodies(await desk.pull(max_msg_nums=1_000))) == 32
    assert len(bodies(await desk.pull(max_msg_nums=0))) == 1
    assert len(bodies(await desk.pull(max_msg_nums=-5))) == 1
    assert len(bodies(await desk.pull(max_msg_bytes=600))) in (2, 3)
    assert len(bodies(await desk.pull(max_msg_bytes=1))) == 1
    await fill(desk, 4, size=200_000, start=40)
    answer = await desk.pull(offset=40)
    assert len(bodies(answer)) == 1
    assert places(answer) == (41, 0, 44)


async def test_a_sequential_pull_is_limited_by_its_own_bytes(desk: BrokerHarness) -> None:
    """A client that reads from end to end gets as many messages and bytes as it asks for, also beyond the
    limits of ordinary pulls; the broker's setting is the limit, and 0 makes such pulls ordinary."""
    await fill(desk, 40, size=10_000)
    wide: dict[str, Any] = {"max_msg_nums": 1_000, "sequential_bytes": 1_000_000}
    assert len(bodies(await desk.pull(**wide))) == 40
    assert len(bodies(await desk.pull(**wide | {"max_msg_nums": 35}))) == 35
    assert len(bodies(await desk.pull(**wide | {"sequential_bytes": 350_000}))) == 34
    assert len(bodies(await desk.pull(**wide | {"sequential_bytes": 1}))) == 1
    for ordinary in (0, -1):
        assert len(bodies(await desk.pull(**wide | {"sequential_bytes": ordinary}))) == 25


async def test_the_limit_of_sequential_pulls(opened: Opened) -> None:
    """It holds for old messages, too, which ordinary pulls get eight at a time."""
    settings = {"accessMessageInMemoryMaxRatio": 0, "maxTransferBytesOnSequentialPull": 150_000}
    wide: dict[str, Any] = {"max_msg_nums": 1_000, "sequential_bytes": 1_000_000}
    async with opened(**settings) as desk:
        await fill(desk, 40, size=10_000)
        assert len(bodies(await desk.pull(**wide))) == 14
        assert len(bodies(await desk.pull())) == 6
    async with opened(**settings | {"maxTransferBytesOnSequentialPull": 0}) as desk:
        await fill(desk, 40, size=10_000)
        assert len(bodies(await desk.pull(**wide))) == 6


@pytest.mark.row("S113", "S114", "S116")
@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "status"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, 3, "OFFSET_OVERFLOW_ONE"),
        (4, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (2**62, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
async def test_offsets_outside_the_queue(
    desk: BrokerHarness, offset: int, code: int, next_offset: int, status: str
) -> None:
    """At the end nothing is found yet; beyond it and below the beginning the answer has the offset to
    continue at. The four numbers are always present."""
    await fill(desk, 3)
    answer = await desk.pull(offset=offset)
    assert (answer.code, answer.remark, answer.body) == (code, status, b"")
    assert places(answer) == (next_offset, 0, 3)


@pytest.mark.row("S116")
@pytest.mark.parametrize(
    ("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (5, ResponseCode.PULL_OFFSET_MOVED)]
)
async def test_an_empty_queue(desk: BrokerHarness, offset: int, code: int) -> None:
    """At offset 0 nothing is found yet; any other offset is out of range."""
    answer = await desk.pull(queue_id=3, offset=offset)
    assert answer.code == code
    assert places(answer) == (0, 0, 0)


@pytest.mark.parametrize("queue_id", [-1, 4, 2**31 - 1])
async def test_queue_ids_outside_the_topic(desk: BrokerHarness, queue_id: int) -> None:
    """The answer is INVALID_PARAMETER: only read queues are valid."""
    assert (await desk.pull(queue_id=queue_id)).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("name", ["Nothing", "", "../x", "a/b", "a\0b"])
async def test_an_unknown_topic(desk: BrokerHarness, name: str) -> None:
    """The answer is TOPIC_NOT_EXIST, because a pull creates no topic."""
    assert (await desk.pull(name)).code == ResponseCode.TOPIC_NOT_EXIST
    assert desk.broker.topics.get(name) is None


@pytest.mark.parametrize("group", ["", "../x", "a/b", "g" * 121])
async def test_an_illegal_group(desk: BrokerHarness, group: str) -> None:
    """The answer is SUBSCRIPTION_GROUP_NOT_EXIST, even if groups are created by use."""
    assert (await desk.pull(consumer_group=group)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group not in desk.broker.groups.configs


async def test_an_unknown_group(opened: Opened) -> None:
    """The answer is SUBSCRIPTION_GROUP_NOT_EXIST if groups are not created by use, checked before the
    topic."""
    async with opened(autoCreateSubscriptionGroup=False) as desk:
        assert (await desk.pull("Nothing")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_permissions(desk: BrokerHarness, opened: Opened, tmp_path: Path) -> None:
    """Missing permissions of the group, the topic or the broker are answered with NO_PERMISSION."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    assert (await desk.pull()).code == ResponseCode.NO_PERMISSION
    await desk.broker.topics.put(TopicConfig(topic_name="W", perm=PERM_WRITE))
    assert (await desk.pull("W", consumer_group="h")).code == ResponseCode.NO_PERMISSION
    async with opened(brokerPermission=PERM_WRITE, storePathRootDir=str(tmp_path / "other")) as other:
        assert (await other.pull(consumer_group="h")).code == ResponseCode.NO_PERMISSION


# --- subscriptions ------------------------------------------------------------------------------------------


@pytest.mark.row("S043")
@pytest.mark.parametrize(
    ("expression", "found"),
    [("A", [b"0000"]), ("A || B", [b"0000", b"0001"]), ("*", [b"0000", b"0001", b"0002"]), (None, 3)],
)
async def test_tags_of_the_request(
    desk: BrokerHarness, expression: str | None, found: list[bytes] | int
) -> None:
    """With bit 2 of sysFlag the request contains its expression; an empty one matches all."""
    for number, tags in enumerate("ABC"):
        await fill(desk, 1, tags=tags, start=number)
    got = [body[:4] for body in bodies(await desk.pull(subscription=expression))]
    assert got == found if isinstance(found, list) else len(got) == found


@pytest.mark.row("S116")
async def test_nothing_matched(desk: BrokerHarness) -> None:
    """The answer is PULL_RETRY_IMMEDIATELY with the offset after the scanned messages."""
    await fill(desk, 5)
    answer = await desk.pull(subscription="Z")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert places(answer) == (5, 0, 5)


async def test_a_filter_looks_at_so_many_messages_and_no_more(desk: BrokerHarness) -> None:
    """A pull scans at most 800 messages, whatever count is requested, so that one consumer cannot block the
    broker."""
    await fill(desk, 1_001)
    for count in (32, 2**31 - 1):
        answer = await desk.pull(subscription="Z", max_msg_nums=count)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert places(answer) == (800, 0, 1_001)


@pytest.mark.parametrize("expression", ["||", " || || "])
async def test_an_expression_that_does_not_parse(desk: BrokerHarness, expression: str) -> None:
    """SUBSCRIPTION_PARSE_FAILED with the expression in the remark."""
    answer = await desk.pull(subscription=expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert expression in (answer.remark or "")


@pytest.mark.parametrize("kind", ["SQL92", "Magic"])
async def test_an_expression_type_without_a_plugin(desk: BrokerHarness, kind: str) -> None:
    """The answer is SYSTEM_ERROR, as from a Java broker with property filters disabled."""
    answer = await desk.pull(subscription="a > 1", expression_type=kind)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert kind in (answer.remark or "")


@pytest.mark.row("S123")
async def test_the_heartbeat_brings_the_subscription(desk: BrokerHarness) -> None:
    """Without bit 2, a missing heartbeat or subscription is SUBSCRIPTION_NOT_EXIST; otherwise the group's
    tags apply."""
    await fill(desk, 1, tags="A")
    await fill(desk, 1, tags="B", start=1)
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await desk.subscribe(topic="Other")
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await desk.subscribe("g", tag_subscription("T", "B"))
    assert [body[:4] for body in bodies(await desk.pull(sys_flag=0))] == [b"0001"]


async def test_a_heartbeat_older_than_the_request(desk: BrokerHarness) -> None:
    """The answer is SUBSCRIPTION_NOT_LATEST until the newer heartbeat arrives."""
    await fill(desk, 1)
    await desk.subscribe("g", tag_subscription("T", "*", 5))
    assert (await desk.pull(sys_flag=0, sub_version=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert (await desk.pull(sys_flag=0, sub_version=5)).code == 0


async def test_broadcasting_can_be_forbidden(desk: BrokerHarness) -> None:
    """The group's settings can forbid broadcasting: NO_PERMISSION."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_broadcast_enable=False))
    await desk.subscribe(message_model=BROADCASTING)
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.NO_PERMISSION


async def test_a_group_with_wrong_codes_harms_itself_only(desk: BrokerHarness) -> None:
    """Wrong codes in a client's heartbeat do not affect another group with the same expression."""
    await fill(desk, 1, tags="A")
    wrong = SubscriptionData(topic="T", sub_string="A", tags_set=["A"], code_set=[java_hash("Z")])
    await desk.subscribe("bad", wrong)
    assert (await desk.pull(sys_flag=0, consumer_group="bad")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    await desk.subscribe("good", tag_subscription("T", "A"))
    assert (await desk.pull(sys_flag=0, consumer_group="good")).code == 0
    assert (await desk.pull(subscription="A")).code == 0


async def test_expressions_of_any_number_are_compiled_and_forgotten(desk: BrokerHarness) -> None:
    """Thousands of different expressions are answered without filling the memory."""
    await fill(desk, 1, tags="t7")
    found = [number for number in range(2_100) if (await desk.pull(subscription=f"t{number}")).code == 0]
    assert found == [7]


# --- offsets of the group -----------------------------------------------------------------------------------


@pytest.mark.row("S007")
@pytest.mark.parametrize(("sys_flag", "committed"), [(1 | 2 | 4, 2), (1 | 4, None), (2 | 4, None)])
async def test_a_pull_may_commit(desk: BrokerHarness, sys_flag: int, committed: int | None) -> None:
    """An offset is committed only with the commit bit and by a pull that may be held, as in Java."""
    await fill(desk, 3)
    await desk.pull(sys_flag=sys_flag, commit_offset=2)
    assert desk.broker.offsets.get("g", "T", 0) == committed


async def test_a_refused_pull_commits_nothing(desk: BrokerHarness) -> None:
    """An invented queue does not enter the offset table."""
    await desk.pull(queue_id=77, sys_flag=7, commit_offset=2)
    await desk.pull("Nothing", sys_flag=7, commit_offset=2)
    assert desk.broker.offsets.topics_of("g") == []


async def test_what_was_pulled_is_counted(desk: BrokerHarness) -> None:
    """Messages and bytes are counted by group and topic; an answer without messages counts nothing."""
    await fill(desk, 3)
    answer = await desk.pull()
    await desk.pull(offset=3)
    stats = desk.broker.stats
    assert (stats.got_messages, stats.got_bytes, stats.groups.count(("g", "T"))) == (3, len(answer.body), 3)


async def test_a_header_without_its_fields(desk: BrokerHarness) -> None:
    """The answer is SYSTEM_ERROR with the missing field."""
    answer = await desk.outcome(Command(code=RequestCode.PULL_MESSAGE, ext={"topic": "T"}))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")
