"""Ordered consumption against rmqkit's broker: one message of a queue at a time, under a lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from rmqkit.client import Client, MessageQueue, ReceivedMessage, Retry
from rmqkit.client.consumer import queue_locker
from tests.client.consumer.groups import Group, group_of, until

QUEUE = MessageQueue("T", "broker-a", 0)


@define
class Call:
    """One call of the handler; times of the loop's clock."""

    member: str
    body: str
    reconsume_times: int
    began_s: float
    ended_s: float = 0.0
    cancelled: bool = False


class Records:
    """Handlers of several members that record their calls by queue. `wrong` maps a body to the errors of its
    first deliveries, `slow` to the seconds that each takes; `stubborn` handlers cannot be cancelled."""

    def __init__(
        self,
        wrong: dict[str, list[Exception]] | None = None,
        slow: dict[str, float] | None = None,
        *,
        stubborn: bool = False,
    ) -> None:
        self.calls: defaultdict[MessageQueue, list[Call]] = defaultdict(list)
        self._wrong = wrong or {}
        self._slow = slow or {}
        self._stubborn = stubborn

    def handler(self, member: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
        async def handle(message: ReceivedMessage) -> None:
            body = message.body.decode()
            call = Call(member, body, message.reconsume_times, trio.current_time())
            self.calls[message.queue].append(call)
            try:
                with trio.CancelScope(shield=self._stubborn):
                    await trio.sleep(self._slow.get(body, 0.01))
                await trio.lowlevel.checkpoint_if_cancelled()
            except trio.Cancelled:
                call.cancelled = True
                raise
            finally:
                call.ended_s = trio.current_time()
            if errors := self._wrong.get(body):
                raise errors.pop(0)

        return handle

    @property
    def count(self) -> int:
        return sum(map(len, self.calls.values()))

    def check(self) -> None:
        """No two calls of a queue overlap, and each call is for the next message or repeats the last one."""
        for queue, calls in self.calls.items():
            for before, after in pairwise(calls):
                assert before.ended_s <= after.began_s, (queue, before, after)
                assert int(after.body) - int(before.body) in (0, 1), (queue, before, after)
                assert after.body != before.body or before.cancelled or after.reconsume_times, (before, after)


async def send(group: Group, queue: MessageQueue, numbers: range) -> None:
    for number in numbers:
        await group.producer.send("T", b"%d" % number, queue=queue)


@pytest.mark.row("S209", "S211", "S214", "S217", "S218")
async def test_a_failed_message_is_repeated_in_place(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The queue waits for it, a second or the time asked for; the other queues go on. The order is kept."""
    records = Records({"3": [ValueError("a defect"), Retry(after=20), Retry(after=0)]})
    other = MessageQueue("T", "broker-a", 1)
    async with (
        group_of(tmp_path, queues=2) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order="queue") as consumer,
    ):
        await send(group, QUEUE, range(6))
        await send(group, other, range(10, 20))
        nursery.start_soon(consumer.run, records.handler("a"))
        await until(lambda: records.count == 19)
        await until(lambda: group.committed("g", QUEUE) == 6, 1)
    records.check()
    calls = records.calls[QUEUE]
    assert [(call.body, call.reconsume_times) for call in calls[3:7]] == [("3", n) for n in range(4)]
    pauses = [after.began_s - before.ended_s for before, after in pairwise(calls[3:7])]
    assert pauses == [pytest.approx(1, abs=0.5), pytest.approx(20, abs=1), pytest.approx(0.01, abs=0.5)]
    assert records.calls[other][-1].ended_s < calls[5].ended_s


async def test_the_last_attempt_is_followed_by_the_dead_letter_topic(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """With `max_attempts` a message that keeps failing leaves the queue, which goes on."""
    records = Records({"1": [ValueError("no")] * 9})
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order="queue", max_attempts=3) as consumer,
    ):
        await send(group, QUEUE, range(3))
        nursery.start_soon(consumer.run, records.handler("a"))
        await until(lambda: records.count == 5)
        await until(lambda: group.cluster.broker.context.store.max_offset("%DLQ%g", 0) == 1)
        assert [call.body for call in records.calls[QUEUE]] == ["0", "1", "1", "1", "2"]


@pytest.mark.row("S185", "S212", "S213", "S215")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_queue_moves_between_members_without_overlap(
    tmp_path: Path, autojump_clock: MockClock, stubborn: bool
) -> None:
    """Members come and go while messages arrive. No message is skipped, and no queue is handled by two
    members at a time, although handlers are slower than the rebalance and may resist a cancellation."""
    records = Records(slow={str(number): 6 for number in range(0, 40, 3)}, stubborn=stubborn)
    async with (
        group_of(tmp_path, queues=4) as group,
        group.open_client("a") as one,
        group.open_client("b") as two,
        group.open_client("c") as three,
    ):
        queues = [MessageQueue("T", "broker-a", number) for number in range(4)]

        async def member(name: str, client: Client, from_s: float, to_s: float) -> None:
            await trio.sleep(from_s)
            async with client.push_consumer("g", subscribe="T", order="queue") as consumer:
                with trio.move_on_after(to_s - from_s):
                    await consumer.run(records.handler(name))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(member, "a", one, 0, 20)
            nursery.start_soon(member, "b", two, 5, 200)
            nursery.start_soon(member, "c", three, 10, 40)
            for number in range(40):
                for queue in queues:
                    await group.producer.send("T", b"%d" % number, queue=queue)
                await trio.sleep(1)
        records.check()
        for queue in queues:
            assert sorted({int(call.body) for call in records.calls[queue]}) == list(range(40))
            assert group.committed("g", queue) == 40
        assert {call.member for calls in records.calls.values() for call in calls} == {"a", "b", "c"}


async def test_a_lost_lock_cancels_the_handler(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A lock that the broker gave to somebody else is noticed by the next renewal. The handler is cancelled,
    its message is not committed, and it is handled when the lock is free again."""
    records = Records(slow={"0": 50})
    async with (
        group_of(tmp_path, queues=1) as group,
        group.open_client("a") as client,
        trio.open_nursery() as nursery,
        client.push_consumer("g", subscribe="T", order="queue") as consumer,
    ):
        context = group.cluster.broker.context
        nursery.start_soon(consumer.run, records.handler("a"))
        await send(group, QUEUE, range(2))
        await until(lambda: records.count == 1)
        context.locks.unlock("g", [QUEUE], "10.0.0.1@a")
        assert context.locks.lock("g", [QUEUE], "thief", context.clock.now_ms()) == [QUEUE]
        await until(lambda: records.calls[QUEUE][0].cancelled)
        assert records.calls[QUEUE][0].ended_s - records.calls[QUEUE][0].began_s < queue_locker.LOCK_LIFE_S
        assert QUEUE not in consumer.queues
        assert group.committed("g", QUEUE) == 0
        await until(lambda: records.count == 3)
        records.check()


async def test_a_slow_handler_keeps_its_lock(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Locks are renewed while a handler runs for minutes, so nobody else gets the queue, and its message is
    handled once."""
    records = Records(slow={"0": 400})
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order="queue") as consumer,
    ):
        context = group.cluster.broker.context
        nursery.start_soon(consumer.run, records.handler("a"))
        await send(group, QUEUE, range(2))
        await until(lambda: records.count == 1)
        for _ in range(30):
            await trio.sleep(10)
            assert context.locks.lock("g", [QUEUE], "thief", context.clock.now_ms()) == []
            assert list(context.clients.consumers["g"].client_ids()) == [group.client.client_id]
        await until(lambda: group.committed("g", QUEUE) == 2, 1)
        assert [call.body for call in records.calls[QUEUE]] == ["0", "1"]
