"""Order by key: the messages of one key one after the other, the keys of a queue in parallel."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from rmqkit.client import Client, MessageQueue, ReceivedMessage
from tests.client.consumer.groups import Group, group_of, until

QUEUE = MessageQueue("T", "broker-a", 0)
KEYS = ["a", "b", "c", None]


@define
class Call:
    """One call of a handler; times of the loop's clock."""

    member: int
    number: int
    began_s: float
    ended_s: float = 0.0
    outcome: str = "running"


class Keyed:
    """Handlers that record their calls by key. Message `number` of key `key` has the body `key number`; it
    takes some time, and fails by chance."""

    def __init__(self, seed: int, failures: float = 0.0) -> None:
        self.calls: defaultdict[str, list[Call]] = defaultdict(list)
        self.most_at_once = 0
        self._running = 0
        self._chance = random.Random(seed)
        self._failures = failures

    def handler(self, member: int) -> Callable[[ReceivedMessage], Awaitable[None]]:
        return partial(self._handle, member)

    async def _handle(self, member: int, message: ReceivedMessage) -> None:
        key, number = message.body.decode().split()
        call = Call(member, int(number), trio.current_time())
        self.calls[key].append(call)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            await trio.sleep(self._chance.choice([0, 0.1, 0.1, 2]))
            if self._chance.random() < self._failures:
                call.outcome = "failed"
                raise ValueError("not now")
            call.outcome = "done"
        except trio.Cancelled:
            call.outcome = "cancelled"
            raise
        finally:
            self._running -= 1
            call.ended_s = trio.current_time()

    def finished(self, key: str) -> set[int]:
        return {call.number for call in self.calls[key] if call.outcome == "done"}

    def check_order(self, key: str) -> None:
        """No two calls of the key overlap. Each is for the next message after one that was done, or repeats
        one that was not; a new member may begin earlier, where the offset was committed."""
        for before, after in pairwise(self.calls[key]):
            assert before.ended_s <= after.began_s, (key, before, after)
            following = before.number + (before.outcome == "done")
            if after.member == before.member:
                assert after.number == following, (key, before, after)
            else:
                assert after.number <= following, (key, before, after)


async def send(group: Group, key: str | None, number: int) -> None:
    body = f"{key or '-'} {number}".encode()
    await group.producer.send("T", body, queue=QUEUE, ordering_key=key)


@pytest.mark.parametrize("seed", range(6))
async def test_the_order_of_a_key_is_never_broken(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    """Two members take a queue from each other while messages arrive, handlers fail and are cancelled. Each
    key is handled in order without overlap, every message is handled, and all offsets are committed in the
    end."""
    chance = random.Random(seed)
    keyed = Keyed(seed, failures=0.2)
    sent: defaultdict[str, int] = defaultdict(int)
    async with group_of(tmp_path, queues=1) as group, group.open_client("a") as one:

        async def visitor(client: Client) -> None:
            for member in count(1):
                await trio.sleep(chance.uniform(1, 15))
                async with client.push_consumer("g", subscribe="T", order="key", drain_s=1) as consumer:
                    with trio.move_on_after(chance.uniform(1, 40)):
                        await consumer.run(keyed.handler(member))

        async with (
            trio.open_nursery() as nursery,
            group.client.push_consumer("g", subscribe="T", order="key") as consumer,
        ):
            nursery.start_soon(consumer.run, keyed.handler(0))
            nursery.start_soon(visitor, one)
            for _ in range(60):
                key = chance.choice(KEYS)
                await send(group, key, sent[key or "-"])
                sent[key or "-"] += 1
                await trio.sleep(chance.uniform(0, 1))
            await until(lambda: group.committed("g", QUEUE) == 60, 1)
            nursery.cancel_scope.cancel()
    for key in filter(None, KEYS):
        keyed.check_order(key)
    assert {key: keyed.finished(key) for key in sent} == {
        key: set(range(number)) for key, number in sent.items()
    }


async def test_keys_are_handled_in_parallel(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Of one queue, each key has one handler at a time, and messages without a key have as many as there
    are."""
    keyed = Keyed(0)
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order="key") as consumer,
    ):
        for number in range(5):
            for key in KEYS:
                await send(group, key, number)
        nursery.start_soon(consumer.run, keyed.handler(0))
        await until(lambda: group.committed("g", QUEUE) == 20)
        consumer.stop()
    assert keyed.most_at_once >= 3
    for key in filter(None, KEYS):
        keyed.check_order(key)


@pytest.mark.parametrize("limit", [None, 3])
async def test_a_failing_key_holds_up_itself_alone(
    tmp_path: Path, autojump_clock: MockClock, limit: int | None
) -> None:
    """Its message is repeated, without end or until it goes to the dead-letter topic; the others are handled
    meanwhile. The committed offset is not beyond it."""
    bodies: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        bodies.append(message.body)
        if message.body == b"bad 0":
            raise ValueError("never")

    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", order="key", max_attempts=limit) as consumer,
    ):
        await send(group, "bad", 0)
        for number in (1, 2):
            await send(group, "bad", number)
            await send(group, "good", number)
        nursery.start_soon(consumer.run, handle)
        if limit is None:
            await until(lambda: bodies.count(b"bad 0") == 50)
            assert set(bodies) == {b"bad 0", b"good 1", b"good 2"}
            assert group.committed("g", QUEUE) == 0
        else:
            await until(lambda: group.committed("g", QUEUE) == 5)
            assert sorted(bodies) == [b"bad 0"] * limit + [b"bad 1", b"bad 2", b"good 1", b"good 2"]
            assert group.cluster.broker.context.store.max_offset("%DLQ%g", 0) == 1
        consumer.stop()
