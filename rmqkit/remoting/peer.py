"""The serving end of one connection, on trio (Java: ChannelHandlerContext, NettyRemotingAbstract).

A connection reads what has arrived, has every whole request served and sends all answers of a read with one
call. It stops reading while too many of its requests are unanswered or too many bytes are unsent
(`ConnectionCore.congested`), and while the unfinished frames of all connections take too much memory
(`UnfinishedFrames`); there is no other back-pressure.

Its halves are in `reading` and `writing`, each with its states; its life is that of `core`
(`rmqkit.protocol.connection`), and ends with the nursery of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.errors import ProtocolError
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.request import Outcome, Ticket, Work
from rmqkit.plugin.transport import ServerStream, TransportInfo
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore, Event, State
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.message_id import host_text, pack_host
from rmqkit.remoting.answers import mismatched
from rmqkit.remoting.other_protocols import OtherConnection
from rmqkit.remoting.reading import FIRST_CHUNK_BYTES, ReadingHalf
from rmqkit.remoting.served import Served
from rmqkit.remoting.server_context import ServerContext
from rmqkit.remoting.socket_loop import socket_loop
from rmqkit.remoting.writing import WriteState

_log = limited_logger(__name__)


class ServedPeer(ReadingHalf):
    """One accepted connection. `core` is its state; its time is trio's."""

    def __init__(self, stream: ServerStream, context: ServerContext) -> None:
        self.remote_host = pack_host(*stream.remote)
        self.remote_text = host_text(self.remote_host)
        self.server = context.kind
        self.attributes = {}
        time = trio.lowlevel.current_clock().current_time
        super().__init__(stream, ConnectionCore(self.remote_text, time()), time, context)

    # What processors use.

    @property
    def transport(self) -> TransportInfo:
        return self._stream.transport

    def postpone(self, requests: Sequence[Command], *, held: bool = False) -> Ticket:
        if not held:
            self.core.in_flight += len(requests)
        return Ticket(requests, self, held)

    def answer_async(self, request: Command, work: Work) -> Ticket:
        ticket = self.postpone((request,))
        self.start(ticket, work)
        return ticket

    def start(self, ticket: Ticket, work: Work) -> None:
        """Run work in a task of the connection, unless that has ended."""
        if self._nursery is not None and not self.closed:
            self._nursery.start_soon(self._work, ticket, work)

    def settle(self, ticket: Ticket, outcomes: Sequence[Outcome], peer: Served | None = None) -> None:
        """Send the answers to this peer, or to `peer` on the same connection."""
        requests = ticket.requests
        if not ticket.held:
            self.core.in_flight -= len(requests)
        if not self.closed:
            if len(outcomes) != len(requests):
                outcomes = mismatched(outcomes, requests, "a ticket")
            for hooks, part in self._context.hooks.parts(requests):
                (peer or self).queue(requests[part], outcomes[part], hooks)
            if ticket.held:
                # Held requests of one connection are often answered together: one call sends them all.
                self._request_write()
            else:
                self.flush()
        if self._write_space:
            self._write_space.unpark_all()

    def push(self, command: Command) -> bool:
        if self.closed or not self.core.has_room:
            return False
        self.core.oneway(command)
        self.core.queue_frame(command)
        self._request_write()
        return True

    async def call(self, command: Command, timeout_ms: int) -> Command:
        done = trio.Event()
        call = self.core.call(command, timeout_ms, trio.current_time(), done.set)
        try:
            self.core.queue_frame(command)
            self._request_write()
            with trio.move_on_at(call.deadline):
                await done.wait()
        finally:
            self.core.forget(call)
        return self.core.result(call)

    def close(self) -> None:
        self.core.happened(Event.CLOSE, "closed by this side")
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # What the server uses.

    async def run(self) -> None:
        """Serve until the peer goes away, breaks the protocol, is closed, or the server drains."""
        try:
            async with trio.open_nursery() as self._nursery:
                if self.closed:
                    return
                try:
                    with self._read_scope:
                        await self._read_until_lost()
                    await self._context.leaving.wait()
                    await self._finish()
                finally:
                    # No task of this connection may start from here on: its nursery is about to close.
                    self.core.happened(Event.CLOSE)
                self._nursery.cancel_scope.cancel()
        finally:
            self.core.happened(Event.CLOSE)
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(self._stream)

    def drain(self) -> None:
        """Take no more requests. What was taken is answered: a write that is under way must not be cut in
        the middle of a frame."""
        self.core.happened(Event.DRAIN)
        self._stop_reading()

    async def _read_until_lost(self) -> None:
        """Read until the peer ends its stream, the server drains, or the connection breaks (CLOSE). Raises
        ProtocolError (FAULT)."""
        try:
            await self._read()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("connection from %s lost: %s", self.remote_text, error)
            self.core.happened(Event.CLOSE, str(error))
        except ProtocolError as error:
            self.core.happened(Event.FAULT, str(error))
            raise

    async def _read(self) -> None:
        """Read, have served what arrived together, and send the answers that are known at once. Raises
        RequestRefused when a hook refuses the connection, ProtocolError when the commands before a broken
        frame are served, and the errors of the stream."""
        if self.core.state is not State.OPEN:
            return
        stream = await self._opened()
        self._context.admission.check(self)
        if not self._context.protocols.is_remoting and not await self._speaks_remoting(stream):
            return
        sockets = socket_loop() if stream.fileno() >= 0 else None
        if sockets is None:
            await self._read_stream(stream)
        else:
            await self._read_socket(stream, sockets)

    async def _speaks_remoting(self, stream: ServerStream) -> bool:
        """Find out what the connection speaks. Serve what has arrived if it is remoting; otherwise have the
        whole connection served by the protocol. Raises what `_read` raises."""
        shared, first, is_decided = self._context, b"", False
        protocol = shared.protocols.negotiated(stream.transport.alpn)
        while protocol is None and not is_decided:
            data = await self.receive(FIRST_CHUNK_BYTES)
            if not data:
                self.core.happened(Event.END)
                return False
            first += data
            is_decided, protocol = shared.protocols.begun(first)
        if protocol is None:
            if not self._received(first):
                await self._catch_up()
            return True
        self.protocol = protocol.name
        connection = OtherConnection(self, self, protocol, first, shared.handle, shared.on_closed)
        try:
            await protocol.serve(connection)
            await self._finish()
        finally:
            connection.end()
        return False

    async def _finish(self) -> None:
        """Answer what is under way and send it, before the connection ends."""
        if self.closed:
            return
        while self.core.in_flight:
            await self._write_space.park()
        await self._write()
        while self._write_state is WriteState.SENDING:
            await self._write_space.park()

    async def _work(self, ticket: Ticket, work: Work) -> None:
        try:
            outcome = await work()
        except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
            outcome = error_answer(ticket.requests[0], error)
        ticket.complete((outcome,))
