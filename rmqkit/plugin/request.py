"""Requests: connections, processors and their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, overload

import msgspec

from rmqkit.limits import MAX_REQUESTS_PER_TURN
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.address import TransportInfo
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.frame import FrameDecoder
from rmqkit.protocol.message_id import host_text, pack_host

if TYPE_CHECKING:
    from rmqkit.plugin.transport import ServerStream


class Reply(NamedTuple):
    """An answer whose body is sent as slices without joining them."""

    head: Command
    slices: Sequence[Buffer]
    total_bytes: int


#: What goes back to the peer: a command, a head with slices, or a success that is encoded already.
Answer = Command | Reply | bytes


def whole(answer: object) -> Command:
    """An answer of any form as one command with its body. Raises TypeError for what is none."""
    if isinstance(answer, bytes):
        (command,) = FrameDecoder().feed(answer)
        return command
    if isinstance(answer, Reply):
        answer.head.body = b"".join(answer.slices)
        return answer.head
    if not isinstance(answer, Command):
        raise TypeError(f"{type(answer).__name__} is not an answer")
    return answer


class Waiting(msgspec.Struct, frozen=True):
    """A number of requests that have arrived and wait for others, and how long the first of them has."""

    count: int
    longest_s: float


class Ticket(msgspec.Struct, eq=False, gc=False):
    """A promise to answer requests later, made by `Peer.postpone` and kept by `complete`.

    held       the peer expects to wait: the requests do not count as in flight, so the connection is still
               read, and a draining server does not wait for them
    completed  whether `complete` was called
    """

    requests: Sequence[Command]
    peer: Peer
    held: bool = False
    completed: bool = False

    def complete(self, outcomes: Sequence[Outcome]) -> None:
        """Send one outcome for each request, in order. May be called once, from anywhere in the loop, also
        when the connection is gone; never blocks. Raises RuntimeError at a second call."""
        if self.completed:
            raise RuntimeError("the ticket is completed already")
        self.completed = True
        self.peer.settle(self, outcomes)


#: Result of a processor for a request: its answer, a ticket that will deliver the answer, or None for a
#: one-way request. A ticket that is completed with another ticket passes the request on to that ticket.
Outcome = Answer | Ticket | None
#: A coroutine function without arguments that produces an answer.
Work = Callable[[], Awaitable[Outcome]]


#: Names of servers, as `Caller.server`; a server of a plugin has its own name.
BROKER, NAME_SERVER, FILTER_SERVER = "broker", "namesrv", "filter-server"
#: The port of a broker from which slaves copy the log.
REPLICATION = "replication"
#: RocketMQ's own protocol, as `Caller.protocol`.
REMOTING = "remoting"


class Caller(ABC):
    """The other end of an accepted connection: its address, the server and the listener that accepted it, its
    protocol and its identity."""

    protocol: str = REMOTING
    """The protocol that it speaks: REMOTING, or the name of a plugin's `WireProtocol`."""
    remote_host: bytes
    """Packed address and port, 8 or 20 bytes."""
    remote_text: str
    server: str
    """The server that accepted the connection: BROKER, NAME_SERVER, FILTER_SERVER, REPLICATION, or the name
    of a plugin's server."""
    attributes: dict[str, object]
    """What plugins remember about the connection, under names that begin with the plugin's: an account that
    has been checked, for example."""

    @property
    @abstractmethod
    def transport(self) -> TransportInfo:
        """Listener, encryption and certificate of the connection."""


class StreamCaller(Caller):
    """The caller of a protocol other than RocketMQ's remoting, over an accepted stream. `introduction` is the
    request with which it has said, signed like any other, who it is; None for a protocol without one."""

    def __init__(self, stream: ServerStream, server: str, introduction: Command | None = None) -> None:
        self.remote_host = pack_host(*stream.remote)
        self.remote_text = host_text(self.remote_host)
        self.server = server
        self.attributes = {}
        self.introduction = introduction
        self._stream = stream

    @property
    def transport(self) -> TransportInfo:
        return self._stream.transport


