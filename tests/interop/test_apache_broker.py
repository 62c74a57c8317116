"""rmqkit's client with Apache's broker and name server, alone and together with Apache's Java client; and
Apache's broker with rmqkit's name server."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.client import (
    BrokerError,
    Client,
    Message,
    MessageQueue,
    NoRoute,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from rmqkit.protocol.codes import ResponseCode, SerializeType
from rmqkit.protocol.recall_handle import decode_handle
from tests.interop import peers
from tests.interop.builds import JAVA_CLIENT_VERSIONS, BuildError, JavaClient, java_client

PATIENCE_S = 30
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """An unused topic."""
    return f"py_{next(_numbers)}"


@pytest.fixture(params=list(SerializeType), ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, apache_cluster: peers.Server) -> Client:
    """A client of Apache's servers that has not been opened, with JSON and with binary headers."""
    return Client(apache_cluster.namesrv, serialize_type=request.param)


@pytest.fixture
def json_client(apache_cluster: peers.Server) -> Client:
    """The same with JSON headers only, for tests independent of the header form."""
    return Client(apache_cluster.namesrv)


@pytest.fixture(scope="module")
def java() -> JavaClient:
    """The Java scenarios against the newest client."""
    try:
        return java_client(JAVA_CLIENT_VERSIONS[0])
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


async def made(client: Client, topic: str, queues: int = 4) -> str:
    """Create the topic and wait until the name server has it. A topic created by the first send would appear
    later."""
    await client.admin.create_topic(topic, queues=queues)

    async def known() -> bool:
        return await client.admin.route(topic) is not None

    await until(known)
    return topic


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Check a condition of another process repeatedly until it holds."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if await condition():
                return
            await trio.sleep(0.05)


async def everything(
    consumer: PullConsumer, topic: str, count: int, expression: str = "*"
) -> list[ReceivedMessage]:
    """All messages of a topic, queue by queue. The broker makes acknowledged messages readable with a delay,
    so reading is repeated until they are complete."""
    found: list[ReceivedMessage] = []

    async def complete() -> bool:
        found.clear()
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset, expression=expression)
                found.extend(result.messages)
                assert result.next_offset > offset
                offset = result.next_offset
        return len(found) >= count

    await until(complete)
    return found


@pytest.mark.row("S320", "S321", "S322")
async def test_what_was_sent_is_read_with_all_fields(client: Client, topic: str) -> None:
    """Body, tag, keys, properties, flag, ids and offsets are read as they were sent and acknowledged, in both
    header forms."""
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic)
        sent = {}
        for i in range(20):
            message = Message(
                topic=topic,
                body=f"ä中 {i}".encode(),
                tag=f"T{i % 3}",
                keys=(f"key{i}",),
                properties={"colour": f"blå {i}"},
                flag=i * 7,
            )
            result = await producer.send(message)
            assert result.status is SendStatus.SEND_OK
            sent[message.body] = (message, result)
        assert {result.queue.queue_id for _, result in sent.values()} == {0, 1, 2, 3}
        got = await everything(consumer, topic, 20)
        assert sorted(message.body for message in got) == sorted(sent)
        for received in got:
            message, result = sent[received.body]
            assert (received.tag, received.keys, received.flag) == (
                message.tag,
                tuple(message.keys),
                message.flag,
            )
            assert received.properties["colour"] == message.properties["colour"]
            assert (received.queue, received.queue_offset) == (result.queue, result.queue_offset)
            assert (received.message_id, received.offset_message_id) == (
                result.message_id,
                result.offset_message_id,
            )


async def test_batch_oneway_and_compressed_sends(client: Client, topic: str) -> None:
    """A batch keeps its order in one queue, a one-way send arrives, and a body of 64 KiB is stored compressed
    and read completely."""
    text = b"a line that compresses well\n" * 2341
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=1)
        batch = await producer.send_batch(
            [Message(topic=topic, body=f"batch {i}".encode()) for i in range(10)]
        )
        assert len(batch.offset_message_id.split(",")) == 10
        await producer.send_oneway(topic, b"oneway")
        await producer.send(topic, text)
        got = await everything(consumer, topic, 12)
        assert [message.body for message in got[:10]] == [f"batch {i}".encode() for i in range(10)]
        assert {message.body for message in got[10:]} == {b"oneway", text}
        assert len(text) > 65_000


