"""The namespace of a client: names with it at the brokers, without it in the application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import (
    Changes,
    Client,
    DeadLetter,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    Retry,
    RmqError,
    tag,
)
from rmqkit.client.namespace import Namespace
from rmqkit.client.producing.outgoing import PackedBatch
from rmqkit.errors import ConfigError
from rmqkit.protocol import batch
from tests.client.consumer.groups import Group, group_of, until

NAMES = [
    ("Orders", "ns%Orders"),
    ("%RETRY%g", "%RETRY%ns%g"),
    ("%DLQ%g", "%DLQ%ns%g"),
    ("other%Orders", "ns%other%Orders"),
    ("TBW102", "TBW102"),
    ("rmq_sys_x", "rmq_sys_x"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
]


@pytest.mark.parametrize(("plain", "wrapped"), NAMES)
def test_names_are_those_of_java(plain: str, wrapped: str) -> None:
    """The prefix of retry and dead-letter topics stays first, names of the system stay as they are, and
    wrapping twice is wrapping once."""
    names = Namespace("ns")
    assert names.wrapped(plain) == names.wrapped(wrapped) == wrapped
    assert names.plain(wrapped) == plain


def test_a_name_of_another_namespace_stays_as_it_is() -> None:
    """What a client may read of other namespaces has its full name, and is not listed."""
    names = Namespace("ns")
    assert names.plain("other%T") == "other%T"
    assert names.own(["ns%T", "other%T", "T", "%RETRY%ns%g", "TBW102"]) == ["T", "%RETRY%g"]


def test_without_a_namespace_nothing_changes() -> None:
    """The default: every name is the broker's."""
    names = Namespace()
    queue = MessageQueue("ns%T", "b", 0)
    assert names.wrapped("T") == names.plain("T") == "T"
    assert names.inward(queue) is names.outward(queue) is queue
    assert names.own(["ns%T", "T"]) == ["ns%T", "T"]


@pytest.mark.parametrize("name", ["a%b", "a b", "ä", "a/b"])
def test_an_illegal_namespace(name: str) -> None:
    """The separator and characters that topics cannot have are refused when the client is made."""
    with pytest.raises(ConfigError, match="namespace"):
        Client("127.0.0.1:1", namespace=name)


@asynccontextmanager
async def shop_of(tmp_path: Path) -> AsyncIterator[tuple[Group, Client, Producer]]:
    """A broker with topic shop%T, a client of the namespace `shop` and its producer."""
    async with (
        group_of(tmp_path) as group,
        Client(group.cluster.namesrv_text, connect=group.cluster.connect, namespace="shop") as client,
        client.producer("p") as producer,
    ):
        assert await client.admin.create_topic("T", queues=2) == ["broker-a"]
        yield group, client, producer


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


