"""The control port of servers of a test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import h11
import pytest
import trio
import trio.testing

from rmqkit.client import Message
from rmqkit.errors import RmqError, SendFailed
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import SettableClock
from rmqkit.testing.control import Control
from rmqkit.testing.rocketmq import RocketMQ, rocketmq_in_loop
from tests.toolkit.http_client import exchange

HOUR_MS = 3_600_000


class Desk:
    """Servers, and requests to their control port."""

    def __init__(self, servers: RocketMQ, stream: trio.abc.Stream) -> None:
        self.servers = servers
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def post(self, path: str, **body: object) -> int:
        """The time that is answered."""
        status, text = await self.ask(path, json.dumps(body).encode())
        assert status == 200, text
        now_ms: int = json.loads(text)["now_ms"]
        return now_ms

    async def ask(self, path: str, sent: bytes = b"", method: str = "POST") -> tuple[int, str]:
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        response, text = await exchange(self._stream, self._http, path, method, sent)
        return response.status_code, text


@asynccontextmanager
async def controlled(clock: SettableClock, brokers: int = 1) -> AsyncIterator[Desk]:
    async with (
        rocketmq_in_loop(brokers=brokers, transport="memory") as servers,
        trio.open_nursery() as nursery,
    ):
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(Control(servers, clock).responder.serve, there)
        yield Desk(servers, here)
        nursery.cancel_scope.cancel()


def running(test: Callable[[SettableClock], Awaitable[None]]) -> None:
    """Run a test in a loop with a clock that can be put forward."""
    clock = SettableClock()
    trio.run(partial(test, clock), clock=clock)


def test_a_clock_that_is_put_forward() -> None:
    """What waits goes on when its time has come, in order; nobody puts it back."""

    async def test(clock: SettableClock) -> None:
        woken: list[int] = []

        async def wait(seconds: int) -> None:
            await trio.sleep(seconds)
            woken.append(seconds)

        async with trio.open_nursery() as nursery:
            for seconds in (300, 7_000, 60):
                nursery.start_soon(wait, seconds)
            before = trio.current_time()
            await clock.advance(HOUR_MS)
            assert trio.current_time() >= before + 3_600
            assert woken == [60, 300]
            with pytest.raises(ValueError, match="forward"):
                await clock.advance(-1)
            await clock.advance(HOUR_MS)
        assert woken == [60, 300, 7_000]

    running(test)


def test_a_timed_message_is_due_when_the_test_says() -> None:
    """The servers' time is that of the loop, and their clients stay connected."""

    async def test(clock: SettableClock) -> None:
        async with controlled(clock) as desk, desk.servers.client() as client:
            start_ms = await desk.post("/clock/advance", ms=0)
            status, text = await desk.ask("/clock", method="GET")
            assert status == 200
            assert json.loads(text)["now_ms"] >= start_ms
            async with client.producer("p") as producer, client.pull_consumer("c") as consumer:
                await client.admin.create_topic("T", queues=1)
                due = {"TIMER_DELIVER_MS": str(start_ms + HOUR_MS)}
                await producer.send(Message("T", b"later", properties=due))
                (queue,) = await consumer.queues("T")
                await desk.post("/clock/advance", ms=HOUR_MS // 2)
                assert not (await consumer.pull(queue, 0)).messages
                now_ms = await desk.post("/clock/advance", ms=HOUR_MS)
                assert now_ms >= start_ms + HOUR_MS * 3 // 2
                (found,) = (await consumer.pull(queue, 0)).messages
                assert found.body == b"later"

    running(test)


def test_faults() -> None:
    """They are those of the fixture, and end when the test says."""

    async def test(clock: SettableClock) -> None:
        async with (
            controlled(clock) as desk,
            desk.servers.client() as client,
            client.producer("p", retries=0, timeout_ms=2_000) as producer,
        ):
            await producer.send("T", b"1")
            await desk.post("/faults/fail", code=int(ResponseCode.SYSTEM_BUSY), topic="T")
            with pytest.raises(SendFailed, match="SYSTEM_BUSY"):
                await producer.send("T", b"2")
            await producer.send("T", b"3")
            for path in ("/faults/drop", "/faults/cut"):
                await desk.post(path, request=["send"], times=None)
                with pytest.raises(RmqError):
                    await producer.send("T", b"4")
                await desk.post("/faults/heal")
            await producer.send("T", b"5")
            await desk.post("/cut", server="broker-a")
            before = trio.current_time()
            await desk.post("/faults/delay", ms=300)
            await producer.send("T", b"6")
            assert trio.current_time() >= before + 0.3

    running(test)


def test_a_broker_that_is_away() -> None:
    """It cannot be reached until it is back."""

    async def test(clock: SettableClock) -> None:
        async with controlled(clock, brokers=2) as desk, desk.servers.client() as client:
            await desk.post("/away", server="broker-b")
            assert set(await client.admin.masters()) == {"broker-a"}
            assert (await desk.ask("/away", b'{"server": "broker-b"}'))[0] == 400
            await desk.post("/back", server="broker-b")
            assert set(await client.admin.masters()) == {"broker-a", "broker-b"}
            assert (await desk.ask("/back", b'{"server": "broker-b"}'))[0] == 400

    running(test)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/clock/advance", b"{", "truncated"),
        ("/clock/advance", b'{"ms": -1}', ">= 0"),
        ("/clock/advance", b'{"hours": 1}', "unknown field"),
        ("/faults/fail", b'{"code": 0}', "SUCCESS"),
        ("/faults/fail", b'{"code": 2, "request": "nothing"}', "nothing"),
        ("/cut", b'{"server": "broker-z"}', "no server"),
    ],
)
def test_requests_that_are_refused(path: str, body: bytes, said: str) -> None:
    """The answer says what is wrong."""

    async def test(clock: SettableClock) -> None:
        async with controlled(clock) as desk:
            status, text = await desk.ask(path, body)
            assert status == 400
            assert said in text

    running(test)
