"""Resetting of groups' offsets by an administrator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    PullMessageResponseHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.desk import BrokerHarness

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


async def reset(
    desk: BrokerHarness, group: str = "g", topic: str = "T", timestamp: int = 0, **fields: Any
) -> Command:
    header = ResetOffsetRequestHeader(
        topic=topic, group=group, timestamp=timestamp, is_force=fields.pop("is_force", True), **fields
    )
    return await desk.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def table(answer: Command) -> dict[int, int]:
    """Queue id -> offset of an answer."""
    assert (answer.code, answer.remark) == (0, None)
    found = loose_json.loads(answer.body)["offsetTable"]
    return {msgspec.json.decode(key, type=MessageQueue).queue_id: offset for key, offset in found.items()}


async def with_messages(desk: BrokerHarness) -> int:
    """Three messages in queue 1 with 10 ms between them; returns the time of the second."""
    await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g"))
    await desk.sent(queue_id=1)
    desk.clock.advance(10)
    second = desk.clock.now_ms()
    await desk.sent(queue_id=1)
    desk.clock.advance(10)
    await desk.sent(queue_id=1)
    return second


@pytest.mark.row("S024")
async def test_an_offline_group_is_reset_to_a_time(desk: BrokerHarness) -> None:
    """All queues are set, whether the group has offsets or not; -1 is the end."""
    second = await with_messages(desk)
    assert table(await reset(desk, timestamp=second)) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert desk.broker.offsets.queues("g", "T") == {0: 0, 1: 1, 2: 0, 3: 0}
    assert table(await reset(desk, timestamp=-1)) == {0: 0, 1: 3, 2: 0, 3: 0}


async def test_one_queue_is_reset_to_an_offset(desk: BrokerHarness) -> None:
    """The offset is limited to the queue's range; the offset -1 selects the time."""
    await with_messages(desk)
    assert table(await reset(desk, queue_id=1, offset=2)) == {1: 2}
    assert table(await reset(desk, queue_id=1, offset=-1, timestamp=-1)) == {1: 3}
    refused = await reset(desk, queue_id=1, offset=9)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "Target offset 9 not in consume queue range [0-3]",
    )
    assert (await reset(desk, queue_id=4, offset=0)).code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.offsets.queues("g", "T") == {1: 3}


async def test_unknown_topics_and_groups_are_refused(desk: BrokerHarness) -> None:
    """They are refused with RocketMQ's codes, and nothing is created."""
    assert (await reset(desk, topic="Nothing")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await reset(desk, group="nobody")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "nobody" not in desk.broker.groups.configs


async def test_the_next_pull_is_answered_with_the_offset(desk: BrokerHarness) -> None:
    """The answer is PULL_OFFSET_MOVED with the new offset, once; the offset in the pull and an earlier commit
    do not revert the reset."""
    second = await with_messages(desk)
    assert (await desk.pull(queue_id=1, offset=0)).code == 0
    assert table(await reset(desk, timestamp=second))[1] == 1
    commit = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=1, commit_offset=3)
    ignored = await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    moved = await desk.pull(queue_id=1, offset=3, commit_offset=3, sys_flag=7, suspend_timeout_millis=1_000)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert moved.header(PullMessageResponseHeader).next_begin_offset == 1
    assert desk.broker.offsets.get("g", "T", 1) == 1
    assert (await desk.pull(queue_id=1, offset=1)).code == 0
    assert (await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).remark is None
    assert desk.broker.offsets.get("g", "T", 1) == 3


async def test_a_held_pull_learns_of_the_reset_at_once(desk: BrokerHarness) -> None:
    """A held pull does not wait for its deadline."""
    await with_messages(desk)
    assert (
        await desk.outcome(desk.pull_request(queue_id=1, offset=3, sys_flag=6, suspend_timeout_millis=15_000))
        is None
    )
    await reset(desk, timestamp=0)
    assert len(desk.broker.held) == 0
    if desk.wire is None:
        (moved,) = desk.peer.answers
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.header(PullMessageResponseHeader).next_begin_offset == 0


async def test_a_deleted_group_leaves_no_reset_behind(desk: BrokerHarness) -> None:
    """A new group with the same name starts without offsets."""
    await with_messages(desk)
    await reset(desk, timestamp=0)
    desk.broker.offsets.forget_group("g")
    assert (len(desk.broker.offsets.resets), len(desk.broker.offsets.pulled)) == (0, 0)
    await reset(desk, timestamp=0)
    desk.broker.offsets.forget_topic("T")
    assert len(desk.broker.offsets.resets) == 0


# --- at the clients -----------------------------------------------------------------------------------------


@pytest.mark.row("S070")
async def test_online_consumers_are_told_to_reset_themselves(opened: Opened) -> None:
    """Without useServerSideResetOffset every member gets the new offsets, also in the form for the Go client;
    offsets are increased only with force."""
    async with opened(useServerSideResetOffset=False) as desk:
        second = await with_messages(desk)
        for queue_id in range(4):
            desk.broker.offsets.commit("g", "T", queue_id, 2 if queue_id == 1 else 0)
        assert (await reset(desk, timestamp=second)).code == ResponseCode.CONSUMER_NOT_ONLINE
        await desk.subscribe("g")
        member = next(iter(desk.broker.clients.consumers["g"].members))
        pushed: list[Command] = []
        member.push = lambda command: pushed.append(command) or True  # type: ignore[method-assign,func-returns-value]
        assert table(await reset(desk, timestamp=second)) == {0: 0, 1: 1, 2: 0, 3: 0}
        (order,) = pushed
        assert (order.code, order.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
        assert order.body.startswith(b'{"offsetTable":{{')
        assert [msgspec.json.decode(key) for key in loose_json.loads(order.body)["offsetTable"]][1] == {
            "topic": "T",
            "brokerName": "broker-a",
            "queueId": 1,
        }
        assert order.header(ResetOffsetRequestHeader).timestamp == second
        assert desk.broker.offsets.get("g", "T", 1) == 2
        assert table(await reset(desk, timestamp=-1, is_force=False))[1] == 2
        assert table(await reset(desk, timestamp=-1))[1] == 3
        pushed.clear()
        asked = request(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffsetRequestHeader(topic="T", group="g", timestamp=-1, is_force=True),
        )
        asked.language = "CPP"
        await desk.outcome(asked)
        assert loose_json.loads(pushed[0].body)["offsetTable"][1] == {
            "brokerName": "broker-a",
            "offset": 3,
            "queueId": 1,
            "topic": "T",
        }


async def test_what_members_cannot_do_is_refused(opened: Opened) -> None:
    """A group without offsets, and members with versions that do not support the request, are refused."""
    async with opened(useServerSideResetOffset=False) as desk:
        await with_messages(desk)
        await desk.subscribe("g")
        assert (await reset(desk)).code == ResponseCode.SYSTEM_ERROR
        for queue_id in range(4):
            desk.broker.offsets.commit("g", "T", queue_id, 0)
        next(iter(desk.broker.clients.consumers["g"].members.values())).version = 27
        refused = await reset(desk)
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the client does not support this feature. version=27",
        )