async def test_tags_are_filtered_by_the_broker(json_client: Client, topic: str) -> None:
    """`A || B` returns only messages with these two tags."""
    client = json_client
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic)
        for i in range(24):
            await producer.send(topic, str(i).encode(), tag="ABC"[i % 3])
        got = await everything(consumer, topic, 16, "A || B")
        assert sorted(int(message.body) for message in got) == [i for i in range(24) if i % 3 != 2]


@pytest.mark.row("S139")
async def test_equal_ordering_keys_keep_their_order(json_client: Client, topic: str) -> None:
    """Messages with one key are in one queue in the order of sending."""
    client = json_client
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic)
        for i in range(10):
            for key in ("red", "green", "blue"):
                await producer.send(topic, f"{key} {i}".encode(), ordering_key=key)
        got = await everything(consumer, topic, 30)
        for key in ("red", "green", "blue"):
            mine = [message for message in got if message.ordering_key == key]
            assert [message.body for message in mine] == [f"{key} {i}".encode() for i in range(10)]
            assert len({message.queue for message in mine}) == 1


@pytest.mark.row("S046", "S049")
async def test_a_held_pull_is_answered_when_a_message_comes(client: Client, topic: str) -> None:
    """A blocking pull at the end of a queue returns with the message, long before the hold time ends."""
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=1)
        await producer.send(topic, b"first")
        await everything(consumer, topic, 1)
        (queue,) = await consumer.queues(topic)
        results = []
        answered = trio.Event()

        async def hold() -> None:
            results.append(await consumer.pull(queue, 1, block=True, suspend_ms=15_000))
            answered.set()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold)
                with trio.move_on_after(0.5):
                    await answered.wait()
                assert not results
                began = trio.current_time()
                await producer.send(topic, b"second")
        assert trio.current_time() - began < 2
        assert [message.body for message in results[0].messages] == [b"second"]
        assert (results[0].status, results[0].next_offset, results[0].max_offset) == (PullStatus.FOUND, 2, 2)


async def test_pull_statuses_at_and_beyond_the_end(json_client: Client, topic: str) -> None:
    """At the end there is nothing new; beyond the end the status is illegal, with the offset to continue
    at."""
    client = json_client
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=1)
        await producer.send(topic, b"only")
        await everything(consumer, topic, 1)
        (queue,) = await consumer.queues(topic)
        assert (await consumer.pull(queue, 1)).status is PullStatus.NO_NEW_MESSAGE
        beyond = await consumer.pull(queue, 100)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)


@pytest.mark.row("S007")
async def test_a_lite_consumer_goes_on_where_the_group_stopped(json_client: Client, topic: str) -> None:
    """Messages that were delivered are committed on the broker, and the group's next consumer continues after
    them."""
    client = json_client

    async def read(count: int) -> set[bytes]:
        got: set[bytes] = set()
        async with client.lite_pull_consumer(f"{topic}_c", subscribe=topic, start="first") as consumer:
            with trio.fail_after(PATIENCE_S):
                async for message in consumer:
                    got.add(message.body)
                    if len(got) == count:
                        await consumer.commit()
                        break
        return got

    async with client, client.producer(f"{topic}_p") as producer:
        await made(client, topic)
        for i in range(20):
            await producer.send(topic, f"one {i}".encode())
        assert await read(20) == {f"one {i}".encode() for i in range(20)}
        for i in range(8):
            await producer.send(topic, f"two {i}".encode())
        assert await read(8) == {f"two {i}".encode() for i in range(8)}


async def test_delay_level_one_takes_a_second(json_client: Client, topic: str) -> None:
    """A message with delay level 1 is readable after one second, not before."""
    client = json_client
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=1)
        (queue,) = await consumer.queues(topic)
        began = trio.current_time()
        await producer.send(topic, b"later", delay_level=1)
        with trio.fail_after(PATIENCE_S):
            result = await consumer.pull(queue, 0, block=True, suspend_ms=10_000)
        assert [message.body for message in result.messages] == [b"later"]
        assert 0.99 <= trio.current_time() - began < 4


