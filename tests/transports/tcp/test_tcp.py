"""The TCP transport: bytes through, whatever their number, and errors that say what happened."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from rmqkit import plugins
from rmqkit.abc import Address, Buffer, ServerStream
from rmqkit.config import Config
from rmqkit.errors import ConfigError, PluginError
from rmqkit.remoting.listen import bind
from rmqkit_transport_tcp.tcp import TcpListener, TcpTransport

ANY = Address("tcp", "127.0.0.1", 0)


@asynccontextmanager
async def pair(host: str = "127.0.0.1", receive_buffer_bytes: int | None = None) -> AsyncIterator[tuple[ServerStream, trio.SocketStream]]:
    """Both ends of one connection."""
    transport = TcpTransport()
    (listener,) = await transport.listen(Address("tcp", host, 0))
    address = transport.bound_address(listener)
    with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await sock.connect((address.host, address.port))
        stream = await listener.accept()
        async with listener, stream, trio.SocketStream(sock) as client:
            yield stream, client


async def read(client: trio.SocketStream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await client.receive_some()
        assert piece, "the connection ended early"
        data += piece
    return bytes(data)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_both_ends_know_each_other(host: str) -> None:
    """Addresses without IPv6's extra numbers, and TCP_NODELAY is set."""
    async with pair(host) as (stream, client):
        assert stream.remote == client.socket.getsockname()[:2]
        assert stream.local == client.socket.getpeername()[:2]
        await client.send_all(b"ping")
        assert await stream.receive_some() == b"ping"
        await stream.send_all(b"pong")
        assert await read(client, 4) == b"pong"


async def test_accepted_sockets_do_not_delay() -> None:
    """Answers leave at once."""
    transport = TcpTransport()
    (listener,) = await transport.listen(ANY)
    async with listener, await trio.open_tcp_stream("127.0.0.1", transport.bound_address(listener).port):
        assert isinstance(listener, TcpListener)
        stream = await listener.accept()
        async with stream:
            sock: Any = stream._socket  # type: ignore[attr-defined]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


