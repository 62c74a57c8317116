"""Transactions with the fixture `rocketmq`: all rounds of questions pass in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import Client, ReceivedMessage
from rmqkit.protocol.codes import RequestCode
from rmqkit.testing.rocketmq import RocketMQ

CHECKED_OUT = "TRANS_CHECK_MAX_TIME_TOPIC"


async def first(client: Client, topic: str) -> ReceivedMessage:
    """The first message of a topic."""
    async with client.push_consumer(f"tests-{topic}", subscribe=topic, start="first") as consumer:
        async for delivery in consumer:
            async with delivery as message:
                return message
    raise AssertionError("the consumer was stopped")


@pytest.mark.trio
async def test_a_message_is_delivered_once_its_check_knows(
    autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
) -> None:
    """The broker asks after 6 s and every 30 s, by default: a check that knows the outcome at the tenth
    question lets the message come after some five minutes, which pass at once."""
    asked: Counter[str] = Counter()

    async def check(half: ReceivedMessage) -> bool | None:
        asked[half.message_id] += 1
        return True if asked[half.message_id] == 10 else None

    async with rocketmq_client.producer("shop", check=check) as producer:
        async with producer.transaction("Orders", b"one coffee") as tx:
            await tx.unknown()
        message = await first(rocketmq_client, "Orders")
    assert (message.body, message.message_id) == (b"one coffee", tx.message_id)
    assert asked == {tx.message_id: 10}
    assert 270 < trio.current_time() < 330


@pytest.mark.trio
async def test_what_nobody_ends_is_kept_apart(
    autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
) -> None:
    """After 15 questions, some eight minutes, the half message is in a topic of its own."""
    asked = 0

    async def check(_half: Any) -> None:
        nonlocal asked
        asked += 1

    async with rocketmq_client.producer("shop", check=check) as producer:
        async with producer.transaction("Orders", b"one coffee") as tx:
            await tx.unknown()
        message = await first(rocketmq_client, CHECKED_OUT)
    assert message.message_id == tx.message_id
    assert asked == 15
    assert 420 < trio.current_time() < 540


@pytest.mark.trio
async def test_an_end_that_is_lost(
    autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
) -> None:
    """It is lost with the connection: the broker asks, and the producer answers what it knows, without the
    check."""

    async def check(_half: Any) -> bool:
        raise AssertionError("the producer knows the outcome")

    async with rocketmq_client.producer("shop", check=check) as producer:
        fault = rocketmq.cut_next(request=RequestCode.END_TRANSACTION)
        async with producer.transaction("Orders", b"one coffee") as tx:
            pass
        assert (await first(rocketmq_client, "Orders")).message_id == tx.message_id
    assert fault.struck == 1
    assert 6 < trio.current_time() < 70
