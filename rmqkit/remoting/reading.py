"""The reading half of a served connection.

Where there is a socket loop, it calls back for what arrives, and the task of the connection continues where
something must be waited for; otherwise the task reads. `READ_TABLE` holds the states:

            bytes are awaited, or memory for them
         +-----------------------------------------+
         |                                         v
       BUSY <----------------------------------- WAITING
         ^     bytes, the end, or a drain          |
         |                                         | bytes without memory for them
         +------------------------ SHORT <---------+
             the task goes on: it waits for memory next

A drain cuts what waits, and nothing else: in the other states requests are being served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import trio

from rmqkit.limits import READ_CHUNK_BYTES
from rmqkit.plugin.transport import ServerStream
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore, Event, State
from rmqkit.remoting.server_context import ServerContext
from rmqkit.remoting.socket_loop import SocketLoop
from rmqkit.remoting.waiting import MayWait
from rmqkit.remoting.writing import WritingHalf

FIRST_CHUNK_BYTES = 16 * 1024
#: Read from a stream that cannot tell whether something has arrived, before its connection waits for memory.
_TASTE_BYTES = 4 * 1024


class ReadState(Enum):
    """BUSY: what has arrived is being served. WAITING: bytes are awaited, or memory for an unfinished frame.
    SHORT: bytes have arrived for which there is no memory."""

    BUSY = "busy"
    WAITING = "waiting"
    SHORT = "short"


_BUSY, _WAITING, _SHORT = ReadState.BUSY, ReadState.WAITING, ReadState.SHORT
#: State -> the states that may follow.
READ_TABLE: Mapping[ReadState, frozenset[ReadState]] = {
    _BUSY: frozenset({_WAITING}),
    _WAITING: frozenset({_BUSY, _SHORT}),
    _SHORT: frozenset({_BUSY}),
}


class ReadingHalf(WritingHalf, MayWait):
    """Reads what has arrived, has it served, and sends the answers that are known at once.

    _read_state   see the module
    _read_scope   the wait that a drain cuts
    _idle         where the task of the connection waits while the socket loop calls back
    _sockets      the loop that watches `_descriptor`, None where the task reads
    _failure      what a call-back has met, which the task raises
    _chunk_bytes  the size of the next read
    _noted_bytes  bytes of the unfinished frame that are accounted for
    _commands     have arrived; `_served` of them are served
    _unfed        what has arrived while large answers wait for their turn
    """

    def __init__(
        self, stream: ServerStream, core: ConnectionCore, time: Callable[[], float], context: ServerContext
    ) -> None:
        super().__init__(stream, core, time)
        self._context = context
        self._read_state = _BUSY
        self._read_scope = trio.CancelScope()
        self._idle = trio.lowlevel.ParkingLot()
        self._sockets: SocketLoop | None = None
        self._descriptor = -1
        self._failure: Exception | None = None
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._noted_bytes = 0
        self._commands: Sequence[Command] = ()
        self._served = 0
        self._unfed = b""

    def _stop_reading(self) -> None:
        """Cut the wait for bytes, or for memory."""
        if self._read_state is _WAITING:
            self._read_scope.cancel()

    async def _opened(self) -> ServerStream:
        """The stream after its handshake, which a drain cuts."""
        self._read_state = _WAITING
        self._stream = stream = await self._stream.opened()
        self._read_state = _BUSY
        self._sends_now = type(stream).send_now is not ServerStream.send_now
        return stream

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end of the stream, and when the server drains. Raises the errors of the
        stream."""
        data = b""
        if self.core.state is State.OPEN:
            around = self._read_scope
            with trio.CancelScope() as self._read_scope:
                self._read_state = _WAITING
                try:
                    data = bytes(await self._stream.receive_some(max_bytes))
                finally:
                    self._read_state, self._read_scope = _BUSY, around
            self.core.received_at = self._time()
        return data

    async def _read_stream(self, stream: ServerStream) -> None:
        core, is_open = self.core, State.OPEN
        while core.state is is_open:
            self._read_state = _WAITING
            refused = self._refused()
            data = await stream.receive_some(_TASTE_BYTES if refused else self._chunk_bytes)
            self._read_state = _BUSY
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
            self._read_state = _WAITING
            try:
                await self._idle.park()
            finally:
                if self._read_state is _WAITING:
                    self._read_state = _BUSY
                sockets.forget(self._descriptor)
            if self._failure is not None:
                raise self._failure
            await self._catch_up()
            if self._read_state is _SHORT:
                self._read_state = _BUSY
                if self.core.state is State.OPEN:
                    await self._allowed()

    def _refused(self) -> bool:
        """Whether unfinished frames take too much memory for this connection to be read now. While memory is
        scarce, a frame begins with a small read, for which there is no waiting."""
        unfinished = self._context.unfinished
        if self._noted_bytes:
            return not unfinished.may_read(self, self._chunk_bytes)
        if unfinished.total and unfinished.is_scarce:
            self._chunk_bytes = FIRST_CHUNK_BYTES
        return False

    async def _allowed(self) -> None:
        """Wait until there is memory for what has arrived: only connections that bring something wait."""
        if self._refused():
            self._read_state = _WAITING
            await self._context.unfinished.wait(self)
            self._read_state = _BUSY

    def _readable(self) -> None:
        """Serve what has arrived; the task continues where that cannot be done now."""
        sockets = self._sockets
        self.loop_pass = sockets if sockets is not None and sockets.is_shared else None
        try:
            if self._refused():
                self._read_state = _SHORT
            elif self.core.state is State.OPEN and self._received(
                self._stream.receive_now(self._chunk_bytes)
            ):
                return
        except Exception as error:  # noqa: BLE001 - the task raises it
            self._failure = error
        finally:
            self.loop_pass = None
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
        if self._read_state is _WAITING:
            self._read_state = _BUSY
        if self._sockets is not None:
            self._sockets.forget(self._descriptor)
        self._idle.unpark()

    def _received(self, data: bytes | bytearray | None) -> bool:
        """Serve what has arrived as far as that goes without waiting. Returns False when the stream has
        ended, or `_catch_up` must be awaited before more is read."""
        if data is None:
            return True
        core, turns = self.core, self._context.turns
        if not data:
            core.happened(Event.END)
            return False
        if len(data) == self._chunk_bytes:
            self._chunk_bytes = min(self._chunk_bytes * 4, READ_CHUNK_BYTES)
        elif self._chunk_bytes > FIRST_CHUNK_BYTES and len(data) < self._chunk_bytes // 8:
            self._chunk_bytes //= 4
        core.received_at = now = self._time()
        if not self._sending_large:
            turns.served_at = now
        elif turns.crowded(now):
            self._unfed = bytes(data)
            return False
        self._feed(bytes(data))
        return self._serve(now) and core.fault is None

    def _feed(self, data: bytes) -> None:
        """Take the commands that are whole with these bytes."""
        core = self.core
        self._commands, self._served = core.feed(data), 0
        if core.pending_bytes or self._noted_bytes:
            self._noted_bytes = core.pending_bytes
            self._context.note_unfinished(self, core, bool(self._commands))

    def _serve(self, now: float) -> bool:
        """Serve commands that have arrived, and send their answers. Returns False when the peer does not
        read, owes too many answers, or commands are left for another turn of the loop."""
        commands = self._commands
        if self._served < len(commands):
            self._served = self._context.handle(self, commands, self._served)
            if not self._send_queued(now) or self._served < len(commands):
                return False
            self._commands = ()
        return True

    async def _catch_up(self) -> None:
        """Wait for what `_received` could not wait for, and serve what it left. Raises ProtocolError."""
        core = self.core
        if self._unfed:
            await self._context.turns.wait()
            data, self._unfed = self._unfed, b""
            self._feed(data)
            self._serve_late()
        waiting = self._context.waiting
        try:
            if self._served < len(self._commands):
                waiting.add(self)
            while True:
                if core.outgoing:
                    await self._write()
                await self.uncongested()
                if self._served >= len(self._commands):
                    break
                await trio.lowlevel.checkpoint()
                self._serve_late()
        finally:
            waiting.remove(self)
        self._commands = ()
        if core.fault is not None:
            raise core.fault

    def _serve_late(self) -> None:
        """Serve commands that have waited, except those that have waited too long."""
        received_at = self.core.received_at
        commands, _ = self.left
        self._commands, self._served = self._context.shed(self, commands, self._time() - received_at), 0
        self._serve(received_at)

    @property
    def left(self) -> tuple[Sequence[Command], float]:
        return self._commands[self._served :], self.core.received_at


__all__ = ["FIRST_CHUNK_BYTES", "READ_TABLE", "ReadState", "ReadingHalf"]
