"""One client on a connection, and one call of it as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field

from rmqkit.limits import MAX_TOPIC_LENGTH
from rmqkit.model import names
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import LANGUAGES
from rmqkit.protocol.command import Command, header_fields, request
from rmqkit.protocol.signature import AUTHORIZATION, DATE_TIME, SECURITY_TOKEN, grpc_proof
from rmqkit_grpc.framing import timeout_ms
from rmqkit_grpc.leases import Leases
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.statuses import Refusal

if TYPE_CHECKING:
    import msgspec

    from rmqkit_grpc.backend import Backend

#: What a handler is: it yields requests for the broker that are made together, gets their answers in order,
#: and returns the answer of the call, or several. It may raise Refusal, GrpcError, and what the codecs raise.
Steps = Generator[Sequence[Command], Sequence[Command], Any]

_LITE_CONSUMERS = frozenset(
    V2.enums["ClientType"][name] for name in ("LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")
)
_NO_CREDENTIALS = ("", b"")
_SESSION_TOKEN = "x-mq-session-token"


class Wire(Protocol):
    """Where a session sends what the server begins."""

    def tell(self, stream: int, message: Any) -> bool:
        """Send a message on a stream that is open. Returns False when it is not."""

    def respond(self, session: Session, answer: Command) -> None:
        """Give the broker the answer of a client to its request."""


@define(eq=False)
class Session:
    """A client of a connection, known by its `x-mq-client-id`.

    peer       its way into the request pipeline
    settings   what it has sent of itself last, None before
    telemetry  the stream for commands of the server, None without one
    leases     those that the server renews for it
    calls      the number of its calls that have not ended
    """

    client_id: str
    wire: Wire
    language: str | None = None
    peer: Peer = field(init=False)
    settings: Any = None
    telemetry: int | None = None
    leases: Leases = field(factory=Leases)
    calls: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known of the client that it would miss."""
        return self.settings is None and not self.calls

    @property
    def is_consumer(self) -> bool:
        return self.settings is not None and self.settings.HasField("subscription")

    @property
    def has_lite_topics(self) -> bool:
        """Whether it is a consumer of lite topics."""
        return self.settings is not None and self.settings.client_type in _LITE_CONSUMERS


class Exchange:
    """One call: its peer, its metadata and its deadline."""

    __slots__ = ("_backend", "_proof", "deadline_ms", "metadata", "on_end", "session", "stream")

    def __init__(
        self,
        session: Session,
        stream: int,
        metadata: Mapping[str, str],
        now_ms: float,
        backend: Backend | None,
    ) -> None:
        self.session = session
        self.stream = stream
        self.metadata = metadata
        given = timeout_ms(metadata.get("grpc-timeout"))
        #: By the clock that `now_ms` is of; None without a deadline.
        self.deadline_ms = None if given is None else now_ms + given
        #: Called once the call has ended, whoever has ended it.
        self.on_end: Callable[[], None] | None = None
        self._backend = backend
        self._proof = _proof_in(metadata)

    @property
    def backend(self) -> Backend:
        """The servers behind this door, once they are there. Raises Refusal before."""
        if self._backend is None:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, "the broker is still starting, try again")
        return self._backend

    def know(self, *, topic: str | None = None, group: str | None = None) -> Steps:
        """Find out what the backend must know of a topic and a group, if it does not."""
        questions = self.backend.questions(topic, group)
        if questions:
            yield [self.command(code, header) for code, header in questions]

    def command(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        fields: Mapping[str, str] | None = None,
    ) -> Command:
        """A request of this client, with what it has shown to prove who it is, and with further fields."""
        made = request(code, header, body)
        if self._proof or fields:
            made.ext = ({} if header is None else header_fields(header)) | self._proof | dict(fields or {})
        made.language = self.session.language
        return made


def _proof_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """The proof of a client as fields of requests; none for a client that only says that it has no
    credentials, as some do."""
    proof = {}
    text = metadata.get(AUTHORIZATION)
    if text and grpc_proof(text) != _NO_CREDENTIALS:
        proof = {AUTHORIZATION: text, DATE_TIME: metadata.get(DATE_TIME, "")}
    token = metadata.get(_SESSION_TOKEN)
    if token:
        proof[SECURITY_TOKEN] = token
    return proof


def language_of(metadata: Mapping[str, str]) -> str | None:
    """The language of a client as remoting names it; None for one that has no name there."""
    given = metadata.get("x-mq-language", "").upper()
    given = {"GOLANG": "GO", "DOT_NET": "DOTNET", "CSHARP": "DOTNET"}.get(given, given)
    return given if given in LANGUAGES else None


def name_of(resource: Any) -> str:
    """The name of a topic or group as remoting clients use it: with its namespace."""
    if resource.resource_namespace:
        return names.with_namespace(resource.name, resource.resource_namespace)
    name: str = resource.name
    return name


def topic_of(resource: Any) -> str:
    """The topic of a call. Raises Refusal for a name that is illegal, or the system's own."""
    name = name_of(resource)
    # A client may send any number of long names, which are not to be kept.
    fault = _topic_fault(name) if len(name) <= MAX_TOPIC_LENGTH else names.topic_fault(name)
    if fault is not None:
        raise Refusal(_ILLEGAL_TOPIC, fault)
    return name


@lru_cache(maxsize=4_096)
def _topic_fault(name: str) -> str | None:
    fault = names.topic_fault(name)
    if fault is None and names.is_system_topic(name):
        fault = f"{name} is a topic of the system"
    return fault


def group_of(resource: Any) -> str:
    """The consumer group of a call. Raises Refusal for a name that is illegal, or the system's own."""
    name = name_of(resource)
    fault = names.group_fault(name)
    if fault is None and names.is_system_group(name):
        fault = f"{name} is a group of the system"
    if fault is not None:
        raise Refusal(_ILLEGAL_GROUP, fault)
    return name


_ILLEGAL_TOPIC, _ILLEGAL_GROUP = Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP


__all__ = [
    "Exchange", "Session", "Steps", "Wire", "group_of", "language_of", "name_of", "topic_of",
]  # fmt: skip
