"""Routers that a broker includes."""

from __future__ import annotations

import asyncio

from faststream import AckPolicy, FastStream

from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_faststream import RocketBroker, RocketPublisher, RocketRoute, RocketRouter, TestRocketBroker
from tests.plugins.faststream.test_broker import broker_of, run


def test_prefixes_and_routes_without_servers() -> None:
    """Topics of a router have its prefix and those of the routers around it; routes are declared without
    decorators."""
    inner = RocketRouter("Eu-")
    outer = RocketRouter("Shop-", routers=[inner])

    @inner.subscriber("Orders", group="billing")
    @inner.publisher("Charged")
    async def charge(number: int) -> int:
        return -number

    async def report(number: int) -> None: ...

    publishers = [RocketPublisher("Reported", tag="new")]
    route = RocketRoute(report, "Shop-Eu-Charged", group="reports", publishers=publishers)
    routed = RocketRouter(handlers=[route])
    broker = RocketBroker("127.0.0.1:1", routers=[routed])
    broker.include_router(outer)

    @broker.subscriber("Reported", group="ends", expression="new")
    async def end(_: object) -> None: ...

    async def work() -> None:
        async with TestRocketBroker(broker) as under_test:
            await under_test.publish(7, "Shop-Eu-Orders")
            charge.mock.assert_called_once_with(7)
            assert end.mock.called
            await under_test.publish(8, "Orders")
            charge.mock.assert_called_once_with(7)

    run(work())
    channels = FastStream(broker).schema.to_specification().to_jsonable()["channels"]
    assert "Shop-Eu-Orders:Charge" in channels


def test_a_router_over_servers(rocketmq: ThreadedRocketMQ) -> None:
    """Its subscribers start with the broker that includes it and share its client; what its policy for
    acknowledgements says holds for them."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        router = RocketRouter("Shop-", ack_policy=AckPolicy.ACK)
        seen: asyncio.Queue[str] = asyncio.Queue()

        @router.subscriber("Orders", group="billing", consumer={"start": "first", "order": "queue"})
        @router.publisher("Charged")
        async def charge(text: str) -> str:
            await seen.put(text)
            if text == "bad":
                raise ValueError("no luck")
            return text

        @router.subscriber("Charged", group="reports", consumer={"start": "first"})
        async def report(text: str) -> None:
            await seen.put(f"{text} charged")

        broker.include_router(router)
        async with broker:
            await broker.start()
            await broker.publish("bad", "Shop-Orders", ordering_key="1")
            await broker.publish("good", "Shop-Orders", ordering_key="1")
            assert [await seen.get() for _ in range(3)] == ["bad", "good", "good charged"]

    run(work())
