"""A peer without a connection, for testing processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from rmqkit.errors import ConnectionLost
from rmqkit.plugin.request import BROKER, Outcome, Peer, RequestProcessor, Ticket, Work, whole
from rmqkit.plugin.transport import Address, TransportInfo
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.message_id import pack_host

_LOOPBACK = TransportInfo(Address("tcp", "127.0.0.1", 10_911))


class FakePeer(Peer):
    """Collects the commands for the peer: `answers` to postponed requests, `pushed` one-way commands.
    `on_call` answers `call`; `owed` counts postponed requests that are in flight."""

    closed = False

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 40_000,
        on_call: Callable[[Command], Command] | None = None,
        *,
        server: str = BROKER,
        transport: TransportInfo = _LOOPBACK,
    ) -> None:
        self.server = server
        self._transport = transport
        self.remote_host = pack_host(host, port)
        self.remote_text = f"{host}:{port}"
        self.attributes = {}
        self.answers: list[Command] = []
        self.pushed: list[Command] = []
        self.owed = 0
        self._on_call = on_call
        self._paid = trio.Event()
        self._work: list[tuple[Ticket, Work]] = []
        #: Answers by the identities of their requests. The requests are kept, so that identities stay unique.
        self._answer_to: dict[int, tuple[Command, Command]] = {}

    @property
    def transport(self) -> TransportInfo:
        return self._transport

    def postpone(self, requests: Sequence[Command], *, held: bool = False) -> Ticket:
        if not held:
            self.owed += len(requests)
        return Ticket(requests, self, held)

    def answer_async(self, request: Command, work: Work) -> Ticket:
        ticket = self.postpone((request,))
        self._work.append((ticket, work))
        self._moved()
        return ticket

    def settle(self, ticket: Ticket, outcomes: Sequence[Outcome]) -> None:
        for request, outcome in zip(ticket.requests, outcomes, strict=True):
            if outcome is None or isinstance(outcome, Ticket) or self.closed or request.is_oneway:
                continue
            answer = whole(outcome)
            self.answers.append(answer)
            self._answer_to[id(request)] = request, answer
        if not ticket.held:
            self.owed -= len(ticket.requests)
        self._moved()

    def _moved(self) -> None:
        self._paid.set()
        self._paid = trio.Event()

    async def all_answered(self) -> None:
        """Wait until all owed answers were sent; runs the pending work."""
        await self.run_work()
        while self.owed:
            await self._paid.wait()
            await self.run_work()

    async def run_work(self, request: Command | None = None) -> None:
        """Run the work passed to `answer_async`, for one request or for all."""
        while waiting := [item for item in self._work if request is None or item[0].requests[0] is request]:
            for ticket, work in waiting:
                self._work.remove((ticket, work))
                try:
                    outcome = await work()
                except Exception as error:  # noqa: BLE001 - as the server does
                    outcome = error_answer(ticket.requests[0], error)
                ticket.complete((outcome,))

    async def answer_to(self, request: Command) -> Command | None:
        """The answer to a postponed request, removed from `answers`; None if there is none yet. Runs the work
        for the request."""
        await self.run_work(request)
        found = self._answer_to.pop(id(request), None)
        if found is None:
            return None
        self.answers = [answer for answer in self.answers if answer is not found[1]]
        return found[1]

    def push(self, command: Command) -> bool:
        if self.closed:
            return False
        self.pushed.append(command)
        return True

    async def call(self, command: Command, timeout_ms: int) -> Command:
        if self.closed or self._on_call is None:
            raise ConnectionLost(self.remote_text)
        return self._on_call(command)

    def close(self) -> None:
        self.closed = True


async def ask(processor: RequestProcessor, request: Command, peer: FakePeer) -> Command | None:
    """The answer of a server: errors become error answers, and work started by the processor is run. None if
    there is no answer now."""
    try:
        (outcome,) = processor.process([request], peer)
    except Exception as error:  # noqa: BLE001 - as the server does
        return error_answer(request, error)
    if isinstance(outcome, Ticket):
        return await peer.answer_to(request)
    return None if outcome is None else whole(outcome)
