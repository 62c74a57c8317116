"""Messages with a priority."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.model import properties as props
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from tests.plugins.pop.pop_desk import GROUP, LEASE_MS, TOPIC, PopDesk, bodies, open_pop_desk


async def put_topic(pops: PopDesk, kind: str = "PRIORITY") -> None:
    await pops.desk.broker.topics.put(
        TopicConfig(
            topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4, attributes={"message.type": kind}
        )
    )


async def send(pops: PopDesk, *priorities: int | str, **more: str) -> None:
    for priority in priorities:
        await pops.desk.sent(
            body=str(priority).encode(),
            properties={props.PRIORITY: str(priority), props.UNIQ_KEY: "k"} | more,
        )


@pytest.mark.parametrize(
    ("priority", "queue_id"), [("0", 0), ("2", 2), ("3", 3), ("99", 3), ("-1", 0), ("high", 0), ("²", 0)]
)
async def test_a_priority_is_a_queue(pops: PopDesk, priority: str, queue_id: int) -> None:
    """Whatever queue the client names; the last one for higher ones. What is not a priority counts for
    nothing."""
    await send(pops, priority)
    assert [len(pops.desk.stored(TOPIC, at)) for at in range(4)].index(1) == queue_id
    (stored,) = pops.desk.stored(TOPIC, queue_id)
    assert stored.properties[props.PRIORITY] == priority


async def test_a_message_of_another_type_has_no_priority(pops: PopDesk) -> None:
    """With an ordering key it stays in its queue; the property goes."""
    await send(pops, 3, __SHARDINGKEY="a")
    (stored,) = pops.desk.stored(TOPIC, 0)
    assert (props.PRIORITY in stored.properties, stored.properties[props.SHARDING_KEY]) == (False, "a")


async def test_the_highest_priority_is_popped_first(pops: PopDesk) -> None:
    """Also one that comes later, and before what has failed."""
    await put_topic(pops)
    await send(pops, 1, 0, 3, 1)
    assert bodies(await pops.pop(max_msg_nums=3)) == [b"3", b"1", b"1"]
    await send(pops, 2)
    assert bodies(await pops.pop(max_msg_nums=1)) == [b"2"]
    await pops.pass_time(LEASE_MS + 64)
    assert bodies(await pops.pop(max_msg_nums=1)) == [b"0"]
    assert sorted(bodies(await pops.pop())) == [b"1", b"1", b"2", b"3"]


@pytest.mark.parametrize(("kind", "factor"), [("NORMAL", "100"), ("PRIORITY", "0")])
async def test_queues_take_turns_otherwise(pops: PopDesk, kind: str, factor: str) -> None:
    """In topics of other types, and for groups that want it."""
    await put_topic(pops, kind)
    group = SubscriptionGroupConfig(group_name=GROUP, attributes={"priority.factor": factor})
    await pops.desk.broker.groups.put(group)
    await send(pops, *[each for each in range(4) for _ in range(4)])
    found = [bodies(await pops.pop(max_msg_nums=1))[0] for _ in range(4)]
    assert sorted(found) == [b"0", b"1", b"2", b"3"]


async def test_settings(tmp_path: Any) -> None:
    """A lower number may be the higher priority, and what has failed may come first."""
    async with open_pop_desk(
        tmp_path, priorityOrderAsc="false", popFromRetryProbabilityForPriority=100
    ) as pops:
        await put_topic(pops)
        await send(pops, 3, 1)
        assert bodies(await pops.pop(max_msg_nums=1)) == [b"1"]
        await pops.pass_time(LEASE_MS + 64)
        assert bodies(await pops.pop(max_msg_nums=1)) == [b"1"]
