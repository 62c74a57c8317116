"""A request processor's view of a running broker: what `rmqkit.plugin.broker.Broker` has, and what serving
clients needs besides: held requests, locks, filters, changes of tables and counters.

`RequestBroker` is passed to `rmqkit_register_processors`, to the hooks around a broker's life and to hooks
that need it (`NeedsBroker`). The broker's own processors of sends, pulls, send-backs, replies and
administration use nothing else. As there, everything belongs to the broker's event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rmqkit.plugin.broker import (
    Appender,
    Broker,
    ClientConnection,
    Clients,
    Count,
    Groups,
    Offsets,
    OnlineGroup,
    Stats,
    Topics,
)
from rmqkit.plugin.request import Peer

if TYPE_CHECKING:
    from rmqkit.errors import RequestRefused
    from rmqkit.model.queue import MessageQueue
    from rmqkit.model.subscription import SubscriptionData
    from rmqkit.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig
    from rmqkit.plugin.acks import Settled
    from rmqkit.plugin.filter import CompiledFilter
    from rmqkit.plugin.held import HeldRequests
    from rmqkit.plugin.store import Appended
    from rmqkit.protocol.headers import PullMessageRequestHeader


class RequestTopics(Topics, Protocol):
    """The topics, as processors read and change them. Methods that raise `Unsaved` begin a change, or meet
    one: `rmqkit.toolkit.unsaved.when_saved` runs the processor again when it is on the device."""

    @property
    def data_version(self) -> DataVersion:
        """The version of the table, which each change increments."""

    @property
    def on_turn(self) -> list[Callable[[str], object]]:
        """Functions that are called with the name of a topic that is about to be deleted, and after each
        change of one: what was derived from its settings is no longer valid. Append and remove your own."""

    def settled(self, topic: str) -> TopicConfig | None:
        """The topic once its changes are written; raises Unsaved while one is being written."""

    def require(self, topic: str, queues: int, perm: int = ...) -> TopicConfig:
        """The topic, created with this number of queues if it is missing. Raises Unsaved while it is being
        created, RequestRefused when it may not be."""

    def auto_create(self, topic: str, template: str, client_queues: int) -> None:
        """Create a topic for a producer from a template, if that is permitted, and raise Unsaved; else
        return. Raises RequestRefused on a broker that may create nothing."""

    async def put(self, topic: TopicConfig) -> bool:
        """Create or replace a topic with its attributes, and wait for the device. False when nothing changed.
        Raises RequestRefused for illegal settings, or when it cannot be written, without effect."""

    async def put_all(self, topics: Sequence[TopicConfig]) -> None:
        """Write several topics, which are all checked first. When one cannot be written, others may be."""

    async def delete(self, topic: str) -> bool:
        """Delete a topic with its queues. False when there was none. Raises RequestRefused when that cannot
        be written; the topic then still exists."""

    async def announced(self) -> None:
        """Wait until the functions in `on_announce` have returned, or for their time limit."""


class RequestGroups(Groups, Protocol):
    """The consumer groups, as processors read and change them."""

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None for an unknown one that may not be created by its first use. Raises
        Unsaved while it is being created."""

    async def ensure(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group, once it is created. Raises RequestRefused when it cannot be written."""

    async def put_all(self, configs: Sequence[SubscriptionGroupConfig]) -> None:
        """Write several groups, under the rules of `RequestTopics.put_all`."""

    async def delete(self, group: str) -> bool:
        """Delete a group, as `RequestTopics.delete`; its offsets stay."""


class Resets(Protocol):
    """Offsets to which an administrator has reset groups, each for the next read of its queue."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset; None where nothing was reset."""

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Get a mark and forget it: the reader begins there."""


class Marks(Protocol):
    """A queue offset for each group and queue; the oldest are forgotten."""

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...

    def get(self, group: str, topic: str, queue_id: int) -> int | None: ...


class RequestOffsets(Offsets, Protocol):
    """The committed offsets, as processors change them."""

    @property
    def resets(self) -> Resets: ...

    @property
    def pulled(self) -> Marks:
        """The next offset that each group reads, which may be ahead of what it has committed."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset that the group consumes next. It is written within `flushConsumerOffsetInterval`."""

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, and let the group's next read of the queue begin there."""

    def forget_group(self, group: str) -> None:
        """Remove all offsets of a group."""

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in a topic."""

    async def persist(self) -> None:
        """Write the table through to the device if it has changed. Errors are logged, and it is tried again
        later."""


class Client(ClientConnection, Protocol):
    """The client at the other end of one connection, with its name."""

    @property
    def client_id(self) -> str: ...

    @property
    def peer(self) -> Peer: ...

    @property
    def last_seen_ms(self) -> int:
        """The time of its last heartbeat."""


class ServedGroup(OnlineGroup, Protocol):
    """A consumer group with at least one connected member."""

    @property
    def message_model(self) -> str:
        """MessageModel of the last heartbeat."""

    @property
    def consume_from_where(self) -> str:
        """ConsumeFromWhere of the last heartbeat."""

    @property
    def members(self) -> Mapping[Peer, Client]: ...

    def client_ids(self) -> list[str]:
        """The ids of the members."""


class RequestClients(Clients, Protocol):
    """The connected clients with their names."""

    @property
    def producers(self) -> Mapping[str, Mapping[Peer, Client]]: ...

    @property
    def consumers(self) -> Mapping[str, ServedGroup]: ...

    def find(self, client_id: str) -> Client | None:
        """The client that connected first under this id."""


class QueueLocks(Protocol):
    """Queues that one client of a group consumes alone, in order (Java: RebalanceLockManager)."""

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int
    ) -> list[MessageQueue]:
        """Lock queues, or renew the locks. Returns those that this client holds then. Raises RequestRefused
        when the table is full; locks granted before stay."""

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release queues that the client holds; others are ignored."""

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group has a lock that has not expired."""


class Filters(Protocol):
    """The filters of subscriptions, compiled by the filter servers of plugins and kept for reuse."""

    def of(self, header: PullMessageRequestHeader) -> CompiledFilter:
        """The filter of a pull: of the subscription in the request, or of the group's last heartbeat. Raises
        RequestRefused."""

    def compiled(self, subscription: SubscriptionData, group: str) -> CompiledFilter:
        """The filter of a group's subscription. Raises ValueError when it does not parse, or when no plugin
        filters by its expression type."""

    def check_support(self, kind: str) -> None:
        """Check that this broker can filter by an expression type. Raises RequestRefused for one without a
        filter server, or that settings switch off."""

    def forget_group(self, group: str) -> None:
        """Forget what is kept for a group that was deleted."""


class RequestAppender(Appender, Protocol):
    """The appender, for processors that answer many sends of several connections together. Others use
    `append_durably`."""

    @property
    def watched(self) -> frozenset[str] | None:
        """Properties that put hooks look for, or should; None when a hook wants every message."""

    def watches(self, topic: str) -> bool:
        """Whether put hooks look for all messages of this topic at present."""

    def unclaimed(self, properties: Mapping[str, str]) -> RequestRefused | None:
        """The refusal of a message with these properties if one of them requires a missing plugin."""

    def are_settled(self, waits: Sequence[bool], results: Sequence[Appended]) -> list[bool]:
        """Whether everything up to each of these messages may be acknowledged now, to senders that wait
        (`PutMessage.wait`) or do not."""

    def when_settled(self, wait: bool, at: Appended, then: Settled) -> None:
        """Call `then` with the outcome (`Acknowledgement.outcome`) when everything up to a message may be
        acknowledged."""


class Counter(Count, Protocol):
    """A counter of messages and their bytes."""

    def add(self, count: int, size_bytes: int = 0) -> None: ...


class PairCounters(Protocol):
    """Counters by (group, topic), made at the first use."""

    def __getitem__(self, pair: tuple[str, str]) -> Counter: ...

    def items(self) -> Iterable[tuple[tuple[str, str], Counter]]: ...


class TopicRates(Protocol):
    """Messages stored, by topic."""

    def per_second(self, topic: str) -> float:
        """Messages per second over the last minute; 0 for a topic that was never counted."""


class RequestStats(Stats, Protocol):
    """The statistics, as processors count.

    found_pulls, missed_pulls   reads for consumers that have found messages, or none: add to them
    """

    found_pulls: int
    missed_pulls: int

    @property
    def topics(self) -> TopicRates: ...

    @property
    def sent_back(self) -> PairCounters: ...

    @property
    def dead_lettered(self) -> PairCounters: ...

    @property
    def on_got(self) -> list[Callable[[str, str, int, int], None]]:
        """Functions of group, topic, number and bytes that are called for messages delivered together to a
        consumer; append and remove your own. They must not block or raise."""

    def put_failed(self) -> None:
        """Count a send that was not stored."""

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages that were delivered together to a consumer."""

    def read_took(self, seconds: float) -> None:
        """Note the duration of a read of the store."""

    def forget_topic(self, topic: str) -> None:
        """Forget the counters of a topic that was deleted."""

    def forget_group(self, group: str) -> None:
        """Forget the counters of a group that was deleted."""


class RequestBroker(Broker, Protocol):
    """One running broker, for processors and for hooks that need more than services do."""

    @property
    def topics(self) -> RequestTopics: ...

    @property
    def groups(self) -> RequestGroups: ...

    @property
    def offsets(self) -> RequestOffsets: ...

    @property
    def clients(self) -> RequestClients: ...

    @property
    def appender(self) -> RequestAppender: ...

    @property
    def stats(self) -> RequestStats: ...

    @property
    def held(self) -> HeldRequests:
        """The requests that wait for messages."""

    @property
    def locks(self) -> QueueLocks: ...

    @property
    def filters(self) -> Filters: ...


class NeedsBroker(ABC):
    """Implemented by a put, send, consume or request hook that needs the broker: its topics, its clock, or
    the appender for messages of its own."""

    @abstractmethod
    def open(self, broker: RequestBroker) -> None:
        """Called once, when all parts of the broker exist and its tables are loaded, before the first
        request. An exception stops the start. Must not block."""
