"""One remoting connection without its I/O, for either end (Java: NettyRemotingAbstract; wire-protocol sheet,
sections 1.4 and 9).

The owner moves the bytes and reports what happened; the core says what arrived, which calls have ended and
whether there is room for more. `TABLE` holds the life of a connection:

               END               DRAIN
    OPEN -------------> HALF_CLOSED <------- DRAINING        CLOSE or FAULT: any state -> CLOSED
      |                                END     ^
      +----------------------------------------+
                       DRAIN

    state        takes requests  takes answers  begins calls  sends
    OPEN               x               x              x         x
    HALF_CLOSED                                                 x
    DRAINING           x               x                        x
    CLOSED
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from math import inf

from rmqkit.errors import ClientError, ConnectionLost, RequestTimeout
from rmqkit.limits import MAX_IN_FLIGHT_PER_CONNECTION, MAX_PENDING_CALLS, MAX_UNSENT_BYTES_PER_CONNECTION
from rmqkit.model.buffer import Buffer
from rmqkit.protocol.codes import FLAG_ONEWAY
from rmqkit.protocol.command import Command
from rmqkit.protocol.frame import FrameDecoder, encode_parts


class State(Enum):
    """OPEN: both ends ask and answer. HALF_CLOSED: the peer has ended its stream, but still gets its answers.
    DRAINING: this end begins nothing new, and closes when it owes nothing. CLOSED: no more bytes are accepted
    or produced."""

    OPEN = "open"
    HALF_CLOSED = "half-closed"
    DRAINING = "draining"
    CLOSED = "closed"


class Event(Enum):
    """REQUEST, RESPONSE: a frame of the peer. CALL: this end asks and expects an answer. SEND: this end
    answers, or sends a one-way request. END: the peer's stream has ended. DRAIN: this end is to begin nothing
    new. FAULT: the peer broke the protocol. CLOSE: either end, or the network, has ended the connection."""

    REQUEST = "request"
    RESPONSE = "response"
    CALL = "call"
    SEND = "send"
    END = "end of stream"
    DRAIN = "drain"
    FAULT = "protocol fault"
    CLOSE = "close"


_OPEN, _HALF, _DRAINING, _CLOSED = State.OPEN, State.HALF_CLOSED, State.DRAINING, State.CLOSED
_ENDS = {Event.FAULT: _CLOSED, Event.CLOSE: _CLOSED}
_SAME = (Event.REQUEST, Event.RESPONSE, Event.CALL, Event.SEND)
#: State -> event -> the state that follows; None where the event has no effect: the frame is dropped, the
#: call or one-way request is refused.
TABLE: Mapping[State, Mapping[Event, State | None]] = {
    _OPEN: dict.fromkeys(_SAME, _OPEN) | {Event.END: _HALF, Event.DRAIN: _DRAINING} | _ENDS,
    _HALF: dict.fromkeys(_SAME) | {Event.SEND: _HALF, Event.END: _HALF, Event.DRAIN: _HALF} | _ENDS,
    _DRAINING: dict.fromkeys(_SAME, _DRAINING)
    | {Event.CALL: None, Event.END: _HALF, Event.DRAIN: _DRAINING}
    | _ENDS,
    _CLOSED: dict.fromkeys(_SAME) | dict.fromkeys((Event.END, Event.DRAIN), _CLOSED) | _ENDS,
}


class Call:
    """A request of this end that has no answer yet. `wake` is called once: when `answer` is set, when the
    time is up, or when no answer can come any more."""

    __slots__ = ("answer", "deadline", "expired", "opaque", "timeout_ms", "wake")

    def __init__(self, opaque: int, deadline: float, timeout_ms: int, wake: Callable[[], None]) -> None:
        self.opaque = opaque
        self.deadline = deadline
        self.timeout_ms = timeout_ms
        self.wake = wake
        self.answer: Command | None = None
        self.expired = False


class ConnectionCore(FrameDecoder):
    """The state of one connection. `feed` takes what arrives. Times are seconds of any clock that only moves
    forward.

    peer            text that errors carry
    why             the reason of the end, None before
    fault           what was wrong with the frame behind the last commands; the owner serves these and then
                    closes
    received_at     when bytes last arrived, set by the owner
    in_flight       requests of the peer that will be answered later
    outgoing        frames and parts of frames in the order in which they are to be sent
    unsent_bytes    what is queued in `outgoing`, and what is being sent
    takes_requests  whether requests of the peer are served
    begins_calls    whether this end may ask
    """

    __slots__ = (
        "_calls", "_opaque", "begins_calls", "in_flight", "outgoing", "peer", "received_at", "sent_at",
        "state", "takes_requests", "unsent_bytes", "why",
    )  # fmt: skip

    def __init__(self, peer: str, now: float) -> None:
        super().__init__()
        self.peer = peer
        self.state = State.OPEN
        self.takes_requests = self.begins_calls = True
        self.why: str | None = None
        self.in_flight = 0
        self.unsent_bytes = 0
        self.received_at = self.sent_at = now
        self.outgoing: list[Buffer] = []
        self._opaque = 0
        self._calls: dict[int, Call] = {}

    # The life of the connection.

    def happened(self, event: Event, why: str = "closed by the peer") -> bool:
        """Move to the state that follows; False when the event has no effect in this state. Pending calls end
        when answers can come no more. `why` is kept when the connection closes by this event."""
        follower = TABLE[self.state][event]
        if follower is None:
            return False
        if follower is not self.state:
            self.state = follower
            table = TABLE[follower]
            self.takes_requests = table[Event.REQUEST] is not None
            self.begins_calls = table[Event.CALL] is not None
            if follower is State.CLOSED:
                self.why = why
            if table[Event.RESPONSE] is None:
                calls, self._calls = self._calls, {}
                for call in calls.values():
                    if not call.expired:
                        call.wake()
        return True

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def last_moved(self) -> float:
        """When bytes last arrived or left."""
        return max(self.received_at, self.sent_at)

    # What arrives.

    def respond(self, answer: Command) -> bool:
        """Give an answer of the peer to its call; False when no call awaits it."""
        call = self._calls.pop(answer.opaque, None)
        if call is None:
            return False
        call.answer = answer
        if not call.expired:
            call.wake()
        return True

    @property
    def congested(self) -> bool:
        """Whether the peer must wait with further requests until answers are found, or read."""
        return (
            self.in_flight >= MAX_IN_FLIGHT_PER_CONNECTION
            or self.unsent_bytes > MAX_UNSENT_BYTES_PER_CONNECTION
        )

    @property
    def overloaded(self) -> bool:
        """Whether too many requests of the peer are in flight."""
        return self.in_flight >= MAX_IN_FLIGHT_PER_CONNECTION

    # What this end asks.

    @property
    def pending_calls(self) -> int:
        return len(self._calls)

    def call(self, command: Command, timeout_ms: int, now: float, wake: Callable[[], None]) -> Call:
        """Number a request whose answer is awaited; the owner sends it. Raises ConnectionLost where no answer
        can come, ClientError when MAX_PENDING_CALLS are pending."""
        if not self.begins_calls:
            raise ConnectionLost(self.peer, self.why or f"it is {self.state.value}")
        if len(self._calls) >= MAX_PENDING_CALLS:
            raise ClientError(
                f"{self.peer} owes {len(self._calls)} answers already, at most {MAX_PENDING_CALLS} may be"
                " awaited at a time"
            )
        command.opaque = opaque = self._next_opaque()
        command.flag = 0
        call = self._calls[opaque] = Call(opaque, now + timeout_ms / 1000, timeout_ms, wake)
        return call

    def oneway(self, command: Command) -> None:
        """Number a one-way request; the owner sends it. Raises ConnectionLost."""
        if not self.happened(Event.SEND):
            raise ConnectionLost(self.peer, self.why or f"it is {self.state.value}")
        command.opaque = self._next_opaque()
        command.flag = FLAG_ONEWAY

    def forget(self, call: Call) -> None:
        """A call is over; an answer that comes yet is dropped."""
        if self._calls.get(call.opaque) is call:
            del self._calls[call.opaque]

    def result(self, call: Call) -> Command:
        """The answer to a finished call. Raises RequestTimeout, ConnectionLost."""
        if call.answer is not None:
            return call.answer
        if call.expired or TABLE[self.state][Event.RESPONSE] is not None:
            raise RequestTimeout(self.peer, call.timeout_ms)
        raise ConnectionLost(self.peer, self.why or f"it is {self.state.value}")

    def expire(self, now: float) -> float:
        """End the calls whose time is up; the earliest deadline of the others."""
        earliest = inf
        for call in self._calls.values():
            if call.deadline > now:
                earliest = min(earliest, call.deadline)
            elif not call.expired:
                call.expired = True
                call.wake()
        return earliest

    def _next_opaque(self) -> int:
        """A signed 32-bit counter that wraps and steps over numbers in use."""
        while True:
            opaque = self._opaque
            self._opaque = opaque + 1 if opaque < 0x7FFFFFFF else -0x80000000
            if opaque not in self._calls:
                return opaque

    # What this end sends.

    @property
    def has_room(self) -> bool:
        """Whether the bytes that are unsent leave room for more."""
        return self.unsent_bytes <= MAX_UNSENT_BYTES_PER_CONNECTION

    def queue_frame(self, command: Command) -> None:
        """Put a command behind what is to be sent. Raises ProtocolError as `encode_parts`."""
        parts = encode_parts(command)
        self.outgoing += parts
        self.unsent_bytes += sum(map(len, parts))

    def take_outgoing(self) -> list[Buffer]:
        """What is to be sent now, which is all. It stays unsent until `sent` says otherwise."""
        parts, self.outgoing = self.outgoing, []
        return parts

    def sent(self, size: int, now: float) -> None:
        """Count `size` bytes as sent."""
        self.unsent_bytes -= size
        self.sent_at = now
