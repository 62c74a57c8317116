"""Real brokers and a real name server with a client."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, MessageQueue, PullConsumer, PullStatus, ReceivedMessage
from rmqkit.testing.broker import dialer, running_broker, running_cluster, running_namesrv

#: Longer than any operation here takes.
PATIENCE_S = 120


async def read_all(consumer: PullConsumer, queue: MessageQueue) -> list[ReceivedMessage]:
    """Everything in a queue."""
    found: list[ReceivedMessage] = []
    while (result := await consumer.pull(queue, len(found))).status is PullStatus.FOUND:
        found += result.messages
    return found


@pytest.mark.row("S139", "S140")
async def test_the_steps_of_an_order_stay_in_order(tmp_path: Path) -> None:
    """If each send is awaited before the next and an order's messages have one key, they are read in order
    from one queue."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        await client.admin.create_topic("Orders", queues=4)
        async with client.producer("shop") as producer:
            for step in (b"order", b"pay", b"paid"):
                for number in range(20):
                    await producer.send("Orders", step, ordering_key=f"order-{number}")
        steps, queues = defaultdict[str | None, list[bytes]](list), defaultdict[str | None, set[int]](set)
        async with client.pull_consumer("readers") as consumer:
            for queue in await consumer.queues("Orders"):
                for message in await read_all(consumer, queue):
                    steps[message.ordering_key].append(message.body)
                    queues[message.ordering_key].add(queue.queue_id)
        assert steps == {f"order-{number}": [b"order", b"pay", b"paid"] for number in range(20)}
        assert all(len(found) == 1 for found in queues.values())
        assert len(set().union(*queues.values())) > 1


@pytest.mark.row("S001")
async def test_a_broker_that_dies_leaves_the_others_working(tmp_path: Path) -> None:
    """After a broker dies, sends continue at once with the other one, whose messages can be read; the dead
    one's routes end with its connection."""
    dying = trio.CancelScope()

    async def die_later(namesrv: str, task_status: trio.TaskStatus[None]) -> None:
        with dying:
            async with running_broker(tmp_path / "a", brokerName="broker-a", namesrvAddr=namesrv):
                task_status.started()
                await trio.sleep_forever()

    async with running_namesrv(tmp_path) as address, trio.open_nursery() as nursery:
        namesrv = str(address)
        await nursery.start(die_later, namesrv)
        async with (
            running_broker(tmp_path / "b", brokerName="broker-b", namesrvAddr=namesrv),
            Client(namesrv, connect=dialer()) as client,
            client.producer("p") as producer,
            client.pull_consumer("g") as consumer,
        ):
            assert await client.admin.create_topic("T", queues=2) == ["broker-a", "broker-b"]
            before = Counter([(await producer.send("T", b"before")).queue.broker_name for _ in range(20)])
            assert before == {"broker-a": 10, "broker-b": 10}
            dying.cancel()
            after = Counter([(await producer.send("T", b"after")).queue.broker_name for _ in range(20)])
            assert after == {"broker-b": 20}
            queues = [MessageQueue("T", "broker-b", number) for number in range(2)]
            assert sum([len(await read_all(consumer, queue)) for queue in queues]) == 30
            with trio.fail_after(PATIENCE_S):
                while True:
                    route = await client.admin.route("T")
                    assert route is not None
                    if [queue.broker_name for queue in route.queue_datas] == ["broker-b"]:
                        break