PARTS: dict[str, list[Buffer]] = {
    "none": [],
    "empty": [b"", b""],
    "small": [b"a", b"", memoryview(b"bcd")],
    "many": [b"%06d" % number for number in range(3_000)],
    "many and large": [b"x" * 100 if number % 7 else b"" for number in range(5_000)],
    "huge": [Random(1).randbytes(5_000_000), b"end"],
    "views": [memoryview(bytes(range(256)) * 2_000)[at : at + 50_000] for at in range(0, 500_000, 50_000)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
async def test_parts_arrive_whole_and_in_order(parts: list[Buffer]) -> None:
    """Few or many, empty ones between, more than the kernel takes at once, through a reader that is slow."""
    expected = b"".join(map(bytes, parts)) + b"|"
    async with pair(receive_buffer_bytes=8_192) as (stream, client), trio.open_nursery() as nursery:

        async def send() -> None:
            await stream.send_parts(parts)
            await stream.send_all(b"|")

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert await read(client, len(expected)) == expected


async def test_a_large_send_all_arrives_whole() -> None:
    """More than the socket's buffers hold; a bytearray and a memoryview too."""
    data = Random(2).randbytes(3_000_000)
    async with pair(receive_buffer_bytes=8_192) as (stream, client):
        for form in (data, bytearray(data), memoryview(data)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, form)
                assert await read(client, len(data)) == data


async def test_the_end_of_the_peer_is_an_empty_read() -> None:
    """As trio has it."""
    async with pair() as (stream, client):
        await client.send_eof()
        assert await stream.receive_some() == b""


async def test_a_reset_is_a_broken_resource() -> None:
    """For reading and for all ways of writing."""
    async with pair() as (stream, client):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.socket.close()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_parts([bytes(200_000), b"x"])


async def test_a_closed_stream_says_so() -> None:
    """Closing twice is fine; a read that waits is woken."""
    async with pair() as (stream, _):
        with pytest.RaisesGroup(trio.ClosedResourceError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.receive_some)
                await trio.testing.wait_all_tasks_blocked()
                await stream.aclose()
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_parts([bytes(200_000), b"x"])


async def test_waiting_for_room_to_send() -> None:
    """Returns while there is room, waits while there is none."""
    async with pair(receive_buffer_bytes=8_192) as (stream, _):
        await stream.wait_send_all_might_not_block()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, bytes(20_000_000))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        with trio.move_on_after(0) as waited:
            await stream.wait_send_all_might_not_block()
        assert waited.cancelled_caught


# --- listening --------------------------------------------------------------------------------------------------------


class Accepting:
    """A listening socket that fails first."""

    def __init__(self, real: trio.socket.SocketType, *errors: int) -> None:
        self._real = real
        self._errors = list(errors)

    async def accept(self) -> tuple[trio.socket.SocketType, object]:
        if self._errors:
            raise OSError(self._errors.pop(0), "accept failed")
        return await self._real.accept()


async def test_a_connection_that_died_before_it_was_accepted_is_passed_over() -> None:
    """The listener goes on; running out of file descriptors, which the caller must know, is raised."""
    transport = TcpTransport()
    (listener,) = await transport.listen(ANY)
    assert isinstance(listener, TcpListener)
    async with listener, await trio.open_tcp_stream("127.0.0.1", transport.bound_address(listener).port):
        failing = TcpListener(Accepting(listener.socket, errno.ECONNABORTED, errno.EPROTO, errno.EMFILE))  # type: ignore[arg-type]
        with pytest.raises(OSError, match="accept failed") as error:
            await failing.accept()
        assert error.value.errno == errno.EMFILE
        await (await failing.accept()).aclose()


async def test_a_closed_listener_says_so() -> None:
    """An accept that waits is woken."""
    (listener,) = await TcpTransport().listen(ANY)
    with pytest.RaisesGroup(trio.ClosedResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept)
            await trio.testing.wait_all_tasks_blocked()
            await listener.aclose()
    await listener.aclose()


async def test_a_port_is_free_again_after_a_close() -> None:
    """At once, connections of its past notwithstanding (SO_REUSEADDR)."""
    transport = TcpTransport()
    (listener,) = await transport.listen(ANY)
    address = transport.bound_address(listener)
    async with await trio.open_tcp_stream(address.host, address.port) as client:
        await (await listener.accept()).aclose()
        assert await client.receive_some() == b""
    await listener.aclose()
    (again,) = await transport.listen(address)
    assert transport.bound_address(again) == address
    await again.aclose()


@pytest.mark.parametrize(
    ("host", "step"), [("192.0.2.1", "choose one that does"), ("127.0.0.1", "choose another port")], ids=["not local", "taken"]
)
async def test_binding_names_the_address_and_the_next_step(host: str, step: str) -> None:
    """And what was bound before is free again: all or none."""
    registry = plugins.load(Config())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (first,), (where,) = await bind(registry, [ANY])
        await first.aclose()
        bad = Address("tcp", host, taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"cannot listen on {bad}: .*{step}"):
            await bind(registry, [where, bad])
        (again,), _ = await bind(registry, [where])
        await again.aclose()


async def test_an_unknown_scheme_names_those_there_are() -> None:
    """PluginError."""
    with pytest.raises(PluginError, match=r"'carrier-pigeon'.*tcp"):
        await bind(plugins.load(Config()), [Address("carrier-pigeon", "127.0.0.1", 0)])


# --- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_connecting_under_both_loops(backend: str) -> None:
    """The client's side knows no loop: bytes there and back, TCP_NODELAY set, a refused connection is an OSError."""

    async def talk() -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
            with pytest.raises(OSError, match="connect"):
                await TcpTransport().connect(Address("tcp", "127.0.0.1", port), 5_000)
            server.listen()
            stream = await TcpTransport().connect(Address("tcp", "127.0.0.1", port), 5_000)
            with server.accept()[0] as accepted:
                raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                await stream.send(b"ping")
                assert accepted.recv(4) == b"ping"
                accepted.sendall(b"pong")
                assert await stream.receive() == b"pong"
            await stream.aclose()

    anyio.run(talk, backend=backend)
