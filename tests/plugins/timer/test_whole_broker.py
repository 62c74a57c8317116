"""Timers in a whole broker, over whatever store and transport: the clock that counts is the broker's, the
service looks by the loop's."""

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


async def until(running: RunningBroker, end: int) -> None:
    """Wait until queue 0 of T has so many messages that can be read, and all timers are entered."""
    store, service = running.context.store, running.context.registry.services["timer"]
    with trio.fail_after(CALL_MS / 1000):
        while store.max_offset("T", 0) < end or service.figures().get("timerOffsetBehind") != 0:
            await trio.lowlevel.checkpoint()


def send(body: bytes, seconds: int) -> Command:
    text = f"UNIQ_KEY\x01{body.decode()}\x02" + (f"TIMER_DELAY_SEC\x01{seconds}\x02" if seconds else "")
    header = SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0, properties=text)
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


@pytest.mark.durable_store
async def test_timed_messages_come_at_their_time_and_once(tmp_path: Path) -> None:
    """Behind those that were sent at once; what comes due while the broker is away is delivered after its
    start, and what was delivered is not again."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as running, ConnectionPool(connect=dialer()) as pool:
        for body, seconds in ((b"second", 1), (b"fourth", 100), (b"third", 5), (b"first", 0)):
            assert (await pool.call(str(running.address), send(body, seconds), CALL_MS)).code == 0
        await until(running, 1)
        clock.advance(1_000)
        await until(running, 2)
    clock.advance(4_000)
    async with running_broker(tmp_path, clock=clock) as running, ConnectionPool(connect=dialer()) as pool:
        await until(running, 3)
        clock.advance(95_000)
        await until(running, 4)
        bodies: list[bytes] = []
        while (
            answer := await pool.call(str(running.address), pull(len(bodies)), CALL_MS)
        ).code == ResponseCode.SUCCESS:
            bodies += [message.body for message in unpack_all(answer.body)]
        assert bodies == [b"first", b"second", b"third", b"fourth"]
