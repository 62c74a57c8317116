"""Changes of the name server's tables: one after the other in the order in which they came, in slices between
which other requests are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import trio
from attrs import frozen

from rmqkit.errors import RequestRefused
from rmqkit.plugin.request import Outcome, Peer, Ticket
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit_namesrv.limits import MAX_PENDING_CHANGE_BYTES
from rmqkit_namesrv.tables import RouteTables

#: A request's work, which yields after each slice of about a millisecond and returns the answer. Raises
#: RmqError for errors of the sender.
Slices = Generator[None, None, Command]
#: Begins the work of a request.
Change = Callable[[Command, Peer], Slices]
#: Number of slices made at once when nothing else is to be done.
_SLICES_AT_ONCE = 4


@frozen(eq=False)
class _Pending:
    ticket: Ticket
    slices: Slices
    body_bytes: int


class Changes:
    """`run` must be running for large changes to make progress."""

    def __init__(self, tables: RouteTables) -> None:
        self._tables = tables
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._idle = trio.lowlevel.ParkingLot()
        tables.on_work = self._idle.unpark_all

    def submit(self, request: Command, peer: Peer, slices: Slices) -> Outcome:
        """Make a change behind those under way. Returns the answer of a small one with nothing before it.
        Raises RequestRefused when too many bytes are pending, and what the work raises."""
        body_bytes = len(request.body)
        if not self._pending and not self._tables.working:
            for _ in range(_SLICES_AT_ONCE):
                try:
                    next(slices)
                except StopIteration as done:
                    answer: Command = done.value
                    return answer
        elif self._pending_bytes + body_bytes > MAX_PENDING_CHANGE_BYTES:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"registrations of {self._pending_bytes} bytes are being made, at most"
                f" {MAX_PENDING_CHANGE_BYTES} may be; try again",
            )
        ticket = peer.postpone((request,))
        self._pending.append(_Pending(ticket, slices, body_bytes))
        self._pending_bytes += body_bytes
        self._idle.unpark_all()
        return ticket

    async def run(self) -> None:
        """One slice per pass of the event loop, until cancelled; unfinished changes then stay unanswered."""
        while True:
            if self._tables.step():
                await trio.lowlevel.checkpoint()
            elif self._pending:
                pending = self._pending[0]
                outcome = await _outcome(pending)
                self._pending.popleft()
                self._pending_bytes -= pending.body_bytes
                pending.ticket.complete((outcome,))
            else:
                await self._idle.park()


async def _outcome(pending: _Pending) -> Command:
    try:
        while True:
            next(pending.slices)
            await trio.lowlevel.checkpoint()
    except StopIteration as done:
        answer: Command = done.value
        return answer
    except Exception as error:  # noqa: BLE001 - whatever a change raises must become an answer
        return error_answer(pending.ticket.requests[0], error)


def in_one_slice(handle: Callable[[Command, Peer], Command]) -> Change:
    """A change that is small."""

    def change(request: Command, peer: Peer) -> Slices:
        yield from ()
        return handle(request, peer)

    return change
