"""Delay levels in a whole broker, over whatever store and transport: the clock that counts is the
broker's, the service looks by the loop's."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmqkit.protocol.record import unpack_all
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.clock import FakeClock

CALL_MS = 30_000


async def until_end(running: RunningBroker, end: int) -> None:
    """Wait until queue 0 of T has so many messages that can be read."""
    store = running.context.store
    with trio.fail_after(CALL_MS / 1000):
        while store.max_offset("T", 0) < end:
            await trio.lowlevel.checkpoint()


def send(body: bytes, level: int) -> Command:
    header = SendMessageRequestHeader(
        producer_group="p", topic="T", queue_id=0, properties=f"DELAY\x01{level}\x02" if level else ""
    )
    return request(RequestCode.SEND_MESSAGE, header, body)


def pull(offset: int) -> Command:
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=offset,
        sys_flag=4,
        subscription="*",
        max_msg_nums=32,
    )
    return request(RequestCode.PULL_MESSAGE, header)


@pytest.mark.row("S235")
@pytest.mark.durable_store
async def test_delayed_messages_come_at_their_time_and_once(tmp_path: Path) -> None:
    """Behind those that were sent at once; what comes due while the broker is away is delivered after its
    start, and what was delivered is not again."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as running, ConnectionPool(connect=dialer()) as pool:
        for body, level in ((b"second", 1), (b"third", 2), (b"first", 0)):
            assert (await pool.call(str(running.address), send(body, level), CALL_MS)).code == 0
        clock.advance(1_000)
        await until_end(running, 2)
    clock.advance(4_000)
    async with running_broker(tmp_path, clock=clock) as running, ConnectionPool(connect=dialer()) as pool:
        await until_end(running, 3)
        bodies: list[bytes] = []
        # A store may give out less than there is.
        while (
            answer := await pool.call(str(running.address), pull(len(bodies)), CALL_MS)
        ).code == ResponseCode.SUCCESS:
            bodies += [message.body for message in unpack_all(answer.body)]
        assert bodies == [b"first", b"second", b"third"]
