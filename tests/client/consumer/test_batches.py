"""Batches of push consumers: what is gathered, and what happens to the messages at the end of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import ClientError, Message, MessageQueue
from rmqkit.client.consumer.assigned import Assigned, Order
from rmqkit.client.consumer.batches import Batches
from rmqkit.client.consumer.delivery import InHand, MessageOutcomes
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import ClientHooks
from rmqkit.model.names import retry_topic
from rmqkit.remoting.backend import async_backend
from tests.client.consumer.groups import group_of
from tests.client.consumer.messages import message

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))


class Settled(MessageOutcomes[Assigned]):
    """Finishes and returns messages, and records those that failed."""

    group = "g"

    def __init__(self, distributor: Distributor[Assigned]) -> None:
        self.failures: list[tuple[list[int], Exception]] = []
        self._distributor = distributor
        self.backend = async_backend()

    def check_usable(self) -> None:
        pass

    def measured(self, assigned: Assigned, messages: int, began_s: float, *, ok: bool) -> None:
        pass

    async def failed(self, held: Sequence[InHand[Assigned]], error: Exception) -> None:
        self.failures.append(([message.queue_offset for _, message in held], error))

    def finished(self, assigned: Assigned, message: ReceivedMessage) -> None:
        assigned.finish(message)

    def returned(self, assigned: Assigned, message: ReceivedMessage) -> None:
        assigned.give_back(message)
        self._distributor.offer(assigned)


class Gathering:
    """Two queues with buffered messages, and batches of them."""

    def __init__(self, *counts: int, size: int, linger_s: float, order: Order = "none") -> None:
        self.distributor = Distributor[Assigned]()
        self.settled = Settled(self.distributor)
        self.queues = [Assigned(queue, 0, order=order) for queue in (A, B)]
        for assigned, count in zip(self.queues, counts, strict=True):
            self.put(assigned, count)
        hooks = ClientHooks("client")
        self.batches = Batches(lambda: self.settled, hooks, self.distributor, size, linger_s)

    def put(self, assigned: Assigned, count: int) -> None:
        """Buffer the next messages of a queue."""
        start = assigned.messages.pulled_to
        found = [message(start + number, queue=assigned.queue) for number in range(count)]
        assigned.messages.put(found, start + count)
        self.distributor.offer(assigned)

    @property
    def in_hand(self) -> list[int]:
        return [assigned.messages.in_hand for assigned in self.queues]

    async def next(self) -> list[tuple[int, int]]:
        """Queue and offset of each message of the next batch, which is finished."""
        batch = await anext(self.batches)
        async with batch:
            await trio.lowlevel.checkpoint()
        return places(batch.messages)


def places(messages: Sequence[ReceivedMessage]) -> list[tuple[int, int]]:
    return [(each.queue.queue_id, each.queue_offset) for each in messages]


@pytest.mark.row("S201")
async def test_a_full_batch_has_messages_of_all_queues(autojump_clock: MockClock) -> None:
    """The messages of a queue are together and in order. A full batch does not linger, another one does, and
    gets what arrives in that time."""
    gathering = Gathering(3, 2, size=4, linger_s=0.05)
    began_s = trio.current_time()
    assert await gathering.next() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trio.current_time() == began_s
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def arrive() -> None:
            await trio.sleep(0.03)
            gathering.put(gathering.queues[1], 1)

        assert await gathering.next() == [(0, 2), (1, 2)]
    assert trio.current_time() - began_s == pytest.approx(0.05)
    assert [assigned.messages.commit_offset for assigned in gathering.queues] == [3, 3]


async def test_batches_of_ordered_queues(autojump_clock: MockClock) -> None:
    """A batch has one message of an ordered queue at most, since the next one waits for it."""
    gathering = Gathering(2, 1, size=4, linger_s=0.05, order="queue")
    assert await gathering.next() == [(0, 0), (1, 0)]


@pytest.mark.parametrize("end", ["cancelled", "stopped"])
async def test_what_is_gathered_is_returned(autojump_clock: MockClock, end: str) -> None:
    """When the loop is cancelled, or the consumer is stopped, before a batch is full, no message is in hand
    afterwards, and those of a queue keep their order."""
    gathering = Gathering(2, 1, size=4, linger_s=60)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def interrupt() -> None:
                await trio.sleep(30)
                assert gathering.in_hand == [2, 1]
                if end == "cancelled":
                    scope.cancel()
                else:
                    gathering.distributor.close()

            with pytest.raises(trio.Cancelled if end == "cancelled" else StopAsyncIteration):
                await anext(gathering.batches)
            assert gathering.in_hand == [0, 0]
    offsets = [found.queue_offset for found in iter(gathering.queues[0].messages.take, None)]
    assert offsets == [0, 1]


async def test_a_queue_lost_while_lingering(autojump_clock: MockClock) -> None:
    """The messages of a queue that was lost before the batch was handed out are not in it."""
    gathering = Gathering(2, 1, size=4, linger_s=60)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lose() -> None:
            await trio.sleep(30)
            gathering.queues[0].drop()

        assert await gathering.next() == [(1, 0)]


async def test_a_queue_lost_in_the_block(autojump_clock: MockClock) -> None:
    """The block is cancelled, and the loop goes on: the messages of the other queue come again, neither
    finished nor failed. An error after the loss fails those of the other queue alone."""
    gathering = Gathering(1, 2, size=4, linger_s=0)
    async with await anext(gathering.batches) as messages:
        assert places(messages) == [(0, 0), (1, 0), (1, 1)]
        gathering.queues[0].drop()
        await trio.sleep_forever()
    assert gathering.settled.failures == []
    assert [assigned.messages.commit_offset for assigned in gathering.queues] == [0, 0]
    assert await gathering.next() == [(1, 0), (1, 1)]

    gathering = Gathering(1, 2, size=4, linger_s=0)
    error = ValueError("a defect")
    async with await anext(gathering.batches):
        gathering.queues[0].drop()
        raise error
    assert gathering.settled.failures == [([0, 1], error)]


@pytest.mark.row("S204")
async def test_a_batch_may_be_done_in_part(autojump_clock: MockClock) -> None:
    """Messages that were finished in the block stay finished whatever the block ends with; an error fails the
    others alone, and a cancelled block returns them."""
    gathering = Gathering(3, 2, size=5, linger_s=0)
    error = ValueError("a defect")
    batch = await anext(gathering.batches)
    async with batch as messages:
        batch.finish(*messages[:2], messages[3])
        assert [assigned.messages.commit_offset for assigned in gathering.queues] == [2, 1]
        batch.finish(messages[0])
        raise error
    assert gathering.settled.failures == [([2, 1], error)]
    with pytest.raises(ValueError, match="id-9 is not in this batch"):
        batch.finish(message(9, queue=MessageQueue("T", "broker-a", 9)))

    gathering = Gathering(2, 0, size=5, linger_s=0)
    batch = await anext(gathering.batches)
    with trio.CancelScope() as scope:
        async with batch as messages:
            batch.finish(messages[0])
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert await gathering.next() == [(0, 1)]


async def test_a_queue_lost_before_its_messages_are_done(autojump_clock: MockClock) -> None:
    """Finishing them has no effect, because their queue belongs to another member."""
    gathering = Gathering(1, 0, size=5, linger_s=0)
    batch = await anext(gathering.batches)
    async with batch as messages:
        gathering.queues[0].drop()
        batch.finish(*messages)
        await trio.lowlevel.checkpoint()
    assert gathering.queues[0].messages.commit_offset == 0


async def test_each_block_settles_all_its_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The messages of a cancelled block come again at once, those of a block with an error by the retry
    topic; leaving a block finishes its messages, and the offsets are committed."""
    bodies = [str(number) for number in range(20)]
    first: list[list[tuple[str, int]]] = []
    finished: Counter[str] = Counter()
    attempts: dict[str, int] = {}
    async with group_of(tmp_path, queues=2) as group:
        for body in bodies:
            await group.producer.send(Message("T", body.encode()))
        async with group.client.push_consumer("g", subscribe="T") as consumer:
            async for batch in consumer.batches(8, linger_ms=50):
                found = [(each.body.decode(), each.reconsume_times) for each in batch.messages]
                assert 0 < len(found) <= 8
                first.append(found)
                with trio.CancelScope() as scope:
                    async with batch as messages:
                        assert messages is batch.messages
                        if len(first) == 1:
                            scope.cancel()
                            await trio.sleep_forever()
                        if len(first) == 2:
                            raise ValueError("a defect")
                        attempts.update(found)
                        finished.update(body for body, _ in found)
                if len(finished) == len(bodies):
                    consumer.stop()
            failed = {body for body, _ in first[1]}
            queues = await group.client.admin.topic_stats("T")
        assert finished == Counter(bodies)
        assert attempts == {body: int(body in failed) for body in bodies}
        assert {body for body, _ in first[0]} <= set(attempts)
        assert {queue: group.committed("g", queue) for queue in queues} == {
            queue: figures.max_offset for queue, figures in queues.items()
        }
        assert group.committed("g", MessageQueue(retry_topic("g"), "broker-a", 0)) == len(failed)


async def test_wrong_batches_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A batch of nothing, a negative time and a consumer that is not open are errors."""
    async with group_of(tmp_path) as group:
        consumer: Any = group.client.push_consumer("g", subscribe="T")
        with pytest.raises(ClientError, match="size=0"):
            consumer.batches(0)
        with pytest.raises(ClientError, match="linger_ms=-1"):
            consumer.batches(1, linger_ms=-1)
        with pytest.raises(ClientError, match="not open"):
            await anext(consumer.batches(1))
