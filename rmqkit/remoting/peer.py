"""The serving end of one connection, on trio (Java: ChannelHandlerContext, NettyRemotingAbstract).

A connection reads what has arrived, has every whole request served and sends all answers of a read with one
call. It stops reading while too many of its requests are unanswered or too many bytes are unsent
(`ConnectionCore.congested`), and while the unfinished frames of all connections take too much memory
(`UnfinishedFrames`); there is no other back-pressure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import trio
from attrs import define, field

from rmqkit.errors import ProtocolError
from rmqkit.limits import COUNTED_UNFINISHED_BYTES, MAX_UNFINISHED_BYTES, READ_CHUNK_BYTES
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.request import Outcome, Peer, Ticket, Work
from rmqkit.plugin.transport import ServerStream, TransportInfo
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore, Event, State
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.message_id import host_text, pack_host
from rmqkit.remoting.admission import Admission
from rmqkit.remoting.answers import FramedAnswers, mismatched
from rmqkit.remoting.hooks_by_code import HooksByCode
from rmqkit.remoting.other_protocols import OtherConnection, PortProtocols
from rmqkit.remoting.read_fairness import BIG_ANSWER_BYTES, Paced, Turns
from rmqkit.remoting.served import Served
from rmqkit.remoting.socket_loop import SocketLoop, socket_loop
from rmqkit.remoting.unfinished import OLD, UnfinishedFrames

_log = limited_logger(__name__)
_FIRST_CHUNK_BYTES = 16 * 1024
#: Read from a stream that cannot tell whether something has arrived, before its connection waits for memory.
_TASTE_BYTES = 4 * 1024
#: More than this is sent by a task, with its parts unjoined.
_WRITTEN_NOW_BYTES = 64 * 1024
#: More than this is sent in several steps.
_PORTION_BYTES = 256 * 1024
#: Connections that are taken down in one turn of the loop: each costs some tenths of a millisecond, and
#: thousands may end at once.
_CLOSED_PER_TURN = 8


@define(eq=False)
class Shared:
    """What the connections of one server share.

    name       of the server, for log lines
    kind       the server, as hooks name it
    admission  decides whether a connection may stay
    handle     serves commands of a connection, from a number on, and returns how far it came
    protocols  what its connections may speak
    on_closed  called for each peer that ends
    """

    name: str
    kind: str
    admission: Admission
    hooks: HooksByCode
    handle: Callable[[Served, Sequence[Command], int], int]
    protocols: PortProtocols
    on_closed: Callable[[Peer], None] | None
    turns: Turns = field(factory=Turns)
    leaving: Paced = field(factory=lambda: Paced(_CLOSED_PER_TURN))
    unfinished: UnfinishedFrames[ServedPeer] = field(factory=UnfinishedFrames)

    def note_unfinished(self, peer: ServedPeer, core: ConnectionCore, begun_anew: bool) -> None:
        """Keep account of a frame that is not whole yet; close connections when there are too many such bytes
        nevertheless."""
        self.unfinished.note(peer, core.pending_bytes, core.missing_bytes, begun_anew)
        while (oldest := self.unfinished.surplus()) is not None:
            self.unfinished.forget(oldest)
            self.close_unfinished(oldest, OLD)

    def close_unfinished(self, peer: ServedPeer, why: str) -> None:
        """Close a connection whose frame takes memory that others need."""
        _log.warning(
            "%s: connection from %s closed: unfinished frames of all connections take all of the %s bytes for"
            " them, and %s",
            self.name,
            peer.remote_text,
            MAX_UNFINISHED_BYTES,
            why,
        )
        peer.close()


class ServedPeer(FramedAnswers):
    """One accepted connection. `core` is its state; its time is trio's."""

    def __init__(self, stream: ServerStream, shared: Shared) -> None:
        self.remote_host = pack_host(*stream.remote)
        self.remote_text = host_text(self.remote_host)
        self.server = shared.kind
        self.attributes = {}
        #: trio.current_time, without asking which loop runs.
        self._time = trio.lowlevel.current_clock().current_time
        self.core = ConnectionCore(self.remote_text, self._time())
        self._shared = shared
        self._stream = stream
        self._writing = False
        self._woken = False
        #: Whether the stream can send without waiting.
        self._sends_now = False
        self._big = False
        self._room = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._sockets: SocketLoop | None = None
        self._descriptor = -1
        self._parked = trio.lowlevel.ParkingLot()
        self._failure: Exception | None = None
        self._reading = trio.CancelScope()
        self._receiving = False
        self._chunk_bytes = _FIRST_CHUNK_BYTES
        self._noted_bytes = 0
        self._was_refused = False
        #: Commands that have arrived, and how many of them are served.
        self._commands: Sequence[Command] = ()
        self._served = 0
        #: What has arrived while large answers wait for their turn.
        self._unfed = b""

    # What processors use.

    @property
    def transport(self) -> TransportInfo:
        return self._stream.transport

    @property
    def closed(self) -> bool:
        return self.core.state is State.CLOSED

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
            for hooks, part in self._shared.hooks.parts(requests):
                (peer or self).queue(requests[part], outcomes[part], hooks)
            if ticket.held:
                # Held requests of one connection are often answered together: one call sends them all.
                self._wake_writer()
            else:
                self.flush()
        if self._room:
            self._room.unpark_all()

    def push(self, command: Command) -> bool:
        if self.closed or not self.core.has_room:
            return False
        self.core.oneway(command)
        self.core.queue_frame(command)
        self._wake_writer()
        return True

    async def call(self, command: Command, timeout_ms: int) -> Command:
        done = trio.Event()
        call = self.core.call(command, timeout_ms, trio.current_time(), done.set)
        try:
            self.core.queue_frame(command)
            self._wake_writer()
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
                    with self._reading:
                        await self._read_until_lost()
                    await self._shared.leaving.wait()
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
        if self._receiving:
            self._reading.cancel()

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
        self._receiving = True
        self._stream = stream = await self._stream.opened()
        self._receiving = False
        self._shared.admission.check(self)
        self._sends_now = type(stream).send_now is not ServerStream.send_now
        if not self._shared.protocols.is_remoting and not await self._speaks_remoting(stream):
            return
        sockets = socket_loop() if stream.fileno() >= 0 else None
        if sockets is None:
            await self._read_stream(stream)
        else:
            await self._read_socket(stream, sockets)

    async def _speaks_remoting(self, stream: ServerStream) -> bool:
        """Find out what the connection speaks. Serve what has arrived if it is remoting; otherwise have the
        whole connection served by the protocol. Raises as `_read`."""
        shared, first, is_decided = self._shared, b"", False
        protocol = shared.protocols.negotiated(stream.transport.alpn)
        while protocol is None and not is_decided:
            data = await self.receive(_FIRST_CHUNK_BYTES)
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

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end of the stream, and when the server drains. Raises the errors of the
        stream."""
        data = b""
        if self.core.state is State.OPEN:
            around = self._reading
            with trio.CancelScope() as self._reading:
                self._receiving = True
                try:
                    data = bytes(await self._stream.receive_some(max_bytes))
                finally:
                    self._receiving, self._reading = False, around
            self.core.received_at = self._time()
        return data

    def flush(self) -> None:
        """Send what is queued, at once or by a task."""
        if self.core.outgoing:
            self._write_now(self._time())
            if self.core.outgoing:
                self._wake_writer()

    async def uncongested(self) -> None:
        """Wait until fewer requests are unanswered, and fewer bytes unsent."""
        while self.core.congested:
            await self._room.park()

    async def _read_stream(self, stream: ServerStream) -> None:
        core, is_open = self.core, State.OPEN
        while core.state is is_open:
            self._receiving = True
            refused = self._refused()
            data = await stream.receive_some(_TASTE_BYTES if refused else self._chunk_bytes)
            self._receiving = False
            if core.state is is_open and not self._received(data):
                await self._catch_up()
            if refused and core.state is is_open:
                await self._allowed()

    async def _read_socket(self, stream: ServerStream, sockets: SocketLoop) -> None:
        """The socket loop calls back for what arrives; this task continues where something must be waited
        for, and meanwhile the socket is not watched."""
        self._sockets, self._descriptor = sockets, stream.fileno()
        while self.core.state is State.OPEN:
            sockets.watch(self._descriptor, self._readable)
            self._receiving = True
            try:
                await self._parked.park()
            finally:
                self._receiving = False
                sockets.forget(self._descriptor)
            if self._failure is not None:
                raise self._failure
            await self._catch_up()
            if self._was_refused and self.core.state is State.OPEN:
                self._was_refused = False
                await self._allowed()

    def _refused(self) -> bool:
        """Whether unfinished frames take too much memory for this connection to be read now."""
        return bool(self._noted_bytes) and not self._shared.unfinished.may_read(self, self._chunk_bytes)

    async def _allowed(self) -> None:
        """Wait until there is memory for what has arrived: only connections that bring something wait."""
        if self._refused():
            self._receiving = True
            await self._shared.unfinished.wait(self)
            self._receiving = False

    def _readable(self) -> None:
        """Serve what has arrived; the task continues where that cannot be done now."""
        sockets = self._sockets
        self.turn = sockets if sockets is not None and sockets.is_shared else None
        try:
            if self._refused():
                self._was_refused = True
            elif self.core.state is State.OPEN and self._received(
                self._stream.receive_now(self._chunk_bytes)
            ):
                return
        except Exception as error:  # noqa: BLE001 - the task raises it
            self._failure = error
        finally:
            self.turn = None
        self._hand_over()

    def answered(self) -> None:
        """Send the answers to requests that were processed at the end of a turn of the socket loop."""
        if self.closed:
            return
        try:
            if self._send_queued(self.core.received_at):
                return
        except Exception as error:  # noqa: BLE001 - the task raises it
            self._failure = error
        self._hand_over()

    def _hand_over(self) -> None:
        """Let the task continue, and meanwhile do not watch the socket."""
        self._receiving = False
        if self._sockets is not None:
            self._sockets.forget(self._descriptor)
        self._parked.unpark()

    def _received(self, data: bytes | bytearray | None) -> bool:
        """Serve what has arrived as far as that goes without waiting. Returns False when the stream has
        ended, or `_catch_up` must be awaited before more is read."""
        if data is None:
            return True
        core, turns = self.core, self._shared.turns
        if not data:
            core.happened(Event.END)
            return False
        if len(data) == self._chunk_bytes:
            self._chunk_bytes = min(self._chunk_bytes * 4, READ_CHUNK_BYTES)
        elif self._chunk_bytes > _FIRST_CHUNK_BYTES and len(data) < self._chunk_bytes // 8:
            self._chunk_bytes //= 4
        core.received_at = now = self._time()
        if not self._big:
            turns.served_at = now
        elif turns.crowded(now):
            self._unfed = bytes(data)
            return False
        return self._feed(bytes(data), now)

    def _feed(self, data: bytes, now: float) -> bool:
        """Serve the commands that are whole with these bytes; returns as `_received`."""
        core = self.core
        self._commands, self._served = core.feed(data), 0
        if core.pending_bytes or self._noted_bytes:
            if self._noted_bytes >= COUNTED_UNFINISHED_BYTES and not core.pending_bytes:
                # The next frame begins with a small read, for which there is no waiting.
                self._chunk_bytes = _FIRST_CHUNK_BYTES
            self._noted_bytes = core.pending_bytes
            self._shared.note_unfinished(self, core, bool(self._commands))
        return self._serve(now) and core.fault is None

    def _serve(self, now: float) -> bool:
        """Serve commands that have arrived, and send their answers. Returns False when the peer does not
        read, owes too many answers, or commands are left for another turn of the loop."""
        commands = self._commands
        if self._served < len(commands):
            self._served = self._shared.handle(self, commands, self._served)
            if not self._send_queued(now) or self._served < len(commands):
                return False
            self._commands = ()
        return True

    def _send_queued(self, now: float) -> bool:
        """Send the answers that are known. Returns False when the peer does not read, or owes too many
        answers."""
        core = self.core
        if core.outgoing:
            self._big = core.unsent_bytes > BIG_ANSWER_BYTES
            self._write_now(now)
            if core.outgoing and not (self._woken or self._writing):
                return False
        return not ((core.in_flight or core.unsent_bytes) and core.congested)

    async def _catch_up(self) -> None:
        """Wait for what `_received` could not wait for, and serve what it left. Raises ProtocolError."""
        core = self.core
        if self._unfed:
            await self._shared.turns.wait()
            data, self._unfed = self._unfed, b""
            self._feed(data, core.received_at)
        while True:
            if core.outgoing:
                await self._write()
            await self.uncongested()
            if self._served >= len(self._commands):
                break
            await trio.lowlevel.checkpoint()
            self._serve(core.received_at)
        self._commands = ()
        if core.fault is not None:
            raise core.fault

    async def _finish(self) -> None:
        """Answer what is under way and send it, before the connection ends."""
        if self.closed:
            return
        while self.core.in_flight:
            await self._room.park()
        await self._write()
        while self._writing:
            await self._room.park()

    async def _work(self, ticket: Ticket, work: Work) -> None:
        try:
            outcome = await work()
        except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
            outcome = error_answer(ticket.requests[0], error)
        ticket.complete((outcome,))

    def _wake_writer(self) -> None:
        if not self._writing and not self._woken and self._nursery is not None and not self.closed:
            self._woken = True
            self._nursery.start_soon(self._write)

    def _write_now(self, now: float) -> None:
        """Send what is queued without a task, as far as that goes, unless another task sends."""
        core = self.core
        if not self._sends_now or self._writing or self._woken or core.unsent_bytes > _WRITTEN_NOW_BYTES:
            return
        parts, core.outgoing = core.outgoing, []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            sent = self._stream.send_now(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
            return
        core.unsent_bytes -= sent
        core.sent_at = now
        if sent < len(data):
            core.outgoing.append(memoryview(data)[sent:])

    async def _write(self) -> None:
        """Send what is queued. One task at a time writes; the others leave theirs in the queue."""
        self._woken = False
        if self._writing:
            return
        self._writing = True
        core = self.core
        try:
            while core.outgoing:
                for parts, size in portions(core.take_outgoing(), core.unsent_bytes):
                    if len(parts) == 1:
                        await self._stream.send_all(parts[0])
                    else:
                        await self._stream.send_parts(parts)
                    core.sent(size, self._time())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
        finally:
            self._writing = False
            if self._room:
                self._room.unpark_all()


def portions(parts: list[Buffer], total_bytes: int) -> Iterable[tuple[list[Buffer], int]]:
    """Divide bytes into portions of about _PORTION_BYTES, with their sizes, so that progress can be seen."""
    return ((parts, total_bytes),) if total_bytes <= _PORTION_BYTES else _divided(parts)


def _divided(parts: Sequence[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    portion: list[Buffer] = []
    size = 0
    for part in parts:
        for at in range(0, len(part), _PORTION_BYTES):
            piece = memoryview(part)[at : at + _PORTION_BYTES]
            portion.append(piece)
            size += len(piece)
            if size >= _PORTION_BYTES:
                yield portion, size
                portion, size = [], 0
    if portion:
        yield portion, size
