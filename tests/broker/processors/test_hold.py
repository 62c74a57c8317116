"""Long polling: what is held, what wakes it, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rmqkit.broker import held_pulls
from rmqkit.limits import MAX_HOLD_MS
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.peer import FakePeer
from tests.broker.desk import Desk, bodies, places

Opened = Callable[..., AbstractAsyncContextManager[Desk]]
HOLD = 2 | 4


async def hold(desk: Desk, *, peer: FakePeer | None = None, **fields: Any) -> None:
    """A pull that is held."""
    fields = dict[str, Any](sys_flag=HOLD, suspend_timeout_millis=15_000) | fields
    assert await desk.outcome(desk.pull_request(**fields), peer) is None


@pytest.mark.row("S046", "S065", "S068", "S113", "S119")
async def test_a_pull_at_the_end_is_held_until_a_message_arrives(desk: Desk) -> None:
    """It is answered to its own connection with the message, and only once."""
    peer = FakePeer()
    await hold(desk, peer=peer)
    assert peer.answers == []
    await desk.sent(body=b"news")
    (answer,) = peer.answers
    assert (answer.code, answer.opaque, bodies(answer)) == (0, 7, [b"news"])
    assert places(answer) == (1, 0, 1)
    await desk.sent(body=b"more")
    desk.broker.held_pulls.expire(desk.clock.now_ms() + 60_000)
    assert len(peer.answers) == 1


async def test_without_the_hold_bit_the_answer_comes_at_once(desk: Desk) -> None:
    """PULL_NOT_FOUND."""
    assert (await desk.pull()).code == ResponseCode.PULL_NOT_FOUND
    assert len(desk.broker.held_pulls) == 0


@pytest.mark.row("S113")
async def test_only_a_pull_at_the_very_end_is_held(desk: Desk) -> None:
    """Beyond the end it is told where the end is."""
    await desk.sent()
    assert (await desk.pull(offset=2, sys_flag=HOLD)).code == ResponseCode.PULL_OFFSET_MOVED
    await hold(desk, offset=1)


@pytest.mark.row("S049")
async def test_only_matching_tags_wake_a_pull(desk: Desk) -> None:
    """Another tag leaves it where it is; when the right one comes the answer holds that message alone."""
    await hold(desk, subscription="B")
    await desk.sent(properties={"TAGS": "A"})
    assert desk.peer.answers == []
    await desk.sent(body=b"mine", properties={"TAGS": "B"})
    (answer,) = desk.peer.answers
    assert bodies(answer) == [b"mine"]
    assert places(answer) == (2, 0, 2)


async def test_queues_wake_their_own_pulls(desk: Desk) -> None:
    """Neither another queue nor another topic does."""
    await hold(desk, queue_id=0)
    await hold(desk, queue_id=1)
    await desk.sent(queue_id=2)
    await desk.sent("Other")
    assert desk.peer.answers == []
    await desk.sent(body=b"one", queue_id=1)
    (answer,) = desk.peer.answers
    assert bodies(answer) == [b"one"]
    assert len(desk.broker.held_pulls) == 1


@pytest.mark.row("S048")
async def test_a_hold_ends_after_the_time_the_client_says(desk: Desk) -> None:
    """PULL_NOT_FOUND with the four numbers; it is not held a second time."""
    await hold(desk, suspend_timeout_millis=15_000)
    began = desk.clock.now_ms()
    desk.broker.held_pulls.expire(began + 14_999)
    assert desk.peer.answers == []
    desk.broker.held_pulls.expire(began + 15_000)
    (answer,) = desk.peer.answers
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert places(answer) == (0, 0, 0)
    assert len(desk.broker.held_pulls) == 0


@pytest.mark.parametrize(("asked", "held_ms"), [(2**62, MAX_HOLD_MS), (-5, 0), (0, 0)])
async def test_a_hold_has_limits(desk: Desk, asked: int, held_ms: int) -> None:
    """At most MAX_HOLD_MS, and no time below zero."""
    await hold(desk, suspend_timeout_millis=asked)
    began = desk.clock.now_ms()
    desk.broker.held_pulls.expire(began + held_ms - 1)
    assert len(desk.peer.answers) == 0
    desk.broker.held_pulls.expire(began + held_ms)
    assert len(desk.peer.answers) == 1


async def test_without_long_polling_a_hold_is_short(opened: Opened) -> None:
    """shortPollingTimeMills counts, whatever the client says."""
    async with opened(longPollingEnable=False) as desk:
        await hold(desk)
        desk.broker.held_pulls.expire(desk.clock.now_ms() + 1_000)
        assert len(desk.peer.answers) == 1


@pytest.mark.row("S047")
async def test_the_safety_net_finds_a_message_that_woke_nobody(desk: Desk) -> None:
    """A message of another tag moves the pull on: PULL_RETRY_IMMEDIATELY with the next offset."""
    await hold(desk, subscription="B")
    await desk.sent(properties={"TAGS": "A"})
    desk.broker.held_pulls.recheck(desk.broker.store.max_offset)
    (answer,) = desk.peer.answers
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert places(answer) == (1, 0, 1)


async def test_one_message_wakes_every_group(desk: Desk) -> None:
    """A queue may have waiting pulls of many groups and connections."""
    peers = [FakePeer(port=port) for port in range(40_000, 40_020)]
    for number, peer in enumerate(peers):
        await hold(desk, peer=peer, consumer_group=f"g{number}")
    await desk.sent(body=b"all")
    assert [bodies(peer.answers[0]) for peer in peers] == [[b"all"]] * 20


async def test_what_changed_meanwhile_counts(desk: Desk) -> None:
    """A topic that was deleted, or a group that was switched off, while the pull was held: the second run says so."""
    await hold(desk)
    desk.broker.topics.delete("T")
    desk.broker.held_pulls.expire(desk.clock.now_ms() + 15_000)
    assert desk.peer.answers.pop().code == ResponseCode.TOPIC_NOT_EXIST
    desk.broker.topics.put(TopicConfig(topic_name="T"))
    await hold(desk)
    desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    await desk.sent()
    assert desk.peer.answers.pop().code == ResponseCode.NO_PERMISSION


async def test_a_pull_too_many_is_answered_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client polls then, which is slower but harms nobody."""
    monkeypatch.setattr(held_pulls, "MAX_HELD_PULLS_PER_CONNECTION", 1)
    await hold(desk)
    assert (await desk.pull(sys_flag=HOLD)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_pull_of_a_connection_that_is_gone_is_not_answered(desk: Desk) -> None:
    """Neither does it keep the message from others."""
    gone, alive = FakePeer(), FakePeer()
    await hold(desk, peer=gone)
    await hold(desk, peer=alive)
    gone.close()
    await desk.sent(body=b"x")
    assert gone.answers == []
    assert bodies(alive.answers[0]) == [b"x"]


async def test_a_held_pull_commits_once(desk: Desk) -> None:
    """With its first run; the second must not overwrite what came in between."""
    await hold(desk, sys_flag=HOLD | 1, commit_offset=0)
    desk.broker.offsets.commit("g", "T", 0, 5)
    await desk.sent()
    assert len(desk.peer.answers) == 1
    assert desk.broker.offsets.get("g", "T", 0) == 5
