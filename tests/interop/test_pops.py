"""rmqkit's pop consumer with Apache's broker."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import trio

from rmqkit.client import Client, DeadLetter, Lease, Message, NoRoute, ReceivedMessage, Retry
from tests.interop import peers
from tests.interop.test_apache_broker import made, until

PATIENCE_S = 60
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """An unused topic."""
    return f"pops_{next(_numbers)}"


async def send(client: Client, topic: str, *bodies: str, key: str | None = None) -> None:
    async with client.producer("pop_producers") as producer:
        for body in bodies:
            await producer.send(Message(topic, body.encode(), ordering_key=key))


async def dead_letters(client: Client, group: str) -> list[bytes]:
    """The bodies of the dead letters of a group."""
    found: list[bytes] = []
    async with client.pull_consumer("undertakers") as reader:

        async def are_there() -> bool:
            try:
                queues = await reader.queues(f"%DLQ%{group}")
            except NoRoute:
                return False
            for queue in queues:
                found.extend(each.body for each in (await reader.pull(queue, 0)).messages)
            return bool(found)

        await until(are_there)
    return found


async def test_handlers(apache_cluster: peers.Server, topic: str) -> None:
    """Each message is handled once, a failed one again, a hopeless one becomes a dead letter; a lease is
    renewed while its handler runs; and what is finished does not come again."""
    seen: list[tuple[str, int]] = []
    ended: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        body = message.body.decode()
        seen.append((body, message.reconsume_times))
        if body == "fails" and not message.reconsume_times:
            raise Retry(after=1)
        if body == "bad":
            raise DeadLetter("never")
        if body == "slow":
            await trio.sleep(15)
        ended.append(body)

    bodies = [*map(str, range(30)), "fails", "bad", "slow"]
    async with Client(apache_cluster.namesrv) as client:
        await made(client, topic)
        await send(client, topic, *bodies)
        async with (
            client.pop_consumer(f"g_{topic}", subscribe=topic, start="first", lease_ms=6_000) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)

            async def all_ended() -> bool:
                return len(ended) == len(bodies) - 1

            await until(all_ended)
            consumer.stop()
        async with client.pop_consumer(f"g_{topic}", subscribe=topic) as consumer:
            assert await consumer.receive(wait_ms=8_000) == []
        assert await dead_letters(client, f"g_{topic}") == [b"bad"]
    assert Counter(seen) == Counter([*((body, 0) for body in bodies), ("fails", 1)])


async def test_leases_by_hand(apache_cluster: peers.Server, topic: str) -> None:
    """Acknowledged, released, and extended ones."""
    async with (
        Client(apache_cluster.namesrv) as client,
        client.pop_consumer(f"g_{topic}", subscribe=topic, start="first") as consumer,
    ):
        await made(client, topic)
        await send(client, topic, "a", "b", "c")
        found: dict[str, Lease] = {}

        async def more(count: int) -> None:
            with trio.fail_after(PATIENCE_S):
                while len(found) < count:
                    for each in await consumer.receive(lease_ms=5_000):
                        found[each.message.body.decode()] = each

        await more(3)
        await consumer.ack(found["a"])
        await consumer.extend(found["b"], 30_000)
        await consumer.release(found.pop("c"), after_ms=1_000)
        await more(3)
        assert found["c"].message.reconsume_times == 1
        await consumer.ack(found["b"], found["c"])
        assert await consumer.receive(wait_ms=8_000) == []


async def test_a_queue_in_order(apache_cluster: peers.Server, topic: str) -> None:
    """A failed message comes again before those behind it."""
    seen: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        body = message.body.decode()
        seen.append(body)
        if body == "2" and seen.count("2") == 1:
            raise Retry(after=1)

    async with Client(apache_cluster.namesrv) as client:
        await made(client, topic, queues=1)
        async with client.producer("pop_producers") as producer:
            (queue,) = await producer.queues(topic)
            for number in range(5):
                await producer.send(Message(topic, b"%d" % number), queue=queue)
        async with (
            client.pop_consumer(f"g_{topic}", subscribe=topic, start="first", order="queue") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)

            async def all_seen() -> bool:
                return set(seen) == set("01234") and seen[-1] == "4"

            await until(all_seen)
            consumer.stop()
    # Apache's broker delivers an ordered batch again as a whole.
    firsts = [body for at, body in enumerate(seen) if body not in seen[:at]]
    assert firsts == list("01234")
    assert seen.index("3") > len(seen) - 1 - seen[::-1].index("2")
