"""One connection: its bytes, its calls, and its clients as peers of the request pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from rmqkit.errors import ProtocolError
from rmqkit.limits import READ_CHUNK_BYTES
from rmqkit.plugin.protocols import ProtocolConnection, Recipient
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit_grpc.calls import Calls
from rmqkit_grpc.consuming import renew
from rmqkit_grpc.framing import GrpcError, GrpcStatus
from rmqkit_grpc.http2 import Asked, Ended, Event, Http2, Received
from rmqkit_grpc.limits import (
    MAX_ALL_WAITING_BYTES,
    MAX_IDLE_SESSIONS,
    MAX_STALL_MS,
    MAX_WAITING_BYTES,
    READ_BYTES,
    RENEWAL_LOOK_MS,
)
from rmqkit_grpc.relaying import asked_of
from rmqkit_grpc.session import Exchange, Session, language_of
from rmqkit_grpc.unfinished import Unfinished

if TYPE_CHECKING:
    from rmqkit_grpc.backend import Backend


#: Time between two looks at what waits.
_LOOK_S = 5.0


class _Client(Recipient):
    """What the request pipeline sends to one session."""

    def __init__(self, connection: GrpcConnection, session: Session) -> None:
        self._connection = connection
        self._session = session

    def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        self._connection.answered(requests, answers)

    def push(self, command: Command) -> bool:
        """Send what a broker begins over the client's Telemetry."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            # These clients do not share queues among themselves.
            return True
        stream = self._session.telemetry
        asked = None if stream is None else asked_of(self._session, command)
        return asked is not None and stream is not None and self._connection.tell(stream, asked)


