"""Hooks around sends, pulls and appends of a broker: their interfaces, when they run, and their arguments
(behaviour sheet, C14). Those around requests are in `rmqkit.plugin.request_hooks`.

All of them are plain functions that run in the loop between a request and its answer: they must not block.
Hooks of one kind run in `order`, then by name. `rmqkit.testing.hooks` has their contracts as tests.

An exception of a hook is logged with the name of its plugin and changes nothing, with these exceptions:
`SendMessageHook.before` refuses sends by RequestRefused; `PutMessageHook.before_put` refuses by any
exception, so that a broken check admits nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import compress, islice
from operator import is_not
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import msgspec

from rmqkit.errors import RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MessageType, message_type
from rmqkit.model.names import namespace_of
from rmqkit.model.run import MessageRun
from rmqkit.plugin.request import Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rmqkit.protocol.message_id import offset_message_id

if TYPE_CHECKING:
    from rmqkit.plugin.store import Appended

#: Header field in which clients of the cloud service name an account (Java:
#: BrokerStatsManager.COMMERCIAL_OWNER).
OWNER = "Owner"
SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2
#: Answers to a send that mean that the message is stored.
STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
#: Index of a refused element in its run -> reason. RequestRefused is answered with its code and remark; any
#: other exception is a failure of the hook, answered with SYSTEM_ERROR.
Refusals = Mapping[int, Exception]

# --- sends --------------------------------------------------------------------------------------------------


class SendContext:
    """One send of a SendRun; a batch is one send. The outcome is set for `after` only. `notes` carries data
    of hooks from `before` to `after`, each under the hook itself as the key."""

    __slots__ = ("_at", "_notes", "_sends")

    def __init__(self, sends: SendRun, at: int) -> None:
        self._sends = sends
        self._at = at
        self._notes: dict[object, Any] | None = None

    @property
    def notes(self) -> dict[object, Any]:
        if self._notes is None:
            self._notes = {}
        return self._notes

    @property
    def request(self) -> Command:
        """The request as received, with all its header fields. The body is that of the message, or the
        batch."""
        return self._sends.requests[self._at]

    @property
    def header(self) -> SendHeader:
        return self._sends.headers[self._at]

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the message; for a batch, those of the request. Read-only."""
        return MappingProxyType(self._sends.properties[self._at])

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the message, by which it can be queried; none of a batch."""
        return props.split_keys(self._sends.properties[self._at].get(props.KEYS))

    @property
    def tag(self) -> str | None:
        """The tag of the message; None without one, and of a batch."""
        return self._sends.properties[self._at].get(props.TAGS)

    @property
    def producer_group(self) -> str:
        return self.header.producer_group

    @property
    def topic(self) -> str:
        """The requested topic. `messages` has the topics under which messages were stored."""
        return self.header.topic

    @property
    def queue_id(self) -> int:
        """The requested queue id."""
        return self.header.queue_id

    @property
    def body_bytes(self) -> int:
        return len(self.request.body)

    @property
    def message_type(self) -> MessageType:
        return message_type(self._sends.properties[self._at])

    @property
    def born_timestamp_ms(self) -> int:
        return self.header.born_timestamp

    @property
    def born_host(self) -> str:
        """The address of the client, `host:port`."""
        return self._sends.peers[self._at].remote_text

    @property
    def request_timestamp_ms(self) -> int:
        return self._sends.request_timestamp_ms

    @property
    def broker_address(self) -> str:
        return self._sends.broker.address

    @property
    def region_id(self) -> str:
        return self._sends.broker.region_id

    @property
    def namespace(self) -> str:
        return namespace_of(self.topic)

    @property
    def owner(self) -> str | None:
        """The account that the client names."""
        return self.request.fields().get(OWNER)

    @property
    def message_id(self) -> str | None:
        """The id that the producer assigned and gets as the result of the send (UNIQ_KEY). For a batch the
        ids are joined by commas, and known in `after` only. None when the producer assigned none."""
        if len(self.messages) > 1:
            ids = [message.properties.get(props.UNIQ_KEY) for message in self.messages]
            return ",".join(each for each in ids if each) if all(ids) else None
        return self._sends.properties[self._at].get(props.UNIQ_KEY)

    # How it ended.

    @property
    def code(self) -> int:
        """The code of the answer, -1 before it is known."""
        return self._sends.code

    @property
    def remark(self) -> str | None:
        return self._sends.remark

    @property
    def success(self) -> bool:
        """Whether the answer to the producer means that the message is stored."""
        return self._sends.success

    @property
    def messages(self) -> Sequence[PutMessage]:
        """The stored messages; empty when nothing was stored."""
        return self._sends.messages[self._sends.span(self._at)]

    @property
    def results(self) -> Sequence[Appended]:
        """The places of the stored messages."""
        return self._sends.results[self._sends.span(self._at)]

    @property
    def message_count(self) -> int:
        return len(self.results)

    @property
    def stored_bytes(self) -> int:
        """Total size of the stored records."""
        return sum(at.size_bytes for at in self.results)

    @property
    def queue_offset(self) -> int:
        """The queue offset of the first message, -1 when nothing was stored."""
        return self.results[0].queue_offset if self.results else -1

    @property
    def offset_message_id(self) -> str | None:
        """The broker's message id, which contains the position in its log; for a batch the ids are joined by
        commas."""
        host = self._sends.broker.store_host
        return ",".join(offset_message_id(host, at.physical_offset) for at in self.results) or None


class SendingBroker(NamedTuple):
    """The broker to which a message is sent. `store_host` is `address` in packed form."""

    address: str
    region_id: str
    store_host: bytes


def _changes(items: Sequence[object]) -> list[int]:
    """The indexes of items that are not the same object as the item before; 0 is one of them."""
    return [0, *compress(range(1, len(items)), map(is_not, islice(items, 1, None), items))]


class SendRun(Sequence[SendContext]):
    """Sends that arrived together (`before`), or those of them that have the same answer (`after`). A context
    is created on first access; the columns always exist.

    requests           the requests as received
    peers              the connection of each; the sends of one connection are neighbours
    headers            their typed headers
    code, remark       of the answer to all sends, for `after` only
    messages, results  the stored messages and their places, for `after` only; empty when nothing was stored
    sizes              number of `messages` of each send; None when each send has one
    """

    code: int = -1
    remark: str | None = None
    messages: Sequence[PutMessage] = ()
    results: Sequence[Appended] = ()
    sizes: Sequence[int] | None = None
    _properties: list[dict[str, str]] | None = None
    _contexts: dict[int, SendContext] | None = None

    def __init__(
        self,
        broker: SendingBroker,
        request_timestamp_ms: int,
        requests: Sequence[Command],
        peers: Sequence[Peer],
        headers: Sequence[SendHeader],
    ) -> None:
        self.broker = broker
        self.request_timestamp_ms = request_timestamp_ms
        self.requests = requests
        self.peers = peers
        self.headers = headers

    def __len__(self) -> int:
        return len(self.requests)

    @overload
    def __getitem__(self, at: int) -> SendContext: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SendContext]: ...
    def __getitem__(self, at: int | slice) -> SendContext | Sequence[SendContext]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        index = at if at >= 0 else at + len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"{at} is not an index of a run of {len(self)} sends")
        if self._contexts is None:
            self._contexts = {}
        context = self._contexts.get(index)
        if context is None:
            context = self._contexts[index] = SendContext(self, index)
        return context

    def __iter__(self) -> Iterator[SendContext]:
        if not self._contexts:
            self._contexts = {at: SendContext(self, at) for at in range(len(self.requests))}
            return iter(self._contexts.values())
        return iter([self[at] for at in range(len(self.requests))])

    @property
    def properties(self) -> Sequence[dict[str, str]]:
        """The properties of each message; for a batch those of the request. Decoded on first access.
        Read-only."""
        if self._properties is None:
            self._properties = [props.decode(header.properties or "") for header in self.headers]
        return self._properties

    @property
    def contexts(self) -> Mapping[int, SendContext]:
        """The contexts created so far, by index."""
        return self._contexts or {}

    @property
    def success(self) -> bool:
        """Whether the answer to the producers means that their messages are stored."""
        return self.code in STORED_CODES

    def span(self, at: int) -> slice:
        """The part of `messages` and `results` that belongs to one send."""
        if self.sizes is None:
            return slice(at, at + 1)
        start = sum(self.sizes[:at])
        return slice(start, start + self.sizes[at])

    def by_peer(self) -> list[slice]:
        """The parts of this run that arrived over one connection each, in order."""
        peers = self.peers
        if peers[0] is peers[-1]:
            return [slice(len(peers))]
        starts = _changes(peers)
        return [*map(slice, starts, [*starts[1:], len(peers)])]

    def ended(self, code: int, remark: str | None = None) -> SendRun:
        """Set the answer; returns this run."""
        self.code, self.remark = code, remark
        return self

    def select(self, indexes: Sequence[int]) -> SendRun:
        """A run of the sends at some indexes, which must ascend. Existing contexts move to the new run."""
        if len(indexes) == len(self):
            return self
        part = SendRun(
            self.broker,
            self.request_timestamp_ms,
            [self.requests[at] for at in indexes],
            [self.peers[at] for at in indexes],
            [self.headers[at] for at in indexes],
        )
        if self._properties is not None:
            part._properties = [self._properties[at] for at in indexes]
        if self.messages:
            spans = [self.span(at) for at in indexes]
            part.messages = [message for span in spans for message in self.messages[span]]
            part.results = [at for span in spans for at in self.results[span]]
            part.sizes = None if self.sizes is None else [self.sizes[at] for at in indexes]
        if self._contexts:
            part._contexts = {}
            for now, before in enumerate(indexes):
                if (context := self._contexts.get(before)) is not None:
                    context._sends, context._at = part, now
                    part._contexts[now] = context
        return part


class SendMessageHook:
    """Runs around every send that a broker handles, after its header was read and before the send is checked.
    Sends that arrived together, over one connection or several, are passed together.

    fail_closed  what an error of `before` means that is not a RequestRefused: True, the send is refused, as a
                 policy wants it that must hold; False, it is stored. The error is logged in both cases
    """

    fail_closed: bool = False

    def before(self, sends: SendRun) -> Refusals | None:
        """Return the refused sends; later hooks and the store do not see them. Raising RequestRefused refuses
        the whole run. Any other exception, raised or returned for a send, refuses it with SYSTEM_ERROR if the
        hook is `fail_closed`, and nothing otherwise."""
        return None

    def after(self, sends: SendRun) -> None:
        """Observe sends with the same, known answer. Each send that was passed to `before` and not refused by
        it is passed once, even if a later hook or a check refused it."""
        return


class EachSendHook(SendMessageHook):
    """A SendMessageHook that processes one send at a time."""

    def before(self, sends: SendRun) -> Refusals | None:
        refused: dict[int, Exception] = {}
        before_each = self.before_each
        for at, context in enumerate(sends):
            try:
                before_each(context)
            except Exception as error:  # noqa: BLE001 - the runner distinguishes refusals from failures
                refused[at] = error
        return refused or None

    def after(self, sends: SendRun) -> None:
        failure = None
        for context in sends:
            try:
                self.after_each(context)
            except Exception as error:  # noqa: BLE001 - the remaining sends must still be observed
                failure = failure or error
        if failure is not None:
            raise failure

    def before_each(self, context: SendContext) -> None:
        """Raise RequestRefused to refuse the send."""
        return

    def after_each(self, context: SendContext) -> None:
        return


# --- consumption --------------------------------------------------------------------------------------------

#: `ConsumeContext.status` (Java: BrokerStatsManager.StatsType).
RCV_SUCCESS, RCV_EPOLLS, SEND_BACK, SEND_BACK_TO_DLQ = (
    "RCV_SUCCESS",
    "RCV_EPOLLS",
    "SEND_BACK",
    "SEND_BACK_TO_DLQ",
)


class ConsumeContext(msgspec.Struct, kw_only=True, eq=False):
    """A pull that is about to be answered, or a send-back that was answered.

    status         RCV_SUCCESS (messages were found) or RCV_EPOLLS for a pull, SEND_BACK or SEND_BACK_TO_DLQ
                   for a send-back
    topic          of the pull; for a send-back the original topic of the message, whose new topic is
                   `target_topic`
    queue_id       of the pull; for a send-back the queue from which the message was read
    code           of the answer
    message_count  number of messages returned, 1 for a send-back; `body_bytes` is the size of their records,
                   for a send-back the size of the body
    offset         requested by the pull; for a send-back the offset from which the message was read
    next_offset    where the next pull continues; -1 for a send-back
    """

    request: Command
    status: str
    group: str
    topic: str
    queue_id: int
    client_address: str
    code: int
    message_count: int
    body_bytes: int
    offset: int
    next_offset: int = -1
    target_topic: str | None = None

    @property
    def namespace(self) -> str:
        return namespace_of(self.topic)

    @property
    def owner(self) -> str | None:
        """The account that the client names."""
        return self.request.fields().get(OWNER)

    @property
    def success(self) -> bool:
        return self.code == ResponseCode.SUCCESS


class ConsumeMessageHook:
    """`before` runs in a pull after the store was read and before the pull is answered; a held pull is passed
    when it is answered. `after` runs after a send-back."""

    def before(self, context: ConsumeContext) -> None:
        return

    def after(self, context: ConsumeContext) -> None:
        return


# --- appends and requests -----------------------------------------------------------------------------------


class AlreadyStored(RequestRefused):
    """A put hook finds that a message is in the log already: it is not stored, and its sender gets `place` as
    if it had been, with the queue that the hook has set in the message.

    place   the place of the other message, or the refusal of it; None while that is in the same run:
            `after_put` sets it
    """

    def __init__(self, place: Appended | None = None) -> None:
        super().__init__(ResponseCode.SUCCESS, "stored before")
        self.place: Appended | RequestRefused | None = place

    def result(self) -> Appended | RequestRefused:
        """The answer to the send."""
        if self.place is None:
            return RequestRefused(ResponseCode.SYSTEM_ERROR, "it is not known whether the message is stored")
        return self.place


class PutMessageHook(ABC):
    """The last check before the append, also for messages that the broker itself writes.

    wants   names of properties: only messages with one of them are passed to the hook, None for all
    topics  names of topics: only their messages are passed to the hook, None for those of all. The hook may
            change a set of its own at any time
    claims  properties for which the hook takes responsibility: it parks, holds back or refuses messages that
            carry one of them. A message with a property that requires more than storing (a delay level, a
            time of delivery, a prepared transaction) is refused if no hook claims the property
    """

    wants: frozenset[str] | None = None
    topics: Set[str] | None = None
    claims: frozenset[str] = frozenset()

    @abstractmethod
    def before_put(self, run: MessageRun) -> Refusals | None:
        """Rewrite messages, above all their destination, and return those that are refused; later hooks do
        not see these. A refused message refuses all messages of its request; one that is `AlreadyStored` is
        left out alone. Raising refuses the whole run."""

    def after_put(self, run: MessageRun, results: Sequence[Appended | RequestRefused]) -> None:
        """Called in the same step with the messages that `before_put` saw and their places or refusals, also
        those by other hooks. Costs nothing where it is not overridden."""
        return


class EachPutHook(PutMessageHook):
    """A PutMessageHook that processes one message at a time."""

    def before_put(self, run: MessageRun) -> Refusals | None:
        refused: dict[int, Exception] = {}
        for at, message in enumerate(run):
            try:
                self.before_each(message)
            except Exception as error:  # noqa: BLE001 - the runner distinguishes refusals from failures
                refused[at] = error
        return refused or None

    @abstractmethod
    def before_each(self, message: PutMessage) -> None:
        """Rewrite the message if necessary. Raise RequestRefused to refuse it."""