async def test_a_timed_message_is_recalled(client: Client, topic: str) -> None:
    """What asks for a time has a handle; recalled by it, the message is not delivered, and others are. A
    handle of another topic, and one whose time is over, are refused."""
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=1)
        (queue,) = await consumer.queues(topic)
        assert (await producer.send(topic, b"plain")).recall_handle is None
        later = {"TIMER_DELAY_MS": "3000"}
        sent = [await producer.send(topic, each, properties=later) for each in (b"recalled", b"kept")]
        handle, kept = (each.recall_handle or "" for each in sent)
        assert decode_handle(handle).message_id == sent[0].message_id
        assert await producer.recall(topic, handle) == sent[0].message_id
        other = await made(client, f"{topic}_other", queues=1)
        with pytest.raises(BrokerError, match="topic not match"):
            await producer.recall(other, kept)

        async def delivered() -> bool:
            return await consumer.max_offset(queue) >= 2

        await until(delivered)
        # Both were due in one slot.
        await trio.sleep(1)
        result = await consumer.pull(queue, 0)
        assert [message.body for message in result.messages] == [b"plain", b"kept"]
        with pytest.raises(BrokerError, match="timestamp invalid") as caught:
            await producer.recall(topic, kept)
        assert caught.value.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.row("S010", "S051")
async def test_messages_are_found_by_key_and_by_both_ids(json_client: Client, topic: str) -> None:
    """Messages are found by each key, by the producer's id and by the broker's id; an unknown key finds
    nothing."""
    client = json_client
    async with client, client.producer(f"{topic}_p") as producer:
        await made(client, topic)
        wanted = await producer.send(topic, b"found", keys=("order", "user"))
        await producer.send(topic, b"other", keys=("else",))

        async def indexed() -> bool:
            return bool(await client.admin.query_by_key(topic, "order"))

        await until(indexed)
        for key in ("order", "user"):
            assert [message.body for message in await client.admin.query_by_key(topic, key)] == [b"found"]
        assert [
            message.body for message in await client.admin.query_by_message_id(topic, wanted.message_id)
        ] == [b"found"]
        viewed = await client.admin.view_message(wanted.offset_message_id)
        assert (viewed.body, viewed.message_id, viewed.queue) == (b"found", wanted.message_id, wanted.queue)
        assert await client.admin.query_by_key(topic, "nobody") == []


@pytest.mark.row("S008")
async def test_a_topic_is_made_measured_and_deleted(json_client: Client, topic: str) -> None:
    """The route has the requested queues, the statistics count the messages, and after deletion there is no
    route."""
    client = json_client
    async with (
        client,
        client.producer(f"{topic}_p") as producer,
        client.pull_consumer(f"{topic}_c") as consumer,
    ):
        await made(client, topic, queues=3)
        assert topic in await client.admin.topics()
        for i in range(12):
            await producer.send(topic, str(i).encode())
        await everything(consumer, topic, 12)
        stats = await client.admin.topic_stats(topic)
        assert set(stats) == {MessageQueue(topic, "apache-broker", i) for i in range(3)}
        assert sum(queue.max_offset - queue.min_offset for queue in stats.values()) == 12
        await client.admin.delete_topic(topic)
        assert await client.admin.route(topic) is None
        with pytest.raises(NoRoute):
            await consumer.queues(f"{topic}_never_made")