class GrpcConnection:
    """Serves one connection. `backend` is None before the broker is assembled."""

    def __init__(self, unfinished: Unfinished, wire: ProtocolConnection, backend: Backend | None) -> None:
        self._wire = wire
        self._backend = backend
        self._unfinished = unfinished
        self._http2 = Http2()
        self._calls = Calls(
            self._http2,
            self._session,
            self._dedicated,
            wire.forget,
            self._exchange,
            self._is_full,
            self._wake,
        )
        self._sessions: dict[str, Session] = {}
        self._asked = trio.Event()
        #: What is sent at the end of the present read.
        self._is_reading = False
        #: What `unfinished` knows of the answers that wait, and since when not a byte of them was let
        #: through.
        self._noted_bytes = 0
        self._stalled_since_ms: float | None = None

    async def serve(self) -> None:
        """Until the client has gone, or the server drains."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_up)
                nursery.start_soon(self._renew)
                nursery.start_soon(self._watch)
                await self._read()
                nursery.cancel_scope.cancel()
            self._calls.drain()
            self._farewell()
        finally:
            self._unfinished.forget(self)
            self._unfinished.waiting_bytes -= self._noted_bytes
            self._noted_bytes = self._http2.waiting_bytes

    async def _read(self) -> None:
        size = READ_BYTES
        self._flush()
        while data := await self._wire.receive(size):
            self._is_reading = True
            try:
                events = self._http2.receive(data, trio.current_time() * 1_000)
                carried = sum(self._happened(event) for event in events)
            except ProtocolError:
                self._flush()
                raise
            finally:
                self._is_reading = False
            # Large bodies may come in large reads, for they cost little; anything else in small ones.
            size = READ_CHUNK_BYTES if carried > size // 2 else READ_BYTES
            await self._hand_over()
            self._flush()

    def _happened(self, event: Event) -> int:
        """Act on an event; returns the bytes of messages that it carries."""
        stream = event.stream
        if isinstance(event, Received):
            pending = self._calls.feed(stream, event.data)
            self._unfinished.note(self, stream, pending)
            return len(event.data)
        if isinstance(event, Asked):
            self._calls.begin(stream, event.headers)
        elif isinstance(event, Ended):
            self._unfinished.note(self, stream, 0)
            self._calls.end(stream)
        else:
            self._unfinished.note(self, stream, 0)
            self._calls.cancel(stream)
        return 0

    def refuse(self, stream: int) -> None:
        """End a call because unfinished messages take too much memory."""
        self._calls.refuse(
            stream, GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many unfinished messages: send faster")
        )
        self._flush()

    # Requests for the broker.

    def _wake(self) -> None:
        if not self._is_reading:
            self._asked.set()

    async def _follow_up(self) -> None:
        """Make the requests that calls have after the answers to their first ones."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            await self._hand_over()
            self._flush()

    async def _renew(self) -> None:
        """Renew the leases of messages on which clients still work."""
        while True:
            await trio.sleep(RENEWAL_LOOK_MS / 1_000)
            if self._backend is None:
                continue
            now_ms = self._backend.clock.now_ms()
            for session in self._sessions.values():
                if session.leases and (due := session.leases.due(now_ms)):
                    exchange = self._exchange(session, 0, {})
                    self._calls.run(exchange, renew(exchange, due))

    async def _hand_over(self) -> None:
        while requests := self._calls.take():
            for peer, commands in requests:
                if not peer.closed:
                    await self._wire.handle(peer, commands)

    def answered(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        """The broker has answered."""
        self._calls.answered(requests, answers)
        if self._calls.is_draining:
            self._farewell()
        self._flush()

    def _farewell(self) -> None:
        """Let the client begin no more calls, once all are answered: afterwards nothing can be sent."""
        if self._calls.is_idle:
            self._http2.go_away()
        self._flush()

    def respond(self, session: Session, answer: Command) -> None:
        """`rmqkit_grpc.session.Wire`."""
        self._calls.respond(session.peer, answer)

    def tell(self, stream: int, message: Any) -> bool:
        """`rmqkit_grpc.session.Wire`."""
        told = self._calls.tell(stream, message)
        self._flush()
        return told

    def _flush(self) -> None:
        if not self._is_reading and (data := self._http2.take()):
            self._wire.send(data)
        waiting_bytes = self._http2.waiting_bytes
        if waiting_bytes != self._noted_bytes:
            if waiting_bytes < self._noted_bytes or not self._noted_bytes:
                self._stalled_since_ms = trio.current_time() * 1_000 if waiting_bytes else None
            self._unfinished.waiting_bytes += waiting_bytes - self._noted_bytes
            self._noted_bytes = waiting_bytes

    def _is_full(self) -> bool:
        return (
            self._http2.waiting_bytes > MAX_WAITING_BYTES
            or self._unfinished.waiting_bytes > MAX_ALL_WAITING_BYTES
        )

    async def _watch(self) -> None:
        """End the connection of a client that takes no answers. Raises ProtocolError."""
        while True:
            await trio.sleep(_LOOK_S)
            since_ms = self._stalled_since_ms
            if since_ms is not None and trio.current_time() * 1_000 - since_ms > MAX_STALL_MS:
                raise ProtocolError(
                    f"HTTP/2: the client has let no byte of {self._noted_bytes} through for"
                    f" {MAX_STALL_MS // 1_000} s: its windows stay closed"
                )

    # Clients.

    def _session(self, metadata: Mapping[str, str]) -> Session:
        client_id = metadata.get("x-mq-client-id", "")
        session = self._sessions.get(client_id)
        if session is None:
            if len(self._sessions) >= MAX_IDLE_SESSIONS:
                self._forget_idle()
            session = self._sessions[client_id] = Session(client_id, self, language_of(metadata))
            session.peer = self._dedicated(session)
        return session

    def _forget_idle(self) -> None:
        """Forget clients that have said that they end, or never said what they are: a connection of a proxy
        may see many."""
        for session in [each for each in self._sessions.values() if each.is_idle]:
            del self._sessions[session.client_id]
            self._wire.forget(session.peer)

    def _dedicated(self, session: Session) -> Peer:
        return self._wire.peer(_Client(self, session))

    def _exchange(self, session: Session, stream: int, metadata: Mapping[str, str]) -> Exchange:
        return Exchange(session, stream, metadata, trio.current_time() * 1_000, self._backend)


__all__ = ["GrpcConnection"]
