"""A listening transport inside a test, and operations on its connections."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic

import anyio
import anyio.abc
import trio
import trio.testing
from attrs import frozen

from rmqkit.plugin.request import EachRequest, Outcome, Peer, Reply
from rmqkit.plugin.transport import Address, ServerStream, Transport, WorkingListener
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting.connection import Connection
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer

#: Longer than any operation here takes; a hanging test fails after this time.
PATIENCE_S = 60
CONNECT_TIMEOUT_MS = 30_000
#: Exceptions that the end of a connection may raise, graceful or not.
ENDED = (trio.BrokenResourceError, anyio.BrokenResourceError, anyio.EndOfStream)
_HELLO = b"!"


@frozen
class Listening:
    """A listening transport. `listener` is its first listener, `address` the listener's address."""

    transport: Transport
    listener: trio.abc.Listener[ServerStream]
    address: Address

    async def connect(self) -> anyio.abc.ByteStream:
        return await self.transport.connect(self.address, CONNECT_TIMEOUT_MS)

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[ServerStream, anyio.abc.ByteStream]]:
        """Both ends of a new connection; both are closed when the context ends."""
        ends: list[ServerStream] = []

        async def accept() -> None:
            # The transport may have probed the listener; a connection that ends without a byte is such a
            # probe.
            while True:
                ends[:] = [await self.listener.accept()]
                ends[:] = [await ends[0].opened()]
                if await ends[0].receive_some(1) == _HELLO:
                    return
                await trio.aclose_forcefully(ends[0])

        client: anyio.abc.ByteStream | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accept)
                client = await self.connect()
                await client.send(_HELLO)
            yield ends[0], client
        finally:
            with trio.CancelScope(shield=True):
                for end in ends:
                    await trio.aclose_forcefully(end)
                if client is not None:
                    await anyio.aclose_forcefully(client)


@asynccontextmanager
async def listening(transport: Transport, where: Address) -> AsyncIterator[Listening]:
    """Let the transport listen at `where`; all listeners are closed when the context ends."""
    with trio.fail_after(PATIENCE_S):
        listeners = await transport.listen(where)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                if isinstance(listener, WorkingListener):
                    nursery.start_soon(listener.run)
            try:
                yield Listening(transport, listeners[0], transport.bound_address(listeners[0]))
            finally:
                with trio.CancelScope(shield=True):
                    for listener in listeners:
                        await listener.aclose()
            nursery.cancel_scope.cancel()


class Echo(EachRequest):
    """Answers with slices of the body; requests with code 2 are answered only after `gate` is set."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if request.code == 2:
            return peer.answer_async(request, partial(self._later, request))
        return self._reply(request)

    async def _later(self, request: Command) -> Reply:
        await self.gate.wait()
        return self._reply(request)

    def _reply(self, request: Command) -> Reply:
        view = memoryview(request.body or b"")
        return Reply(
            answer(request, ResponseCode.SUCCESS),
            [view[at : at + 10_000] for at in range(0, len(view), 10_000)],
            len(view),
        )


@asynccontextmanager
async def request_server(at: Listening, echo: Echo | None = None) -> AsyncIterator[RequestServer]:
    """A request server with `Echo` on the listener."""
    echo = echo or Echo()
    server = RequestServer(Router({1: echo, 2: echo}), name="contract")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [at.listener])
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def caller(stream: anyio.abc.ByteStream) -> AsyncIterator[Connection]:
    """The client side of remoting over a stream."""
    connection = Connection(stream, "peer")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection
        connection.close()


async def received(end: ServerStream | anyio.abc.ByteStream, count: int) -> bytes:
    """Receive `count` bytes from either kind of stream. Raises EOFError when the stream ends before."""
    data = bytearray()
    while len(data) < count:
        piece = (
            await end.receive_some(count - len(data))
            if isinstance(end, ServerStream)
            else await end.receive(count - len(data))
        )
        if not piece:
            raise EOFError(f"ended after {len(data)} of {count} bytes")
        assert len(piece) <= count - len(data), "more bytes than were asked for"
        data += piece
    return bytes(data)


async def has_ended(client: anyio.abc.ByteStream) -> bool:
    """Whether the client's stream ends, gracefully or not, before another byte arrives."""
    try:
        await client.receive()
    except ENDED:
        return True
    return False


async def echo_all(stream: ServerStream) -> None:
    """Send everything back until the peer closes the connection, gracefully or not."""
    with suppress(trio.BrokenResourceError):
        async with stream:
            stream = await stream.opened()
            async with stream:
                while data := await stream.receive_some():
                    await stream.send_all(data)


@asynccontextmanager
async def echoing(at: Listening) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, echo_all, [at.listener])
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds. Raises TimeoutError after PATIENCE_S of real time,
    whatever clock the test uses."""
    deadline_s = monotonic() + PATIENCE_S
    while not condition():
        if monotonic() > deadline_s:
            raise TimeoutError(f"waited {PATIENCE_S} s in vain")
        await trio.testing.wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()


def descriptors() -> int:
    """The open file descriptors of this process."""
    return len(os.listdir("/dev/fd"))
