"""Requests to a broker in this process, over a transport on which it listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.transport import Address
from rmqkit.protocol.command import Command
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.pool import ConnectionPool

#: Sends a request and returns the answer, whatever its code. Raises RequestTimeout, ConnectFailed,
#: ConnectionLost.
Call = Callable[[Command], Awaitable[Command]]
TIMEOUT_MS = 30_000


@asynccontextmanager
async def calling(
    address: Address, config: Config, registry: Registry
) -> AsyncIterator[tuple[Call, ConnectionPool]]:
    """A connection to an address, with its pool, which also sends one-way requests."""
    async with ConnectionPool(connect=Dialer(config, registry)) as pool:

        async def call(command: Command) -> Command:
            return await pool.call(str(address), command, TIMEOUT_MS)

        yield call, pool


@asynccontextmanager
async def calling_broker(broker: RunningBroker) -> AsyncIterator[Call]:
    """A connection to a broker."""
    async with calling(broker.address, broker.context.config, broker.context.registry) as (call, _):
        yield call
