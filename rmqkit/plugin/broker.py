"""A plugin's view of a running broker.

`Broker` is passed to services, to the hooks around a broker's life and to request processors at their
registration. Its parts have only the members on which a plugin may rely; a broker's own objects have further
members, which may change at any time. Everything belongs to the broker's event loop: nothing here may be
called from another thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rmqkit.config import Config
    from rmqkit.errors import RequestRefused
    from rmqkit.model.run import MessageRun
    from rmqkit.model.subscription import SubscriptionData
    from rmqkit.model.topic import (
        ConsumerOffsetFile,
        SubscriptionGroupConfig,
        SubscriptionGroupTable,
        TopicConfig,
        TopicConfigTable,
    )
    from rmqkit.plugin.acks import Acknowledgement
    from rmqkit.plugin.address import Address, Connect
    from rmqkit.plugin.clock import Clock
    from rmqkit.plugin.filter_servers import FilterServers
    from rmqkit.plugin.listen import Serving
    from rmqkit.plugin.name_servers import NameServers
    from rmqkit.plugin.protocols import WireProtocol
    from rmqkit.plugin.registrations import Registrations
    from rmqkit.plugin.replication import Replication
    from rmqkit.plugin.request import Caller, Peer, Waiting
    from rmqkit.plugin.role import BrokerRole
    from rmqkit.plugin.store import Appended, MessageStore
    from rmqkit.protocol.command import Command


class Topics(Protocol):
    """The topics of the broker."""

    @property
    def configs(self) -> dict[str, TopicConfig]:
        """All topics by name, new ones last. Read-only."""

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Functions that are called, without arguments, after each change; append and remove your own. They
        must not block."""

    @property
    def on_announce(self) -> list[Callable[[], Awaitable[None]]]:
        """Functions that wait until others know the changes made so far; append and remove your own. A
        request that changes topics is answered when all have returned, or after a time limit, which cancels
        them. They must not raise."""

    def get(self, topic: str) -> TopicConfig | None:
        """The topic; None if there is none with that name."""

    async def ensure(self, topic: str, queues: int) -> TopicConfig:
        """The topic, created with this number of queues if it is missing. Raises RequestRefused when it
        cannot be written. Cancelled: the topic is created nevertheless."""

    def table(self) -> TopicConfigTable:
        """All topics with their data version, as a registration with a name server sends them."""

    async def replace(self, table: TopicConfigTable) -> None:
        """Take over the topics of another broker and their version, as a slave does. A topic that the table
        lacks stays, unless the table has its deletion, and no record of it comes after that: then it is
        deleted with its queues. Raises RequestRefused when a topic is illegal or cannot be written; others
        may have been. Cancelled: a part of the changes may be made."""

    async def know(self, queues: Iterable[tuple[str, int]]) -> None:
        """Let queues, (topic, queue id), with messages of another broker be read before its table comes:
        missing topics get default settings, others more queues. Raises RequestRefused when one cannot be
        written. Cancelled: a part of the changes may be made."""

    def is_dead(self, topic: str) -> bool:
        """Whether the topic was deleted, here or at a former master, after its last record."""


class Groups(Protocol):
    """The consumer groups for which the broker has settings."""

    @property
    def configs(self) -> dict[str, SubscriptionGroupConfig]:
        """All groups by name, new ones last. Read-only."""

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Functions that are called after each change, under the rules of `Topics.on_change`."""

    def table(self) -> SubscriptionGroupTable:
        """All groups with their data version."""

    async def put(self, config: SubscriptionGroupConfig) -> bool:
        """Create or replace a group with its attributes, and wait for the device. False when nothing changed.
        Raises RequestRefused for an illegal name, or when it cannot be written, without effect."""

    async def replace(self, table: SubscriptionGroupTable) -> None:
        """Take over all groups of another broker (`Topics.replace`)."""


class Leased(NamedTuple):
    """Numbers of messages of a queue that a group has leased and not finished: those before the offset that
    it has committed, and those behind."""

    before: int = 0
    behind: int = 0


class Offsets(Protocol):
    """The committed offsets of groups."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset that the group consumes next; None when it has committed none."""

    @property
    def leases(self) -> list[Callable[[str, str, int], Leased]]:
        """Functions of group, topic and queue that count leases. Who leases messages appends its own."""

    def leased(self, group: str, topic: str, queue_id: int) -> Leased:
        """What the group has leased, by all functions in `leases`."""

    def table(self) -> ConsumerOffsetFile:
        """All offsets, by `topic@group` and queue. Read-only."""

    def merge(self, table: ConsumerOffsetFile) -> None:
        """Set all offsets of another broker's table; pairs that it lacks stay as they are."""

    def limit(self, end: Callable[[str, int], int]) -> int:
        """Set offsets beyond the end of their queue, `end(topic, queue_id)`, to it; returns their number."""


class ClientConnection(Protocol):
    """The client at the other end of one connection."""

    @property
    def language(self) -> str | None:
        """LanguageCode's name; None when the client sent an unknown one."""

    @property
    def version(self) -> int:
        """The ordinal of MQVersion that the client sent."""


