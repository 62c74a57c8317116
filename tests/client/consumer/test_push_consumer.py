"""Push consumers against rmqkit's broker: sharing, retries, dead letters, offsets, leaving."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import (
    BrokerError,
    Client,
    ClientError,
    DeadLetter,
    Message,
    MessageQueue,
    Prefetch,
    ReceivedMessage,
    Retry,
    TooManyFailures,
    sql,
    tag,
)
from rmqkit.client.consumer.handler_consumer import MAX_AT_ONCE
from rmqkit.errors import PluginError
from tests.client.consumer.groups import Group, group_of, until

QUEUE = MessageQueue("T", "broker-a", 0)


async def send(
    group: Group, *bodies: str, queue: MessageQueue | None = QUEUE, tag: str | None = None
) -> None:
    for body in bodies:
        await group.producer.send(Message("T", body.encode(), tag=tag), queue=queue)


class Handled:
    """A handler that records bodies and fails as told: `wrong` maps a body to the errors of its first
    deliveries."""

    def __init__(self, wrong: dict[str, list[Exception]] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.times: list[float] = []
        self._wrong = wrong or {}

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self.times.append(trio.current_time())
        errors = self._wrong.get(message.body.decode())
        if errors:
            raise errors.pop(0)


async def dead_letters(client: Client, group: str) -> list[ReceivedMessage]:
    """The messages of the dead-letter topic of a group."""
    async with client.pull_consumer("undertakers") as reader:
        result = await reader.pull(MessageQueue(f"%DLQ%{group}", "broker-a", 0), 0)
    return list(result.messages)


@pytest.mark.parametrize("kind", ["push_consumer", "pop_consumer"])
async def test_a_consumer_that_keeps_failing_ends(
    tmp_path: Path, autojump_clock: MockClock, kind: str
) -> None:
    """After so many failures in a row; a success between them begins anew, and dead letters do not count.
    What was in hand waits for the next start, and none of it is a dead letter."""
    wrong: dict[str, list[Exception]] = {
        "a": [OSError("no")],
        "b": [OSError("no")],
        "dead": [DeadLetter("bad")],
        "d": [OSError("down"), OSError("down")],
        "e": [Retry(after=1)],
        "f": [OSError("down")],
    }
    async with group_of(tmp_path, queues=1) as group, group.open_client("a") as client:
        handled = Handled(wrong)
        await send(group, "a", "b", "fine", "dead", "d", "e", "f", "g")
        open_consumer = getattr(client, kind)
        consumer = open_consumer(
            "g", subscribe={"T": "*"}, start="first", concurrency=1, stop_after_failures=3
        )
        async with consumer:
            with pytest.raises(TooManyFailures, match=r"3 times in a row.*OSError: down") as ended:
                await consumer.run(handled)
            assert isinstance(ended.value.__cause__, OSError)
        assert handled.bodies == ["a", "b", "fine", "dead", "d", "e", "f"]
        again = Handled()
        async with open_consumer("g", subscribe={"T": "*"}) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, again)
            await until(lambda: {"a", "b", "d", "e", "f", "g"} <= set(again.bodies))
            nursery.cancel_scope.cancel()
        assert next(each.reconsume_times for each in again.messages if each.body == b"f") == 0
        assert [each.body for each in await dead_letters(client, "g")] == [b"dead"]


@pytest.mark.row("S163", "S164", "S175", "S181", "S183", "S197", "S222")
async def test_members_share_the_queues(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A second member takes over half of the queues at once, and they return when it leaves. Every message is
    handled, and in the end all offsets are committed."""
    async with group_of(tmp_path) as group, group.open_client("a") as one, group.open_client("b") as two:
        handled = Handled()
        await send(group, *map(str, range(20)), queue=None)
        async with trio.open_nursery() as nursery, one.push_consumer("g", subscribe={"T": "*"}) as first:
            nursery.start_soon(first.run, handled)
            await until(lambda: len(handled.bodies) == 20)
            async with two.push_consumer("g", subscribe={"T": "*"}) as second:
                nursery.start_soon(second.run, handled)
                await until(lambda: len(second.queues) > 0 and len(first.queues + second.queues) == 5)
                assert set(first.queues).isdisjoint(second.queues)
                await send(group, *map(str, range(20, 40)), queue=None)
                await until(lambda: len(set(handled.bodies)) == 40)
            await until(lambda: len(first.queues) == 5)
            await send(group, "last", queue=None)
            await until(lambda: "last" in handled.bodies)
        assert set(handled.bodies) == {*map(str, range(40)), "last"}
        stats = await group.client.admin.topic_stats("T")
        assert {queue: group.committed("g", queue) for queue in stats} == {
            queue: figures.max_offset for queue, figures in stats.items()
        }


