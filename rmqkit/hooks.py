"""Hooks around sends, pulls, appends and requests of a broker: what they are, when they run, what they are told (behaviour sheet, C14).

All of them are plain functions that run in the loop between a request and its answer: they must not block. Hooks of one kind run in `order`, then by
name. `rmqkit.testing.hooks` has their contracts as tests.

What a hook raises is logged with the name of its plugin and changes nothing, with these exceptions: `SendMessageHook.before` refuses a send by
RequestRefused; `RpcHook.before` and `PutMessageHook.before_put` refuse by whatever they raise, so that a check that is broken lets nobody in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from attrs import define

from rmqkit.abc import Appended, Peer
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MessageType
from rmqkit.model.names import namespace_of
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command

#: Header field by which clients of the cloud service name an account (Java: BrokerStatsManager.COMMERCIAL_OWNER).
OWNER = "Owner"
#: Answers to a send that say the message is stored.
STORED_CODES = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
)

# --- sends -----------------------------------------------------------------------------------------------------------


@define(slots=True, kw_only=True)
class SendContext:
    """One send, also of a batch. The fields from `code` on are set for `after` only.

    request           as it came, with all its header fields; the body is the message's, or the batch
    topic, queue_id   as asked for: `messages` has where each went
    properties        those of the message; of a batch, those around it
    unique_key        the id its producer gave it (UNIQ_KEY)
    code, remark      of the answer
    message_id        offset message id; of a batch, joined by commas
    queue_offset      of the first message, -1 when nothing was stored
    messages, landed  what was stored, and where; empty when nothing was
    """

    request: Command
    producer_group: str
    topic: str
    queue_id: int
    body_bytes: int
    properties: Mapping[str, str]
    message_type: MessageType
    born_host: str
    born_timestamp_ms: int
    request_timestamp_ms: int
    broker_address: str
    region_id: str
    unique_key: str | None
    code: int = -1
    remark: str | None = None
    message_id: str | None = None
    queue_offset: int = -1
    messages: Sequence[PutMessage] = ()
    landed: Sequence[Appended] = ()

    @property
    def namespace(self) -> str:
        return namespace_of(self.topic)

    @property
    def owner(self) -> str | None:
        """The account the client names."""
        return self.request.fields().get(OWNER)

    @property
    def success(self) -> bool:
        """Whether the producer is told that the message is stored."""
        return self.code in STORED_CODES

    @property
    def message_count(self) -> int:
        return len(self.landed)

    @property
    def stored_bytes(self) -> int:
        """Size of what was stored, as records."""
        return sum(at.size_bytes for at in self.landed)


class SendMessageHook:
    """Around every send a broker handles, after its header was read and before anything about it is checked. `before` may raise RequestRefused.

    `after` is called once for each `before` that did not refuse, when the answer is known: also when a later hook refused, or a check.
    """

    def before(self, context: SendContext) -> None:
        return

    def after(self, context: SendContext) -> None:
        return


class SentTogether(NamedTuple):
    """Sends of one connection that were stored by one append and have one answer. Each sequence has one element for each send.

    requests          their typed headers are SendMessageRequestHeaderV2
    code, remark      of the answer: not success when the store then failed to make them safe
    """

    peer: Peer
    requests: Sequence[Command]
    messages: Sequence[PutMessage]
    landed: Sequence[Appended]
    code: int
    remark: str | None

    @property
    def success(self) -> bool:
        return self.code in STORED_CODES


class ManySendsHook(SendMessageHook, ABC):
    """A SendMessageHook that only looks at what became of sends, and takes plain ones many at a time: the short way of a send stays open.

    A send is shown either to `after_many` or to `after`, which gets batches, delayed and refused messages and the like, and everything when a hook that is
    no ManySendsHook is there as well. `before` may not be overridden.
    """

    @abstractmethod
    def after_many(self, sends: SentTogether) -> None: ...


# --- consumption -----------------------------------------------------------------------------------------------------

#: `ConsumeContext.status` (Java: BrokerStatsManager.StatsType).
RCV_SUCCESS, RCV_EPOLLS, SEND_BACK, SEND_BACK_TO_DLQ = "RCV_SUCCESS", "RCV_EPOLLS", "SEND_BACK", "SEND_BACK_TO_DLQ"


class ConsumeContext(msgspec.Struct, kw_only=True, eq=False):
    """A pull that is about to be answered, or a send-back that was.

    status         RCV_SUCCESS (messages were found) or RCV_EPOLLS for a pull, SEND_BACK or SEND_BACK_TO_DLQ for a send-back
    topic          pulled from; of a message sent back, the one it had first. `target_topic` is where that goes now
    queue_id       pulled from; of a message sent back, the one it was read from
    code           of the answer
    message_count  messages given, or 1 sent back; `body_bytes` is their size as records, of a message sent back that of its body
    offset         asked for; of a message sent back, the one it was read from
    next_offset    where the next pull goes on; -1 in a send-back
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
        """The account the client names."""
        return self.request.fields().get(OWNER)

    @property
    def success(self) -> bool:
        return self.code == ResponseCode.SUCCESS

    @property
    def filtered_count(self) -> int:
        """Messages a pull passed over because its filter did not want them."""
        return max(0, self.next_offset - self.offset - self.message_count)


class ConsumeMessageHook:
    """`before` in a pull once the store was read, before it is answered; one that is held is seen when it is answered. `after` behind a send-back."""

    def before(self, context: ConsumeContext) -> None:
        return

    def after(self, context: ConsumeContext) -> None:
        return


# --- appends and requests --------------------------------------------------------------------------------------------


class PutMessageHook(ABC):
    """Last word before the append, also for messages the broker writes by itself: may rewrite the destination, or refuse by RequestRefused.

    `wants` names properties: a message with none of them is not shown to the hook, which then costs the others next to nothing.
    """

    wants: frozenset[str] | None = None

    @abstractmethod
    def before_put(self, message: PutMessage) -> None: ...


class RpcHook:
    """Around the requests a server handles. `before` may raise RequestRefused; `after` sees the answer, there is none to a one-way request.

    `codes` names the request codes it wants to see, None all. What no hook wants to see costs nothing: leave SEND_MESSAGE_V2 out where you can.
    """

    codes: frozenset[int] | None = None

    def before(self, request: Command, peer: Peer) -> None:
        return

    def after(self, request: Command, response: Command, peer: Peer) -> None:
        return


class ManyRequestsHook(RpcHook, ABC):
    """An RpcHook that only looks, and takes requests that arrived together at once: plain sends go on taking the short way. It refuses nothing.

    Requests that are given to a BatchProcessor together are shown to `before_many`; those among them that succeed at once, with an answer that is encoded
    already, to `after_many`, without the one-way ones; each of the others to `after`. All further requests are shown to `before` and `after`, and so is
    everything when a hook that is no ManyRequestsHook wants to see the same codes.
    """

    @abstractmethod
    def before_many(self, requests: Sequence[Command], peer: Peer) -> None: ...

    @abstractmethod
    def after_many(self, requests: Sequence[Command], peer: Peer) -> None: ...