class OnlineGroup(Protocol):
    """A consumer group with at least one connected member."""

    @property
    def name(self) -> str: ...

    @property
    def consume_type(self) -> str:
        """ConsumeType of the last heartbeat."""

    @property
    def members(self) -> Mapping[Peer, ClientConnection]: ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Topic -> subscription, of the last heartbeat."""


class Clients(Protocol):
    """The clients that are connected and have sent a heartbeat."""

    @property
    def producers(self) -> Mapping[str, Mapping[Peer, ClientConnection]]:
        """Producer group -> its members."""

    @property
    def consumers(self) -> Mapping[str, OnlineGroup]:
        """Consumer group -> its members and subscriptions."""


class Appender(Protocol):
    """Appends messages to the log like a client's send: hooks, store, dispatchers, held pulls, counters."""

    def append(self, run: MessageRun) -> Sequence[Appended | RequestRefused]:
        """Store a run in order. Returns for each message its place or the refusal. A request is refused as a
        whole; the others are stored. Never raises."""

    def append_durably(self, run: MessageRun) -> Acknowledgement:
        """Store a run in order; the result is settled when these messages are as safe as acknowledged ones.
        Those that others append are not waited for. A run whose messages all have `wait` = False only waits
        until it is written. Never raises."""

    async def settle_everything(self) -> None:
        """Wait until everything appended so far is as safe as an acknowledged message. Raises StoreError."""

    def listen(self, topic: str, function: Callable[[], object]) -> None:
        """Call a function after each append of messages that a put hook has moved to this topic, or that a
        service has written to it; not of those that clients send to it. It must not block or raise."""

    def unlisten(self, topic: str, function: Callable[[], object]) -> None:
        """Stop calling a function that listens."""


class Progress(Protocol):
    """The progress of one dispatcher."""

    @property
    def name(self) -> str: ...

    @property
    def behind_bytes(self) -> int:
        """Number of bytes of the log that it has not processed yet."""


class Dispatching(Protocol):
    """The dispatchers of the broker: those of the store and those of plugins."""

    def progress(self) -> Sequence[Progress]:
        """The progress of each dispatcher."""

    def trimmed(self, log_start: int) -> None:
        """Report that the log begins at this offset from now on; must be called by whatever removes its
        front."""


class Count(Protocol):
    """A number that only increases."""

    @property
    def count(self) -> int: ...


class DeadLetters(Protocol):
    """Messages that were moved to a dead-letter topic."""

    def items(self) -> Iterable[tuple[tuple[str, str], Count]]:
        """((group, topic), number of messages) for each pair with at least one."""


class Stats(Protocol):
    """The statistics of the broker."""

    @property
    def dead_lettered(self) -> DeadLetters: ...

    @property
    def aside(self) -> Mapping[tuple[str, bool], int]:
        """(service, whether it was kept) -> number of records that could not be passed on."""

    @property
    def on_delivery(self) -> list[Callable[[str, str, Appended], None]]:
        """Functions that `delivered` calls; append and remove your own. They must not block."""

    def delivered(self, source: str, topic: str, at: Appended) -> None:
        """Report one message that a service has taken from the internal topic `source` and appended under its
        own topic."""

    def set_aside(self, service: str, *, kept: bool) -> None:
        """Count one record that a service could not pass on; `rmqkit.toolkit.set_aside` does."""


class WaitingCounts(Protocol):
    """Requests that have arrived and wait until others are processed."""

    def by(self, kind_of: Callable[[int], str], now: float) -> Mapping[str, Waiting]:
        """Kind of the request code -> how many wait, and how long the first of them has at `now` (trio's
        clock). Kinds of which none waits are left out."""


class Pool(Protocol):
    """Connections to other servers, opened on demand."""

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for the answer, whatever its code; the time-out includes the connect.
        Raises ConnectFailed, ConnectionLost, RequestTimeout, ClientError, ProtocolError. Cancelled: the
        answer is dropped on arrival."""


class Broker(Protocol):
    """One running broker."""

    @property
    def config(self) -> Config:
        """The present settings; a request may change some of them, so read them on each use."""

    @property
    def on_config_change(self) -> list[Callable[[], None]]:
        """Functions that are called after each change of `config`, under the rules of `Topics.on_change`;
        `rmqkit.toolkit.interval` waits with it."""

    @property
    def registry(self) -> Registrations:
        """The registrations of plugins, by name."""

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> MessageStore: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def offsets(self) -> Offsets: ...

    @property
    def clients(self) -> Clients: ...

    @property
    def appender(self) -> Appender: ...

    @property
    def role(self) -> BrokerRole: ...

    @property
    def replication(self) -> Replication: ...

    @property
    def name_servers(self) -> NameServers: ...

    @property
    def filter_servers(self) -> FilterServers: ...

    @property
    def dispatching(self) -> Dispatching: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def waiting(self) -> WaitingCounts:
        """The requests of clients that wait, on all ports."""

    def admit(self, caller: Caller) -> None:
        """Ask the request hooks of the replication port whether a connection to it may stay. Raises
        RequestRefused."""

    @property
    def connect(self) -> Connect:
        """Opens connections by the transports of the plugins, as `pool` does. A service that is itself a
        client of the cluster passes it to `rmqkit.client.Client`."""

    async def listen(self, protocol: WireProtocol, addresses: Iterable[Address]) -> Serving:
        """Listen on further addresses, of any transport, for connections that speak this protocol. Its
        requests go where those of the normal port go. For services; run what is returned. Raises ConfigError,
        PluginError."""

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""

    @property
    def store_host(self) -> bytes:
        """`address` in packed form, as in records."""
