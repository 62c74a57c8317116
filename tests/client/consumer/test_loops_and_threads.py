"""Push consumers under asyncio, with handlers in threads, and from scripts without an event loop, over real
sockets."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections import Counter

import anyio
import pytest

from rmqkit.client import (
    BlockingClient,
    BlockingPushConsumer,
    Client,
    ClientError,
    Message,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    Retry,
)
from rmqkit.testing.rocketmq import ThreadedRocketMQ

PATIENCE_S = 60


@pytest.fixture
def topic(rocketmq: ThreadedRocketMQ) -> str:
    """A new topic with ten messages."""
    name = f"T-{uuid.uuid4().hex}"
    with BlockingClient(rocketmq.namesrv_text) as client, client.producer("producers") as producer:
        for number in range(10):
            producer.send(name, b"%d" % number)
    return name


@pytest.mark.row("S199")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_coroutines_and_threads_handle_messages(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """`async def` runs in the event loop; a plain function runs in threads, several at a time, and its error
    is a failure as well. What one consumer has finished, the next one does not get."""
    loop_thread: list[int] = []
    seen: list[tuple[bytes, int, int]] = []
    both = threading.Barrier(2)

    def plain(message: ReceivedMessage) -> None:
        if message.body in (b"0", b"1") and message.reconsume_times == 0:
            both.wait(PATIENCE_S)
        seen.append((message.body, message.reconsume_times, threading.get_ident()))
        if message.body == b"3" and message.reconsume_times == 0:
            raise Retry(after=1)

    async def coroutine(message: ReceivedMessage) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append((message.body, message.reconsume_times, threading.get_ident()))

    async def handled(count: int) -> None:
        with anyio.fail_after(PATIENCE_S):
            while True:
                if len(seen) >= count:
                    return
                await anyio.sleep(0.01)

    async def main() -> None:
        loop_thread.append(threading.get_ident())
        async with Client(rocketmq.namesrv_text) as client:
            for handle, expected in ((plain, 11), (coroutine, 12)):
                async with (
                    client.push_consumer(f"g-{topic}", subscribe=topic) as consumer,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(consumer.run, handle)
                    await handled(expected)
                    consumer.stop()
                if expected == 11:
                    async with client.producer("producers") as producer:
                        await producer.send(Message(topic, b"more"))

    anyio.run(main, backend=backend)
    assert sorted(body for body, _, _ in seen) == sorted([*(b"%d" % n for n in range(10)), b"3", b"more"])
    assert (b"3", 1) in [one[:2] for one in seen[:11]]
    assert loop_thread[0] not in {thread for _, _, thread in seen[:11]}
    assert seen[11][2] == loop_thread[0]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_consumes_in_threads(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """`run` opens the consumer, calls the handler in threads, and returns after `stop`; the finished messages
    are committed then."""
    bodies: list[bytes] = []

    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        consumer = client.push_consumer(f"g-{topic}", subscribe={topic: "*"})

        def handle(message: ReceivedMessage) -> None:
            bodies.append(message.body)
            if len(bodies) == 10:
                consumer.stop()

        consumer.run(handle, threads=4)
        assert sorted(bodies) == [b"%d" % number for number in range(10)]
        with client.pull_consumer(f"g-{topic}") as reader:
            committed = sum(reader.committed(queue) or 0 for queue in reader.queues(topic))
        assert committed == 10


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_consumes_in_loops(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """Leaving a block finishes its messages, an error has them delivered again, and an interruption leaves
    them unfinished and goes on."""
    seen: list[tuple[bytes, int]] = []
    failed: list[bytes] = []
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        with client.push_consumer(f"g-{topic}", subscribe=topic, max_attempts=2) as consumer:
            for batch in consumer.batches(4, linger_ms=20):
                with batch as messages:
                    assert 0 < len(messages) <= 4
                    seen += [(message.body, message.reconsume_times) for message in messages]
                    if not failed:
                        failed.append(messages[0].body)
                        batch.finish(*messages[1:])
                        raise Retry(after=0)
                if len(seen) == 11:
                    break
            assert [body for body, times in seen if times] == failed
            with pytest.raises(KeyboardInterrupt):
                interrupt_a_block(client, consumer, topic)
            for delivery in consumer:
                with delivery as message:
                    assert message.body == b"more"
                consumer.stop()
        with client.pull_consumer(f"g-{topic}") as reader:
            assert sum(reader.committed(queue) or 0 for queue in reader.queues(topic)) == 11


def interrupt_a_block(client: BlockingClient, consumer: BlockingPushConsumer, topic: str) -> None:
    with client.producer("producers") as producer:
        producer.send(topic, b"more")
    with next(iter(consumer)) as message:
        assert message.body == b"more"
        raise KeyboardInterrupt


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_polls(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """The lite pull consumer has the same methods without async."""
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        with client.lite_pull_consumer(f"g-{topic}", subscribe=topic) as consumer:
            bodies: list[bytes] = []
            while len(bodies) < 10:
                bodies += [message.body for message in consumer.poll()]
            consumer.commit()
            assert sorted(bodies) == [b"%d" % number for number in range(10)]
            first, *_ = queues = consumer.topic_queues(topic)
            assert queues == consumer.queues
            consumer.pause(first)
            assert consumer.paused == [first]
            consumer.resume(first)
            for queue in queues:
                consumer.seek_to_begin(queue)
            again: list[bytes] = []
            for message in consumer:
                again.append(message.body)
                if len(again) == 10:
                    consumer.stop()
            assert sorted(again) == sorted(bodies)
        with client.lite_pull_consumer(f"h-{topic}", start="first") as consumer:
            consumer.assign(queues)
            assert consumer.queues == queues
            assert consumer.poll()
            with pytest.raises(ClientError, match="does not belong"):
                consumer.pause(MessageQueue(topic, "elsewhere", 0))


def watch(consumer: PushConsumer, stopped: threading.Event) -> None:
    """Set the event when the consumer is stopped."""
    stop = consumer.stop

    def tell() -> None:
        stop()
        stopped.set()

    consumer.stop = tell  # type: ignore[method-assign]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_terminated_member_loses_and_repeats_nothing(
    rocketmq: ThreadedRocketMQ, topic: str, backend: str
) -> None:
    """SIGTERM arrives while handlers run. They end, and everything finished is committed: the next member
    gets each of the other messages once, and nothing else."""
    handled: Counter[bytes] = Counter()
    counting = threading.Lock()
    terminated, stopped = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        with counting:
            handled[message.body] += 1
            if handled.total() in (4, 10):
                terminated.set()
                os.kill(os.getpid(), signal.SIGTERM)
        assert not terminated.is_set() or stopped.wait(PATIENCE_S)

    async def main() -> None:
        terminated.clear()
        stopped.clear()
        async with (
            Client(rocketmq.namesrv_text) as client,
            client.push_consumer(f"g-{topic}", subscribe=topic) as consumer,
        ):
            watch(consumer, stopped)
            await consumer.run(handle, concurrency=2, stop_on=[signal.SIGTERM])

    anyio.run(main, backend=backend)
    assert 4 <= handled.total() < 10
    anyio.run(main, backend=backend)
    assert handled == Counter(b"%d" % number for number in range(10))


@pytest.mark.parametrize("backend", ["asyncio", "trio", "blocking"])
def test_a_signal_stops_the_consumption(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """The message in hand is finished and committed, no further one is begun, and the signal's former handler
    is back afterwards."""
    begun: list[bytes] = []
    ended: list[bytes] = []
    stopped = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stopped.wait(PATIENCE_S)
        ended.append(message.body)

    async def main() -> None:
        async with (
            Client(rocketmq.namesrv_text) as client,
            client.push_consumer(f"g-{topic}", subscribe=topic) as consumer,
        ):
            watch(consumer, stopped)
            await consumer.run(handle, concurrency=1, stop_on=[signal.SIGUSR1])

    before = signal.getsignal(signal.SIGUSR1)
    with BlockingClient(rocketmq.namesrv_text) as client:
        if backend == "blocking":
            consumer = client.push_consumer(f"g-{topic}", subscribe=topic)
            watch(consumer.asynchronous, stopped)
            consumer.run(handle, threads=1, stop_on=[signal.SIGUSR1])
        else:
            anyio.run(main, backend=backend)
        assert len(begun) == len(ended) == 1
        assert signal.getsignal(signal.SIGUSR1) == before
        with client.pull_consumer(f"g-{topic}") as reader:
            assert sum(reader.committed(queue) or 0 for queue in reader.queues(topic)) == 1
