"""Connections inside one trio loop, without sockets and ports, with bounded buffers. For tests, and for a
client in the broker's own process.

In `memory://name` the name is arbitrary; `memory://127.0.0.1:0` takes a free number, like a port, so that a
broker and its clients can use the scheme without special configuration. Names belong to the process, as ports
belong to a machine.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import count

import anyio
import anyio.abc
import sniffio
import trio

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import Address, ServerStream, Transport, TransportInfo

#: Capacity of one direction of a connection before the sender blocks; about a socket buffer.
CAPACITY_BYTES = 256 * 1024
_LOCALHOST = "127.0.0.1"
#: The gaps between the numbers leave room for a broker's fast port, which is two below.
_PORTS = range(20_000, 65_536, 3)


class Pipe:
    """One direction of a connection, holding at most CAPACITY_BYTES."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._moved = trio.lowlevel.ParkingLot()
        self._writable = True
        self._ended = False
        self._readable = True

    async def send(self, data: Buffer | bytearray) -> None:
        """Copies the data. Raises BrokenResourceError when the reader is closed, ClosedResourceError after
        `end` and `close_writer`."""
        rest = memoryview(data)
        while True:
            rest = rest[self.send_now(rest) :]
            if not rest:
                return
            await self._moved.park()

    def send_now(self, data: Buffer | bytearray) -> int:
        """Copy as much of the data as there is room for; returns its length. Raises like `send`."""
        if not self._writable or self._ended:
            raise trio.ClosedResourceError("this end was already closed")
        if not self._readable:
            raise trio.BrokenResourceError("the peer closed the connection")
        size = min(len(data), CAPACITY_BYTES - len(self._data))
        if size > 0:
            self._data += memoryview(data)[:size]
            self._moved.unpark_all()
        return size

    async def receive(self, max_bytes: int) -> bytes:
        """Up to this many bytes; empty at the end. Raises ClosedResourceError after `close_reader`."""
        await trio.lowlevel.checkpoint()
        while True:
            if not self._readable:
                raise trio.ClosedResourceError("this end was already closed")
            if self._data:
                piece = bytes(self._data[:max_bytes])
                del self._data[:max_bytes]
                self._moved.unpark_all()
                return piece
            if self._ended:
                return b""
            await self._moved.park()

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._writable and self._readable and len(self._data) >= CAPACITY_BYTES:
            await self._moved.park()

    def end(self) -> None:
        """End the sending; buffered bytes can still be read."""
        self._ended = True
        self._moved.unpark_all()

    def close_writer(self) -> None:
        self._writable = False
        self.end()

    def close_reader(self) -> None:
        self._readable = False
        self._data.clear()
        self._moved.unpark_all()


class MemoryServerStream(ServerStream):
    """The accepting end, of a connection to the listener at `address`."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, remote: tuple[str, int], address: Address) -> None:
        self._address = address
        self._incoming = incoming
        self._outgoing = outgoing
        self.remote = remote
        self.local = (_LOCALHOST, address.port)

    @property
    def transport(self) -> TransportInfo:
        return TransportInfo(self._address)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._incoming.receive(max_bytes or CAPACITY_BYTES)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._outgoing.send(data)

    def send_now(self, data: Buffer) -> int:
        return self._outgoing.send_now(data)

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            await self._outgoing.send(part)

    async def wait_send_all_might_not_block(self) -> None:
        await self._outgoing.wait_for_room()

    async def aclose(self) -> None:
        self._outgoing.close_writer()
        self._incoming.close_reader()
        await trio.lowlevel.checkpoint()


class MemoryClientStream(anyio.abc.ByteStream):
    """The connecting end."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        try:
            data = await self._incoming.receive(max_bytes)
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await trio.lowlevel.checkpoint()
        try:
            await self._outgoing.send(item)
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        self._outgoing.end()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._outgoing.close_writer()
        self._incoming.close_reader()
        await trio.lowlevel.checkpoint()


class MemoryListener(trio.abc.Listener[ServerStream]):
    """Hands over connections one by one: a connect waits until it is accepted."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.loop = trio.lowlevel.current_trio_token()
        self._arriving, self._accepting = trio.open_memory_channel[ServerStream](0)

    async def accept(self) -> ServerStream:
        return await self._accepting.receive()

    async def hand_over(self, stream: ServerStream) -> None:
        """Give the listener a new connection. Raises ConnectionRefusedError when the listener is closed
        meanwhile."""
        try:
            await self._arriving.send(stream)
        except trio.BrokenResourceError as error:
            raise _refused(self.address) from error

    async def aclose(self) -> None:
        if _listening.get(self.address) is self:
            del _listening[self.address]
        await self._accepting.aclose()


#: The listeners in this process.
_listening: dict[Address, MemoryListener] = {}
_numbers = count(1)


class MemoryTransport(Transport):
    """Scheme `memory`."""

    scheme = "memory"

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        await trio.lowlevel.checkpoint()
        if not address.name and not address.port:
            address = _free(address)
        if address in _listening:
            raise OSError(errno.EADDRINUSE, "another listener of this process has that address")
        listener = _listening[address] = MemoryListener(address)
        return [listener]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """Waits until the connection is accepted. Both ends must run in the same trio loop; connects from
        other loops are refused."""
        with anyio.fail_after(timeout_ms / 1000):
            await anyio.lowlevel.checkpoint()
            listener = _listening.get(address)
            if listener is None:
                raise _refused(address)
            if (
                sniffio.current_async_library() != "trio"
                or trio.lowlevel.current_trio_token() is not listener.loop
            ):
                raise ConnectionRefusedError(
                    errno.ECONNREFUSED,
                    f"{address} listens in another event loop, where memory connections do not lead",
                )
            there, back = Pipe(), Pipe()
            remote = _LOCALHOST, 1 + next(_numbers) % 65_535
            await listener.hand_over(MemoryServerStream(there, back, remote, address))
        return MemoryClientStream(back, there)

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, MemoryListener):
            raise TypeError(f"{listener!r} is not a memory listener")
        return listener.address


def _free(address: Address) -> Address:
    for _ in _PORTS:
        wanted = Address(address.scheme, address.host, _PORTS[next(_numbers) % len(_PORTS)])
        if wanted not in _listening:
            return wanted
    raise OSError(errno.EADDRNOTAVAIL, "all numbers of this process are taken")


def _refused(address: Address) -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, f"{address} has no listener in this process")
