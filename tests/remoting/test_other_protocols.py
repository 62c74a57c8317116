"""Protocols of plugins: how a port chooses them, and their way through the request pipeline."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.abc
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.config import Config
from rmqkit.errors import ConnectionLost, PluginError, ProtocolError
from rmqkit.limits import (
    MAX_FRAME_BYTES,
    MAX_IN_FLIGHT_PER_CONNECTION,
    MAX_PEERS_PER_CONNECTION,
    MAX_UNSENT_BYTES_PER_CONNECTION,
)
from rmqkit.plugin import loader
from rmqkit.plugin.protocols import (
    ProtocolConnection,
    Recipient,
    WireProtocol,
    check_prefixes,
    check_together,
)
from rmqkit.plugin.request import EachRequest, Outcome, Peer, Reply
from rmqkit.plugin.transport import Address
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.frame import encode
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.testing.protocol import ProtocolContract
from tests.line_protocol import HELLO, LineProtocol
from tests.remoting.parts import Gate, until, warnings
from tests.remoting.test_joined_run import Together
from tests.remoting.wire import PATIENCE_S, Handler

WHERE = Address.parse("memory://other-protocols")


class TestLine(ProtocolContract):
    """The protocol of lines keeps the contract."""

    def make_protocol(self) -> WireProtocol:
        return LineProtocol()

    def asked(self, number: int) -> bytes:
        return (b"" if number else HELLO) + b"T %d\n" % number

    def count(self, data: bytes) -> int:
        return data.count(b"\n")


class Named(WireProtocol):
    """A protocol with these prefixes and names, which does not answer."""

    def __init__(self, name: str, *prefixes: bytes, alpn: Sequence[str] = (), servers: Sequence[str] = ()):
        self.name, self.prefixes, self.alpn = name, prefixes, alpn
        self.servers = frozenset(servers or {"broker"})

    async def serve(self, connection: ProtocolConnection) -> None:
        while await connection.receive():
            pass


# --- the choice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [b"", b"\x00\x01", b"\x00", b"\x16\x03\x01", b"x" * 65])
def test_prefixes_of_others_are_refused(prefix: bytes) -> None:
    """A protocol cannot begin as a frame or a TLS handshake does, nor with nothing."""
    with pytest.raises(PluginError, match="cannot be chosen"):
        check_prefixes(Named("mine", prefix))


@given(st.binary(min_size=1, max_size=64))
def test_no_accepted_prefix_begins_a_frame(prefix: bytes) -> None:
    """Whatever follows an accepted prefix, the length of a frame would be too large."""
    try:
        check_prefixes(Named("mine", prefix))
    except PluginError:
        return
    assert int.from_bytes(prefix[:4].ljust(4, b"\0")) >= MAX_FRAME_BYTES


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Named("a", b"GET"), Named("b", b"GET /x")),
        (Named("a", b"GET /x"), Named("b", b"PUT", b"GET")),
        (Named("a", alpn=["h2"]), Named("b", alpn=["x", "h2"])),
    ],
)
def test_protocols_that_cannot_be_told_apart(one: WireProtocol, other: WireProtocol) -> None:
    """The start names both and says what to do."""
    with pytest.raises(PluginError, match=r"'a' and 'b' both .* disabledPlugins"):
        check_together([one, other])


def test_protocols_of_different_servers_may_be_alike() -> None:
    """They share no port."""
    check_together([Named("a", b"GET"), Named("b", b"GET", servers=["namesrv"])])


@given(st.binary(max_size=40))
def test_a_port_decides_as_soon_as_it_can(first: bytes) -> None:
    """As long as the bytes may become a prefix, it waits; then the longest look is that of the prefix."""
    protocols = [Named("h2", b"PRI * HTTP/2.0"), Named("get", b"GET ", b"PUT ")]
    decided, found = PortProtocols(protocols).begun(first)
    prefixes = {prefix: each for each in protocols for prefix in each.prefixes}
    assert decided != any(prefix.startswith(first) and prefix != first for prefix in prefixes)
    assert found is next((each for prefix, each in prefixes.items() if first.startswith(prefix)), None)


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"),
        (b"SSH-2.0-OpenSSH", "SSH"),
    ],
)
async def test_a_client_at_a_wrong_port(first: bytes, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One log line names what it speaks and what the port takes."""
    async with serving(PortProtocols([Named("mine", b"MINE")])) as (_, connect), await connect() as stream:
        await stream.send(first)
        assert await ends(stream)
    (said,) = warnings(caplog)
    assert name in said
    assert "this port takes remoting and mine" in said


