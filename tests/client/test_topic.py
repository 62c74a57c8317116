"""Topics with typed values: sending, receiving, dead letters of what cannot be decoded, in all faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import anyio
import msgspec
import pytest

from rmqkit.client import (
    BlockingClient,
    Client,
    ClientError,
    Message,
    MessageQueue,
    ReceivedMessage,
    TooManyFailures,
    codecs,
)
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from tests.client.fakes import on_both_backends

PATIENCE_S = 30


class Order(msgspec.Struct):
    name: str
    amount: int


ONE, TWO = Order("one", 1), Order("two", 2)
JSON = codecs.json(Order)


@pytest.fixture
def served(rocketmq: ThreadedRocketMQ) -> ThreadedRocketMQ:
    """A broker with a topic of one queue, which has two orders, and a message between them that is none."""
    with rocketmq.blocking_client() as client, client.producer("makers") as producer:
        client.admin.create_topic("Orders", queues=1)
        for body in (JSON.encode(ONE), b'{"name":"bad"}', JSON.encode(TWO)):
            producer.send("Orders", body)
    return rocketmq


def dead_letters(served: ThreadedRocketMQ, group: str) -> list[tuple[bytes, str, str]]:
    """Bodies, causes and errors of the dead letters of a group, as soon as there are some."""
    with (
        served.blocking_client() as client,
        client.lite_pull_consumer("undertakers", subscribe=f"%DLQ%{group}", start="first") as reader,
    ):
        return [
            (each.body, each.properties["RMQKIT_DLQ_CAUSE"], each.properties["RMQKIT_DLQ_ERROR"])
            for each in reader.poll(timeout_s=PATIENCE_S)
        ]


REASON = "application/json expected: ValidationError: Object missing required field `amount`"
DEAD = [(b'{"name":"bad"}', "unreadable", REASON)]


@on_both_backends
def test_a_typed_topic(backend: str, served: ThreadedRocketMQ) -> None:
    """Iterating gives the values; what cannot be decoded is a dead letter with the reason."""
    got: list[Order] = []

    async def body() -> None:
        async with Client(served.namesrv_text) as client, client.topic("Orders", Order) as orders:
            sent = await orders.send(Order("three", 3), keys=["k"], tag="new")
            assert sent.is_ok
            with anyio.fail_after(PATIENCE_S):
                async for message in orders.consumer(group="billing", start="first"):
                    got.append(message.value)
                    if message.value.amount == 3:
                        break
            assert (message.keys, message.tag) == (("k",), "new")
            assert message.properties["contentType"] == "application/json"
            assert message.body == b'{"name":"three","amount":3}'

    anyio.run(body, backend=backend)
    assert got == [ONE, TWO, Order("three", 3)]
    assert dead_letters(served, "billing") == DEAD


@on_both_backends
def test_a_handler_gets_values(backend: str, served: ThreadedRocketMQ) -> None:
    """`run` joins a group; an error of the handler has the message delivered again, and a message that cannot
    be decoded is not counted as a failure of the handler."""
    got: list[Order] = []

    async def body() -> None:
        async with Client(served.namesrv_text) as client:
            orders = client.topic("Orders", Order)

            async def handle(message: ReceivedMessage[Order]) -> None:
                got.append(message.value)
                if len(got) == 2:
                    raise RuntimeError("no")

            with anyio.fail_after(PATIENCE_S), pytest.raises(TooManyFailures):
                await orders.run(handle, group="billing", start="first", stop_after_failures=1)

    anyio.run(body, backend=backend)
    assert sorted(got, key=lambda each: each.amount) == [ONE, TWO]
    assert dead_letters(served, "billing") == DEAD


def test_the_blocking_face(served: ThreadedRocketMQ) -> None:
    """Has the same methods."""
    with BlockingClient(served.namesrv_text) as client, client.topic("Orders", Order) as orders:
        assert (orders.name, orders.codec.content_type) == ("Orders", "application/json")
        assert orders.send(Order("three", 3)).is_ok
        with client.producer("batches") as producer:
            producer.send_batch([orders.message(Order("four", 4), tag="t"), orders.message(Order("five", 5))])
        with orders.consumer(group="readers", start="first") as consumer:
            values = [message.value for _, message in zip(range(5), consumer, strict=False)]
        assert [each.amount for each in values] == [1, 2, 3, 4, 5]
        pushed = orders.push_consumer("billing", start="first")
        seen: list[int] = []

        def handle(message: ReceivedMessage[Order]) -> None:
            seen.append(message.value.amount)
            if len(seen) == 5:
                pushed.stop()

        pushed.run(handle)
        assert sorted(seen) == [1, 2, 3, 4, 5]

        def refuse(_message: ReceivedMessage[Order]) -> None:
            raise RuntimeError("no")

        with pytest.raises(TooManyFailures):
            orders.run(refuse, group="refusers", start="first", stop_after_failures=1)
    assert dead_letters(served, "billing") == DEAD


@on_both_backends
@pytest.mark.parametrize("face", ["push", "ordered", "pop", "lite", "pull", "receive"])
def test_every_consumer_has_values(face: str, backend: str, served: ThreadedRocketMQ) -> None:
    """With `codec=`; each of them puts the wrong message among the dead letters."""
    got: list[Order] = []

    async def body() -> None:
        async with Client(served.namesrv_text) as client:
            with anyio.fail_after(PATIENCE_S):
                await FACES[face](client, got)

    anyio.run(body, backend=backend)
    assert sorted(got, key=lambda each: each.amount) == [ONE, TWO]
    assert dead_letters(served, "g") == DEAD


async def pushed(client: Client, got: list[Order], order: Literal["none", "queue"] = "none") -> None:
    made = client.push_consumer("g", subscribe="Orders", codec=JSON, start="first", order=order)
    async with made as consumer:
        async for delivery in consumer:
            async with delivery as message:
                got.append(message.value)
            if len(got) == 2:
                return


async def popped(client: Client, got: list[Order]) -> None:
    async with client.pop_consumer("g", subscribe="Orders", codec=JSON, start="first") as consumer:

        async def handle(message: ReceivedMessage[Order]) -> None:
            got.append(message.value)
            if len(got) == 2:
                consumer.stop()

        await consumer.run(handle)


async def received(client: Client, got: list[Order]) -> None:
    async with client.pop_consumer("g", subscribe="Orders", codec=JSON, start="first") as consumer:
        while len(got) < 2:
            for lease in await consumer.receive():
                got.append(lease.message.value)
                await consumer.ack(lease)


async def polled(client: Client, got: list[Order]) -> None:
    async with client.lite_pull_consumer("g", subscribe="Orders", codec=JSON, start="first") as consumer:
        while len(got) < 2:
            got += [message.value for message in await consumer.poll()]


async def pulled(client: Client, got: list[Order]) -> None:
    async with client.pull_consumer("g", codec=JSON) as consumer:
        result = await consumer.pull(MessageQueue("Orders", "broker-a", 0), 0)
        got += [message.value for message in result.messages]


async def pushed_in_order(client: Client, got: list[Order]) -> None:
    await pushed(client, got, "queue")


FACES: dict[str, Callable[[Client, list[Order]], Any]] = {
    "push": pushed,
    "ordered": pushed_in_order,
    "pop": popped,
    "receive": received,
    "lite": polled,
    "pull": pulled,
}


@on_both_backends
def test_undecodable_messages_can_be_delivered(backend: str, served: ThreadedRocketMQ) -> None:
    """With bad_records="deliver" they come in their turn, with the fault and the body, and no value."""

    async def body() -> None:
        async with Client(served.namesrv_text) as client:
            orders = client.topic("Orders", Order)
            async with orders.consumer("g", start="first", bad_records="deliver") as consumer:
                with anyio.fail_after(PATIENCE_S):
                    messages = [await anext(consumer) for _ in range(3)]
            _, bad, _ = messages
            assert [each.fault is None for each in messages] == [True, False, True]
            assert (bad.fault, bad.body) == (REASON, b'{"name":"bad"}')
            assert not bad.value

    anyio.run(body, backend=backend)


@on_both_backends
def test_producers_with_a_codec(backend: str, served: ThreadedRocketMQ) -> None:
    """They send values, whole messages as they are, and nothing that is not a value. A content type of one's
    own stays."""

    async def body() -> None:
        async with (
            Client(served.namesrv_text) as client,
            client.producer("p", codec=codecs.msgpack(Order)) as producer,
            client.pull_consumer("g") as consumer,
        ):
            sent = [
                await producer.send("Two", ONE, properties={"contentType": "application/x-order"}),
                await producer.send("Two", TWO, queue=(await producer.queues("Two"))[0]),
                await producer.send(Message("Two", b"raw")),
            ]
            await producer.send_oneway("Two", ONE)
            with pytest.raises(TypeError, match="a value of Order is expected, not of bytes"):
                await producer.send("Two", b"raw")  # type: ignore[arg-type]
            stored = [(await consumer.pull(each.queue, each.queue_offset)).messages[0] for each in sent]
            assert [each.properties.get("contentType") for each in stored] == [
                "application/x-order",
                "application/msgpack",
                None,
            ]
            assert stored[1].body == b"\x82\xa4name\xa3two\xa6amount\x02"

    anyio.run(body, backend=backend)


def test_sends_of_threads_with_a_codec(served: ThreadedRocketMQ) -> None:
    """`send_async` encodes in the calling thread, and says there what is wrong."""
    with BlockingClient(served.namesrv_text) as client, client.producer("p", codec=JSON) as producer:
        futures = [producer.send_async("Many", Order("x", number), keys=["k"]) for number in range(3)]
        futures.append(producer.send_async(Message("Many", b"raw")))
        assert all(future.result(PATIENCE_S).is_ok for future in futures)
        with pytest.raises(TypeError, match="a value of Order is expected"):
            producer.send_async("Many", "no order")  # type: ignore[arg-type]
        with client.lite_pull_consumer("g", subscribe="Many", codec=JSON, start="first") as consumer:
            found = [message.value.amount for _, message in zip(range(3), consumer, strict=False)]
        assert sorted(found) == [0, 1, 2]


@on_both_backends
def test_values_in_a_namespace(backend: str, served: ThreadedRocketMQ) -> None:
    """Names are converted, and values that are iterable stay as they are."""

    async def body() -> None:
        async with (
            Client(served.namesrv_text, namespace="shop") as client,
            client.topic("Lists", dict[str, list[int]]) as lists,
            client.producer("p", codec=codecs.json(frozenset[str])) as producer,
        ):
            await lists.send({"a": [1, 2]})
            await producer.send("Sets", body=frozenset({"a"}))
            with anyio.fail_after(PATIENCE_S):
                message = await anext(lists.consumer("g", start="first"))
            assert (message.value, message.topic) == ({"a": [1, 2]}, "Lists")

    anyio.run(body, backend=backend)


@on_both_backends
def test_a_handle_can_be_closed_and_used_again(backend: str, served: ThreadedRocketMQ) -> None:
    """Closing closes the producer and every consumer that was made, opened or not."""

    async def body() -> None:
        async with Client(served.namesrv_text) as client:
            orders = client.topic("Orders", Order, group="senders")
            first, second = orders.consumer("a", start="first"), orders.consumer("b", start="first")
            await anext(first)
            await orders.send(ONE)
            await orders.aclose()
            assert (first.is_open, second.is_open) == (False, False)
            assert (await orders.send(ONE)).is_ok
            async with client.topic("Orders", Order, group="others") as others:
                assert (await others.send(ONE)).is_ok
            with pytest.raises(ClientError, match="senders"):
                await client.topic("Orders", Order, group="senders").send(ONE)
            await orders.aclose()
            await orders.aclose()

    anyio.run(body, backend=backend)


def test_a_handle_needs_a_name_and_a_type(served: ThreadedRocketMQ) -> None:
    """Of values, or a codec."""
    with BlockingClient(served.namesrv_text) as client:
        with pytest.raises(ClientError, match="a handle needs a legal topic"):
            client.topic("no topic", Order)
        with pytest.raises(ClientError, match="a topic needs the type of its values, or a codec"):
            client.topic("Orders", None)  # type: ignore[call-overload]
        assert client.topic("Orders", codec=codecs.msgpack(Order)).codec.content_type == "application/msgpack"