@pytest.mark.row("S111", "S202", "S206")
async def test_a_failed_message_is_delivered_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It comes back by the retry topic, under its own topic, after the delay of the first level or the one
    asked for. The other messages do not wait, and the offset moves on."""
    wrong: dict[str, list[Exception]] = {
        "a": [ValueError("a defect")],
        "b": [Retry(after=60)],
        "c": [ExceptionGroup("", [Retry(after=3)])],
    }
    handled = Handled(wrong)
    async with group_of(tmp_path, queues=1) as group:
        async with trio.open_nursery() as nursery, group.client.push_consumer("g", subscribe="T") as consumer:
            nursery.start_soon(consumer.run, handled)
            await send(group, "a", "b", "c", "d")
            await until(lambda: len(handled.messages) == 7)
            await until(lambda: group.committed("g", QUEUE) == 4, 1)
        assert sorted(handled.bodies[:4]) == ["a", "b", "c", "d"]
        assert handled.bodies[4:] == ["c", "a", "b"]
        assert {(message.topic, message.reconsume_times) for message in handled.messages[4:]} == {("T", 1)}
        began_s = handled.times[0]
        delays = [at_s - began_s for at_s in handled.times[4:]]
        assert delays == [pytest.approx(5, abs=2), pytest.approx(10, abs=2), pytest.approx(60, abs=2)]


@pytest.mark.row("S108")
async def test_messages_that_keep_failing_are_dead_letters(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After `max_attempts` deliveries a message goes to the dead-letter topic; DeadLetter puts it there at
    once. The log says that it is there, after how many attempts and why."""
    handled = Handled({"fails": [ValueError("no")] * 9, "hopeless": [DeadLetter("not a number")]})
    async with group_of(tmp_path, queues=1) as group:
        async with (
            trio.open_nursery() as nursery,
            group.client.push_consumer("g", subscribe="T", max_attempts=3) as consumer,
        ):
            nursery.start_soon(consumer.run, handled)
            await send(group, "fails", "hopeless", "fine")
            await until(lambda: handled.bodies.count("fails") == 3)
            await until(lambda: group.committed("g", MessageQueue("%RETRY%g", "broker-a", 0)) == 2, 1)
        assert Counter(handled.bodies) == {"fails": 3, "hopeless": 1, "fine": 1}
        assert [message.body for message in await dead_letters(group.client, "g")] == [b"hopeless", b"fails"]
    told = [line for line in caplog.messages if "is in the dead-letter topic of group g after" in line]
    assert [line.partition(" after ")[2] for line in told] == [
        "1 attempts: not a number",
        "3 attempts: ValueError: no",
    ]


@pytest.mark.row("S208")
async def test_the_offset_stays_before_an_unfinished_message(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """While one handler is slow, later messages are handled and the commits go on, but none is beyond the
    slow message."""
    release = trio.Event()
    handled = Handled()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"slow":
            await release.wait()
        await handled(message)

    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T") as consumer,
    ):
        nursery.start_soon(consumer.run, handle)
        await send(group, "first", "slow", *map(str, range(50)))
        await until(lambda: len(handled.bodies) == 51)
        await trio.sleep(60)
        assert group.committed("g", QUEUE) == 1
        release.set()
        await until(lambda: group.committed("g", QUEUE) == 52, 1)


