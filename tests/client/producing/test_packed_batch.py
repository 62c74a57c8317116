"""Batches that the caller has encoded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqkit.client import (
    BlockingClient,
    ClientError,
    Message,
    MessageIllegal,
    MessageQueue,
    PackedBatch,
    SendFailed,
)
from rmqkit.client.hooks import ClientSendContext, ClientSendHook
from rmqkit.model import properties as props
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import answer
from rmqkit.protocol.record import unpack
from tests.client.fake_cluster import cluster
from tests.client.fakes import on_both_backends, run
from tests.client.test_blocking import tcp_cluster


def packed(*bodies: bytes, topic: str = "T") -> PackedBatch:
    items = [
        batch.BatchItem(7, body, props.encode({"UNIQ_KEY": f"id-{body.decode()}", "TAGS": "A"}).encode())
        for body in bodies
    ]
    return PackedBatch(topic=topic, body=batch.encode(items), count=len(items))


@on_both_backends
def test_it_goes_out_as_it_is(backend: str) -> None:
    """The batch is one request to one queue; the result has the queue and offset but no ids."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("p") as producer:
            queue = MessageQueue("T", "broker-a", 1)
            result = await producer.send_packed(packed(b"one", b"two"), queue=queue)
            assert (result.queue, result.queue_offset, result.message_id, result.is_ok) == (
                queue,
                0,
                "",
                True,
            )
            stored = [unpack(each) for each in fake.brokers["broker-a"].log["T", 1]]
            assert [(each.body, each.properties["UNIQ_KEY"], each.properties["TAGS"]) for each in stored] == [
                (b"one", "id-one", "A"),
                (b"two", "id-two", "A"),
            ]
            (command,) = fake.brokers["broker-a"].server.seen(RequestCode.SEND_BATCH_MESSAGE)
            assert command.body == packed(b"one", b"two").body

    run(backend, body)


@on_both_backends
def test_hooks_see_its_messages(backend: str) -> None:
    """Properties added by a hook are sent; ids, tags and flags are kept."""
    seen: list[Sequence[Message]] = []

    class Marks(ClientSendHook):
        def before_send(self, context: ClientSendContext) -> None:
            seen.append(list(context.messages))
            context.set_property("mark", "yes")

    async def body() -> None:
        async with cluster(hooks=[Marks()]) as (fake, client), client.producer("p") as producer:
            await producer.send_packed(packed(b"one", b"two"))
        (stored,) = fake.brokers["broker-a"].log.values()
        found = [unpack(each).properties for each in stored]
        assert [(each["UNIQ_KEY"], each["mark"], each["TAGS"]) for each in found] == [
            ("id-one", "yes", "A"),
            ("id-two", "yes", "A"),
        ]
        assert [(each.body, each.flag) for each in seen[0]] == [(b"one", 7), (b"two", 7)]

    run(backend, body)


@on_both_backends
def test_what_cannot_be_sent(backend: str) -> None:
    """Invalid batches are refused before anything is sent; if all attempts fail, the text contains the
    size."""

    async def body() -> None:
        async with (
            cluster() as (fake, client),
            client.producer("p", max_message_bytes=100, retries=0) as producer,
        ):
            with pytest.raises(MessageIllegal, match="at most 100 are allowed"):
                await producer.send_packed(packed(b"x" * 100))
            with pytest.raises(MessageIllegal, match="a batch of 0 messages"):
                await producer.send_packed(packed())
            for topic in ("%RETRY%group", "no topic", "SCHEDULE_TOPIC_XXXX"):
                with pytest.raises(ClientError, match="a batch needs an ordinary topic"):
                    await producer.send_packed(packed(b"x", topic=topic))
            assert fake.brokers["broker-a"].server.seen(RequestCode.SEND_BATCH_MESSAGE) == []
            fake.brokers["broker-a"].overrides[RequestCode.SEND_BATCH_MESSAGE] = lambda command: answer(
                command, 2, "busy"
            )
            with pytest.raises(SendFailed, match=r"sending a packed batch of \d+ bytes to 'T' failed"):
                await producer.send_packed(packed(b"x"))
        with pytest.raises(ClientError, match="is not open"):
            await producer.send_packed(packed(b"x"))

    run(backend, body)


def test_from_a_plain_thread() -> None:
    """The blocking client sends it; an asynchronous context manager can be entered through the blocking
    client."""
    with tcp_cluster() as (fake, namesrv), BlockingClient(namesrv) as client:
        queue = MessageQueue("T", "broker-a", 0)
        with client.producer("p") as producer:
            assert producer.send_packed(packed(b"one"), queue=queue).queue_offset == 0
        with client.enter(client.asynchronous.producer("q")) as inner:
            assert client.run(inner.queues, "T") == [queue, MessageQueue("T", "broker-a", 1)]
        assert [unpack(each).body for each in fake.brokers["broker-a"].log["T", 0]] == [b"one"]