class Peer(Caller):
    """A caller that sends requests, as processors and services see it (Java: Channel)."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the connection has ended; nothing that is sent reaches the peer."""

    @abstractmethod
    def postpone(self, requests: Sequence[Command], *, held: bool = False) -> Ticket:
        """Promise to answer these requests, which belong to one run. They count as in flight until the ticket
        is completed, unless `held`."""

    @abstractmethod
    def answer_async(self, request: Command, work: Work) -> Ticket:
        """Run a coroutine function in a task of the connection; its result or exception becomes the answer.
        The task is cancelled when the connection ends, and does not start if the connection has already
        ended: the ticket then stays incomplete. A draining server waits for the task."""

    @abstractmethod
    def settle(self, ticket: Ticket, outcomes: Sequence[Outcome]) -> None:
        """Send the answers to a ticket's requests. Answers to one-way requests are dropped, and all answers
        when the connection is gone. Called by `Ticket.complete`."""

    @abstractmethod
    def push(self, command: Command) -> bool:
        """Queue a one-way command to the peer; False when the connection is gone or its queue is full."""

    @abstractmethod
    async def call(self, command: Command, timeout_ms: int) -> Command:
        """Send a request to the peer and wait for its answer. Raises RequestTimeout, ConnectionLost, and
        ClientError when too many calls are pending."""

    @abstractmethod
    def close(self) -> None:
        """End the connection soon; safe to call twice."""


class RequestProcessor(ABC):
    """Answers requests of some codes. `process` must not block: it returns a ticket for an answer that has to
    wait."""

    #: Maximum number of requests per call. Room for answers on the connection is checked only before each
    #: run, so a processor with large answers needs short runs.
    max_run: ClassVar[int] = MAX_REQUESTS_PER_TURN

    @abstractmethod
    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        """Return one outcome for each request, in order. The requests arrived together over one connection,
        and all or none of them are one-way; a single request is a run of one. An error of one request is the
        error answer to that request; an exception is logged and answers all of them."""


class JoinedProcessor(RequestProcessor):
    """A processor that answers requests of several connections together, where its work for a run costs more
    than its work for a request. What it stores for one connection is not held up by another: requests are
    joined only if they have arrived."""

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        return self.process_joined(requests, [peer] * len(requests))

    @abstractmethod
    def process_joined(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
        """The outcomes of requests of several connections, with the connection of each request. The requests
        of one connection are neighbours, in the order in which they arrived there. An exception answers all
        of them, so an error that one request can cause must be the answer to that request alone."""


class EachRequest(RequestProcessor):
    """A processor that handles one request at a time."""

    max_run = 1

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for request in requests:
            try:
                outcomes.append(self.handle(request, peer))
            except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer
                outcomes.append(error_answer(request, error))
        return outcomes

    @abstractmethod
    def handle(self, request: Command, peer: Peer) -> Outcome:
        """Answer one request. Raise RequestRefused (or any RmqError) to answer with its code and text. Any
        other exception is logged and answered with SYSTEM_ERROR."""


class Answers(Sequence[Command]):
    """Answers as passed to hooks. Encoded answers are decoded on access; an answer that is sent in slices
    appears as its head, without the body."""

    __slots__ = ("_answers", "_codes")

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self._codes: Sequence[int] | None = None

    @property
    def codes(self) -> Sequence[int]:
        """The response codes, without decoding any answer."""
        if self._codes is None:
            self._codes = [
                0 if type(each) is bytes else self[at].code for at, each in enumerate(self._answers)
            ]
        return self._codes

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, at: int) -> Command: ...
    @overload
    def __getitem__(self, at: slice) -> Answers: ...
    def __getitem__(self, at: int | slice) -> Command | Answers:
        if isinstance(at, slice):
            return Answers(self._answers[at])
        found = self._answers[at]
        if isinstance(found, Reply):
            return found.head
        if isinstance(found, bytes):
            (found,) = FrameDecoder().feed(found)
            self._answers[at] = found
        return found