@pytest.mark.row("S190")
async def test_a_full_queue_pauses_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A queue beyond its limit is not pulled, another one is; when its messages are finished it is pulled
    again."""
    release = trio.Event()
    handled = Handled()

    async def handle(message: ReceivedMessage) -> None:
        if message.queue == QUEUE:
            await release.wait()
        await handled(message)

    async with (
        group_of(tmp_path, queues=2) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer(
            "g", subscribe="T", prefetch=Prefetch(messages=40), concurrency=100
        ) as consumer,
    ):
        await send(group, *map(str, range(200)))
        nursery.start_soon(consumer.run, handle)
        other = MessageQueue("T", "broker-a", 1)
        await send(group, *map(str, range(200, 300)), queue=other)
        await until(lambda: len(handled.bodies) == 100)
        info = consumer.running_info()["mqTable"]
        assert 40 < info[QUEUE]["cachedMsgCount"] <= 72
        assert (info[other]["cachedMsgCount"], info[other]["commitOffset"]) == (0, 100)
        release.set()
        await until(lambda: len(handled.bodies) == 300)


async def test_handlers_that_wait_for_nothing_let_other_tasks_run(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A task calls its handler with a bounded number of messages before other tasks run."""
    turns, handled_in_turn = 0, Counter[int]()

    async def take_turns() -> None:
        nonlocal turns
        while handled_in_turn.total() < 200:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def handle(message: ReceivedMessage) -> None:
        if not handled_in_turn:
            await until(lambda: consumer.running_info()["mqTable"][QUEUE]["cachedMsgCount"] == 200)
            nursery.start_soon(take_turns)
        handled_in_turn[turns] += 1

    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T", concurrency=1) as consumer,
    ):
        await send(group, *map(str, range(200)))
        nursery.start_soon(consumer.run, handle)
        await until(lambda: handled_in_turn.total() == 200)
    # Trio shuffles the tasks of each pass, so that one may run twice between two turns of the other.
    assert max(handled_in_turn.values()) <= 2 * (MAX_AT_ONCE + 1)


@pytest.mark.parametrize("drain_s", [30, 2])
async def test_cancelled_handlers_get_time_to_end(
    tmp_path: Path, autojump_clock: MockClock, drain_s: int
) -> None:
    """After a cancellation no further message is handed out. A handler that ends within `drain_s` finishes
    its message; another one is cancelled, and its message is neither committed nor sent back."""
    began, ended = trio.Event(), trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        began.set()
        await trio.sleep(10)
        ended.set()

    async with group_of(tmp_path, queues=1) as group:
        await send(group, "one", "two")
        with trio.CancelScope() as scope:
            async with (
                trio.open_nursery() as nursery,
                group.client.push_consumer("g", subscribe="T", concurrency=1, drain_s=drain_s) as consumer,
            ):
                nursery.start_soon(consumer.run, handle)
                await began.wait()
                scope.cancel()
        assert ended.is_set() is (drain_s == 30)
        assert group.committed("g", QUEUE) == (1 if drain_s == 30 else 0)
        assert group.cluster.broker.context.store.max_offset("%RETRY%g", 0) == 0
        assert group.cluster.broker.context.clients.consumers == {}
        handled = Handled()
        async with trio.open_nursery() as nursery, group.client.push_consumer("g", subscribe="T") as consumer:
            nursery.start_soon(consumer.run, handled)
            await until(lambda: "two" in handled.bodies)
        assert sorted(handled.bodies) == (["two"] if drain_s == 30 else ["one", "two"])


