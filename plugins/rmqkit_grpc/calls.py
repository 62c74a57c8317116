"""The calls of one connection, from their metadata to their answers.

A handler is a generator: it yields the requests that a call makes of the broker and gets their answers, so
a call needs no task of its own, and calls that arrive together are handled by the broker together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field
from google.protobuf.message import DecodeError

from rmqkit.errors import RmqError, wire_code
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.request import Peer
from rmqkit.protocol.command import Command
from rmqkit_grpc.framing import GrpcError, GrpcStatus, MessageReader, framed, percent_encoded
from rmqkit_grpc.http2 import Http2
from rmqkit_grpc.messages import Code
from rmqkit_grpc.methods import METHODS, OWN, Kind, Method
from rmqkit_grpc.relaying import reconnection
from rmqkit_grpc.session import Exchange, Session, Steps
from rmqkit_grpc.statuses import Refusal, code_of

_log = limited_logger(__name__)
_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
_SUCCESS = (("grpc-status", "0"),)
_NOT_GRPC = ((":status", "415"),)
_CONTENT_TYPE = "application/grpc"
#: Of the text of a status, which may repeat what the client has sent.
_MAX_TEXT = 1_000
_UNREAD = GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many answers are not read")
_STOPPING = GrpcError(GrpcStatus.UNAVAILABLE, "the server is stopping")


@define(eq=False)
class Call:
    """One stream of HTTP/2.

    steps     what is under way for messages of the client
    begun     whether the answer's headers are sent
    """

    stream: int
    method: Method
    exchange: Exchange
    reader: MessageReader = field(factory=MessageReader)
    message: bytes | None = None
    steps: set[Step] = field(factory=set)
    begun: bool = False
    is_done: bool = False
    #: The client sends no more.
    is_half_closed: bool = False


@define(eq=False)
class Step:
    """The work for one message of a call: `missing` of the answers that its handler waits for are not there
    yet. `peer` makes its requests."""

    call: Call
    work: Steps
    peer: Peer
    opaques: list[int] = field(factory=list)
    answers: list[Command] = field(factory=list)
    missing: int = 0


class Calls:
    """The calls of one connection.

    session    finds the session of a client id
    dedicated  a peer of a session for one call, which is forgotten with it
    forget     ends such a peer
    is_full    whether too many bytes of answers wait, of this connection or of all
    wake       called when there are requests for the broker outside of `feed`
    """

    def __init__(
        self,
        http2: Http2,
        session: Callable[[Mapping[str, str]], Session],
        dedicated: Callable[[Session], Peer],
        forget: Callable[[Peer], None],
        exchange: Callable[[Session, int, Mapping[str, str]], Exchange],
        is_full: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._http2 = http2
        self._session = session
        self._dedicated, self._forget = dedicated, forget
        self._exchange = exchange
        self._is_full = is_full
        self._wake = wake
        self._calls: dict[int, Call] = {}
        self._owed: dict[int, tuple[Step, int]] = {}
        self._opaque = 0
        self._requests: list[tuple[Peer, list[Command]]] = []
        #: No further calls begin.
        self.is_draining = False

    # What arrives.

    def begin(self, stream: int, headers: Mapping[str, str]) -> None:
        """A call begins."""
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(_CONTENT_TYPE):
            self._http2.respond(stream, _NOT_GRPC, end=True)
            return
        fault = self._fault(headers)
        if fault is not None:
            self._trailers_only(stream, fault)
            return
        method = METHODS[headers[":path"]]
        if method.needs_id and not headers.get("x-mq-client-id"):
            self._respond(stream, method.refused(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing"))
            return
        session = self._session(headers)
        session.calls += 1
        exchange = self._exchange(session, stream, headers)
        self._calls[stream] = Call(stream, method, exchange)

    def _fault(self, headers: Mapping[str, str]) -> GrpcError | None:
        path = headers.get(":path", "")
        if path not in METHODS:
            return GrpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {path}")
        if headers.get("grpc-encoding", "identity") != "identity":
            return GrpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
        if self.is_draining:
            return _STOPPING
        if self._is_full():
            return _UNREAD
        return None

    def feed(self, stream: int, data: bytes) -> int:
        """Bytes of a call; returns those of its unfinished message."""
        call = self._calls.get(stream)
        if call is None or call.is_done:
            return 0
        try:
            for message in call.reader.feed(data):
                if call.method.kind is Kind.STREAM:
                    self._start(call, message)
                elif call.message is not None:
                    raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "this method takes one message")
                else:
                    call.message = message
        except GrpcError as error:
            self._fail(call, error)
            return 0
        return call.reader.pending_bytes

    def end(self, stream: int) -> None:
        """The client sends no more on a call."""
        call = self._calls.get(stream)
        if call is None:
            return
        call.is_half_closed = True
        if call.is_done:
            return
        if call.reader.pending_bytes:
            self._fail(call, GrpcError(GrpcStatus.INVALID_ARGUMENT, "the last message is not whole"))
        elif call.method.kind is Kind.STREAM:
            if not call.steps:
                self._finish(call)
        elif call.message is None:
            self._fail(call, GrpcError(GrpcStatus.INVALID_ARGUMENT, "the call has no message"))
        else:
            self._start(call, call.message)
            call.message = None

    def cancel(self, stream: int) -> None:
        """The client has given a call up; what it waits for is forgotten."""
        call = self._calls.pop(stream, None)
        if call is not None:
            self._close(call)

    def refuse(self, stream: int, error: GrpcError) -> None:
        """End a call of which too much has arrived."""
        call = self._calls.get(stream)
        if call is not None:
            self._fail(call, error)

    def drain(self) -> None:
        """Begin no more calls, and end those that wait for long. Clients that listen are told to connect
        again, elsewhere where there is another server."""
        self.is_draining = True
        for call in list(self._calls.values()):
            if call.exchange.session.telemetry == call.stream:
                self.tell(call.stream, reconnection())
        for call in list(self._calls.values()):
            if call.method.is_held or call.method.kind is Kind.STREAM or not call.steps:
                self._fail(call, _STOPPING)

    @property
    def is_idle(self) -> bool:
        """Whether no call is left."""
        return not self._calls

    # What the broker does for calls.

    def run(self, exchange: Exchange, work: Steps) -> None:
        """Do work for a client that it has not asked for."""
        self._advance(Step(Call(0, OWN, exchange), work, exchange.session.peer), None)

    def respond(self, peer: Peer, answer: Command) -> None:
        """Give the broker the answer to a request of its own."""
        self._requests.append((peer, [answer]))
        self._wake()

    def take(self) -> list[tuple[Peer, list[Command]]]:
        """The requests for the broker, of each peer in order."""
        found, self._requests = self._requests, []
        return found

    def answered(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        """The broker has answered requests."""
        for request, answer in zip(requests, answers, strict=True):
            owed = self._owed.pop(request.opaque, None)
            if owed is None:
                continue
            step, at = owed
            step.answers[at] = answer
            step.missing -= 1
            if not step.missing:
                self._advance(step, step.answers)

    def _start(self, call: Call, data: bytes) -> None:
        """Begin the work for a message."""
        method, session = call.method, call.exchange.session
        try:
            message = method.request.FromString(data)
        except DecodeError as error:
            self._fail(call, GrpcError(GrpcStatus.INVALID_ARGUMENT, f"the message cannot be read: {error}"))
            return
        peer = self._dedicated(session) if method.is_held else session.peer
        step = Step(call, method.handler(call.exchange, message), peer)
        call.steps.add(step)
        self._advance(step, None)

    def _advance(self, step: Step, answers: Any) -> None:
        """Let a handler go on, to its next requests or its end."""
        call = step.call
        try:
            asked = step.work.send(answers)
            while not asked:
                asked = step.work.send([])
        except StopIteration as done:
            self._forget_step(step)
            self._answer(call, done.value)
        except Refusal as refusal:
            self._forget_step(step)
            self._answer(call, call.method.refused(refusal.status_code, refusal.text[:_MAX_TEXT]))
        except GrpcError as error:
            self._fail(call, error)
        except RmqError as error:
            self._forget_step(step)
            self._answer(call, call.method.refused(code_of(wire_code(error)), str(error)[:_MAX_TEXT]))
        except Exception:  # noqa: BLE001 - one call's fault must not end the others
            _log.exception("the call %s of %s failed", call.method.name, step.peer.remote_text)
            self._fail(call, GrpcError(GrpcStatus.INTERNAL, "the server failed; its log has the reason"))
        else:
            if self.is_draining:
                self._fail(call, _STOPPING)
            else:
                self._ask(step, list(asked))

    def _ask(self, step: Step, commands: list[Command]) -> None:
        step.missing, step.answers = len(commands), list(commands)
        step.opaques = []
        for at, command in enumerate(commands):
            self._opaque = self._opaque + 1 & 0x7FFFFFFF
            command.opaque = self._opaque
            step.opaques.append(self._opaque)
            self._owed[self._opaque] = step, at
        if self._requests and self._requests[-1][0] is step.peer:
            self._requests[-1][1].extend(commands)
        else:
            self._requests.append((step.peer, commands))
        self._wake()

    # Answers.

    def tell(self, stream: int, message: Any) -> bool:
        """Send a message that the server begins; False when the stream is not open."""
        call = self._calls.get(stream)
        if call is None or call.is_done or self._is_full():
            return False
        self._send(call, [message])
        return True

    def _answer(self, call: Call, value: Any) -> None:
        """Send what a handler has returned, and end the call unless it is a stream of the client, or one on
        which the server says more later."""
        if self._is_full():
            self._fail(call, _UNREAD)
            return
        self._send(call, value if isinstance(value, list) else [] if value is None else [value])
        kind = call.method.kind
        is_open = kind is Kind.STREAM and not (call.is_half_closed and not call.steps)
        if not is_open and kind is not Kind.WATCH:
            self._finish(call)

    def _send(self, call: Call, messages: Sequence[Any]) -> None:
        if not messages:
            return
        if not call.begun:
            call.begun = True
            self._http2.respond(call.stream, _HEADERS)
        self._http2.send(call.stream, b"".join([framed(each.SerializeToString()) for each in messages]))

    def _finish(self, call: Call) -> None:
        if not call.begun:
            self._http2.respond(call.stream, _HEADERS)
        self._http2.finish(call.stream, _SUCCESS)
        self._end(call)

    def _fail(self, call: Call, error: GrpcError) -> None:
        """End a call with a status of gRPC."""
        if call.is_done:
            return
        if call.begun:
            self._http2.finish(call.stream, _status(error))
        else:
            self._http2.respond(call.stream, (*_HEADERS, *_status(error)), end=True)
        self._end(call)

    def _respond(self, stream: int, messages: Sequence[Any]) -> None:
        """Answer a call whose message is not awaited."""
        self._http2.respond(stream, _HEADERS)
        self._http2.send(stream, b"".join([framed(each.SerializeToString()) for each in messages]))
        self._http2.finish(stream, _SUCCESS)

    def _trailers_only(self, stream: int, error: GrpcError) -> None:
        self._http2.respond(stream, (*_HEADERS, *_status(error)), end=True)

    def _end(self, call: Call) -> None:
        """Forget a call that is answered."""
        self._calls.pop(call.stream, None)
        self._close(call)

    def _close(self, call: Call) -> None:
        call.is_done = True
        session = call.exchange.session
        session.calls -= 1
        if session.telemetry == call.stream:
            session.telemetry = None
        for step in list(call.steps):
            for opaque in step.opaques:
                self._owed.pop(opaque, None)
            step.work.close()
            self._forget_step(step)
        if call.exchange.on_end is not None:
            call.exchange.on_end()

    def _forget_step(self, step: Step) -> None:
        step.call.steps.discard(step)
        if step.call.method.is_held:
            self._forget(step.peer)


def _status(error: GrpcError) -> tuple[tuple[str, str], ...]:
    text = percent_encoded(error.text[:_MAX_TEXT])
    return ("grpc-status", str(int(error.status))), ("grpc-message", text)


__all__ = ["Call", "Calls"]