async def exchange(
    java: JavaClient,
    scenario: str,
    topic: str,
    count: int,
    apache_cluster: peers.Server,
    home: Path,
    more: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Let the Java client run one half of an exchange; returns its report."""

    def play() -> peers.Outcome:
        options = ["--topic", topic, "--count", str(count), *more]
        return peers.play(
            peers.java_command(java, home), [scenario], apache_cluster.namesrv, home, options=options
        ).outcome(scenario)

    outcome = await trio.to_thread.run_sync(play)
    assert outcome.ok, outcome.error
    return outcome.facts


async def test_java_reads_what_we_sent(
    json_client: Client, topic: str, java: JavaClient, apache_cluster: peers.Server, tmp_path: Path
) -> None:
    """Single, batched and compressed messages of rmqkit's producer reach Apache's push consumer with all
    fields."""
    client = json_client
    messages = [
        Message(
            topic=topic,
            body=f"{i:02} ä中".encode(),
            tag=f"T{i % 2}",
            keys=(f"key{i}",),
            properties={"colour": f"blå {i}"},
            flag=i,
        )
        for i in range(12)
    ]
    long = Message(
        topic=topic,
        body=b"99 long" + b" padding" * 2000,
        tag="L",
        keys=("long",),
        properties={"colour": "red"},
        flag=99,
    )
    async with client, client.producer(f"{topic}_p") as producer:
        await made(client, topic)
        for message in messages[:6]:
            await producer.send(message)
        await producer.send_batch(messages[6:])
        await producer.send(long)
        facts = await exchange(java, "read", topic, 13, apache_cluster, tmp_path)
    assert facts["deliveries"] == 13
    for message in [*messages, long]:
        got = dict(facts["messages"][message.body.decode()])
        assert got.pop("id")
        assert got == {
            "tags": message.tag,
            "keys": message.keys[0],
            "colour": message.properties["colour"],
            "flag": message.flag,
        }


async def test_we_read_what_java_sent(
    json_client: Client, topic: str, java: JavaClient, apache_cluster: peers.Server, tmp_path: Path
) -> None:
    """Single, batched and compressed messages of Apache's producer are read with all fields."""
    client = json_client
    async with client, client.pull_consumer(f"{topic}_c") as consumer:
        await made(client, topic)
        facts = await exchange(java, "write", topic, 8, apache_cluster, tmp_path)
        got = {message.body.decode(): message for message in await everything(consumer, topic, 16)}
    assert len(got) == facts["sent"] == 16
    for i in range(8):
        padding = " padding" * 2000 if i == 7 else ""
        for message in (got[f"single-{i:04}{padding}"], got[f"batch-{i:04}"]):
            assert (message.tag, message.keys, message.flag) == (f"T{i % 2}", (f"key{i}",), i)
            assert message.properties["colour"] == f"blå {i}"


@pytest.mark.row("S298", "S299", "S300")
async def test_apache_broker_registers_with_our_name_server(topic: str, tmp_path: Path) -> None:
    """Apache's broker registers with rmqkit's name server, appears in the cluster beside rmqkit's broker with
    its topics, can be used through the route, and unregisters."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    with ExitStack() as servers:
        rmqkit = servers.enter_context(peers.rmqkit_serve(ours))
        apache = await trio.to_thread.run_sync(
            servers.enter_context, peers.apache_broker(theirs, rmqkit.namesrv)
        )
        client = Client(rmqkit.namesrv)
        async with (
            client,
            client.producer(f"{topic}_p") as producer,
            client.pull_consumer(f"{topic}_c") as consumer,
        ):
            brokers = (await client.admin.cluster_info()).broker_addr_table
            assert brokers["apache-broker"].master == apache.broker
            assert len(brokers) == 2
            await client.admin.create_topic(topic, queues=3, broker="apache-broker")
            await until(lambda: has_queues(client, topic, 3))
            for i in range(6):
                assert (await producer.send(topic, str(i).encode())).queue.broker_name == "apache-broker"
            assert sorted(message.body for message in await everything(consumer, topic, 6)) == [
                str(i).encode() for i in range(6)
            ]
            await trio.to_thread.run_sync(apache.programs[0].stop)
            assert set((await client.admin.cluster_info()).broker_addr_table) == set(brokers) - {
                "apache-broker"
            }


async def has_queues(client: Client, topic: str, count: int) -> bool:
    """Whether the route of the topic has this number of read queues."""
    route = await client.admin.route(topic)
    return route is not None and sum(data.read_queue_nums for data in route.queue_datas) == count


async def test_a_group_of_java_and_python(
    topic: str, java: JavaClient, apache_cluster: peers.Server, tmp_path: Path
) -> None:
    """Apache's push consumer joins the group of ours and takes half of the queues; when it leaves, ours takes
    them back. Every message is handled by one of them."""
    bodies: set[str] = set()
    facts: dict[str, Any] = {}
    # The names that the Java scenario gives to its group.
    number = f"mixed{next(_numbers)}"
    group = f"it_read_{number}_reader"

    async def handle(message: ReceivedMessage) -> None:
        bodies.add(message.body.decode())

    async def own(consumer: PushConsumer, count: int) -> bool:
        return len([queue for queue in consumer.queues if queue.topic == topic]) == count

    async with Client(apache_cluster.namesrv) as client, client.producer("producers") as producer:
        await made(client, topic)
        async with client.push_consumer(group, subscribe=topic) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await until(partial(own, consumer, 4))
            queues = await producer.queues(topic)

            @nursery.start_soon
            async def join() -> None:
                more = ["--id", number]
                facts.update(await exchange(java, "read", topic, 10, apache_cluster, tmp_path, more))

            await until(partial(own, consumer, 2))
            for i in range(20):
                await producer.send(topic, b"%d" % i, queue=queues[i % 4])
            await until(partial(own, consumer, 4))
            for i in range(20, 24):
                await producer.send(topic, b"%d" % i, queue=queues[i % 4])

            async def all_handled() -> bool:
                return bodies.union(facts.get("messages", ())) == {str(i) for i in range(24)}

            await until(all_handled)
            consumer.stop()
        assert len(facts["messages"]) >= 10
        assert {"20", "21", "22", "23"} <= bodies
