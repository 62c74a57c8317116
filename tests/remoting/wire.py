"""A server on a loopback port, and a client that is nothing but a socket and a frame decoder."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import trio
from attrs import define, field

from rmqkit.config import Config
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.transport import Address
from rmqkit.protocol import frame
from rmqkit.protocol.command import Command
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.remoting.waiting import WaitingRequests
from rmqkit_transport_tcp.tcp import TcpTransport

#: Longer than any test here takes; a test that hangs fails after this time.
PATIENCE_S = 60


class Handler(EachRequest):
    """A processor made from a function."""

    def __init__(self, act: Callable[[Command, Peer], Outcome]) -> None:
        self._act = act

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return self._act(request, peer)


@define
class Client:
    """One raw connection."""

    stream: trio.SocketStream
    _decoder: frame.FrameDecoder = field(factory=frame.FrameDecoder)
    _got: list[Command] = field(factory=list)

    async def send(self, *commands: Command) -> None:
        await self.stream.send_all(b"".join(map(frame.encode, commands)))

    async def receive(self) -> Command:
        """The next command. Raises EOFError when the server closed the connection."""
        with trio.fail_after(PATIENCE_S):
            while not self._got:
                data = await self.stream.receive_some()
                if not data:
                    raise EOFError
                self._got += self._decoder.feed(bytes(data))
        return self._got.pop(0)

    async def ask(self, command: Command) -> Command:
        await self.send(command)
        return await self.receive()

    def reset(self) -> None:
        """End the connection with a reset."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.stream.socket.close()

    async def is_closed(self) -> bool:
        """Whether the server closed the connection without sending another frame; waits for one of the
        two."""
        try:
            await self.receive()
        except (EOFError, trio.BrokenResourceError):
            return True
        return False


@define
class Served:
    """A running server. `closed` lists the peers whose connection ended, `scope` cancels it, `ended` is set
    when it has ended."""

    server: RequestServer
    address: Address
    closed: list[Peer]
    scope: trio.CancelScope
    ended: trio.Event

    @asynccontextmanager
    async def client(self, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[Client]:
        sock = trio.socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        with sock:
            await sock.connect((self.address.host, self.address.port))
            async with trio.SocketStream(sock) as stream:
                yield Client(stream)


@asynccontextmanager
async def served(
    processors: Mapping[int, RequestProcessor],
    *,
    rpc_hooks: Iterable[RpcHook] = (),
    waiting: WaitingRequests | None = None,
    **router: Any,
) -> AsyncIterator[Served]:
    """A server with these processors; leaving the block cancels it."""
    transport = TcpTransport(Config())
    (listener,) = await transport.listen(Address("tcp", "127.0.0.1", 0))
    closed: list[Peer] = []
    server = RequestServer(
        Router(processors, **router),
        rpc_hooks=rpc_hooks,
        on_closed=closed.append,
        name="test",
        waiting=waiting,
    )
    scope, ended = trio.CancelScope(), trio.Event()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await server.serve([listener], task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        try:
            yield Served(server, transport.bound_address(listener), closed, scope, ended)
        finally:
            scope.cancel()
