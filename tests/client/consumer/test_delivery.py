"""Deliveries that are settled later than their iteration, by `ack` and `retry`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import BlockingClient, Client, ClientError, Delivery, MessageQueue, Prefetch, PushConsumer
from rmqkit.client.hooks import ClientConsumeContext, ClientConsumeHook
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from tests.client.consumer.groups import Group, group_of, until
from tests.client.consumer.test_push_consumer import QUEUE, send
from tests.client.fake_cluster import cluster, serve_group
from tests.client.fakes import on_both_backends, run, settled


@pytest.fixture
def topic(rocketmq: ThreadedRocketMQ) -> str:
    """A new topic with ten messages."""
    name = f"T-{uuid.uuid4().hex}"
    with BlockingClient(rocketmq.namesrv_text) as client, client.producer("producers") as producer:
        for number in range(10):
            producer.send(name, b"%d" % number)
    return name


@asynccontextmanager
async def consuming(group: Group, *bodies: str, **options: object) -> AsyncIterator[PushConsumer]:
    """A consumer of one queue with these messages."""
    await send(group, *bodies)
    async with group.client.push_consumer("g", subscribe="T", **options) as consumer:  # type: ignore[arg-type]
        yield consumer


async def taken(consumer: PushConsumer, count: int) -> dict[bytes, Delivery]:
    """The next deliveries, by the bodies of their messages."""
    found = [await anext(consumer) for _ in range(count)]
    return {each.message.body: each for each in found}


async def nothing_comes(consumer: PushConsumer, for_s: float) -> bool:
    with trio.move_on_after(for_s):
        await anext(consumer)
        return False
    return True


async def test_offsets_follow_late_settlements(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Deliveries are acknowledged in any order by any task. The committed offset does not pass one that is
    not settled; each is settled once, and has no block afterwards."""
    async with group_of(tmp_path, queues=1) as group, consuming(group, "0", "1", "2") as consumer:
        held = await taken(consumer, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held[b"1"].ack)
            nursery.start_soon(held[b"2"].ack)
        await trio.sleep(12)
        assert group.committed("g", QUEUE) in (None, 0)
        assert await held[b"0"].ack() is True
        await until(lambda: group.committed("g", QUEUE) == 3, 1)
        for settle in (held[b"0"].ack, held[b"1"].retry):
            with pytest.raises(ClientError, match="settled already"):
                await settle()
        with pytest.raises(ClientError, match="settled already"):
            async with held[b"0"]:
                raise AssertionError("the block began")


async def test_a_late_retry_delivers_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By the retry topic, after the delay asked for; the offset moves on, and the others do not wait."""
    async with group_of(tmp_path, queues=1) as group, consuming(group, "0", "1") as consumer:
        held = await taken(consumer, 2)
        began_s = trio.current_time()
        assert await held[b"0"].retry(after_ms=30_000) is True
        assert await held[b"1"].ack() is True
        await until(lambda: group.committed("g", QUEUE) == 2, 1)
        again = await anext(consumer)
        assert (again.message.body, again.message.topic, again.message.reconsume_times) == (b"0", "T", 1)
        assert trio.current_time() - began_s == pytest.approx(30, abs=2)
        for wrong in (-1, float("nan")):
            with pytest.raises(ClientError, match="must not be negative"):
                await again.retry(wrong)
        assert await again.ack() is True


async def test_an_ordered_queue_waits_for_late_settlements(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The next message is not given out before the current one is settled, and a retry repeats it in place
    after its pause."""
    async with group_of(tmp_path, queues=1) as group, consuming(group, "0", "1", order="queue") as consumer:
        first = await anext(consumer)
        assert await nothing_comes(consumer, 30)
        began_s = trio.current_time()
        await first.retry(after_ms=500)
        again = await anext(consumer)
        assert (again.message.body, again.message.reconsume_times) == (b"0", 1)
        assert trio.current_time() - began_s == pytest.approx(0.5, abs=0.1)
        await again.ack()
        second = await anext(consumer)
        assert second.message.body == b"1"
        await second.ack()


