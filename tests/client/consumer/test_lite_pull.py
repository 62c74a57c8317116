"""Lite pull consumers: sharing or assigning queues, polling, seeking, pausing, committing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import Changes, ClientError, LitePullConsumer, MessageQueue, NoRoute, ReceivedMessage, tag
from rmqkit.client.hooks import ClientConsumeContext, ClientConsumeHook
from rmqkit.model.subscription import HeartbeatData
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import PullMessageRequestHeader
from tests.client.consumer.groups import Group, group_of, until
from tests.client.fake_cluster import FakeBroker, cluster, serve_group
from tests.client.fakes import on_both_backends, run

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]
FIRST = QUEUES[0]


async def send(group: Group, *bodies: str, queue: MessageQueue = FIRST, tag: str | None = None) -> None:
    for body in bodies:
        await group.producer.send("T", body.encode(), queue=queue, tag=tag)


async def owned(consumer: LitePullConsumer, count: int) -> None:
    await until(lambda: len(consumer.queues) == count)


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


@asynccontextmanager
async def assigned(
    tmp_path: Path, count: int = 5, **options: Any
) -> AsyncIterator[tuple[Group, LitePullConsumer]]:
    """A consumer that is assigned the first queue, with messages 0 to `count` - 1."""
    async with group_of(tmp_path) as group:
        await send(group, *map(str, range(count)))
        async with group.client.lite_pull_consumer("g", start="first", **options) as consumer:
            await consumer.assign([FIRST])
            yield group, consumer


@pytest.mark.row("S165", "S220")
async def test_members_share_the_queues(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Subscribed members divide the queues among them, and are told of every change. A member that leaves
    hands its queues over with their offsets."""
    changes: list[Changes] = []
    async with group_of(tmp_path) as group, group.open_client("b") as other:
        for queue in QUEUES:
            await send(group, "0", "1", queue=queue)
        async with group.client.lite_pull_consumer(
            "g", subscribe="T", start="first", on_rebalance=changes.append
        ) as first:
            await owned(first, 4)
            got = [bodies(await first.poll(1)) for _ in range(8)]
            assert sorted(got) == [["0"]] * 4 + [["1"]] * 4
            async with other.lite_pull_consumer("g", subscribe="T") as second:
                await owned(second, 2)
                await owned(first, 2)
                assert sorted(first.queues + second.queues) == QUEUES
            await owned(first, 4)
        assert [(len(change.gained), len(change.lost)) for change in changes] == [(4, 0), (0, 2), (2, 0)]


async def test_polled_messages_count_when_the_next_are_asked_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The messages of the last poll are not committed, by time or at the end, unless `commit` is called."""
    async with assigned(tmp_path) as (group, consumer):
        assert bodies(await consumer.poll(2)) == ["0", "1"]
        await trio.sleep(20)
        assert group.committed("g", FIRST) == 0
        assert bodies(await consumer.poll(2)) == ["2", "3"]
        await until(lambda: group.committed("g", FIRST) == 2)
        await consumer.commit()
        assert (await consumer.committed(FIRST), await consumer.committed(QUEUES[1])) == (4, None)
        assert bodies(await consumer.poll()) == ["4"]
    assert group.committed("g", FIRST) == 4


async def test_commits_by_hand(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Without `auto_commit` nothing is committed by itself: not by time, by a pull, by a lost queue, or at
    the end. Any number of messages may be delivered before a commit."""
    async with assigned(tmp_path, 1200, auto_commit=False) as (group, consumer):
        got = 0
        while got < 1100:
            got += len(await consumer.poll(100))
        await trio.sleep(20)
        assert group.committed("g", FIRST) is None
        await consumer.commit()
        assert group.committed("g", FIRST) == got
        assert await consumer.poll()
        await consumer.assign([QUEUES[1]])
        assert consumer.queues == [QUEUES[1]]
        assert group.committed("g", FIRST) == got
        await consumer.commit({FIRST: 7})
    assert group.committed("g", FIRST) == 7


