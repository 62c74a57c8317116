"""Pop consumers under asyncio, with handlers in threads, and from scripts without an event loop, over real
sockets."""

from __future__ import annotations

import threading
import uuid

import anyio
import pytest

from rmqkit.client import BlockingClient, BrokerError, Client, MessageQueue, ReceivedMessage, Retry
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from tests.raw_sends import send_raw

PATIENCE_S = 60
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
BODIES = [b"%d" % number for number in range(10)]


@pytest.fixture
def topic(rocketmq: ThreadedRocketMQ) -> str:
    """A new topic with ten messages."""
    name = f"T-{uuid.uuid4().hex}"
    with BlockingClient(rocketmq.namesrv_text) as client, client.producer("producers") as producer:
        for body in BODIES:
            producer.send(name, body)
    return name


@BACKENDS
def test_coroutines_handle_messages(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """Each once, and a failed one again."""
    seen: list[tuple[bytes, int]] = []

    async def main() -> None:
        async with Client(rocketmq.namesrv_text) as client:
            consumer = client.pop_consumer(f"g-{topic}", subscribe=topic, start="first")

            async def handle(message: ReceivedMessage) -> None:
                seen.append((message.body, message.reconsume_times))
                if len(seen) == 11:
                    consumer.stop()
                if message.body == b"3" and not message.reconsume_times:
                    raise Retry(after=0.1)

            with anyio.fail_after(PATIENCE_S):
                async with consumer:
                    await consumer.run(handle)

    anyio.run(main, backend=backend)
    assert sorted(seen) == sorted([*((body, 0) for body in BODIES), (b"3", 1)])


@BACKENDS
def test_a_script_consumes_in_threads(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """Two handlers at a time; what is finished is not delivered again."""
    bodies: list[bytes] = []
    both = threading.Barrier(2)
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        consumer = client.pop_consumer(f"g-{topic}", subscribe={topic: "*"}, start="first")

        def handle(message: ReceivedMessage) -> None:
            if message.body in (b"0", b"1"):
                both.wait(PATIENCE_S)
            bodies.append(message.body)
            if len(bodies) == len(BODIES):
                consumer.stop()

        consumer.run(handle, threads=4)
        assert sorted(bodies) == BODIES
        with client.pop_consumer(f"g-{topic}", subscribe=topic) as consumer:
            assert consumer.receive(wait_ms=100) == []


@BACKENDS
def test_a_script_leases_by_hand(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """And in loops, with batches; the methods are those of the asynchronous consumer."""
    seen: list[bytes] = []
    with (
        BlockingClient(rocketmq.namesrv_text, backend=backend) as client,
        client.pop_consumer(f"g-{topic}", subscribe=topic, start="first") as consumer,
    ):
        first, second, third, fourth = consumer.receive(4)
        consumer.ack(first, second)
        consumer.extend(third, 5_000)
        consumer.ack(third)
        with pytest.raises(BrokerError):
            consumer.ack(third)
        consumer.dead_letter(fourth, "too old")
        seen += [each.message.body for each in (first, second, third, fourth)]
        (fifth,) = consumer.receive(1)
        consumer.release(fifth)
        for batch in consumer.batches(3, linger_ms=20):
            with batch as messages:
                seen += [message.body for message in messages]
            if len(seen) >= 7:
                break
        for delivery in consumer:
            with delivery as message:
                seen.append(message.body)
            if len(seen) == 10:
                consumer.stop()
    assert sorted(seen) == BODIES


@BACKENDS
def test_a_record_that_cannot_be_decoded(rocketmq: ThreadedRocketMQ, backend: str) -> None:
    """It goes to the dead letters as it is, or to the handler undecoded, and holds up nobody."""
    topic = f"bad-{uuid.uuid4().hex}"
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        client.admin.create_topic(topic, queues=1)
        send_raw(rocketmq.address(), topic, b"0")
        send_raw(rocketmq.address(), topic, b"no zlib", sys_flag=COMPRESSED)
        send_raw(rocketmq.address(), topic, b"2")
        group = f"away-{topic}"
        with client.pop_consumer(group, subscribe=topic, start="first") as consumer:
            seen = []
            for delivery in consumer:
                with delivery as message:
                    seen.append(message.body)
                if len(seen) == 2:
                    break
            assert sorted(seen) == [b"0", b"2"]
        # Leaving has waited for it.
        with client.pull_consumer("undertakers", bad_records="deliver") as reader:
            (dead,) = reader.pull(MessageQueue(f"%DLQ%{group}", "broker-a", 0), 0).messages
        assert dead.body == b"no zlib"
        with client.pop_consumer(
            f"deliver-{topic}", subscribe=topic, start="first", bad_records="deliver"
        ) as consumer:
            faults = {}
            for delivery in consumer:
                with delivery as message:
                    faults[message.body] = message.fault
                if len(faults) == 3:
                    break
            assert {body for body, fault in faults.items() if fault} == {b"no zlib"}