async def test_sends_of_every_form(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each form of a send goes to the topic of the namespace, wrapped once; results name the queue without
    it. The topic with the plain name stays empty."""
    async with shop_of(tmp_path) as (group, _client, producer):
        assert await producer.queues("T") == [queue(0), queue(1)]
        assert (await producer.send("T", b"1", queue=queue(0))).queue == queue(0)
        assert (await producer.send(Message("shop%T", b"2"), queue=queue(0, "shop%T"))).queue == queue(0)
        assert (await producer.send_batch([Message("T", b"3")], queue=queue(0))).queue == queue(0)
        item = batch.encode([batch.BatchItem(0, b"4", b"UNIQ_KEY\x014\x02")])
        packed = PackedBatch(topic="T", body=item, count=1)
        assert (await producer.send_packed(packed, queue=queue(0))).queue == queue(0)
        await producer.send_oneway("T", b"5", queue=queue(0))
        store = group.cluster.broker.context.store
        await until(lambda: store.max_offset("shop%T", 0) == 5)
        assert [store.max_offset("T", number) for number in range(4)] == [0] * 4


async def test_gathered_sends(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Automatic batches are of the namespace as well."""
    async with shop_of(tmp_path) as (group, client, _), client.producer("q", linger_ms=5) as producer:
        results = []

        async def send(number: int) -> None:
            results.append(await producer.send("T", b"%d" % number, ordering_key="k"))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(send, number)
        assert {result.queue.topic for result in results} == {"T"}
        store = group.cluster.broker.context.store
        assert sum(store.max_offset("shop%T", number) for number in range(2)) == 5


async def test_push_consumption(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Handlers, also after a retry, and the rebalance listener see names without the namespace; the group,
    its retry topic and its dead-letter topic have it at the broker."""
    async with shop_of(tmp_path) as (group, client, producer):
        seen: list[ReceivedMessage] = []
        changes: list[Changes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            if message.body == b"again" and not message.reconsume_times:
                raise Retry(after=1)
            if message.body == b"dead":
                raise DeadLetter("never")

        async with (
            client.push_consumer(
                "g", subscribe={"T": tag("a")}, start="first", on_rebalance=changes.append
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await until(lambda: {queue(0), queue(1)} <= set(consumer.queues))
            for body in (b"again", b"dead", b"fine"):
                await producer.send("T", body, tag="a")
            store = group.cluster.broker.context.store
            await until(lambda: len(seen) == 4)
            await until(lambda: store.max_offset("%DLQ%shop%g", 0) == 1)
            consumer.stop()
        assert {(message.topic, message.queue.topic) for message in seen if not message.reconsume_times} == {
            ("T", "T")
        }
        (retried,) = [message for message in seen if message.reconsume_times]
        assert (retried.topic, retried.queue.topic) == ("T", "%RETRY%g")
        assert {each.topic for change in changes for each in change.gained} == {"T", "%RETRY%g"}
        offsets = group.cluster.broker.context.offsets
        assert sum(offsets.get("shop%g", "shop%T", number) or 0 for number in range(2)) == 3


async def test_a_copy_that_is_sent_back_by_the_client(tmp_path: Path, autojump_clock: MockClock) -> None:
    """When the broker cannot send a message back, the copy names the topic with its namespace, so that
    consumers of every language find it."""
    async with shop_of(tmp_path) as (_group, client, producer):
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            if not message.reconsume_times:
                raise Retry(after=1)

        async with client.push_consumer("g", subscribe="T", start="first") as consumer:
            _refuse(consumer._outcomes._send_back)  # type: ignore[union-attr]
            await until(lambda: queue(0, "%RETRY%g") in consumer.queues)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await producer.send("T", b"x")
                await until(lambda: len(seen) == 2)
                consumer.stop()
        assert [message.topic for message in seen] == ["T", "T"]
        assert seen[1].properties["RETRY_TOPIC"] == "shop%T"


def _refuse(send_back: object) -> None:
    async def by_broker(*_: object) -> None:
        raise RmqError("refused")

    send_back._by_broker = by_broker  # type: ignore[attr-defined]


async def test_lite_pull(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Assigned and subscribed queues, seeks and commits use names without the namespace."""
    async with shop_of(tmp_path) as (group, client, producer):
        for number in range(3):
            await producer.send("T", b"%d" % number, queue=queue(0))
        async with client.lite_pull_consumer("g") as consumer:
            assert await consumer.topic_queues("T") == [queue(0), queue(1)]
            await consumer.assign([queue(0)])
            assert consumer.queues == [queue(0)]
            await consumer.seek(queue(0), 1)
            messages = await consumer.poll()
            assert [(each.topic, each.queue, each.body) for each in messages] == [
                ("T", queue(0), b"1"),
                ("T", queue(0), b"2"),
            ]
            consumer.pause(queue(0))
            assert consumer.paused == [queue(0)]
            consumer.resume(queue(0))
            await consumer.seek_to_time(queue(0), datetime.fromtimestamp(1, UTC))
            await consumer.commit({queue(0): 2})
            assert await consumer.committed(queue(0)) == 2
            assert group.cluster.broker.context.offsets.get("shop%g", "shop%T", 0) == 2
        async with client.lite_pull_consumer("h", subscribe="T", start="first") as consumer:
            assert [each.topic for each in await consumer.poll()] == ["T"] * 3


async def test_explicit_pulls(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Pulls and offsets."""
    async with shop_of(tmp_path) as (group, client, producer), client.pull_consumer("g") as consumer:
        sent = await producer.send("T", b"x", queue=queue(1))
        assert await consumer.queues("T") == [queue(0), queue(1)]
        (pulled,) = (await consumer.pull(queue(1), 0)).messages
        assert (pulled.topic, pulled.queue, pulled.message_id) == ("T", queue(1), sent.message_id)
        assert (await consumer.min_offset(queue(1)), await consumer.max_offset(queue(1))) == (0, 1)
        await consumer.commit(queue(1), 1)
        assert await consumer.committed(queue(1)) == 1
        assert group.cluster.broker.context.offsets.get("shop%g", "shop%T", 1) == 1
        assert (await client.raw_reader("g").pull(queue(1), 0)).next_offset == 1


async def test_administration(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Topics and groups of the namespace by their plain names; those of others are not listed."""
    async with shop_of(tmp_path) as (group, client, producer):
        sent = await producer.send("T", b"x", keys="k", queue=queue(0))
        assert await client.admin.topics() == ["T"]
        assert await client.admin.application_topics() == ["T"]
        assert "T" in await group.client.admin.topics()
        assert await client.admin.route("T") is not None
        assert list(await client.admin.topic_stats("T")) == [queue(0), queue(1)]
        await trio.sleep(1)
        assert [each.topic for each in await client.admin.query_by_key("T", "k")] == ["T"]
        assert (await client.admin.query_by_message_id("T", sent.message_id))[0].queue == queue(0)
        assert (await client.admin.view_message(sent.offset_message_id)).topic == "T"
        async with client.push_consumer("g", subscribe="T") as consumer:
            await until(lambda: queue(0) in consumer.queues)
            connections = await client.groups.connections("g")
            assert connections is not None
            assert sorted(connections.subscriptions) == ["%RETRY%g", "T"]
            (member,) = connections.members
            assert sorted(await client.groups.subscriptions_of("g", member)) == ["%RETRY%g", "T"]
            assert await client.groups.consuming("T") == ["g"]
        assert list(await client.groups.configs()) == ["g"]
        await client.groups.reset_to_offset("g", queue(0), 1)
        progress = await client.groups.progress("g", "T")
        assert progress[queue(0)].committed == 1
        assert await client.groups.reset_to_time("g", "T", 0) == {queue(0): 0, queue(1): 0}
        await client.groups.delete("g")
        assert await client.admin.delete_topic("T") == ["broker-a"]
        assert await client.admin.topics() == ["%RETRY%g"]
        assert "T" in await group.client.admin.topics()
