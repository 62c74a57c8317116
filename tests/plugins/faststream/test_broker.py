"""Handlers of FastStream, without servers and over those of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import FeatureNotSupportedException, IncorrectState, NackMessage, RejectMessage
from pydantic import BaseModel, ValidationError

from rmqkit.client import BlockingClient, Delivery
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_faststream import RocketBroker, RocketMessage, TestRocketBroker

WITHIN_S = 30


class Order(BaseModel):
    """What the handlers take."""

    number: int
    price: float = 1.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run under asyncio, within a time limit."""

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            await work

    asyncio.run(main())


def broker_of(rocketmq: ThreadedRocketMQ) -> RocketBroker:
    """A broker over the servers of a test."""
    return RocketBroker(rocketmq.namesrv_text, graceful_timeout=5)


def test_handlers_without_servers() -> None:
    """One subscriber of each group has a message, what it returns is published, and tags choose."""
    broker = RocketBroker("127.0.0.1:1")

    @broker.subscriber("Orders", group="billing")
    @broker.publisher("Charged", tag="new")
    async def charge(order: Order) -> dict[str, float]:
        return {"charged": order.price}

    @broker.subscriber("Charged", group="reports", expression="new || old")
    async def report(body: dict[str, float]) -> None: ...

    @broker.subscriber("Charged", group="others", expression="old")
    async def never(body: dict[str, float]) -> None: ...

    async def work() -> None:
        async with TestRocketBroker(broker) as under_test:
            await under_test.publish({"number": 7, "price": 2.5}, "Orders")
            charge.mock.assert_called_once_with({"number": 7, "price": 2.5})
            report.mock.assert_called_once_with({"charged": 2.5})
            assert not never.mock.called
            with pytest.raises(ValidationError):
                await under_test.publish({"number": "seven"}, "Orders")

    run(work())


def test_handlers_over_servers(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """Messages carry headers and keys, results are published and answered, and all is acknowledged."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        done: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber("Orders", group="billing", max_workers=4, consumer={"start": "first"})
        @broker.publisher("Charged")
        async def charge(order: Order) -> int:
            return order.number

        @broker.subscriber("Charged", group="reports", consumer={"start": "first"})
        async def report(number: int) -> None:
            await done.put(number)

        @broker.subscriber("Answers", group="answers", consumer={"start": "first"})
        async def answer(number: int) -> None:
            await done.put(-number)

        for topic in ("Orders", "Charged", "Answers"):
            await asyncio.to_thread(rocketmq_client.admin.create_topic, topic, queues=2)
        async with broker:
            await broker.start()
            assert await broker.ping()
            sent = await broker.publish(Order(number=7), "Orders", keys=["order-7"])
            assert sent.is_ok
            assert await done.get() == 7
            await broker.publish(Order(number=8), "Orders", reply_to="Answers")
            assert {await done.get(), await done.get()} == {8, -8}
        assert not await broker.ping()

    run(work())
    assert sum(each.lag for each in rocketmq_client.groups.progress("billing", "Orders").values()) == 0
    (found,) = rocketmq_client.admin.query_by_key("Orders", "order-7")
    assert found.properties["content-type"] == "application/json"


@pytest.mark.parametrize("failure", [ValueError("no luck"), NackMessage(after_ms=500)])
@pytest.mark.parametrize("refusal", [ValueError("no address"), RejectMessage()])
@pytest.mark.rocketmq(settings={"messageDelayLevel": "1s 1s 1s 1s"})
def test_a_handler_that_fails(
    rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient, failure: Exception, refusal: Exception
) -> None:
    """Its message comes again; one that it rejects is a dead letter of the group."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        tries: list[str] = []
        done, rejected = asyncio.Event(), asyncio.Event()

        @broker.subscriber("Orders", group="billing", consumer={"start": "first"})
        async def charge(text: str) -> None:
            tries.append(text)
            if len(tries) == 1:
                raise failure
            done.set()

        @broker.subscriber(
            "Parcels", group="post", ack_policy=AckPolicy.REJECT_ON_ERROR, consumer={"start": "first"}
        )
        async def deliver(text: str) -> None:
            rejected.set()
            raise refusal

        async with broker:
            await broker.publish("coffee", "Orders")
            await broker.publish("parcel", "Parcels")
            await broker.start()
            await done.wait()
            await rejected.wait()
        assert tries == ["coffee", "coffee"]

    run(work())
    with (
        rocketmq_client.push_consumer("tests", subscribe="%DLQ%post", start="first") as consumer,
        next(iter(consumer)) as message,
    ):
        assert message.body == b"parcel"


def test_messages_one_by_one(rocketmq: ThreadedRocketMQ) -> None:
    """A subscriber without a handler is asked, and gives messages that it is told to deliver again once
    more."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        subscriber = broker.subscriber("Orders", group="billing", consumer={"start": "first"})
        async with broker:
            await broker.publish({"number": 7}, "Orders", headers={"country": "NL"}, tag="new")
            message = await subscriber.get_one(timeout=WITHIN_S)
            assert isinstance(message, RocketMessage)
            assert await message.decode() == {"number": 7}
            assert message.headers == {"country": "NL"}
            assert isinstance(message.raw_message, Delivery)
            assert message.raw_message.message.tag == "new"
            await message.ack()
            assert await subscriber.get_one(timeout=0.01) is None
            await broker.publish("two", "Orders")
            async for each in subscriber:
                assert await each.decode() == "two"
                await each.ack()
                break

    run(work())


def test_the_test_broker_over_servers(rocketmq: ThreadedRocketMQ) -> None:
    """With `with_real=True` mocks see what went through a real broker."""

    async def work() -> None:
        broker = broker_of(rocketmq)

        @broker.subscriber("Orders", group="billing", consumer={"start": "first"})
        async def charge(order: Order) -> None: ...

        async with TestRocketBroker(broker, with_real=True) as under_test:
            await under_test.publish({"number": 7}, "Orders")
            await charge.wait_call(timeout=WITHIN_S)
            charge.mock.assert_called_once_with({"number": 7})

    run(work())


def test_what_it_does_not_do(rocketmq: ThreadedRocketMQ) -> None:
    """It says so: before it is connected, and when an answer is asked for."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        publisher = broker.publisher("Charged")
        with pytest.raises(IncorrectState, match=r"await `broker.connect\(\)` before it publishes"):
            await broker.publish("x", "Orders")
        async with broker:
            for asked in (broker.request, publisher.request):
                with pytest.raises(FeatureNotSupportedException, match="does not wait for answers"):
                    await asked("x", "Orders")
            await publisher.publish("x", headers={"a": "b"})

    run(work())


def test_a_document_of_asyncapi() -> None:
    """Subscribers and publishers are channels with their topics and the schemas of their messages."""
    broker = RocketBroker("127.0.0.1:9876", description="orders")

    @broker.subscriber("Orders", group="billing")
    @broker.publisher("Charged")
    async def charge(order: Order) -> int:
        return order.number

    document = FastStream(broker).schema.to_specification().to_jsonable()
    assert {"Orders:Charge", "Charged:Publisher"} <= set(document["channels"])
    assert document["servers"]["development"]["protocol"] == "rocketmq"
    assert "Order" in document["components"]["schemas"]
