"""Several messages at a time: published at once, handled together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream.exceptions import IncorrectState

from rmqkit.client import BlockingClient, ClientError
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_faststream import RocketBroker, TestRocketBroker
from rmqkit_faststream.annotations import RocketMessage
from tests.plugins.faststream.test_broker import WITHIN_S, Order, broker_of, run


def test_batches_without_servers() -> None:
    """A subscriber of batches has what was published together, another one by one, and what a handler returns
    is published at once."""
    broker = RocketBroker("127.0.0.1:1")

    @broker.subscriber("Orders", group="billing", batch=True)
    @broker.publisher("Charged", batch=True, tag="new")
    async def charge(orders: list[Order]) -> list[int]:
        return [order.number for order in orders if order.number]

    @broker.subscriber("Charged", group="reports", expression="new")
    async def report(number: int) -> None: ...

    async def work() -> None:
        async with TestRocketBroker(broker) as under_test:
            await under_test.publish_batch({"number": 7}, {"number": 8}, topic="Orders")
            charge.mock.assert_called_once_with([{"number": 7}, {"number": 8}])
            assert [call.args for call in report.mock.call_args_list] == [(7,), (8,)]
            await under_test.publish({"number": 0}, "Orders")
            assert charge.mock.call_count == 2
            assert report.mock.call_count == 2

    run(work())


def test_batches_over_servers(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """What is published together is in one queue, in order, and a list is as long as the subscriber wants;
    all of it is acknowledged."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        lists: asyncio.Queue[tuple[list[int], list[dict[str, Any]]]] = asyncio.Queue()

        @broker.subscriber(
            "Numbers", group="sums", batch=True, max_records=3, linger_ms=10_000, consumer={"start": "first"}
        )
        async def add(numbers: list[int], message: RocketMessage) -> None:
            await lists.put((numbers, message.batch_headers))

        publisher = broker.publisher("Numbers", batch=True)
        await asyncio.to_thread(rocketmq_client.admin.create_topic, "Numbers", queues=4)
        async with broker:
            await broker.publish_batch(1, 2, 3, topic="Numbers", headers={"country": "NL"})
            await broker.start()
            assert await lists.get() == ([1, 2, 3], [{"country": "NL"}] * 3)
            assert (await publisher.publish(4, 5, 6)).is_ok
            assert (await lists.get())[0] == [4, 5, 6]
            with pytest.raises(ClientError):
                await publisher.publish()

    run(work())
    assert sum(each.lag for each in rocketmq_client.groups.progress("sums", "Numbers").values()) == 0


@pytest.mark.rocketmq(settings={"messageDelayLevel": "1s 1s 1s 1s"})
def test_a_batch_that_fails_comes_again(rocketmq: ThreadedRocketMQ) -> None:
    """All of its messages do, in whichever lists."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        seen: list[int] = []
        done = asyncio.Event()

        @broker.subscriber("Numbers", group="sums", batch=True, consumer={"start": "first"})
        async def add(numbers: list[int]) -> None:
            seen.extend(numbers)
            if len(seen) == 2:
                raise ValueError("no luck")
            if len(seen) == 4:
                done.set()

        async with broker:
            await broker.publish_batch(1, 2, topic="Numbers")
            await broker.start()
            await done.wait()
        assert sorted(seen) == [1, 1, 2, 2]

    run(work())


def test_a_batch_is_asked_for(rocketmq: ThreadedRocketMQ) -> None:
    """A subscriber without a handler gives one after the other; a broker that is not connected says so."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        subscriber = broker.subscriber(
            "Numbers", group="sums", batch=True, max_records=2, consumer={"start": "first"}
        )
        with pytest.raises(IncorrectState, match="before it publishes"):
            await broker.publish_batch(1, 2, topic="Numbers")
        async with broker:
            await broker.publish_batch(1, "two", topic="Numbers")
            message = await subscriber.get_one(timeout=WITHIN_S)
            assert message is not None
            assert await message.decode() == [1, "two"]
            await message.ack()

    run(work())