async def test_iteration_settles_each_delivery(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Leaving the block finishes the message, an error sends it back, a cancelled block leaves it to be
    delivered again. The loop ends when the consumer is stopped."""
    seen: list[tuple[str, int]] = []
    async with group_of(tmp_path, queues=1) as group:
        await send(group, "fine", "fails", "cancelled")
        async with group.client.push_consumer("g", subscribe="T") as consumer:
            async for delivery in consumer:
                body = delivery.message.body.decode()
                seen.append((body, delivery.message.reconsume_times))
                with trio.CancelScope() as scope:
                    async with delivery as message:
                        assert message is delivery.message
                        if body == "fails" and message.reconsume_times == 0:
                            raise ValueError("not now")
                        if body == "cancelled" and seen.count((body, 0)) == 1:
                            scope.cancel()
                            await trio.sleep_forever()
                if len(seen) == 5:
                    consumer.stop()
        assert seen == [("fine", 0), ("fails", 0), ("cancelled", 0), ("cancelled", 0), ("fails", 1)]
        assert group.committed("g", QUEUE) == 3


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", ["old", "middle", "new"]),
        (datetime.fromtimestamp(1_700_000_000 + 50, UTC), ["middle", "new"]),
        ("last", ["old", "middle", "new"]),
    ],
)
async def test_the_start_of_a_new_group(
    tmp_path: Path, autojump_clock: MockClock, start: Any, expected: list[str]
) -> None:
    """A group without offsets starts at the first message, at a time, or at the end, where a young queue is
    read from its start. Afterwards the committed offset counts."""
    async with group_of(tmp_path, queues=1) as group:
        await send(group, "old")
        await trio.sleep(100)
        await send(group, "middle", "new")
        handled = Handled()
        options: Any = {"subscribe": "T", "start": start, "concurrency": 1}
        async with trio.open_nursery() as nursery, group.client.push_consumer("g", **options) as consumer:
            nursery.start_soon(consumer.run, handled)
            await until(lambda: "new" in handled.bodies)
        await send(group, "later")
        async with trio.open_nursery() as nursery, group.client.push_consumer("g", **options) as consumer:
            nursery.start_soon(consumer.run, handled)
            await until(lambda: "later" in handled.bodies)
        assert handled.bodies == [*expected, "later"]


async def test_a_topic_created_later_is_consumed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A subscription to a topic that does not exist yet is not an error."""
    handled = Handled()
    async with (
        group_of(tmp_path) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe=["Later"]) as consumer,
    ):
        nursery.start_soon(consumer.run, handled)
        await trio.sleep(30)
        await group.producer.send("Later", b"here")
        await until(lambda: handled.bodies == ["here"])


@pytest.mark.row("S196")
async def test_subscriptions_select_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only messages with one of the tags come; tags with equal hashes are told apart."""
    handled = Handled()
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe={"T": tag("Aa || last")}) as consumer,
    ):
        nursery.start_soon(consumer.run, handled)
        for name in ("Aa", "BB", "C", "last"):
            await send(group, name, tag=name)
        await until(lambda: "last" in handled.bodies)
        assert handled.bodies == ["Aa", "last"]
        with pytest.raises(BrokerError, match="SQL92"):
            async with group.client.push_consumer("h", subscribe={"T": sql("a > 1")}):
                pytest.fail("the broker has no SQL92 filters")
        async with group.client.push_consumer("h", subscribe={"T": "*"}):
            assert consumer.queues


async def test_wrong_arguments_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Errors name what is wrong before anything is sent."""
    async with group_of(tmp_path) as group:
        make: Any = group.client.push_consumer
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"subscribe": {}}, "a topic at least"),
            ({"subscribe": {"T": "a > 3"}}, "looks like a condition"),
            ({"subscribe": {"T": "cut \ud83d"}}, "half of a surrogate pair"),
            ({"subscribe": "a b"}, "characters besides"),
            ({"subscribe": "T", "order": "keys"}, "must be none, queue, key"),
            ({"subscribe": "T", "concurrency": 0}, "concurrency=0"),
            ({"subscribe": "T", "max_attempts": 0}, "max_attempts=0"),
            ({"subscribe": "T", "drain_s": -1}, "drain_s=-1"),
            ({"subscribe": "T", "start": "middle"}, "first, last or a datetime"),
        ]
        for options, text in wrong:
            with pytest.raises(ClientError, match=text):
                make("g", **options)
        with pytest.raises(ClientError, match="reserved"):
            make("DEFAULT_CONSUMER", subscribe="T")
        with pytest.raises(PluginError, match="AVG"):
            make("g", subscribe="T", allocation="AGV")
        consumer = make("g", subscribe="T")
        with pytest.raises(ClientError, match="not open"):
            await consumer.run(print)
        async with consumer:
            with pytest.raises(ClientError, match="already has a consumer"):
                await make("g", subscribe="T").start()
        with pytest.raises(ClientError, match="opened before"):
            await consumer.start()


async def test_the_end_of_the_client_ends_the_consumption(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """When the client is closed first, `run` raises an error instead of waiting for ever."""
    caplog.set_level(logging.ERROR)
    async with group_of(tmp_path) as group:
        client = await group.open_client("a").start()
        consumer = await client.push_consumer("g", subscribe="T", drain_s=0).start()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def run() -> None:
                with pytest.raises(ClientError, match="has ended"):
                    await consumer.run(Handled())

            await until(lambda: len(consumer.queues) == 5)
            await client.aclose()
        await consumer.aclose()
        assert caplog.text == ""