async def test_bytes_that_are_no_protocols(caplog: pytest.LogCaptureFixture) -> None:
    """A port of a protocol alone shows what it has got instead."""
    async with (
        serving(PortProtocols(alone=Named("mine", b"MINE"))) as (_, connect),
        await connect() as stream,
    ):
        await stream.send(b"\x01\x02")
        assert await ends(stream)
    (said,) = warnings(caplog)
    assert r"b'\x01\x02'" in said
    assert "this port takes mine" in said


async def test_a_frame_that_came_with_the_choice_is_served() -> None:
    """What was read to find out that a connection speaks remoting is not lost, whole frames and parts."""
    frames = b"".join(encode(Command(code=1, opaque=at)) for at in range(3))
    async with serving(PortProtocols([LineProtocol()])) as (_, connect), await connect() as stream:
        await stream.send(frames[:-5])
        await trio.testing.wait_all_tasks_blocked()
        await stream.send(frames[-5:])
        data = b""
        with trio.fail_after(PATIENCE_S):
            while data.count(b'"opaque":') < 3:
                data += await stream.receive()


# --- the pipeline -------------------------------------------------------------------------------------------


async def test_sends_of_several_connections_are_joined() -> None:
    """What tasks hand over before the loop waits is one run of a joined processor, each line with its own
    answer."""
    together, lines = Together(), LineProtocol()
    async with serving(PortProtocols([lines]), together) as (_, connect):
        streams = [await connect() for _ in range(4)]
        for stream in streams:
            await stream.send(HELLO)
        await until(lambda: len(lines.peers) == 4)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for at, stream in enumerate(streams):
                nursery.start_soon(stream.send, b"T %d\n" % at)
        for stream in streams:
            assert (await stream.receive()).startswith(b"OK")
            await stream.aclose()
    assert max(len(run) for run in together.runs) > 1
    assert sum(len(part) for run in together.runs for part in run) == 4


