"""Contract of a plugin's protocol as tests. Subclass `ProtocolContract` and define how the protocol is made
and what a client of it does; pytest then runs the tests.

    class TestMine(ProtocolContract):
        def make_protocol(self) -> WireProtocol:
            return MyProtocol()

        def asked(self, number: int) -> bytes:
            return b"ASK %d\n" % number

        def count(self, data: bytes) -> int:
            return data.count(b"\n")
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.abc
import pytest
import trio
import trio.testing
from attrs import Factory, define

from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin import loader
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.protocols import WireProtocol, check_prefixes
from rmqkit.plugin.request import BROKER, REMOTING, Answers, Caller, EachRequest, Outcome, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.transport import Address, Transport
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.testing.listening import CONNECT_TIMEOUT_MS, ENDED, PATIENCE_S, caller

_WHERE = Address.parse("memory://protocol-contract")


class _Seen(RpcHook):
    """Notes who sends requests; refuses connections when told so."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.answers = 0
        self.refuses = False

    def connected(self, caller: Caller) -> None:
        if self.refuses:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        self.peers += [peer] * len(requests)
        return None

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        self.answers += len(answers)


class _Gated(EachRequest):
    """Answers every request with a success, after the gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.arrived = 0

    def handle(self, request: Command, peer: Peer) -> Outcome:
        self.arrived += 1
        if self.gate.is_set():
            return answer(request)
        return peer.answer_async(request, partial(self._later, request))

    async def _later(self, request: Command) -> Command:
        await self.gate.wait()
        return answer(request)


@define
class Port:
    """A server with the protocol. `closed` are the peers that have ended."""

    server: RequestServer
    transport: Transport
    gated: _Gated
    hook: _Seen
    closed: list[Peer] = Factory(list)

    async def connect(self) -> anyio.abc.ByteStream:
        return await self.transport.connect(_WHERE, CONNECT_TIMEOUT_MS)


class ProtocolContract(ABC):
    """Tests of a protocol."""

    @abstractmethod
    def make_protocol(self) -> WireProtocol:
        """A new protocol."""

    @abstractmethod
    def asked(self, number: int) -> bytes:
        """What a client sends for one request of this number; number 0 is the first of its connection, and
        contains what begins one."""

    @abstractmethod
    def count(self, data: bytes) -> int:
        """The number of whole answers in what a client has received."""

    @asynccontextmanager
    async def port(self, *, alone: bool = False, is_open: bool = True) -> AsyncIterator[Port]:
        protocol = self.make_protocol()
        check_prefixes(protocol)
        transport = loader.load(Config()).transport(_WHERE)
        gated, hook, closed = _Gated(), _Seen(), list[Peer]()
        if is_open:
            gated.gate.set()
        server = RequestServer(
            Router({}, default=gated),
            rpc_hooks=(hook,),
            protocols=PortProtocols(alone=protocol) if alone else PortProtocols([protocol]),
            on_closed=closed.append,
            name="contract",
        )
        listeners = await transport.listen(_WHERE)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            yield Port(server, transport, gated, hook, closed)
            nursery.cancel_scope.cancel()

    async def _answers(self, stream: anyio.abc.ByteStream, count: int) -> None:
        """Receive until so many answers are there. Raises EndOfStream when the connection ends before."""
        data = b""
        with trio.fail_after(PATIENCE_S):
            while self.count(data) < count:
                data += await stream.receive()
        assert self.count(data) == count

    async def _is_closed(self, stream: anyio.abc.ByteStream) -> bool:
        with trio.fail_after(PATIENCE_S):
            try:
                while await stream.receive():
                    pass
            except ENDED:
                return True
        return False

    def test_it_has_a_name_and_a_way_to_be_chosen(self) -> None:
        """The name is not remoting's."""
        protocol = self.make_protocol()
        assert protocol.name
        assert protocol.name != REMOTING
        assert all(isinstance(each, bytes) for each in protocol.prefixes)

    @pytest.mark.parametrize("alone", [False, True], ids=["shared", "alone"])
    async def test_requests_are_answered_and_hooks_see_them(self, alone: bool) -> None:
        """Each request goes through the pipeline with a peer that names the protocol and the server."""
        async with self.port(alone=alone) as port, await port.connect() as stream:
            for number in range(3):
                await stream.send(self.asked(number))
                await self._answers(stream, 1)
            assert (len(port.hook.peers), port.hook.answers) == (3, 3)
            for peer in port.hook.peers:
                assert (peer.protocol, peer.server) == (self.make_protocol().name, BROKER)
                assert peer.transport.listener == _WHERE

    async def test_bytes_that_arrive_one_by_one(self) -> None:
        """Neither the choice of the protocol nor a request depends on how the bytes arrive."""
        async with self.port() as port, await port.connect() as stream:
            for number in range(2):
                for byte in self.asked(number):
                    await stream.send(bytes([byte]))
                await self._answers(stream, 1)

    async def test_many_requests_at_once(self) -> None:
        """Requests that arrive together are all answered."""
        async with self.port() as port, await port.connect() as stream:
            await stream.send(b"".join(map(self.asked, range(200))))
            await self._answers(stream, 200)

    async def test_remoting_at_the_same_port(self) -> None:
        """A shared port still serves remoting, at the same time."""
        async with self.port() as port, await port.connect() as stream:
            await stream.send(self.asked(0))
            await self._answers(stream, 1)
            async with caller(await port.connect()) as remoting:
                got = await remoting.call(Command(code=1), CONNECT_TIMEOUT_MS)
                assert got.code == ResponseCode.SUCCESS
            assert {peer.protocol for peer in port.hook.peers} == {self.make_protocol().name, REMOTING}

    async def test_remoting_at_a_port_of_its_own(self, caplog: pytest.LogCaptureFixture) -> None:
        """A client of remoting is closed, with one log line that names the mistake, where the first bytes
        tell."""
        if not self.make_protocol().prefixes:
            pytest.skip("without prefixes all bytes are the protocol's own")
        async with self.port(alone=True) as port, await port.connect() as stream:
            await stream.send(bytes([0, 0, 0, 100, 0, 0, 0, 90]) + bytes(96))
            assert await self._is_closed(stream)
        said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(said) == 1
        assert "RocketMQ's remoting protocol" in said[0]

    async def test_a_refused_connection(self) -> None:
        """A hook that refuses the connection closes it before a request is served."""
        async with self.port() as port:
            port.hook.refuses = True
            async with await port.connect() as stream:
                try:
                    await stream.send(self.asked(0))
                except ENDED:
                    assert await self._is_closed(stream)
                assert await self._is_closed(stream)
            assert port.gated.arrived == 0

    async def test_peers_end_with_their_connection(self) -> None:
        """The broker hears of every peer that sent requests when the client goes."""
        async with self.port() as port:
            async with await port.connect() as stream:
                await stream.send(self.asked(0))
                await self._answers(stream, 1)
                (peer,) = port.hook.peers
                assert not peer.closed
            with trio.fail_after(PATIENCE_S):
                while peer not in port.closed or port.server.peers:
                    await trio.lowlevel.checkpoint()
            assert peer.closed

    async def test_a_drain_answers_what_was_taken(self) -> None:
        """A server that drains answers the requests in flight, and then closes the connection."""
        async with self.port(is_open=False) as port, await port.connect() as stream:
            await stream.send(self.asked(0))
            with trio.fail_after(PATIENCE_S):
                while not port.gated.arrived:
                    await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.server.drain, CONNECT_TIMEOUT_MS)
                await trio.testing.wait_all_tasks_blocked()
                port.gated.gate.set()
                await self._answers(stream, 1)
                assert await self._is_closed(stream)
            assert not port.server.peers
