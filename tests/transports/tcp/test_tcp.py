"""The TCP transport: the contract of transports, and properties of sockets."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio.abc
import pytest
import trio
import trio.testing

from rmqkit.config import Config, load
from rmqkit.errors import ConfigError, PluginError
from rmqkit.plugin import loader
from rmqkit.plugin.listen import bind
from rmqkit.plugin.transport import Address, ServerStream
from rmqkit.testing.listening import Listening
from rmqkit.testing.transport import TransportContract
from rmqkit.toolkit.sockets import ListeningSocket, SocketStream
from rmqkit_transport_tcp.tcp import TcpListener, TcpTransport

ANY = Address("tcp", "127.0.0.1", 0)


@contextmanager
def full_queue() -> Iterator[Address]:
    """A listening socket whose queue is full: the system lets further connects wait."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        host, port = listening.getsockname()
        with socket.socket() as first, socket.socket() as second:
            first.connect((host, port))
            second.setblocking(False)
            second.connect_ex((host, port))
            yield Address("tcp", host, port)


class TestTcp(TransportContract):
    """The contract over IPv4."""

    def make_transport(self, directory: Path) -> TcpTransport:
        return TcpTransport(Config())

    def where(self, directory: Path) -> Address:
        return ANY

    @asynccontextmanager
    async def silent(self, at: Listening) -> AsyncIterator[Address]:
        with full_queue() as address:
            yield address


class TestTcpOverIpv6(TestTcp):
    """The contract over IPv6."""

    def where(self, directory: Path) -> Address:
        return Address("tcp", "::1", 0)


@asynccontextmanager
async def pair(
    host: str = "127.0.0.1", receive_buffer_bytes: int | None = None
) -> AsyncIterator[tuple[ServerStream, trio.SocketStream]]:
    """Both ends of one connection; the client's end is a socket."""
    transport = TcpTransport(Config())
    (listener,) = await transport.listen(Address("tcp", host, 0))
    address = transport.bound_address(listener)
    with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await sock.connect((address.host, address.port))
        stream = await listener.accept()
        async with listener, stream, trio.SocketStream(sock) as client:
            yield stream, client


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_both_ends_know_each_other(host: str) -> None:
    """The addresses have no extra numbers of IPv6."""
    async with pair(host) as (stream, client):
        assert stream.remote == client.socket.getsockname()[:2]
        assert stream.local == client.socket.getpeername()[:2]


async def test_nothing_delays() -> None:
    """TCP_NODELAY is set on both ends, so that answers are sent at once."""
    transport = TcpTransport(Config())
    (listener,) = await transport.listen(ANY)
    async with (
        listener,
        await transport.connect(transport.bound_address(listener), 5_000) as client,
        await listener.accept() as stream,
    ):
        assert isinstance(stream, SocketStream)
        for sock in (stream.socket, client.extra(anyio.abc.SocketAttribute.raw_socket)):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_parts_through_small_buffers() -> None:
    """If the system accepts a few bytes at a time, nothing is lost or duplicated, wherever a part ends."""
    parts = [bytes([number % 256]) * (number * 37 % 5_000) for number in range(1_000)]
    expected = b"".join(parts)
    async with pair(receive_buffer_bytes=8_192) as (stream, client), trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_parts, parts)
        await trio.testing.wait_all_tasks_blocked()
        data = bytearray()
        while len(data) < len(expected):
            data += await client.receive_some()
        assert bytes(data) == expected


async def test_a_reset_is_a_broken_resource() -> None:
    """Reading and all ways of writing raise it."""
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


# --- listening ----------------------------------------------------------------------------------------------


class Accepting:
    """A listening socket that fails at first."""

    def __init__(self, real: ListeningSocket, *errors: int) -> None:
        self._real = real
        self._errors = list(errors)

    async def accept(self) -> tuple[socket.socket, object]:
        if self._errors:
            raise OSError(self._errors.pop(0), "accept failed")
        return await self._real.accept()


async def test_a_connection_that_died_before_it_was_accepted_is_passed_over() -> None:
    """The listener continues; running out of file descriptors is raised to the caller."""
    transport = TcpTransport(Config())
    (listener,) = await transport.listen(ANY)
    assert isinstance(listener, TcpListener)
    async with listener, await trio.open_tcp_stream("127.0.0.1", transport.bound_address(listener).port):
        failing = TcpListener(Accepting(listener.socket, errno.ECONNABORTED, errno.EPROTO, errno.EMFILE))  # type: ignore[arg-type]
        with pytest.raises(OSError, match="accept failed") as error:
            await failing.accept()
        assert error.value.errno == errno.EMFILE
        await (await failing.accept()).aclose()


async def test_connections_that_wait_together_are_taken_several_in_a_turn() -> None:
    """Waiting connections are accepted together, but other tasks get a turn in between."""
    transport = TcpTransport(Config())
    (listener,) = await transport.listen(ANY)
    port, turns, accepting = transport.bound_address(listener).port, 0, True
    async with listener:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]

        async def count() -> None:
            nonlocal turns
            while accepting:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            streams = [await listener.accept() for _ in clients]
            accepting = False
        for client, stream in zip(clients, streams, strict=True):
            client.close()
            await stream.aclose()
    assert 5 <= turns <= 100


@pytest.mark.parametrize(
    ("host", "step"),
    [("192.0.2.1", "choose one that does"), ("127.0.0.1", "choose another port")],
    ids=["not local", "taken"],
)
async def test_binding_names_the_address_and_the_next_step(host: str, step: str) -> None:
    """If one address cannot be bound, those bound before are free again."""
    registry = loader.load(Config())
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
    """The error is a PluginError."""
    with pytest.raises(PluginError, match=r"'carrier-pigeon'.*tcp"):
        await bind(loader.load(Config()), [Address("carrier-pigeon", "127.0.0.1", 0)])


async def test_processes_that_share_a_port() -> None:
    """With `reusePort` several listen at one port; without, the second is refused."""
    shared = TcpTransport(load(environ={}, flags={"plugins.tcp.reusePort": True}))
    (one,) = await shared.listen(ANY)
    where = shared.bound_address(one)
    (other,) = await shared.listen(where)
    with pytest.raises(OSError, match="in use"):
        await TcpTransport(Config()).listen(where)
    assert shared.bound_address(other) == where
    for each in (one, other):
        await each.aclose()
