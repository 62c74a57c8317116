"""The requests that a push consumer sends to a scripted broker, under both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rmqkit.client import MessageQueue, PushConsumer, ReceivedMessage
from rmqkit.client.hooks import ClientConsumeContext, ClientConsumeHook, ConsumeReturnType
from rmqkit.model import properties as props
from rmqkit.model.subscription import HeartbeatData
from rmqkit.model.sysflag import PULL_COMMIT_OFFSET
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    LockBatchMqBody,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from tests.client.fake_cluster import FakeBroker, cluster, serve_group
from tests.client.fakes import on_both_backends, run, settled

QUEUE = MessageQueue("T", "broker-a", 0)
PATIENCE_S = 120


@asynccontextmanager
async def consuming(
    handle: Callable[[ReceivedMessage], Awaitable[None]], hooks: Any = (), **options: Any
) -> AsyncIterator[tuple[FakeBroker, PushConsumer]]:
    """A consumer of T, with one queue, and of its retry topic."""
    topics = {"T": {"broker-a": 1}, "%RETRY%cg": {"broker-a": 1}}
    async with cluster("a", topics, hooks=hooks) as (fake, client):
        broker = serve_group(fake, client)
        async with (
            client.push_consumer("cg", subscribe="T", **{"start": "first", **options}) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            yield broker, consumer
            consumer.stop()


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    with anyio.fail_after(patience_s):
        while True:
            if condition():
                return
            await anyio.sleep(0.02)


def codes(broker: FakeBroker) -> list[int]:
    return [request.code for request in broker.server.requests]


@pytest.mark.row("S166", "S167", "S221")
@on_both_backends
def test_the_order_of_starting_and_leaving(backend: str) -> None:
    """Heartbeat, members, locks, offsets, pulls; then the last handler ends, the offsets are committed, the
    locks released, and the group left, in this order. No pull follows the end."""
    ended: list[int] = []

    async def body() -> None:
        release = anyio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()
            ended.append(len(broker.server.requests))

        async with consuming(handle, order="queue") as (broker, consumer):
            broker.put("T", 0, b"x")
            await until(lambda: consumer.running_info()["mqTable"].get(QUEUE, {}).get("cachedMsgCount") == 1)
            await settled()
            consumer.stop()
            pulls = codes(broker).count(RequestCode.PULL_MESSAGE)
            release.set()
        sent = codes(broker)
        order = [
            RequestCode.HEART_BEAT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.PULL_MESSAGE,
        ]
        assert [sent.index(code) for code in order] == sorted(sent.index(code) for code in order)
        assert sent.count(RequestCode.PULL_MESSAGE) == pulls
        last = sent[ended[0] :]
        assert list(dict.fromkeys(last)) == [
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.UNLOCK_BATCH_MQ,
            RequestCode.UNREGISTER_CLIENT,
        ]
        assert broker.offsets["cg", "T", 0] == 1

    run(backend, body)


@pytest.mark.row("S170")
@on_both_backends
def test_heartbeats_describe_the_group(backend: str) -> None:
    """They contain the subscriptions, that of the retry topic included, and where the group starts."""

    async def body() -> None:
        async with consuming(nothing, start="first") as (broker, _):
            beat = broker.server.seen(RequestCode.HEART_BEAT)[0].decode_body(HeartbeatData)
        (data,) = beat.consumer_data_set or []
        assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
        assert [each.topic for each in data.subscription_data_set or []] == ["%RETRY%cg", "T"]

    run(backend, body)


async def nothing(message: ReceivedMessage) -> None:
    await anyio.lowlevel.checkpoint()


def refuse(command: Command) -> Command:
    return answer(command, ResponseCode.MESSAGE_ILLEGAL, "not now")


async def failing(message: ReceivedMessage) -> None:
    if message.queue == QUEUE:
        raise ValueError(f"cannot handle {message.message_id}")


@pytest.mark.row("S193")
@on_both_backends
def test_pulls_carry_the_offset_to_commit(backend: str) -> None:
    """The finished prefix rides along, flagged, as soon as it is above 0; the broker also gets it by the
    regular commit."""

    async def body() -> None:
        async with consuming(nothing) as (broker, _):
            for _ in range(3):
                broker.put("T", 0, b"x")
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)
            broker.put("T", 0, b"y")
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 4)
        headers = [
            each.header(PullMessageRequestHeader) for each in broker.server.seen(RequestCode.PULL_MESSAGE)
        ]
        mine = [header for header in headers if header.topic == "T"]
        assert (mine[0].commit_offset, mine[0].sys_flag & PULL_COMMIT_OFFSET) == (0, 0)
        assert mine[-1].commit_offset >= 3
        assert all(
            (header.commit_offset > 0) == bool(header.sys_flag & PULL_COMMIT_OFFSET) for header in mine
        )
        assert all(header.commit_offset <= header.queue_offset for header in mine)

    run(backend, body)


@pytest.mark.row("S206")
@on_both_backends
def test_a_failed_message_is_sent_back_by_its_broker(backend: str) -> None:
    """The request names the message's place in the log; the broker chooses the delay."""

    async def body() -> None:
        async with consuming(failing, max_attempts=5) as (broker, _):
            broker.put("T", 0, b"x")
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 1)
            (back,) = broker.server.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        header = back.header(ConsumerSendMsgBackRequestHeader)
        assert (header.offset, header.group, header.delay_level) == (0, "cg", 0)
        assert (header.origin_topic, header.max_reconsume_times) == ("T", 4)

    run(backend, body)


