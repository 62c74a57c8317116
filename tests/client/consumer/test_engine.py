"""The loops of a member of a group: what a pass takes and loses, when it is repeated, and how it ends. Times
are virtual."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import Client
from rmqkit.client.consumer.engine import PULL_RETRY_S, REBALANCE_S, THROTTLED_S
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import QueryConsumerOffsetRequestHeader
from tests.client.consumer.groups import until
from tests.client.fake_cluster import FakeBroker, cluster, serve_group

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@asynccontextmanager
async def joined(client: Client, **options: Any) -> AsyncIterator[PushConsumer]:
    """A member that handles messages until the context ends."""

    async def ignore(message: ReceivedMessage) -> None:
        await anyio.lowlevel.checkpoint()

    async with (
        client.push_consumer("cg", subscribe="T", start="first", **options) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, ignore)
        yield consumer
        consumer.stop()


@asynccontextmanager
async def group() -> AsyncIterator[tuple[FakeBroker, Client]]:
    """A broker with topic T, and the client that is the only member."""
    async with cluster("a", {"T": {"broker-a": 2}}) as (fake, client):
        yield serve_group(fake, client), client


def failing_then(broker: FakeBroker, code: RequestCode, error: ResponseCode, times: list[float]) -> None:
    """Answer requests with an error, and note when they come."""

    def fail(command: Command) -> Command:
        times.append(anyio.current_time())
        return answer(command, error, "not now")

    broker.overrides[code] = fail


async def test_a_pass_that_fails_is_repeated_ever_more_rarely(autojump_clock: MockClock) -> None:
    """The pauses double up to the regular one, and start anew after a success."""
    async with group() as (broker, client):
        times: list[float] = []
        members = broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        failing_then(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR, times)
        async with joined(client) as consumer:
            await until(lambda: len(set(times)) >= 8)
            passes = sorted(set(times))
            pauses = [round(after - before) for before, after in pairwise(passes)]
            assert pauses[:7] == [1, 2, 4, 8, 16, REBALANCE_S, REBALANCE_S]
            assert consumer.queues == []
            broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members
            await until(lambda: consumer.queues == [Q0, Q1])


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [(ResponseCode.SYSTEM_ERROR, PULL_RETRY_S), (ResponseCode.FLOW_CONTROL, THROTTLED_S)],
)
async def test_a_failed_pull_is_repeated_after_its_pause(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, error: ResponseCode, pause_s: float
) -> None:
    """A broker that throttles is asked again soon, without a line of the log; others after a second."""
    async with group() as (broker, client):
        times: list[float] = []
        failing_then(broker, RequestCode.PULL_MESSAGE, error, times)
        async with joined(client):
            await until(lambda: len(set(times)) >= 4, step_s=10)
        pauses = [after - before for before, after in pairwise(sorted(set(times))[:4])]
        assert pauses == pytest.approx([pause_s] * 3, abs=0.001)
    assert ("pulling" in caplog.text) == (error is ResponseCode.SYSTEM_ERROR)


async def test_a_queue_whose_offset_is_not_known_does_not_hold_up_the_others(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is started by a later pass, soon."""
    async with group() as (broker, client):

        def offset_of(command: Command) -> Command:
            if command.header(QueryConsumerOffsetRequestHeader).queue_id == 1:
                return answer(command, ResponseCode.SYSTEM_ERROR, "not now")
            return broker.query_offset(command)

        broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = offset_of
        async with joined(client) as consumer:
            await until(lambda: consumer.queues == [Q0])
            assert "is not started yet" in caplog.text
            del broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET]
            with trio.fail_after(REBALANCE_S):
                await until(lambda: consumer.queues == [Q0, Q1])


async def test_a_queue_that_goes_to_another_member_is_committed(autojump_clock: MockClock) -> None:
    """The next owner continues behind what was finished here; the program is told of the change."""
    changes: list[Any] = []
    async with group() as (broker, client):
        for queue_id in (0, 1):
            broker.put("T", queue_id, b"x")
        async with joined(client, on_rebalance=changes.append) as consumer:
            await until(lambda: consumer.offsets("T") == {Q0: 1, Q1: 1})
            ids = [client.client_id, "~another"]

            def members(command: Command) -> Command:
                return answer(command, body=msgspec.json.encode({"consumerIdList": ids}))

            broker.offsets.clear()
            broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members
            consumer._engine.rebalance_soon()
            await until(lambda: consumer.queues == [Q0])
            await until(lambda: ("cg", "T", 1) in broker.offsets)
            assert broker.offsets["cg", "T", 1] == 1
        assert changes[-1].lost == (Q1,)
        assert changes[0].gained == (Q0, Q1)


async def test_a_group_is_left_although_the_commit_fails(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so; whoever comes next repeats the messages."""
    async with group() as (broker, client):
        broker.put("T", 0, b"x")
        failing_then(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, [])
        async with joined(client) as consumer:
            await until(lambda: consumer.offsets("T").get(Q0) == 1)
        assert await client.admin.route("T") is not None
        assert broker.offsets == {}
    assert "not now" in caplog.text
