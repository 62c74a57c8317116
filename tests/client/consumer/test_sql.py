"""SQL92 subscriptions of a group, from the heartbeat to the handler."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import BrokerError, Message, ReceivedMessage, sql
from tests.client.consumer.groups import group_of, until


@pytest.mark.row("S059", "S073")
async def test_a_group_gets_the_messages_that_match(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Those that were there and those that come, and no other message reaches the client."""
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    async with (
        group_of(tmp_path, queues=1, enablePropertyFilter=True) as group,
        group.client.push_consumer(
            "g", subscribe={"T": sql("price BETWEEN 3 AND 5")}, start="first"
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        for price in (*range(8), 4):
            await group.producer.send(Message("T", b"%d" % price, properties={"price": str(price)}))
        await until(lambda: len(handled) >= 4)
        assert sorted(handled) == [b"3", b"4", b"4", b"5"]
        nursery.cancel_scope.cancel()


async def test_a_wrong_condition_is_refused_at_the_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The consumer does not start, and the error says what is wrong where."""
    async with group_of(tmp_path, queues=1, enablePropertyFilter=True) as group:
        with pytest.raises(BrokerError, match="the end at position 7"):
            async with group.client.push_consumer("g", subscribe={"T": sql("price >")}):
                pytest.fail("the condition does not parse")