async def test_unsettled_messages_limit_the_pulls(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A queue beyond its limit is pulled again when messages are settled."""
    async with (
        group_of(tmp_path, queues=1) as group,
        consuming(group, *map(str, range(10)), prefetch=Prefetch(messages=2), pull_messages=1) as consumer,
    ):
        held = await taken(consumer, 3)
        assert await nothing_comes(consumer, 30)
        await held[b"1"].ack()
        assert (await anext(consumer)).message.body == b"3"


async def test_a_closed_consumer_keeps_no_delivery(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What is not settled at the close is delivered again; a settlement after it has no effect, and says
    so. The close does not wait."""
    async with group_of(tmp_path, queues=1) as group:
        async with consuming(group, "0", "1", "2") as consumer:
            held = await taken(consumer, 3)
            await held[b"0"].ack()
            began_s = trio.current_time()
        assert trio.current_time() - began_s < 1
        assert await held[b"1"].ack() is False
        assert await held[b"2"].retry() is False
        assert group.committed("g", QUEUE) == 1
        async with consuming(group) as consumer:
            again = await taken(consumer, 2)
            assert sorted(again) == [b"1", b"2"]
            assert {each.message.reconsume_times for each in again.values()} == {0}
            for each in again.values():
                await each.ack()
        assert group.committed("g", QUEUE) == 3


@pytest.mark.parametrize("order", ["none", "queue"])
async def test_a_lost_queue_takes_its_deliveries_along(
    tmp_path: Path, autojump_clock: MockClock, order: str
) -> None:
    """The new owner gets what the former one did not settle, whose settlement has no effect any more."""
    async with group_of(tmp_path, queues=2) as group, group.open_client("b") as other:
        queues = [MessageQueue("T", "broker-a", number) for number in range(2)]
        for queue in queues:
            await send(group, f"of {queue.queue_id}", queue=queue)
        options = {"order": order}
        async with group.client.push_consumer("g", subscribe="T", **options) as one:  # type: ignore[arg-type]
            held = {each.message.queue: each for each in (await taken(one, 2)).values()}
            async with other.push_consumer("g", subscribe="T", **options) as two:  # type: ignore[arg-type]
                moved = await anext(two)
                lost = moved.message.queue
                assert await held.pop(lost).ack() is False
                (kept,) = held.values()
                assert await kept.ack() is True
                assert await moved.ack() is True
        assert {group.committed("g", queue) for queue in queues} == {1}


async def test_a_settlement_within_the_block_counts(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What the block does later changes nothing: its error is logged, and nothing is delivered again."""
    async with group_of(tmp_path, queues=1) as group, consuming(group, "0", "1") as consumer:
        first, second = await anext(consumer), await anext(consumer)
        async with first:
            assert await first.ack() is True
            raise ValueError("too late")
        assert "after its messages were settled" in caplog.text
        async with second:
            with pytest.raises(ClientError, match="has a block already"):
                await second.__aenter__()
        await until(lambda: group.committed("g", QUEUE) == 2, 1)
        assert await nothing_comes(consumer, 60)


async def test_a_batch_is_settled_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Those that are finished before count once."""
    async with group_of(tmp_path, queues=1) as group, consuming(group, "0", "1", "2") as consumer:
        batch = await anext(consumer.batches(3, linger_ms=1000))
        batch.finish(batch.messages[0])
        assert await batch.retry(after_ms=1000) is True
        again = await taken(consumer, 2)
        assert sorted(again) == [b"1", b"2"]
        await until(lambda: group.committed("g", QUEUE) == 3, 1)


@on_both_backends
def test_the_close_waits_for_a_late_retry(backend: str) -> None:
    """A message that is on its way back when the consumer is closed is finished there, and its offset is
    committed."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client), anyio.create_task_group() as tasks:
            broker = serve_group(fake, client)
            broker.put("T", 0, b"0")

            async def slowly(command: Command) -> Command:
                await anyio.sleep(3)
                return answer(command)

            broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = slowly
            async with client.push_consumer("g", subscribe="T", start="first") as consumer:
                delivery = await anext(consumer)
                tasks.start_soon(delivery.retry)
                await settled()
                assert len(broker.server.seen(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
            assert broker.offsets["g", "T", 0] == 1

    run(backend, body)


class Told(ClientConsumeHook):
    """Records the calls of the hook."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_consume(self, context: ClientConsumeContext) -> None:
        self.calls.append("before")

    def after_consume(self, context: ClientConsumeContext) -> None:
        self.calls.append(context.result.name)


async def test_hooks_are_called_at_a_late_settlement(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Once for each delivery, with its outcome; nothing is told of one that is never settled."""
    hook = Told()
    async with group_of(tmp_path, queues=1) as group:
        await send(group, "0", "1", "2")
        cluster = group.cluster
        async with (
            Client(cluster.namesrv_text, connect=cluster.connect, client_id="c", hooks=[hook]) as client,
            client.push_consumer("g", subscribe="T") as consumer,
        ):
            held = await taken(consumer, 3)
            assert hook.calls == []
            await held[b"0"].ack()
            assert hook.calls == ["before", "SUCCESS"]
            await held[b"1"].retry()
            assert hook.calls[2:] == ["before", "EXCEPTION"]
        assert await held[b"2"].ack() is False
        assert hook.calls[4:] == ["before", "FAILED"]


async def test_an_ended_client_settles_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The offset cannot be committed any more, which is an error."""
    async with group_of(tmp_path, queues=1) as group:
        await send(group, "0")
        async with group.open_client("b") as client:
            consumer = await client.push_consumer("g", subscribe="T").start()
            delivery = await anext(consumer)
        with pytest.raises(ClientError, match="the client is closed"):
            await delivery.ack()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_both_loops_settle_later(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """All messages of a topic are settled by another task, and the next member gets none of them."""

    async def main() -> None:
        async with Client(rocketmq.namesrv_text) as client:
            async with client.push_consumer(f"g-{topic}", subscribe=topic, start="first") as consumer:
                held = await taken(consumer, 10)
                async with anyio.create_task_group() as tasks:
                    for each in held.values():
                        tasks.start_soon(each.ack)
            async with client.pull_consumer(f"g-{topic}") as reader:
                queues = await reader.queues(topic)
                assert sum([await reader.committed(queue) or 0 for queue in queues]) == 10

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_threads_settle_later(rocketmq: ThreadedRocketMQ, topic: str, backend: str) -> None:
    """In another thread than the one that iterates; a settled delivery has no block."""
    with BlockingClient(rocketmq.namesrv_text, backend=backend) as client:
        with client.push_consumer(f"g-{topic}", subscribe=topic, start="first") as consumer:
            deliveries = iter(consumer)
            held = [next(deliveries) for _ in range(10)]
            outcomes: list[bool] = []

            def settle() -> None:
                outcomes.append(held[0].retry(after_ms=0))
                outcomes.extend(each.ack() for each in held[1:])

            thread = threading.Thread(target=settle)
            thread.start()
            thread.join()
            assert outcomes == [True] * 10
            again = next(deliveries)
            assert (again.message.body, again.message.reconsume_times) == (held[0].message.body, 1)
            assert again.ack() is True
            with pytest.raises(ClientError, match="settled already"):
                again.ack()
            with pytest.raises(ClientError, match="settled already"), again:
                raise AssertionError("the block began")
        with client.pull_consumer(f"g-{topic}") as reader:
            assert sum(reader.committed(queue) or 0 for queue in reader.queues(topic)) == 10
