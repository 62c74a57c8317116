"""Builds a broker from registry and settings. Makes all decisions, starts nothing."""

from __future__ import annotations

from functools import partial
from typing import cast

from rmqkit.broker.appending.acks import AckQueue
from rmqkit.broker.appending.log_appender import LogAppender
from rmqkit.broker.clients import ClientTable
from rmqkit.broker.dispatch.manager import Dispatching, choose, first_of
from rmqkit.broker.processors.admin import AdminProcessor
from rmqkit.broker.processors.client_calls import ClientCallProcessor
from rmqkit.broker.processors.client_manage import ClientManageProcessor
from rmqkit.broker.processors.consume_stats import ConsumeStatsProcessor
from rmqkit.broker.processors.own_state import OwnStateProcessor
from rmqkit.broker.processors.pull import PullProcessor
from rmqkit.broker.processors.query import QueryProcessor
from rmqkit.broker.processors.queue_info import QueueInfoProcessor
from rmqkit.broker.processors.reply import ReplyProcessor
from rmqkit.broker.processors.reset_offset import ResetOffsetProcessor
from rmqkit.broker.processors.send import SendProcessor
from rmqkit.broker.processors.send_back import SendBackProcessor
from rmqkit.broker.processors.unsupported import REFUSED, UnsupportedRequests
from rmqkit.broker.pulling.confirmed_reads import ConfirmedReads
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.pulling.subscribed_filters import SubscribedFilters
from rmqkit.broker.queue_locks import QueueLocks
from rmqkit.broker.roles.role import RoleState
from rmqkit.broker.run.context import BrokerContext
from rmqkit.broker.run.sliced_work import SlicedWork
from rmqkit.broker.stats import BrokerStats
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.config import CONSUME_QUEUE, INDEX, Config
from rmqkit.errors import ConfigError, PluginError
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.filter_servers import FilterServers
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.name_servers import NameServers
from rmqkit.plugin.replication import Replication
from rmqkit.plugin.request import REPLICATION, RequestProcessor
from rmqkit.plugin.request_broker import NeedsBroker
from rmqkit.plugin.store import KeyLookup, MessageStore, NoKeys, NoQueues, QueueLookup
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.message_id import pack_host
from rmqkit.remoting.admission import Admission, guarding
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.request_loop import Router
from rmqkit.toolkit import log_state

_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
#: Not served on the fast port (Java: PullMessageProcessor is registered on the normal server only).
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def make_store(config: Config, registry: Registry, clock: Clock) -> tuple[MessageStore, FlushPolicy]:
    """The configured store and flush policy, the store without the parts that `dispatchers` omits. Raises
    PluginError when no plugin registers them, ConfigError when the store requires an omitted part, or the
    directory contains another kind of store."""
    _refuse_other_kinds(config, registry)
    return configured_store(config, registry, clock)


def configured_store(config: Config, registry: Registry, clock: Clock) -> tuple[MessageStore, FlushPolicy]:
    """The store and the flush policy of the settings, whatever the directory contains, which is not looked
    at."""
    policy: FlushPolicy = registry.chosen("flush_policies", config.flush_policy)(config)
    store: MessageStore = registry.chosen("stores", config.store)(config, clock, policy)
    store.queue_codes = registry.queue_codes
    dispatchers = choose(config, registry).values()
    if CONSUME_QUEUE not in config.dispatchers:
        store.use_external_consume_queue(first_of(QueueLookup, dispatchers) or NoQueues())  # type: ignore[type-abstract]
    if INDEX not in config.dispatchers or not config.message_index_enable:
        store.use_external_index(first_of(KeyLookup, dispatchers) or NoKeys())  # type: ignore[type-abstract]
    return store, policy


def _refuse_other_kinds(config: Config, registry: Registry) -> None:
    """Check the kind of the store in the directory. Raises ConfigError when the directory holds a store of
    another kind, whose messages would not be found. A store without tools keeps nothing in the directory and
    is not checked."""
    root, tools = config.root_path, registry.store_tools
    own = tools.get(config.store)
    if own is None or own.has(root, config):
        return
    for name in tools:
        if name != config.store and tools[name].has(root, config):
            raise ConfigError(
                f"storePathRootDir = {str(root)!r} holds a store of kind {name}: set store = {name!r}, "
                f"or copy it with `rmqkit store copy {root} OTHER --to {config.store}`"
            )


