"""Pulls that are answered at once: codes, places, limits, filters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from rmqkit.model.subscription import BROADCASTING, SubscriptionData, tag_subscription
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.tags import java_hash
from tests.broker.desk import Desk, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[Desk]]


async def fill(desk: Desk, count: int, *, size: int = 10, tags: str = "A", start: int = 0) -> None:
    for number in range(start, start + count):
        await desk.sent(body=b"%04d" % number + bytes(size - 4), properties={"TAGS": tags, "UNIQ_KEY": "K"})


@pytest.mark.row("S006", "S021", "S112", "S114", "S116")
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_messages_are_found(desk: Desk, code: int) -> None:
    """From the offset on, in order, with the next, the minimum and the maximum offset; the remark names the store's status."""
    await fill(desk, 5)
    answer = await desk.pull(offset=2, code=code)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert [body[:4] for body in bodies(answer)] == [b"0002", b"0003", b"0004"]
    assert places(answer) == (5, 0, 5)


@pytest.mark.row("S112")
async def test_a_pull_is_limited_by_count_and_bytes(desk: Desk) -> None:
    """The request's count, at most 32; 256 KiB, but always one message; the client's own byte limit."""
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
async def test_offsets_outside_the_queue(desk: Desk, offset: int, code: int, next_offset: int, status: str) -> None:
    """At the end there is nothing yet; beyond it and below the beginning the consumer is told where to go on. The four numbers are always there."""
    await fill(desk, 3)
    answer = await desk.pull(offset=offset)
    assert (answer.code, answer.remark, answer.body) == (code, status, b"")
    assert places(answer) == (next_offset, 0, 3)