@on_both_backends
def test_a_copy_is_sent_when_the_broker_cannot_send_back(backend: str) -> None:
    """It goes to the retry topic with the original's topic and id, one more reconsumption and the delay of
    the next level; the original is finished."""

    async def body() -> None:
        async with consuming(failing, max_attempts=5) as (broker, _):
            broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
            broker.put("T", 0, b"x", {"KEYS": "k"})
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 1)
            sent = broker.server.seen(RequestCode.SEND_MESSAGE_V2)[0]
        header = sent.header(SendMessageRequestHeaderV2)
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%cg", 1, 4)
        properties = props.decode(header.properties or "")
        assert (properties["RETRY_TOPIC"], properties["KEYS"], properties["DELAY"]) == ("T", "k", "3")
        assert "MAX_OFFSET" not in properties

    run(backend, body)


@pytest.mark.row("S110", "S207")
@on_both_backends
def test_a_message_that_cannot_be_sent_back_is_handled_again_here(backend: str) -> None:
    """When the copy fails too, the message is handled again after five seconds, with one more reconsumption;
    the offset waits for it."""
    times: list[tuple[int, float]] = []

    async def handle(message: ReceivedMessage) -> None:
        times.append((message.reconsume_times, anyio.current_time()))
        if len(times) == 1:
            raise ValueError("not now")

    async def body() -> None:
        async with consuming(handle) as (broker, consumer):
            broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
            broker.overrides[RequestCode.SEND_MESSAGE_V2] = refuse
            broker.put("T", 0, b"x")
            await until(lambda: len(times) == 1)
            assert consumer.offsets("T") == {QUEUE: 0}
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 1)
        assert [number for number, _ in times] == [0, 1]
        assert times[1][1] - times[0][1] >= 4.9
        commits = [
            each.header(UpdateConsumerOffsetRequestHeader)
            for each in broker.server.seen(RequestCode.UPDATE_CONSUMER_OFFSET)
        ]
        assert {header.commit_offset for header in commits if header.topic == "T"} <= {0, 1}

    run(backend, body)


@on_both_backends
def test_hooks_see_the_consumption(backend: str) -> None:
    """Before and after each handler, with the result."""
    seen: list[tuple[str, bytes, ConsumeReturnType]] = []

    class Hook(ClientConsumeHook):
        def before_consume(self, context: ClientConsumeContext) -> None:
            seen.append(("before", context.messages[0].body, context.result))

        def after_consume(self, context: ClientConsumeContext) -> None:
            seen.append(("after", context.messages[0].body, context.result))

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("no")

    async def body() -> None:
        async with consuming(handle, hooks=[Hook()], concurrency=1) as (broker, _):
            broker.put("T", 0, b"good")
            broker.put("T", 0, b"bad")
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 2)

    run(backend, body)
    assert seen == [
        ("before", b"good", ConsumeReturnType.SUCCESS),
        ("after", b"good", ConsumeReturnType.SUCCESS),
        ("before", b"bad", ConsumeReturnType.SUCCESS),
        ("after", b"bad", ConsumeReturnType.EXCEPTION),
    ]


@pytest.mark.row("S176")
def test_the_members_are_asked_again_without_a_notification() -> None:
    """A rebalance happens every 20 s, so that a lost notification does no lasting harm."""

    async def body() -> None:
        async with consuming(nothing) as (broker, consumer):
            await until(lambda: len(consumer.queues) == 2)
            began_s = anyio.current_time()
            asked = len(broker.server.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
            await until(
                lambda: len(broker.server.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) == asked + 2 * 3
            )
            assert 40 < anyio.current_time() - began_s < 70

    run("trio", body)


@on_both_backends
def test_leaving_releases_the_locks_of_queues_that_were_not_started(backend: str) -> None:
    """A consumer that is left between the lock and the first pull does not keep the queue from the others."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: None
            async with client.push_consumer("cg", subscribe="T", order="queue") as consumer:
                await until(lambda: RequestCode.QUERY_CONSUMER_OFFSET in codes(broker))
                assert consumer.queues == []
            (unlock,) = broker.server.seen(RequestCode.UNLOCK_BATCH_MQ)
            assert unlock.decode_body(LockBatchMqBody).mq_set == [QUEUE]
            assert RequestCode.PULL_MESSAGE not in codes(broker)

    run(backend, body)