def make_context(
    config: Config,
    registry: Registry,
    clock: Clock,
    store: MessageStore,
    policy: FlushPolicy,
    pool: ConnectionPool,
    ip: str,
    port: int,
) -> BrokerContext:
    """The broker's parts with their tables still to be loaded. Clients connect to `ip` and `port`."""
    clients, groups = ClientTable(), GroupTable(config, clock, config.config_path)
    filters = SubscribedFilters(config, registry, clock, clients, groups, store.has_extensions)
    if filters.index is not None:
        store.bit_maps = filters.index.bit_maps
    last_of_topic = partial(_last_record, store)
    conditions = registry.ack_conditions.values()
    gates = [condition.position for condition in conditions if condition.gates_reads]
    if gates:
        store.positions.gate(gates)
        store = cast("MessageStore", ConfirmedReads(store))
    work = SlicedWork()
    held = HeldPulls(work)
    dispatchers = choose(config, registry)
    plugins = {name: registry.brought_by("dispatcher", name) for name in dispatchers}
    dispatching = Dispatching(store, dispatchers, plugins, held)
    directory = config.config_path
    offsets = OffsetTable(clock, directory)
    topics = TopicTable(config, clock, directory)
    topics.last_record = last_of_topic
    topics.log_end = groups.log_end = lambda: store.end_offset
    topics.on_delete += [offsets.forget_topic, store.delete_topic]
    topics.on_forget.append(offsets.persist)
    stats = BrokerStats(clock.now_ms())
    acks = AckQueue(store, policy, config.sync_flush_timeout, conditions)
    role = RoleState(acks)
    topics.is_fenced = groups.is_fenced = lambda: role.is_fenced
    appender = LogAppender(
        registry.put_message_hooks, store, dispatching, acks, stats.put_times.add, stats.put_many
    )
    return BrokerContext(
        config=config,
        registry=registry,
        clock=clock,
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=clients,
        locks=QueueLocks(),
        filters=filters,
        filter_servers=FilterServers(),
        held=held,
        work=work,
        dispatching=dispatching,
        appender=appender,
        role=role,
        replication=Replication(),
        name_servers=NameServers(config.name_servers),
        stats=stats,
        pool=pool,
        address=str(Address("tcp", ip, port)),
        store_host=pack_host(ip, port),
        admission=Admission(guarding(registry.rpc_hooks, REPLICATION)),
    )


def _last_record(store: MessageStore, topic: str) -> int:
    """The log offset after the last record of a topic, in all its queues (`log_state.last_record`). May wait
    for the device: it is asked only where topics are deleted."""
    with store.blocking_reads():
        return log_state.last_record(store, topic, store.queues().get(topic, ()))


def load_tables(broker: BrokerContext) -> None:
    """Read topics, groups, offsets and filters, and adjust them to the opened store: topics missing in the
    table are restored, queues of deleted topics are removed. Raises ConfigError when a table cannot be
    read."""
    for table in (broker.topics, broker.groups, broker.offsets, broker.filters):
        table.load()
    for topic in broker.topics.recover(broker.store.queues()):
        broker.store.delete_topic(topic)
    broker.offsets.forget_topics(broker.topics.deleted)
    broker.groups.warn_of_unknown(broker.offsets.groups())


def announce(broker: BrokerContext) -> None:
    """Tell hooks and plugins that all parts of the broker exist. Raises what they raise."""
    registry = broker.registry
    for hooks in (
        registry.put_message_hooks,
        registry.send_message_hooks,
        registry.consume_message_hooks,
        registry.rpc_hooks,
    ):
        for hook in hooks:
            if isinstance(hook, NeedsBroker):
                hook.open(broker)
    broker.registry.manager.hook.rmqkit_broker_assembled(broker=broker)


def make_routers(broker: BrokerContext) -> tuple[Router, Router]:
    """The processors of the normal and of the fast port. A plugin's processor replaces a built-in one; two
    plugins for one code are an error."""
    table: dict[int, RequestProcessor] = dict.fromkeys(REFUSED, UnsupportedRequests())
    for several in (
        ClientManageProcessor(broker),
        QueueInfoProcessor(broker),
        AdminProcessor(broker),
        OwnStateProcessor(broker),
        ConsumeStatsProcessor(broker),
        ResetOffsetProcessor(broker),
        ClientCallProcessor(broker),
    ):
        table.update(dict.fromkeys(several.codes(), several))
    table.update(dict.fromkeys(_SENDS, SendProcessor(broker)))
    table.update(dict.fromkeys(_REPLIES, ReplyProcessor(broker)))
    table.update(dict.fromkeys(_PULLS, PullProcessor(broker)))
    query = QueryProcessor(broker)
    table[RequestCode.QUERY_MESSAGE] = table[RequestCode.VIEW_MESSAGE_BY_ID] = query
    table[RequestCode.CONSUMER_SEND_MSG_BACK] = SendBackProcessor(broker)
    slow = set(map(int, _PULLS))
    brought: dict[int, RequestProcessor] = {}

    def register(code: int, processor: RequestProcessor, *, long_wait: bool = False) -> None:
        if code in brought:
            raise PluginError(
                f"two plugins bring a processor for request code {code}; name one of them in disabledPlugins"
            )
        brought[code] = processor
        if long_wait:
            slow.add(code)

    broker.registry.manager.hook.rmqkit_register_processors(register=register, broker=broker)
    table.update(brought)
    return Router(table), Router({code: processor for code, processor in table.items() if code not in slow})
