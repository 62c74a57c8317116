"""Clients of gRPC in tests: faults, brokers that are away, and time that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
import trio.testing

from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.broker import dialer
from rmqkit.testing.listening import ENDED
from rmqkit.testing.rocketmq import RocketMQ, rocketmq_in_loop
from tests.plugins.grpc.client import (
    CODES,
    CONNECT_TIMEOUT_MS,
    Client,
    M,
    message,
    producing,
    resource,
    sending,
)
from tests.plugins.grpc.test_consuming import received, receiving

MEMORY = "memory"


@asynccontextmanager
async def dialled(servers: RocketMQ) -> AsyncIterator[Client]:
    host, port = servers.address().rsplit(":", 1)
    where = Address(MEMORY, host, int(port))
    async with await dialer(MEMORY)(where, CONNECT_TIMEOUT_MS) as stream:
        client = Client(stream)
        await client.settle(producing("T"))
        yield client


async def test_faults_strike_calls() -> None:
    """A call fails as its requests do: with the status of the code, later, or with its connection."""
    async with rocketmq_in_loop(transport=MEMORY) as servers:
        async with dialled(servers) as client:
            fault = servers.fail_next(ResponseCode.SYSTEM_BUSY, topic="T")
            sent = await client.call("SendMessage", sending(message("T")))
            assert (sent.status.code, fault.struck) == (CODES["TOO_MANY_REQUESTS"], 1)
            sent = await client.call("SendMessage", sending(message("T")))
            assert sent.status.code == CODES["OK"]
            servers.cut_next()
            stream = await client.begin("SendMessage", sending(message("T")))
            with pytest.raises(ENDED):
                await client.until_ended(stream)
        async with servers.away():
            with pytest.raises((*ENDED, anyio.BrokenResourceError)):
                async with dialled(servers):
                    pass
        async with dialled(servers) as client:
            sent = await client.call("SendMessage", sending(message("T")))
            assert sent.status.code == CODES["OK"]


async def test_time_that_jumps(autojump_clock: trio.testing.MockClock) -> None:
    """A timed message is due when the test's sleep ends; a receive that waits does so in no time."""
    async with rocketmq_in_loop() as servers:
        async with dialled(servers) as client:
            await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("T")))
            due = message("T", b"later", "01BB", delivery_timestamp_ms=servers.now_ms() + 3_600_000)
            assert (await client.call("SendMessage", sending(due))).status.code == CODES["OK"]
        await trio.sleep(3_500)
        async with dialled(servers) as client:
            assert (await received(client, receiving(poll_ms=1_000)))[0] == CODES["MESSAGE_NOT_FOUND"]
        await trio.sleep(200)
        async with dialled(servers) as client:
            code, (found,) = await received(client, receiving())
            assert (code, found.body) == (CODES["OK"], b"later")


async def test_a_receive_ends_before_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """However long the server may wait: an answer after it is of no use to the client."""
    async with rocketmq_in_loop() as servers, dialled(servers) as client:
        await client.call("SendMessage", sending(message("T")))
        await received(client, receiving())
        for deadline_s in (2, 5, 8):
            began = trio.current_time()
            await received(client, receiving(poll_ms=20_000), grpc_timeout=f"{deadline_s}S")
            assert trio.current_time() - began < deadline_s