@pytest.mark.row("S116")
@pytest.mark.parametrize(("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (5, ResponseCode.PULL_OFFSET_MOVED)])
async def test_an_empty_queue(desk: Desk, offset: int, code: int) -> None:
    """Read at 0 there is nothing yet; read anywhere else the offset is from another life."""
    answer = await desk.pull(queue_id=3, offset=offset)
    assert answer.code == code
    assert places(answer) == (0, 0, 0)


@pytest.mark.parametrize("queue_id", [-1, 4, 2**31 - 1])
async def test_queue_ids_outside_the_topic(desk: Desk, queue_id: int) -> None:
    """INVALID_PARAMETER: only read queues count."""
    assert (await desk.pull(queue_id=queue_id)).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("name", ["Nothing", "", "../x", "a/b", "a\0b"])
async def test_an_unknown_topic(desk: Desk, name: str) -> None:
    """TOPIC_NOT_EXIST: a pull creates nothing."""
    assert (await desk.pull(name)).code == ResponseCode.TOPIC_NOT_EXIST
    assert desk.broker.topics.get(name) is None


@pytest.mark.parametrize("group", ["", "../x", "a/b", "g" * 121])
async def test_an_illegal_group(desk: Desk, group: str) -> None:
    """SUBSCRIPTION_GROUP_NOT_EXIST, even where groups are created by use."""
    assert (await desk.pull(consumer_group=group)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group not in desk.broker.groups.configs


async def test_an_unknown_group(opened: Opened) -> None:
    """SUBSCRIPTION_GROUP_NOT_EXIST when groups are not created by use; it is asked before the topic."""
    async with opened(autoCreateSubscriptionGroup=False) as desk:
        assert (await desk.pull("Nothing")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_permissions(desk: Desk, opened: Opened, tmp_path: Path) -> None:
    """Of the group, of the topic, of the broker: NO_PERMISSION."""
    desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    assert (await desk.pull()).code == ResponseCode.NO_PERMISSION
    desk.broker.topics.put(TopicConfig(topic_name="W", perm=PERM_WRITE))
    assert (await desk.pull("W", consumer_group="h")).code == ResponseCode.NO_PERMISSION
    async with opened(brokerPermission=PERM_WRITE, storePathRootDir=str(tmp_path / "other")) as other:
        assert (await other.pull(consumer_group="h")).code == ResponseCode.NO_PERMISSION


# --- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.row("S043")
@pytest.mark.parametrize(
    ("expression", "found"), [("A", [b"0000"]), ("A || B", [b"0000", b"0001"]), ("*", [b"0000", b"0001", b"0002"]), (None, 3)]
)
async def test_tags_of_the_request(desk: Desk, expression: str | None, found: list[bytes] | int) -> None:
    """Bit 2 of sysFlag: the request brings its expression; none is all."""
    for number, tags in enumerate("ABC"):
        await fill(desk, 1, tags=tags, start=number)
    got = [body[:4] for body in bodies(await desk.pull(subscription=expression))]
    assert got == found if isinstance(found, list) else len(got) == found


@pytest.mark.row("S116")
async def test_nothing_matched(desk: Desk) -> None:
    """PULL_RETRY_IMMEDIATELY with the next offset behind what was looked at."""
    await fill(desk, 5)
    answer = await desk.pull(subscription="Z")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert places(answer) == (5, 0, 5)


async def test_a_filter_looks_at_so_many_messages_and_no_more(desk: Desk) -> None:
    """800 at a time, whatever count the client asks for: one consumer must not stop the broker for everybody."""
    await fill(desk, 1_001)
    for count in (32, 2**31 - 1):
        answer = await desk.pull(subscription="Z", max_msg_nums=count)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert places(answer) == (800, 0, 1_001)


@pytest.mark.parametrize("expression", ["||", " || || "])
async def test_an_expression_that_does_not_parse(desk: Desk, expression: str) -> None:
    """SUBSCRIPTION_PARSE_FAILED with the expression in the remark."""
    answer = await desk.pull(subscription=expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert expression in (answer.remark or "")


@pytest.mark.parametrize("kind", ["SQL92", "Magic"])
async def test_an_expression_type_without_a_plugin(desk: Desk, kind: str) -> None:
    """SYSTEM_ERROR, as a Java broker with property filters switched off."""
    answer = await desk.pull(subscription="a > 1", expression_type=kind)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert kind in (answer.remark or "")


@pytest.mark.row("S123")
async def test_the_heartbeat_brings_the_subscription(desk: Desk) -> None:
    """Without bit 2: no heartbeat and an unsubscribed topic are SUBSCRIPTION_NOT_EXIST, then the group's tags filter."""
    await fill(desk, 1, tags="A")
    await fill(desk, 1, tags="B", start=1)
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await desk.subscribe(topic="Other")
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await desk.subscribe("g", tag_subscription("T", "B"))
    assert [body[:4] for body in bodies(await desk.pull(sys_flag=0))] == [b"0001"]


async def test_a_heartbeat_older_than_the_request(desk: Desk) -> None:
    """SUBSCRIPTION_NOT_LATEST until the newer heartbeat arrives here."""
    await fill(desk, 1)
    await desk.subscribe("g", tag_subscription("T", "*", 5))
    assert (await desk.pull(sys_flag=0, sub_version=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert (await desk.pull(sys_flag=0, sub_version=5)).code == 0


async def test_broadcasting_can_be_forbidden(desk: Desk) -> None:
    """By the group's settings: NO_PERMISSION."""
    desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_broadcast_enable=False))
    await desk.subscribe(message_model=BROADCASTING)
    assert (await desk.pull(sys_flag=0)).code == ResponseCode.NO_PERMISSION


async def test_a_group_with_wrong_codes_harms_itself_only(desk: Desk) -> None:
    """The codes a client sends with its expression are its own affair: another group with the same text gets its messages."""
    await fill(desk, 1, tags="A")
    wrong = SubscriptionData(topic="T", sub_string="A", tags_set=["A"], code_set=[java_hash("Z")])
    await desk.subscribe("bad", wrong)
    assert (await desk.pull(sys_flag=0, consumer_group="bad")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    await desk.subscribe("good", tag_subscription("T", "A"))
    assert (await desk.pull(sys_flag=0, consumer_group="good")).code == 0
    assert (await desk.pull(subscription="A")).code == 0


async def test_expressions_of_any_number_are_compiled_and_forgotten(desk: Desk) -> None:
    """A client that asks for thousands of expressions fills no memory and gets its answers."""
    await fill(desk, 1, tags="t7")
    found = [number for number in range(2_100) if (await desk.pull(subscription=f"t{number}")).code == 0]
    assert found == [7]


# --- offsets of the group ---------------------------------------------------------------------------------------------


@pytest.mark.row("S007")
@pytest.mark.parametrize(("sys_flag", "committed"), [(1 | 2 | 4, 2), (1 | 4, None), (2 | 4, None)])
async def test_a_pull_may_commit(desk: Desk, sys_flag: int, committed: int | None) -> None:
    """Only with the commit bit, and only a pull that may be held, as in Java."""
    await fill(desk, 3)
    await desk.pull(sys_flag=sys_flag, commit_offset=2)
    assert desk.broker.offsets.get("g", "T", 0) == committed


async def test_a_refused_pull_commits_nothing(desk: Desk) -> None:
    """A made-up queue does not enter the offset table."""
    await desk.pull(queue_id=77, sys_flag=7, commit_offset=2)
    await desk.pull("Nothing", sys_flag=7, commit_offset=2)
    assert desk.broker.offsets.topics_of("g") == []


async def test_what_was_pulled_is_counted(desk: Desk) -> None:
    """Messages and bytes by group and topic; an answer without messages counts nothing."""
    await fill(desk, 3)
    answer = await desk.pull()
    await desk.pull(offset=3)
    stats = desk.broker.stats
    assert (stats.got_messages, stats.got_bytes, dict(stats.group_got)) == (3, len(answer.body), {("g", "T"): 3})


async def test_a_header_without_its_fields(desk: Desk) -> None:
    """SYSTEM_ERROR naming the field."""
    answer = await desk.outcome(Command(code=RequestCode.PULL_MESSAGE, ext={"topic": "T"}))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")
