"""What processors, services and hooks of a broker see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

if TYPE_CHECKING:
    from rmqkit.abc import Clock, MessageStore
    from rmqkit.broker.clients import ClientTable
    from rmqkit.broker.dispatching import Dispatching
    from rmqkit.broker.groups import GroupTable
    from rmqkit.broker.held_pulls import HeldPulls
    from rmqkit.broker.offsets import OffsetTable
    from rmqkit.broker.put import Putter
    from rmqkit.broker.queue_locks import QueueLocks
    from rmqkit.broker.stats import BrokerStats
    from rmqkit.broker.topics import TopicTable
    from rmqkit.config import Config
    from rmqkit.plugins import Registry
    from rmqkit.remoting.pool import ConnectionPool


@define(eq=False)
class BrokerContext:
    """The parts of one broker. `address` is what clients are told, `host:port`; `store_host` the same packed; `pool` is for outgoing calls."""

    config: Config
    registry: Registry
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientTable
    locks: QueueLocks
    held_pulls: HeldPulls
    dispatching: Dispatching
    put: Putter
    stats: BrokerStats
    pool: ConnectionPool
    address: str
    store_host: bytes
