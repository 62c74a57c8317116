"""Groups whose members are rmqkit's, Apache's Java and Apache's Go clients, on rmqkit's broker and on two
generations of Apache's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.client import Client, PushConsumer, ReceivedMessage, Retry
from tests.interop import peers
from tests.interop.builds import (
    OLD_SERVER_VERSION,
    SERVER_VERSION,
    BuildError,
    JavaClient,
    go_client,
    java_client,
)
from tests.interop.members import PATIENCE_S, java_words, made, member, until

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["rmqkit", SERVER_VERSION, OLD_SERVER_VERSION])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[peers.Server]:
    """rmqkit's servers, and Apache's of two generations."""
    home = tmp_path_factory.mktemp("servers")
    running = (
        peers.rmqkit_serve(home)
        if request.param == "rmqkit"
        else peers.apache_cluster(home, version=request.param)
    )
    try:
        with running as server:
            yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def java() -> JavaClient:
    try:
        return java_client(SERVER_VERSION)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def go() -> Path:
    try:
        return go_client()
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture
def topic() -> str:
    return f"mixed_{next(_numbers)}"


async def has_queues(consumer: PushConsumer, topic: str, count: int) -> bool:
    return len([queue for queue in consumer.queues if queue.topic == topic]) == count


@pytest.mark.row("S163")
@pytest.mark.parametrize("order", ["none", "queue"])
async def test_a_group_of_three_languages(
    servers: peers.Server, topic: str, order: Any, java: JavaClient, go: Path, tmp_path: Path
) -> None:
    """Six queues are divided evenly as members join, and return as they leave. Every message is handled. In
    order, no queue is handled by two at a time or backwards: each member's messages of a queue ascend, and
    nothing is handled twice."""
    ours: list[tuple[str, str, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        where = f"{message.queue.broker_name}:{message.queue.queue_id}"
        ours.append((message.body.decode(), where, message.queue_offset))

    def our_bodies() -> set[str]:
        return {body for body, _, _ in ours}

    group = f"g_{topic}"
    async with Client(servers.namesrv) as client, client.producer("producers") as producer:
        await made(client, topic, 6)
        queues = await producer.queues(topic)

        async def send(stem: str) -> set[str]:
            bodies = [f"{stem}{number}" for number in range(24)]
            for number, body in enumerate(bodies):
                await producer.send(topic, body.encode(), queue=queues[number % 6])
            return set(bodies)

        async with (
            client.push_consumer(group, subscribe=topic, order=order, start="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await until(partial(has_queues, consumer, topic, 6), "all queues are ours")
            join = partial(member, namesrv=servers.namesrv, topic=topic, group=group, order=order)
            async with (
                join(java_words(java, tmp_path / "jvm"), home=tmp_path / "java") as of_java,
                join([str(go)], home=tmp_path / "go") as of_go,
            ):
                await until(partial(has_queues, consumer, topic, 2), "two queues are ours")
                sent = await send("shared")

                async def handled() -> bool:
                    return our_bodies() | of_java.bodies | of_go.bodies >= sent

                await until(handled, "all shared messages are handled")
                assert our_bodies()
                await until(lambda: _true(bool(of_java.bodies and of_go.bodies)), "both others have some")
            await until(partial(has_queues, consumer, topic, 6), "all queues are ours again")
            later = await send("later")

            async def back() -> bool:
                return our_bodies() >= later

            await until(back, "the later messages are ours")
            consumer.stop()
    if order == "queue":
        seen = [(each["text"], each["queue"], each["offset"]) for each in of_java.facts["handled"]]
        seen_by_go = [(each["text"], each["queue"], each["offset"]) for each in of_go.facts["handled"]]
        assert of_java.facts["overlaps"] == 0
        for handled_by_one in (ours, seen, seen_by_go):
            for queue in {where for _, where, _ in handled_by_one}:
                offsets = [offset for _, where, offset in handled_by_one if where == queue]
                assert offsets == sorted(set(offsets)), json.dumps(handled_by_one)


async def _true(value: bool) -> bool:
    return value


async def test_what_we_send_back_reaches_java(
    servers: peers.Server, topic: str, java: JavaClient, tmp_path: Path
) -> None:
    """A message that failed at our consumer is delivered to Java's, the next member, as its first retry, with
    the topic it came from."""
    failed = trio.Event()
    group = f"g_{topic}"

    async def handle(message: ReceivedMessage) -> None:
        failed.set()
        raise Retry(after=1)

    async with Client(servers.namesrv) as client, client.producer("producers") as producer:
        await made(client, topic, 2)
        async with (
            client.push_consumer(group, subscribe=topic, start="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await producer.send(topic, b"comes back")
            await failed.wait()
            consumer.stop()
        words = java_words(java, tmp_path / "jvm")
        async with member(words, servers.namesrv, tmp_path / "java", topic, group) as of_java:
            await until(lambda: _true("comes back" in of_java.bodies), "Java has it")
    (seen,) = of_java.facts["handled"]
    assert (seen["text"], seen["topic"]) == ("comes back", topic)
    assert seen["times"] >= 1


async def test_what_java_sends_back_reaches_us(
    servers: peers.Server, topic: str, java: JavaClient, tmp_path: Path
) -> None:
    """A message that fails at Java's consumer is delivered to ours once Java's has left, as a retry, with the
    topic it came from."""
    group = f"g_{topic}"
    async with Client(servers.namesrv) as client, client.producer("producers") as producer:
        await made(client, topic, 2)
        await producer.send(topic, b"comes back")
        words = java_words(java, tmp_path / "jvm")
        async with member(
            words, servers.namesrv, tmp_path / "java", topic, group, fail="comes back"
        ) as of_java:
            await until(lambda: _true("comes back" in of_java.bodies), "Java has it")
        async with client.push_consumer(group, subscribe=topic, start="first") as consumer:
            with trio.fail_after(PATIENCE_S):
                async for delivery in consumer:
                    async with delivery as message:
                        assert (message.body, message.topic) == (b"comes back", topic)
                        assert message.reconsume_times >= 1
                    consumer.stop()


async def test_a_namespace_is_shared_with_java(
    servers: peers.Server, topic: str, java: JavaClient, tmp_path: Path
) -> None:
    """Java's clients with `setNamespace` and ours with `namespace` are in one group: what ours fails is
    retried at Java's, what Java's producer sends reaches ours, and a client without the namespace sees the
    wrapped names."""
    group, shop = f"g_{topic}", {"--namespace": "shop"}
    async with Client(servers.namesrv, namespace="shop") as client, client.producer("producers") as producer:
        await made(client, topic, 2)
        words = java_words(java, tmp_path / "jvm")
        await producer.send(topic, b"ours")
        async with member(
            words, servers.namesrv, tmp_path / "java", topic, group, more=shop, fail="ours"
        ) as of_java:
            await until(lambda: _true("ours" in of_java.bodies), "Java has ours")
        assert {each["topic"] for each in of_java.facts["handled"]} == {topic}
        (tmp_path / "writer").mkdir()

        def write() -> peers.Outcome:
            options = ["--topic", topic, "--count", "3", "--namespace", "shop"]
            report = peers.play(words, ["write"], servers.namesrv, tmp_path / "writer", options=options)
            return report.outcome("write")

        outcome = await trio.to_thread.run_sync(write)
        assert outcome.ok, outcome.error
        seen: list[ReceivedMessage] = []
        async with client.push_consumer(group, subscribe=topic, start="first") as consumer:
            with trio.fail_after(PATIENCE_S):
                async for delivery in consumer:
                    async with delivery as message:
                        seen.append(message)
                    retried = any(each.body == b"ours" and each.reconsume_times for each in seen)
                    if retried and len({each.body for each in seen}) == 7:
                        consumer.stop()
        assert {each.topic for each in seen} == {topic}
        async with Client(servers.namesrv) as outside:
            assert {f"shop%{topic}", f"%RETRY%shop%{group}"} <= set(await outside.admin.topics())


async def test_compressed_bodies(servers: peers.Server, topic: str, java: JavaClient, tmp_path: Path) -> None:
    """Java's consumer reads bodies that we compress with zlib, LZ4 and Zstandard, and ours reads Java's."""
    async with Client(servers.namesrv) as client:
        await made(client, topic, 2)
        ours = {f"{kind}-{'x' * 9_000}" for kind in ("zlib", "lz4", "zstd")}
        for body in ours:
            kind = body.partition("-")[0]
            async with client.producer("producers", compression=kind) as producer:
                await producer.send(topic, body.encode())
        words = java_words(java, tmp_path / "jvm")
        async with member(words, servers.namesrv, tmp_path / "java", topic, f"java_{topic}") as of_java:
            await until(lambda: _true(of_java.bodies >= ours), "Java has read all three")
        (tmp_path / "writer").mkdir()

        def write() -> peers.Outcome:
            options = ["--topic", topic]
            report = peers.play(words, ["compress"], servers.namesrv, tmp_path / "writer", options=options)
            return report.outcome("compress")

        outcome = await trio.to_thread.run_sync(write)
        assert outcome.ok, outcome.error
        expected = {kind + " padding" * 2_000 for kind in ("ZLIB", "LZ4", "ZSTD")} | ours
        async with client.push_consumer(f"g_{topic}", subscribe=topic, start="first") as consumer:
            with trio.fail_after(PATIENCE_S):
                async for delivery in consumer:
                    async with delivery as message:
                        expected.discard(message.body.decode())
                    if not expected:
                        consumer.stop()


@pytest.mark.parametrize("order", ["none", "queue"])
async def test_members_of_ours_share_the_queues(servers: peers.Server, topic: str, order: Any) -> None:
    """Two members divide four queues, whether they need locks or not. When one leaves, the other takes all; a
    failed message comes again, and every message is handled. The group's offsets are those of the ends."""
    handled: list[tuple[bytes, int]] = []
    group = f"g_{topic}"

    async def handle(message: ReceivedMessage) -> None:
        handled.append((message.body, message.reconsume_times))
        if message.body == b"3" and message.reconsume_times == 0:
            raise Retry(after=1)

    async with Client(servers.namesrv) as one, Client(servers.namesrv) as two:
        await one.admin.create_topic(topic, queues=4)
        async with one.producer("producers") as producer, trio.open_nursery() as nursery:

            async def send(numbers: range) -> None:
                for number in numbers:
                    await producer.send(topic, b"%d" % number)

            async def all_handled(count: int) -> bool:
                return len({body for body, _ in handled}) == count and (b"3", 1) in handled

            async def own(*consumers: PushConsumer) -> bool:
                owned = [queue for each in consumers for queue in each.queues if queue.topic == topic]
                return len(set(owned)) == len(owned) == 4 and all(each.queues for each in consumers)

            async def all_committed() -> bool:
                offsets, stats = two.raw_reader(group).offsets, await two.admin.topic_stats(topic)
                return [await offsets.committed(group, queue) for queue in stats] == [
                    each.max_offset for each in stats.values()
                ]

            options: Any = {"subscribe": topic, "order": order}
            async with one.push_consumer(group, **options) as first:
                nursery.start_soon(first.run, handle)
                async with two.push_consumer(group, **options) as second:
                    nursery.start_soon(second.run, handle)
                    await until(partial(own, first, second), "both have queues")
                    await send(range(20))
                    await until(partial(all_handled, 20), "20 are handled")
                await until(partial(own, first), "one has all queues")
                await send(range(20, 30))
                await until(partial(all_handled, 30), "30 are handled")
                # A pull carries the offset of its time. Apache's broker may process the last one after the
                # commit of a member that leaves at once.
                await until(all_committed, "the offsets are at the ends")
        assert await all_committed()