@pytest.mark.row("S219")
async def test_commit_and_roll_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With commits by hand the application decides about several messages of a queue at once: it commits
    them, or goes back to the committed offset and gets them again in the same order."""
    async with assigned(tmp_path, 6, auto_commit=False) as (group, consumer):
        assert bodies(await consumer.poll(3)) == ["0", "1", "2"]
        await consumer.seek(FIRST, await consumer.committed(FIRST) or 0)
        assert bodies(await consumer.poll(3)) == ["0", "1", "2"]
        await consumer.commit()
        assert bodies(await consumer.poll(2)) == ["3", "4"]
        await consumer.seek(FIRST, await consumer.committed(FIRST) or 0)
        assert bodies(await consumer.poll()) == ["3", "4", "5"]
        assert group.committed("g", FIRST) == 3


async def test_poll_waits_for_the_first_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It returns nothing after its time, at once what arrives meanwhile, and what is there even without any
    time. A cancelled poll takes nothing."""
    async with assigned(tmp_path, 0) as (group, consumer):
        began_s = trio.current_time()
        assert await consumer.poll(timeout_s=3) == []
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, group, "0")
            assert bodies(await consumer.poll(timeout_s=60)) == ["0"]
        await send(group, "1", "2")
        await until(lambda: consumer.running_info()["mqTable"][FIRST]["cachedMsgCount"] == 3)
        assert bodies(await consumer.poll(1, timeout_s=0)) == ["1"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.poll()
        assert bodies(await consumer.poll()) == ["2"]
        with pytest.raises(ClientError, match="max_messages=0"):
            await consumer.poll(0)


async def test_seeking(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A queue continues at an offset, its begin, its end or a time. What was delivered last does not count,
    and the new place is committed as any other."""
    async with assigned(tmp_path) as (group, consumer):
        assert len(await consumer.poll()) == 5
        await consumer.seek(FIRST, 3)
        assert bodies(await consumer.poll(1)) == ["3"]
        await until(lambda: group.committed("g", FIRST) == 3)
        await consumer.seek_to_begin(FIRST)
        assert bodies(await consumer.poll(1)) == ["0"]
        await consumer.seek_to_end(FIRST)
        assert await consumer.poll(timeout_s=1) == []
        await trio.sleep(3600)
        now = datetime.fromtimestamp(group.cluster.broker.context.clock.now_ms() / 1000, UTC)
        await send(group, "5", "6")
        await consumer.seek_to_time(FIRST, now)
        assert await consumer.offset_for_time(FIRST, now) == 5
        assert bodies(await consumer.poll()) == ["5", "6"]
        for offset in (-1, 8):
            with pytest.raises(ClientError, match="0 to 7 are there"):
                await consumer.seek(FIRST, offset)
        with pytest.raises(ClientError, match="does not belong"):
            await consumer.seek(QUEUES[1], 0)


async def test_a_paused_queue_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its messages are neither delivered nor pulled until it is resumed; the other queues go on."""
    async with assigned(tmp_path, 1) as (group, consumer):
        await consumer.assign(QUEUES[:2])
        assert bodies(await consumer.poll()) == ["0"]
        consumer.pause(FIRST)
        assert consumer.paused == [FIRST]
        await send(group, "1", "2")
        await send(group, "x", queue=QUEUES[1])
        assert bodies(await consumer.poll()) == ["x"]
        await consumer.seek_to_begin(FIRST)
        assert await consumer.poll(timeout_s=120) == []
        consumer.resume(FIRST)
        assert bodies(await consumer.poll() + await consumer.poll(timeout_s=1)) == ["0", "1", "2"]
        assert consumer.paused == []


async def test_assigning(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Queues that stay assigned go on where they are. An expression selects messages, a queue that does not
    exist is refused, and subscribed consumers cannot be assigned."""
    async with assigned(tmp_path, 3) as (group, consumer):
        assert bodies(await consumer.poll(1)) == ["0"]
        await consumer.assign(QUEUES[:2])
        assert consumer.queues == QUEUES[:2]
        assert bodies(await consumer.poll()) == ["1", "2"]
        await consumer.assign([QUEUES[2]], expression=tag("a"))
        await send(group, "no", queue=QUEUES[2], tag="b")
        await send(group, "yes", queue=QUEUES[2], tag="a")
        assert bodies(await consumer.poll()) == ["yes"]
        with pytest.raises(ClientError, match="not among"):
            await consumer.assign([MessageQueue("T", "broker-a", 9)])
        with pytest.raises(NoRoute):
            await consumer.assign([MessageQueue("Unknown", "broker-a", 0)])
        async with group.client.lite_pull_consumer("h", subscribe="T") as other:
            assert await other.topic_queues("T") == QUEUES
            with pytest.raises(ClientError, match="without subscribe="):
                await other.assign([FIRST])
    with pytest.raises(ClientError, match="not open"):
        await consumer.poll()


async def test_a_broadcast_member_has_all_queues(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Two members get every message each, and keep their offsets in their own files."""
    folder = tmp_path / "offsets"
    async with group_of(tmp_path / "store") as group, group.open_client("b") as other:
        await send(group, "0", "1")
        for client in (group.client, other):
            async with client.lite_pull_consumer(
                "g", subscribe="T", broadcast=True, start="first", offsets_folder=folder
            ) as consumer:
                got: list[str] = []
                # The clock jumps while a thread reads the file, so a poll may end without messages.
                while len(got) < 2:
                    got += bodies(await consumer.poll())
                assert got == ["0", "1"]
                await consumer.commit()
        assert len(list(folder.glob("*/g/offsets.json"))) == 2
        assert group.committed("g", FIRST) is None


class Seen(ClientConsumeHook):
    """Records what is delivered."""

    def __init__(self) -> None:
        self.contexts: list[ClientConsumeContext] = []

    def before_consume(self, context: ClientConsumeContext) -> None:
        self.contexts.append(context)


@on_both_backends
def test_requests_and_iteration(backend: str) -> None:
    """Heartbeats name an active consumer, the pulls are lite ones that the broker may hold, and hooks see
    what is delivered. The iteration ends when the consumer is stopped."""
    hook = Seen()

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}, hooks=[hook]) as (fake, client):
            broker: FakeBroker = serve_group(fake, client)
            for number in range(3):
                broker.put("T", 0, b"%d" % number)
            async with client.lite_pull_consumer("cg", subscribe="T", start="first") as consumer:
                got = []
                async for message in consumer:
                    got.append(message.body)
                    if len(got) == 3:
                        await consumer.commit()
                        consumer.stop()
            assert got == [b"0", b"1", b"2"]
            assert broker.offsets["cg", "T", 0] == 3
            (data,) = (
                broker.server.seen(RequestCode.HEART_BEAT)[0].decode_body(HeartbeatData).consumer_data_set
                or []
            )
            assert (data.consume_type, data.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")
            assert [each.topic for each in data.subscription_data_set or []] == ["T"]
            assert broker.server.seen(RequestCode.PULL_MESSAGE) == []
            header = broker.server.seen(RequestCode.LITE_PULL_MESSAGE)[0].header(PullMessageRequestHeader)
            assert (header.sys_flag, header.subscription) == (2 | 4 | 16, "*")
        assert [context.messages[0].body for context in hook.contexts] == got
        assert all(context.pulled for context in hook.contexts)

    run(backend, body)


@on_both_backends
def test_a_failed_commit_is_an_error(backend: str) -> None:
    """`commit` says which queue it could not commit."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            broker.put("T", 0, b"x")
            async with client.lite_pull_consumer("cg", subscribe="T", start="first") as consumer:
                assert len(await consumer.poll()) == 1
                refusal = broker.overrides
                refusal[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: fake.brokers["broker-a"].pulled(
                    command, 1, 0, 0, 0
                )
                with pytest.raises(ClientError, match="not committed"):
                    await consumer.commit()
                del refusal[RequestCode.UPDATE_CONSUMER_OFFSET]
                await consumer.commit()
                assert broker.offsets["cg", "T", 0] == 1
                with pytest.raises(ClientError, match="already has"):
                    await client.lite_pull_consumer("cg").start()

    run(backend, body)


@on_both_backends
def test_the_end_of_the_client_ends_a_poll(backend: str) -> None:
    """A task that waits for messages gets an error."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            serve_group(fake, client)
            consumer = await client.lite_pull_consumer("cg", subscribe="T").start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.aclose)
                with pytest.raises(ClientError):
                    await consumer.poll(timeout_s=60)

    run(backend, body)
