"""Contract of a transport as tests. Subclass `TransportContract` and define how the transport is made and
where it listens; pytest then runs the tests.

    class TestMine(TransportContract):
        def make_transport(self, directory: Path) -> Transport:
            return MyTransport()

        def where(self, directory: Path) -> Address:
            return Address("mine", "127.0.0.1", 0)

The tests do not depend on ports, sockets or handshakes: a connection is a pair of streams, and its server end
is known once the client has sent a byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar

import anyio
import anyio.abc
import pytest
import trio
import trio.testing

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import Address, Transport
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.frame import encode
from rmqkit.protocol.message_id import pack_host
from rmqkit.remoting import unfinished
from rmqkit.testing.listening import (
    ENDED,
    PATIENCE_S,
    Echo,
    Listening,
    caller,
    descriptors,
    echoing,
    has_ended,
    listening,
    received,
    request_server,
    until,
)

#: More than a transport may buffer for a peer that does not read.
UNREAD_BYTES = 64 * 1024 * 1024

PARTS: dict[str, list[Buffer]] = {
    "none": [],
    "empty": [b"", b""],
    "small": [b"a", b"", memoryview(b"bcd")],
    "many": [b"%06d" % number for number in range(3_000)],
    "many and large": [b"x" * 100 if number % 7 else b"" for number in range(5_000)],
    "huge": [Random(1).randbytes(5_000_000), b"end"],
    "views": [memoryview(bytes(range(256)) * 2_000)[at : at + 50_000] for at in range(0, 500_000, 50_000)],
}


class TransportContract(ABC):
    """Tests of a transport."""

    #: Whether one side can end its sending and still receive (`send_eof`).
    half_close: ClassVar[bool] = True
    #: Event loops of the client while the server runs in another loop; empty when both must share one loop.
    backends: ClassVar[Sequence[str]] = ("trio", "asyncio")

    @abstractmethod
    def make_transport(self, directory: Path) -> Transport:
        """The transport under test, for both sides."""

    @abstractmethod
    def where(self, directory: Path) -> Address:
        """The listen address; it must be free when a test begins."""

    @asynccontextmanager
    async def silent(self, at: Listening) -> AsyncIterator[Address]:
        """An address at which a connect waits for ever. By default `at` with no accept call, which suffices
        when connecting needs an exchange."""
        yield at.address

    @pytest.fixture
    def transport(self, tmp_path: Path) -> Transport:
        return self.make_transport(tmp_path)

    @pytest.fixture
    async def at(self, transport: Transport, tmp_path: Path) -> AsyncIterator[Listening]:
        async with listening(transport, self.where(tmp_path)) as at:
            yield at

    # --- addresses ------------------------------------------------------------------------------------------

    async def test_a_listener_knows_where_it_is(
        self, at: Listening, transport: Transport, tmp_path: Path
    ) -> None:
        """A listener's address has the transport's scheme and, where there are ports, the actual port;
        printing and parsing it gives the same address."""
        wanted = self.where(tmp_path)
        assert at.address.scheme == transport.scheme == wanted.scheme
        assert bool(at.address.port) != bool(at.address.name)
        assert (at.address.name, at.address.host) == (wanted.name, wanted.host)
        assert Address.parse(str(at.address)) == at.address

    async def test_both_ends_have_addresses(self, at: Listening) -> None:
        """Both ends have IP addresses as text, with ports, that fit into a record's born host."""
        async with at.pair() as (server, _):
            assert len(pack_host(*server.remote)) in (8, 20)
            assert len(pack_host(*server.local)) in (8, 20)

    async def test_a_connection_knows_its_door(self, at: Listening) -> None:
        """An accepted stream names the listener's address, and a peer that showed no certificate has none."""
        async with at.pair() as (server, _):
            assert server.transport.listener == at.address
            assert server.transport.certificate is None

    async def test_an_address_is_taken_once(self, at: Listening, transport: Transport) -> None:
        """A second listener at the same address raises OSError; the first one continues."""
        with pytest.raises(OSError, match=r"\w"):
            await transport.listen(at.address)
        async with at.pair() as (server, client):
            await client.send(b"x")
            assert await received(server, 1) == b"x"

    async def test_an_address_is_free_after_a_close(self, transport: Transport, tmp_path: Path) -> None:
        """The address is free directly after a close, even if there were connections."""
        async with listening(transport, self.where(tmp_path)) as first, first.pair():
            address = first.address
            await first.listener.aclose()
        async with listening(transport, address) as again, again.pair() as (server, client):
            assert again.address == address
            await server.send_all(b"again")
            assert await received(client, 5) == b"again"

    async def test_a_closed_listener_says_so(self, at: Listening) -> None:
        """Closing a listener wakes a pending accept. A second close does nothing, and accepted connections
        stay open."""
        async with at.pair() as (server, client):
            with pytest.RaisesGroup(trio.ClosedResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(at.listener.accept)
                    await trio.testing.wait_all_tasks_blocked()
                    await at.listener.aclose()
            await at.listener.aclose()
            await server.send_all(b"still here")
            assert await received(client, 10) == b"still here"

    # --- bytes ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 7_000, 5_000_000])
    async def test_bytes_go_both_ways(self, at: Listening, size: int) -> None:
        """Bytes travel in both directions at the same time, in pieces of any size, in order."""
        random = Random(size)
        there, back = random.randbytes(size), random.randbytes(size)

        async def send(write: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
            rest = memoryview(data)
            while rest:
                count = random.choice([1, 100, 16_384, 20_000, 300_000])
                await write(bytes(rest[:count]))
                rest = rest[count:]

        async with at.pair() as (server, client), trio.open_nursery() as nursery:
            nursery.start_soon(send, client.send, there)
            nursery.start_soon(send, server.send_all, back)

            async def expect() -> None:
                assert await received(client, size) == back

            nursery.start_soon(expect)
            assert await received(server, size) == there

    @pytest.mark.parametrize("size", [1, 10_000, 5_000_000])
    async def test_what_goes_without_waiting(self, at: Listening, size: int) -> None:
        """A non-blocking send takes as much of the beginning as there is room for, possibly nothing; ordinary
        sends follow in order."""
        data = Random(size).randbytes(size)
        async with at.pair() as (server, client), trio.open_nursery() as nursery:
            sent = server.send_now(data)
            assert 0 <= sent <= size
            nursery.start_soon(server.send_all, data[sent:] + b"|")
            assert await received(client, size + 1) == data + b"|"

    @pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
    async def test_parts_arrive_whole_and_in_order(self, at: Listening, parts: list[Buffer]) -> None:
        """Parts arrive whole and in order: few or many, with empty ones between, more than the transport
        takes at once. The sender's memory is reusable when the call returns."""
        owned = [bytearray(part) for part in parts]
        expected = b"".join(owned) + b"|"
        async with at.pair() as (server, client), trio.open_nursery() as nursery:

            async def send() -> None:
                await server.send_parts([memoryview(part) for part in owned])
                for part in owned:
                    part[:] = bytes(len(part))
                await server.send_all(b"|")

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            assert await received(client, len(expected)) == expected

    async def test_send_all_takes_any_buffer(self, at: Listening) -> None:
        """`send_all` accepts bytes, bytearray, memoryview, and empty buffers."""
        data = Random(2).randbytes(1_000_000)
        async with at.pair() as (server, client):
            await server.send_all(b"")
            for form in (data, bytearray(data), memoryview(data)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.send_all, form)
                    assert await received(client, len(data)) == data

    async def test_many_connections(self, at: Listening) -> None:
        """A hundred simultaneous connections each carry their own bytes."""

        async def talk(number: int) -> None:
            async with await at.connect() as client:
                data = b"%03d" % number * 1_000
                await client.send(data)
                assert await received(client, len(data)) == data

        async with echoing(at), trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(talk, number)

    # --- ends -----------------------------------------------------------------------------------------------

    @pytest.fixture
    def closes_by_halves(self) -> None:
        """Skips the tests of half a close."""
        if not self.half_close:
            pytest.skip("this transport closes both directions at once")

    @pytest.mark.usefixtures("closes_by_halves")
    async def test_half_a_close(self, at: Listening) -> None:
        """Where half-close is supported, a side that has ended its sending still receives the answer."""
        async with at.pair() as (server, client):
            await client.send(b"question")
            await client.send_eof()
            assert await received(server, 8) == b"question"
            assert await server.receive_some() == b""
            await server.send_all(b"answer")
            assert await received(client, 6) == b"answer"

    async def test_the_server_sees_the_client_close(self, at: Listening) -> None:
        """After the client closes, the server receives the sent bytes, then an empty read each time; sending
        fails sooner or later."""
        async with at.pair() as (server, client):
            await client.send(b"bye")
            await client.aclose()
            assert await received(server, 3) == b"bye"
            assert await server.receive_some() == b""
            assert await server.receive_some() == b""
            with pytest.raises(trio.BrokenResourceError):
                await _send_for_ever(server.send_all)

    async def test_the_client_sees_the_server_close(self, at: Listening) -> None:
        """After the server closes, the client receives the sent bytes, then anyio's end of stream; sending
        fails sooner or later."""
        async with at.pair() as (server, client):
            await server.send_all(b"bye")
            await server.aclose()
            assert await received(client, 3) == b"bye"
            with pytest.raises(anyio.EndOfStream):
                await client.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await _send_for_ever(client.send)

    async def test_the_peer_closes_while_we_send(self, at: Listening) -> None:
        """A blocked send fails when the peer goes away."""
        async with at.pair() as (server, client):
            with pytest.RaisesGroup(trio.BrokenResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.send_all, bytes(UNREAD_BYTES))
                    await trio.testing.wait_all_tasks_blocked()
                    await client.aclose()
            with pytest.raises(trio.BrokenResourceError):
                await server.send_parts([bytes(200_000), b"x"])
        async with at.pair() as (server, client):
            with pytest.RaisesGroup(anyio.BrokenResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.send, bytes(UNREAD_BYTES))
                    await trio.testing.wait_all_tasks_blocked()
                    await trio.aclose_forcefully(server)

    async def test_a_closed_end_says_so(self, at: Listening) -> None:
        """Closing an end twice does nothing; a pending read is woken; sends are refused."""
        async with at.pair() as (server, client):
            with pytest.RaisesGroup(trio.ClosedResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.receive_some)
                    await trio.testing.wait_all_tasks_blocked()
                    await server.aclose()
            await server.aclose()
            for attempt in (
                partial(server.send_all, b"x"),
                partial(server.send_parts, [bytes(200_000), b"x"]),
            ):
                with pytest.raises(trio.ClosedResourceError):
                    await attempt()
            await client.aclose()
            await client.aclose()
            for use in (client.receive, partial(client.send, b"x")):
                with pytest.raises(anyio.ClosedResourceError):
                    await use()

    # --- cancellation and waiting ---------------------------------------------------------------------------

    async def test_a_cancelled_connect_leaves_nothing_open(self, at: Listening) -> None:
        """A connect cancelled at any time leaves no open descriptor here and no living connection at the
        server."""
        async with echoing(at):
            before = descriptors()
            for moments in range(12):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_connect_and_close, at)
                    for _ in range(moments):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
            await until(lambda: descriptors() <= before)
            async with await at.connect() as client:
                await client.send(b"x")
                assert await received(client, 1) == b"x"

    async def test_a_cancelled_receive_loses_nothing(self, at: Listening) -> None:
        """After a cancelled receive, on either side, the bytes that arrive later are received completely."""
        async with at.pair() as (server, client):
            for wait in (server.receive_some, client.receive):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            await client.send(b"there")
            await server.send_all(b"back")
            assert (await received(server, 5), await received(client, 4)) == (b"there", b"back")

    async def test_a_cancelled_send_can_be_closed(self, at: Listening) -> None:
        """After a cancelled send the connection is unusable; closing it is immediate, and the peer sees the
        end."""
        async with at.pair() as (server, client):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, bytes(UNREAD_BYTES))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            await trio.aclose_forcefully(server)
            with pytest.raises(ENDED):
                await received(client, UNREAD_BYTES)

    async def test_a_peer_that_never_reads(self, at: Listening) -> None:
        """Sending to a peer that never reads blocks instead of using more memory, in both directions, and
        other connections are not affected."""
        async with (
            at.pair() as (deaf_server, deaf_client),
            at.pair() as (server, client),
            trio.open_nursery() as nursery,
        ):
            sent: list[str] = []

            async def flood(name: str, send: Callable[[bytes], Awaitable[None]]) -> None:
                await send(bytes(UNREAD_BYTES))
                sent.append(name)

            nursery.start_soon(flood, "server", deaf_server.send_all)
            nursery.start_soon(flood, "client", deaf_client.send)
            await trio.testing.wait_all_tasks_blocked()
            for data in (b"x", bytes(300_000)):
                async with trio.open_nursery() as talking:
                    talking.start_soon(server.send_all, data)
                    talking.start_soon(client.send, data)
                    assert await received(client, len(data)) == data
                    assert await received(server, len(data)) == data
            assert sent == []
            nursery.cancel_scope.cancel()

    async def test_waiting_for_room_to_send(self, at: Listening) -> None:
        """Waiting for room to send returns while there is room and blocks while there is none."""
        async with at.pair() as (server, _):
            await server.wait_send_all_might_not_block()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, bytes(UNREAD_BYTES))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            with trio.move_on_after(0) as waited:
                await server.wait_send_all_might_not_block()
            assert waited.cancelled_caught

    # --- connecting -----------------------------------------------------------------------------------------

    async def test_nobody_there(self, transport: Transport, tmp_path: Path) -> None:
        """Connecting to an address without a listener raises an OSError with a text soon and leaves nothing
        open."""
        async with listening(transport, self.where(tmp_path)) as at:
            address = at.address
        before = descriptors()
        with pytest.raises(OSError, match=r"\w"):
            await transport.connect(address, 2_000)
        await until(lambda: descriptors() <= before)

    async def test_nobody_answers(self, at: Listening) -> None:
        """Connecting without an answer raises TimeoutError after the time limit and leaves nothing open."""
        async with self.silent(at) as address:
            before = descriptors()
            with pytest.raises(TimeoutError):
                await at.transport.connect(address, 50)
            await until(lambda: descriptors() <= before)

    @pytest.fixture
    def has_backends(self) -> None:
        """Skips the tests with other loops."""
        if not self.backends:
            pytest.skip("this transport joins tasks of one loop")

    @pytest.mark.usefixtures("has_backends")
    async def test_clients_run_under_every_loop(self, at: Listening) -> None:
        """Connecting, both directions, the server's close and the error texts work with the client in another
        event loop."""

        async def talk() -> bytes:
            async with await at.connect() as client:
                await client.send(b"?" * 100_000)
                data = await received(client, 100_000)
                async with anyio.create_task_group() as group:
                    group.start_soon(client.receive)
                    await anyio.wait_all_tasks_blocked()
                    group.cancel_scope.cancel()
                await client.send(b"end")
                return data + await received(client, 3)

        async with echoing(at):
            for backend in self.backends:
                run = partial(anyio.run, talk, backend=backend)
                assert await trio.to_thread.run_sync(run) == b"?" * 100_000 + b"end"

    # --- under the request server ---------------------------------------------------------------------------

    async def test_requests_and_answers(self, at: Listening) -> None:
        """Two hundred simultaneous requests over one connection, with bodies from 0 bytes to half a MiB, each
        get their own answer."""
        random = Random(3)
        bodies = [random.randbytes(random.choice([0, 10, 5_000, 500_000])) for _ in range(200)]
        async with (
            request_server(at),
            caller(await at.connect()) as connection,
            trio.open_nursery() as nursery,
        ):

            async def ask(body: bytes) -> None:
                response = await connection.call(request(1, body=body), PATIENCE_S * 1000)
                assert (response.code, response.body or b"") == (ResponseCode.SUCCESS, body)

            for body in bodies:
                nursery.start_soon(ask, body)

    @pytest.mark.parametrize(
        "garbage",
        [
            b"\xff" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\1" + bytes(8),
            Random(4).randbytes(5_000),
            b"\x7f" + bytes(11),
        ],
        ids=["ones", "http", "short frame", "noise", "a frame of 2 GiB"],
    )
    async def test_garbage_ends_its_own_connection(self, at: Listening, garbage: bytes) -> None:
        """Garbage ends only the connection on which it arrives."""
        async with request_server(at) as server, caller(await at.connect()) as connection:
            await connection.call(request(1), PATIENCE_S * 1000)
            async with await at.connect() as bad:
                # The server need not read it to the end.
                with suppress(anyio.BrokenResourceError):
                    await bad.send(garbage)
                assert await has_ended(bad)
            assert (await connection.call(request(1, body=b"alive"), PATIENCE_S * 1000)).body == b"alive"
            await until(lambda: len(server.peers) == 1)

    async def test_connections_that_stop_in_the_middle(self, at: Listening) -> None:
        """The server forgets connections that ended inside a frame, and can stop while others are silent."""
        frame = encode(request(1, body=bytes(100)))
        async with request_server(at) as server:
            async with await at.connect() as gone:
                await gone.send(frame[: len(frame) // 2])
                await until(lambda: bool(server.peers))
            await until(lambda: not server.peers)
            async with await at.connect() as silent, await at.connect() as half:
                await half.send(frame[:-1])
                await until(lambda: bool(server.peers))
                await server.drain(PATIENCE_S * 1000)
                assert not server.peers
                assert await has_ended(half)
                assert await has_ended(silent)

    async def test_large_frames_of_many_connections_are_slowed_down(
        self, at: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Frames that together have four times the size allowed for unfinished ones arrive whole, all of
        them: connections wait, and none is closed."""
        _limit_unfinished(monkeypatch)
        body = Random(6).randbytes(200_000)
        frame = encode(request(1, body=body))
        async with request_server(at) as server, trio.open_nursery() as nursery:
            halves, answers = [], []

            async def ask() -> None:
                async with await at.connect() as client:
                    await client.send(frame[:10_000])
                    halves.append(client)
                    await until(lambda: len(halves) == 20)
                    await client.send(frame[10_000:])
                    answers.append(await received(client, len(frame)))

            for _ in range(20):
                nursery.start_soon(ask)
            await until(lambda: len(answers) == 20)
            assert all(answer.endswith(body) for answer in answers)
        assert server.context.unfinished.total == 0

    async def test_frames_that_stop_do_not_keep_others_out(
        self, at: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Connections that send parts of large frames and stop take all memory for unfinished frames; a
        client's large request is answered nevertheless."""
        _limit_unfinished(monkeypatch)
        frame = encode(request(1, body=bytes(900_000)))
        body = Random(7).randbytes(500_000)
        async with request_server(at) as server, trio.open_nursery() as nursery:
            unfinished_frames = server.context.unfinished

            async def stop() -> None:
                async with await at.connect() as client:
                    await client.send(frame[:10_000])
                    await trio.sleep_forever()

            for _ in range(60):
                nursery.start_soon(stop)
            await until(lambda: unfinished_frames.total == 600_000)
            async with await at.connect() as first, caller(await at.connect()) as connection:
                await first.send(frame[:10_000])
                await until(lambda: unfinished_frames.total >= 610_000)
                await first.send(frame[10_000:20_000])
                await until(lambda: unfinished_frames.total >= 620_000)
                response = await connection.call(request(1, body=body), PATIENCE_S * 1000)
                assert response.body == body
            nursery.cancel_scope.cancel()

    async def test_a_server_that_ends_answers_first(self, at: Listening) -> None:
        """A stopping server drains: an accepted request gets its complete answer, then the connection
        ends."""
        body = Random(5).randbytes(3_000_000)
        echo = Echo()
        async with (
            request_server(at, echo) as server,
            caller(await at.connect()) as connection,
            trio.open_nursery() as nursery,
        ):
            answers: list[bytes | None] = []

            async def ask() -> None:
                answers.append((await connection.call(request(2, body=body), PATIENCE_S * 1000)).body)

            nursery.start_soon(ask)
            await until(lambda: any(peer.core.in_flight for peer in server.peers))
            nursery.start_soon(server.drain, PATIENCE_S * 1000)
            await trio.testing.wait_all_tasks_blocked()
            assert server.peers
            echo.gate.set()
            await until(lambda: bool(answers))
            assert answers == [body]
            await until(lambda: not server.peers and connection.closed)


def _limit_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """One MB for unfinished frames, and quick looks at their progress."""
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED_BYTES", 1_000_000)
    monkeypatch.setattr(unfinished, "FREELY_READ_UNFINISHED_BYTES", 500_000)
    monkeypatch.setattr(unfinished, "MIN_PROGRESS_BYTES", 10_000)
    monkeypatch.setattr(unfinished, "_LOOK_S", 0.05)


async def _connect_and_close(at: Listening) -> None:
    await anyio.aclose_forcefully(await at.connect())


async def _send_for_ever(send: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        await send(bytes(100_000))
        await trio.testing.wait_all_tasks_blocked()
