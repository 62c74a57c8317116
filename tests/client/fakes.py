"""An in-memory network with scripted servers, for trio and asyncio; nothing waits for real time."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar

import anyio
import pytest
import trio.testing
from anyio.abc import ByteStream, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from rmqkit.plugin.transport import Address
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder, encode

T = TypeVar("T")

#: How long nothing must happen before the clock of `JumpingLoop` jumps.
_IDLE_S = 0.005
on_both_backends = pytest.mark.parametrize("backend", ["trio", "asyncio"])


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the clock of its loop."""

    ahead_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout if timeout is None else min(timeout, _IDLE_S))
        if not found and timeout is not None and timeout > _IDLE_S:
            self.ahead_s += timeout - _IDLE_S
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio whose clock jumps to the next timer when nothing has happened for 5 ms."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.ahead_s


def run(backend: str, function: Callable[[], Awaitable[T]]) -> T:
    """Run a test body under a backend; the clock jumps when all tasks wait."""
    options: dict[str, Any] = (
        {"clock": trio.testing.MockClock(autojump_threshold=0)}
        if backend == "trio"
        else {"loop_factory": JumpingLoop}
    )
    return anyio.run(function, backend=backend, backend_options=options)


class PipeStream(ByteStream):
    """One end of a pipe that buffers at most `limit` chunks."""

    def __init__(
        self, sending: MemoryObjectSendStream[bytes], receiving: MemoryObjectReceiveStream[bytes]
    ) -> None:
        self._sending = sending
        self._receiving = receiving
        self._rest = b""
        self.sent_chunks = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = self._rest or await self._receiving.receive()
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        self.sent_chunks += 1
        await self._sending.send(bytes(item))

    async def send_eof(self) -> None:
        self._sending.close()

    async def aclose(self) -> None:
        self._sending.close()
        self._receiving.close()
        await anyio.lowlevel.checkpoint()


def pipe(limit: float = math.inf) -> tuple[PipeStream, PipeStream]:
    there = anyio.create_memory_object_stream[bytes](limit)
    back = anyio.create_memory_object_stream[bytes](limit)
    return PipeStream(there[0], back[1]), PipeStream(back[0], there[1])


#: A server's reaction to a request: a command or raw bytes to send, or None.
Reaction = Command | bytes | None
Script = Callable[[Command], "Reaction | Awaitable[Reaction]"]


class FakeServer:
    """Answers each request by its script, each in its own task; records its requests and open streams."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Command] = []
        self.streams: list[ByteStream] = []
        self._came = anyio.Event()

    async def await_requests(self, count: int) -> None:
        """Wait until this many requests have arrived in total."""
        while len(self.requests) < count:
            self._came = anyio.Event()
            await self._came.wait()

    def seen(self, code: int) -> list[Command]:
        """The requests of one code, in order."""
        return [request for request in self.requests if request.code == code]

    async def serve(self, stream: ByteStream) -> None:
        self.streams.append(stream)
        decoder = FrameDecoder()
        writing = anyio.Lock()
        async with stream, anyio.create_task_group() as group:
            try:
                while True:
                    for command in decoder.feed(await stream.receive()):
                        self.requests.append(command)
                        self._came.set()
                        group.start_soon(self._react, stream, command, writing)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                group.cancel_scope.cancel()

    async def _react(self, stream: ByteStream, command: Command, writing: anyio.Lock) -> None:
        reaction = self.script(command)
        if isawaitable(reaction):
            reaction = await reaction
        if isinstance(reaction, Command):
            reaction = encode(reaction)
        if reaction is not None:
            try:
                async with writing:
                    await stream.send(reaction)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def hang_up(self) -> None:
        """Close all open connections."""
        for stream in self.streams:
            await stream.aclose()
        self.streams.clear()


class Network:
    """Addresses and their servers; pass its `connect` to a pool or a client. `async with Network() as
    network:`"""

    def __init__(self) -> None:
        self.servers: dict[str, FakeServer] = {}
        self.connects: list[str] = []
        self.gate: anyio.Event | None = None
        self._group: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> Network:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(*error)

    def add(self, address: str, script: Script) -> FakeServer:
        self.servers[address] = server = FakeServer(script)
        return server

    async def connect(self, where: Address, timeout_ms: int) -> ByteStream:
        address = str(where)
        self.connects.append(address)
        if self.gate is not None:
            with anyio.fail_after(timeout_ms / 1000):
                await self.gate.wait()
        server = self.servers.get(address)
        if server is None:
            raise ConnectionRefusedError("connection refused")
        near, far = pipe()
        self._group.start_soon(server.serve, far)
        return near


async def settled() -> None:
    """Let every other task run until it waits; under asyncio, a number of rounds that is sufficient for the
    pipes here."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
