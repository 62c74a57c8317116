"""Groups that broadcast: every client gets every message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.client import CODES, Client, M, connected, consuming, resource
from tests.plugins.grpc.test_consuming import (
    GROUP,
    TOPIC,
    acking,
    changing,
    handle,
    received,
    receiving,
    send,
)

QUEUES = 2


async def prepare(running: RunningBroker) -> None:
    topic = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    await running.context.topics.put(topic)
    attributes = {"message.model": "BROADCASTING"}
    await running.context.groups.put(SubscriptionGroupConfig(group_name=GROUP, attributes=attributes))


def asking(queue_id: int, **fields: Any) -> Any:
    request = receiving(**fields)
    request.message_queue.id = queue_id
    return request


async def everything(client: Client, **fields: Any) -> list[Any]:
    """What a client gets of all queues."""
    found: list[Any] = []
    for queue_id in range(QUEUES):
        found += (await received(client, asking(queue_id, **fields)))[1]
    return found


async def test_each_client_gets_each_message(tmp_path: Path) -> None:
    """From when it came on, once, with the tags that it wants; acknowledgements change nothing."""
    async with running_broker(tmp_path) as running:
        await prepare(running)
        async with connected(running, "first") as first, connected(running, "second") as second:
            for client in (first, second):
                await client.settle(consuming(GROUP, TOPIC))
            await send(first, "before")
            assert await everything(first) == []
            assert await everything(second) == []
            await send(first, "a", "b", tag="x")
            await send(first, "c", tag="y")
            found = await everything(first)
            assert sorted(each.body for each in found) == [b"a", b"b", b"c"]
            answer = await first.call("AckMessage", acking(*map(handle, found)))
            assert answer.status.code == CODES["OK"]
            changed = await first.call("ChangeInvisibleDuration", changing(handle(found[0]), 0))
            assert changed.status.code == CODES["OK"]
            assert await everything(first) == []
            assert sorted(each.body for each in await everything(second, expression="x")) == [b"a", b"b"]
            assert await everything(second) == []
        async with connected(running, "first") as again:
            await again.settle(consuming(GROUP, TOPIC))
            assert await everything(again) == []
            await send(again, "d")
            assert [each.body for each in await everything(again)] == [b"d"]
        group = running.context.clients.consumers.get(GROUP)
        assert group is None or group.message_model == "BROADCASTING"


async def test_a_receive_is_held_and_another_gets_nothing_twice(tmp_path: Path) -> None:
    """Two receives of one client wait for one queue: one has the message."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await prepare(running)
        await client.settle(consuming(GROUP, TOPIC))
        assert await everything(client) == []
        waiting = [await client.begin("ReceiveMessage", asking(0, poll_ms=20_000)) for _ in range(2)]
        async with connected(running, "producer") as producer:
            await send(producer, "a", "b", "c", "d")
        replies = [await client.until_ended(stream) for stream in waiting]
        answers = [M["ReceiveMessageResponse"].FromString(data) for each in replies for data in each.data]
        bodies = [each.message.body for each in answers if each.WhichOneof("content") == "message"]
        assert bodies
        assert len(set(bodies)) == len(bodies)


async def test_assignments_have_each_queue(tmp_path: Path) -> None:
    """A receive from any queue is refused."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await prepare(running)
        await client.settle(consuming(GROUP, TOPIC))
        request = M["QueryAssignmentRequest"](topic=resource(TOPIC), group=resource(GROUP))
        answer = await client.call("QueryAssignment", request)
        assert [each.message_queue.id for each in answer.assignments] == [0, 1]
        assert await received(client, asking(-1)) == (CODES["BAD_REQUEST"], [])