async def test_the_server_asks_and_pushes() -> None:
    """A call of the server waits for the answer that the protocol hands over, a push for nothing."""
    lines = LineProtocol()
    async with serving(PortProtocols([lines])) as (_, connect), await connect() as stream:
        await stream.send(HELLO)
        await until(lambda: bool(lines.peers))
        (peer,) = lines.peers
        assert peer.push(Command(code=40))
        assert await stream.receive() == b"PUSH 40 0\n"

        async def answers() -> None:
            word, code, opaque = (await stream.receive()).split()
            assert (word, code) == (b"PUSH", b"220")
            await stream.send(b"ANSWER " + opaque + b"\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers)
            assert (await peer.call(Command(code=220), 60_000)).is_response


async def test_a_protocol_that_carries_no_requests_of_the_server() -> None:
    """A push says so, and a call ends at once."""

    class Mute(Recipient):
        def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
            raise NotImplementedError

    peers: list[Peer] = []

    class Silent(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            peers.append(connection.peer(Mute()))
            await super().serve(connection)

    async with serving(PortProtocols(alone=Silent("silent"))) as (_, connect), await connect() as stream:
        await stream.send(b"x")
        await until(lambda: bool(peers))
        assert not peers[0].push(Command(code=40))
        with pytest.raises(ConnectionLost, match="silent carries no requests"):
            await peers[0].call(Command(code=220), 60_000)


async def test_a_recipient_that_fails_costs_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged with the protocol's name; other connections are served."""

    class Broken(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            class Fails(Recipient):
                def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
                    raise OSError("cannot write")

            peer = connection.peer(Fails())
            await connection.receive()
            await connection.handle(peer, [Command(code=1)])
            await connection.receive()

    async with (
        serving(PortProtocols([Broken("broken", b"BROKEN"), LineProtocol()])) as (_, connect),
        await connect() as other,
        await connect() as stream,
    ):
        await stream.send(b"BROKEN")
        assert await ends(stream)
        await other.send(HELLO + b"T x\n")
        assert (await other.receive()).startswith(b"OK")
    assert [each.levelno for each in caplog.records if "broken failed to send" in each.getMessage()] == [
        logging.ERROR
    ]


async def test_the_peers_of_a_connection_are_limited() -> None:
    """One client cannot make the server keep peers without end; forgotten ones make room."""
    kept: list[ProtocolConnection] = []

    class Keeps(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            kept.append(connection)
            await super().serve(connection)

    async with serving(PortProtocols(alone=Keeps("keeps"))) as (_, connect), await connect() as stream:
        await stream.send(b"x")
        await until(lambda: bool(kept))
        peers = [kept[0].peer(RecipientOf([])) for _ in range(MAX_PEERS_PER_CONNECTION)]
        with pytest.raises(ProtocolError, match="clients on one connection"):
            kept[0].peer(RecipientOf([]))
        kept[0].forget(peers[0])
        assert peers[0].closed
        assert not peers[1].closed
        kept[0].peer(RecipientOf([]))
        with pytest.raises(ValueError, match="forgotten"):
            await kept[0].handle(peers[0], [Command(code=1)])


async def test_answers_arrive_whole() -> None:
    """Slices, encoded bytes, and what is not an answer reach the recipient as commands with bodies."""
    got: list[Command] = []
    outcomes: dict[int, Callable[[Command], Outcome]] = {
        1: lambda request: Reply(answer(request), [b"ab", memoryview(b"cd")], 4),
        2: lambda request: encode(answer(request, body=b"bytes")),
        3: lambda request: cast("Outcome", 7),
        4: lambda request: None,
    }

    class Asks(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            peer = connection.peer(RecipientOf(got))
            await connection.handle(peer, [Command(code=code, opaque=code) for code in (1, 2, 3)])
            await connection.handle(peer, [Command(code=4, flag=2)])

    handler = Handler(lambda request, peer: outcomes[request.code](request))
    async with serving(PortProtocols(alone=Asks("asks")), handler) as (_, connect), await connect() as stream:
        await stream.send(b"x")
        assert await ends(stream)
    assert [(each.opaque, each.body) for each in got[:2]] == [(1, b"abcd"), (2, b"bytes")]
    assert got[2].code != 0
    assert len(got) == 3


async def test_a_client_that_does_not_read_is_not_read() -> None:
    """Its requests stay in the transport while too much is unsent; once it reads, all are answered, in whole
    and in order."""
    size, count = 1_000_000, 40
    served_up: list[int] = []

    class Large(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            class Sends(Recipient):
                def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
                    for request in requests:
                        served_up.append(request.opaque)
                        connection.send(bytes([request.opaque]) * size)

            peer = connection.peer(Sends())
            while data := await connection.receive(1):
                await connection.handle(peer, [Command(code=1, opaque=data[0])])

    async with serving(PortProtocols(alone=Large("large"))) as (there, connect), await connect() as stream:
        await stream.send(bytes(range(count)))
        await until(lambda: bool(served_up))
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = there.peers
        assert connection.core.congested
        assert connection.core.unsent_bytes <= MAX_UNSENT_BYTES_PER_CONNECTION + size
        assert len(served_up) < count
        with trio.fail_after(PATIENCE_S):
            for number in range(count):
                data = bytearray()
                while len(data) < size:
                    data += await stream.receive(size - len(data))
                assert data == bytes([number]) * size
    assert served_up == list(range(count))


async def test_requests_of_a_connection_that_are_unanswered_are_limited() -> None:
    """`handle` returns when there is room for more; a drain answers what was taken."""
    gate, handed = Gate(), list[int]()

    class Many(Named):
        async def serve(self, connection: ProtocolConnection) -> None:
            peer = connection.peer(RecipientOf(got))
            await connection.receive()
            for number in range(2):
                requests = [Command(code=1, opaque=at) for at in range(MAX_IN_FLIGHT_PER_CONNECTION)]
                await connection.handle(peer, requests)
                handed.append(number)

    got: list[Command] = []
    async with (
        serving(PortProtocols(alone=Many("many")), Handler(gate)) as (there, connect),
        await connect() as stream,
    ):
        await stream.send(b"x")
        await until(lambda: gate.waiting >= MAX_IN_FLIGHT_PER_CONNECTION)
        await trio.testing.wait_all_tasks_blocked()
        assert handed == []
        gate.event.set()
        await until(lambda: handed == [0, 1])
        await there.drain(1_000 * PATIENCE_S)
    assert len(got) == 2 * MAX_IN_FLIGHT_PER_CONNECTION


# --- helpers ------------------------------------------------------------------------------------------------


class RecipientOf(Recipient):
    """Keeps the answers."""

    def __init__(self, got: list[Command]) -> None:
        self._got = got

    def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        self._got += answers


@asynccontextmanager
async def serving(
    protocols: PortProtocols, processor: EachRequest | Together | None = None
) -> AsyncIterator[tuple[RequestServer, Callable[[], Awaitable[anyio.abc.ByteStream]]]]:
    """A server that takes these protocols and echoes, and a function that connects to it."""
    transport = loader.load(Config()).transport(WHERE)
    router = Router(
        {}, default=processor or Handler(lambda request, peer: answer(request, body=request.body))
    )
    server = RequestServer(router, protocols=protocols, name="test")
    listeners = await transport.listen(WHERE)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        yield server, lambda: transport.connect(WHERE, 1_000 * PATIENCE_S)
        nursery.cancel_scope.cancel()


async def ends(stream: anyio.abc.ByteStream) -> bool:
    """Whether the server closes the connection."""
    with trio.fail_after(PATIENCE_S):
        try:
            while await stream.receive():
                pass
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True
    return False
