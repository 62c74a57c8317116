"""The parts of a broker, as processors, services and hooks see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import Factory, define

from rmqkit.remoting.waiting import WaitingRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from rmqkit.broker.appending.log_appender import LogAppender
    from rmqkit.broker.clients import ClientTable
    from rmqkit.broker.dispatch.manager import Dispatching
    from rmqkit.broker.pulling.held_pulls import HeldPulls
    from rmqkit.broker.pulling.subscribed_filters import SubscribedFilters
    from rmqkit.broker.queue_locks import QueueLocks
    from rmqkit.broker.roles.role import RoleState
    from rmqkit.broker.run.sliced_work import SlicedWork
    from rmqkit.broker.stats import BrokerStats
    from rmqkit.broker.tables.groups import GroupTable
    from rmqkit.broker.tables.offsets import OffsetTable
    from rmqkit.broker.tables.topics import TopicTable
    from rmqkit.config import Config
    from rmqkit.plugin.address import Address, Connect
    from rmqkit.plugin.clock import Clock
    from rmqkit.plugin.filter_servers import FilterServers
    from rmqkit.plugin.listen import Serving
    from rmqkit.plugin.loader import Registry
    from rmqkit.plugin.name_servers import NameServers
    from rmqkit.plugin.protocols import WireProtocol
    from rmqkit.plugin.replication import Replication
    from rmqkit.plugin.request import Caller
    from rmqkit.plugin.store import MessageStore
    from rmqkit.remoting.admission import Admission
    from rmqkit.remoting.pool import ConnectionPool


@define(eq=False)
class BrokerContext:
    """The parts of one broker. `address` is the one given to clients, `host:port`; `store_host` is its packed
    form; `pool` makes outgoing calls. `work` processes many table entries in slices."""

    config: Config
    registry: Registry
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientTable
    locks: QueueLocks
    filters: SubscribedFilters
    filter_servers: FilterServers
    held: HeldPulls
    work: SlicedWork
    dispatching: Dispatching
    appender: LogAppender
    role: RoleState
    replication: Replication
    name_servers: NameServers
    stats: BrokerStats
    pool: ConnectionPool
    address: str
    store_host: bytes
    admission: Admission

    on_config_change: list[Callable[[], None]] = Factory(list)
    #: Of all servers of the broker.
    waiting: WaitingRequests = Factory(WaitingRequests)
    #: Listens for a protocol on further addresses; set before services run.
    open_port: Callable[[WireProtocol, Iterable[Address]], Awaitable[Serving]] | None = None

    @property
    def connect(self) -> Connect:
        """Opens connections as the pool does."""
        return self.pool.connect

    def admit(self, caller: Caller) -> None:
        """Let the hooks see a new connection (`rmqkit.plugin.broker.Broker`). Raises RequestRefused."""
        self.admission.check(caller)

    async def listen(self, protocol: WireProtocol, addresses: Iterable[Address]) -> Serving:
        """Listens for a protocol on further addresses. Raises RuntimeError before services run."""
        if self.open_port is None:
            raise RuntimeError("the broker does not serve yet: listen in the run method of a service")
        return await self.open_port(protocol, addresses)
