"""Connections for tests that need none: requests and answers go through a server, a transport and a
client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import trio
from anyio.abc import ByteStream
from attrs import define, field

from rmqkit import config as settings
from rmqkit.limits import IDLE_TIMEOUT_MS
from rmqkit.plugin import loader
from rmqkit.plugin.listen import bind
from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer, Ticket
from rmqkit.plugin.transport import Address
from rmqkit.protocol import frame
from rmqkit.protocol.command import Command
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.testing.broker import dialer, places, scheme_keys
from rmqkit.testing.choice import chosen
from rmqkit.testing.peer import FakePeer

CONNECT_MS = 10_000
#: Half of the time a server gives an idle connection.
FRESH_S = IDLE_TIMEOUT_MS / 2_000


@define
class Turn:
    """One request: its peer, its arrival at the server, and when it is known that there is no answer now."""

    peer: FakePeer
    seen: trio.Event = field(factory=trio.Event)
    nothing: trio.Event = field(factory=trio.Event)


class Wire(EachRequest):
    """Asks a router over connections. The processors see the test's peer instead of the connection's, so
    that the test sees what goes to it."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._handing_over = trio.Lock()
        self._turn: Turn | None = None
        self._dial = dialer()
        self._idle: list[tuple[ByteStream, float]] = []
        self.address: Address | None = None

    async def outcome(self, command: Command, peer: FakePeer) -> Command | None:
        """The answer as it arrives, None when there is none now. Cancelled, or with an error: the
        connection is cut."""
        assert self.address is not None
        turn, got = Turn(peer), list[Command]()
        stream = await self._connected(self.address)
        try:
            async with trio.open_nursery() as nursery:

                async def exchange() -> None:
                    await stream.send(frame.encode(command))
                    decoder = frame.FrameDecoder()
                    while not got:
                        got.extend(decoder.feed(await stream.receive()))
                    nursery.cancel_scope.cancel()

                async with self._handing_over:
                    self._turn = turn
                    nursery.start_soon(exchange)
                    await turn.seen.wait()
                await turn.nothing.wait()
                nursery.cancel_scope.cancel()
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        self._idle.append((stream, trio.current_time()))
        return got[0] if got else None

    async def _connected(self, address: Address) -> ByteStream:
        """A connection that nobody uses, or a new one: with a virtual clock the server soon closes those
        that are idle."""
        while self._idle:
            stream, since_s = self._idle.pop()
            if trio.current_time() - since_s < FRESH_S:
                return stream
            await anyio.aclose_forcefully(stream)
        return await self._dial(address, CONNECT_MS)

    async def close(self) -> None:
        """End the connections."""
        for stream, _ in self._idle:
            await anyio.aclose_forcefully(stream)

    def handle(self, request: Command, peer: Peer) -> Outcome:
        turn, self._turn = self._turn, None
        assert turn is not None
        turn.seen.set()
        processor = self._router.processors.get(request.code, self._router.default)
        (outcome,) = processor.process([request], turn.peer)
        if outcome is None:
            turn.nothing.set()
        if not isinstance(outcome, Ticket):
            return outcome

        async def later() -> Answer | None:
            answer = await turn.peer.answer_to(request)
            if answer is None:
                turn.nothing.set()
            return answer

        return peer.answer_async(request, later)


@asynccontextmanager
async def carried(router: Router) -> AsyncIterator[Wire]:
    """A server of the chosen transport in front of a router, and a client of it."""
    scheme = chosen().scheme
    chosen().used.add("transport")
    config = settings.load(environ={}, flags=scheme_keys(scheme))
    with places(scheme) as (place, _):
        async with trio.open_nursery() as nursery:
            wire = Wire(router)
            listeners, (wire.address, *_) = await bind(loader.load(config), [Address.parse(place)])
            await nursery.start(partial(RequestServer(Router({}, default=wire)).serve, listeners))
            yield wire
            await wire.close()
            nursery.cancel_scope.cancel()
