"""Registry and settings -> a broker that is ready to run. Decides everything, starts nothing."""

from __future__ import annotations

import logging

from rmqkit.abc import Address, Clock, FlushPolicy, MessageStore, RequestProcessor
from rmqkit.broker.clients import ClientTable
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.dispatching import Dispatching, choose, first_of
from rmqkit.broker.groups import GroupTable
from rmqkit.broker.held_pulls import HeldPulls
from rmqkit.broker.offsets import OffsetTable
from rmqkit.broker.processors.admin import AdminProcessor
from rmqkit.broker.processors.client_manage import ClientManageProcessor
from rmqkit.broker.processors.later import REFUSED, LaterProcessor
from rmqkit.broker.processors.pull import PullProcessor
from rmqkit.broker.processors.query import QueryProcessor
from rmqkit.broker.processors.queue_info import QueueInfoProcessor
from rmqkit.broker.processors.reply import ReplyProcessor
from rmqkit.broker.processors.send import SendProcessor
from rmqkit.broker.processors.send_back import SendBackProcessor
from rmqkit.broker.put import Putter
from rmqkit.broker.queue_locks import QueueLocks
from rmqkit.broker.stats import BrokerStats
from rmqkit.broker.topics import TopicTable
from rmqkit.config import CONSUME_QUEUE, INDEX, Config
from rmqkit.dispatch import KeyLookup, NoKeys, NoQueues, QueueLookup
from rmqkit.errors import ConfigError, PluginError
from rmqkit.model.delay import parse_levels
from rmqkit.plugins import Registry
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.message_id import pack_host
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.serve import Router

_log = logging.getLogger(__name__)
_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
#: Not served on the fast port (Java: PullMessageProcessor is registered on the normal server only).
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def make_store(config: Config, registry: Registry, clock: Clock) -> tuple[MessageStore, FlushPolicy]:
    """The store and flush policy the settings choose, the store without what `dispatchers` leaves out. Raises PluginError when no plugin brings them,
    ConfigError when that cannot be left out, or the directory holds a store of another kind."""
    _refuse_other_kinds(config, registry)
    policy: FlushPolicy = registry.chosen("flush_policies", config.flush_policy)(config)
    store: MessageStore = registry.chosen("stores", config.store)(config, clock, policy)
    dispatchers = choose(config, registry).values()
    if CONSUME_QUEUE not in config.dispatchers:
        queues = first_of(QueueLookup, dispatchers)  # type: ignore[type-abstract]
        if queues is None:
            _log.warning("dispatchers names neither consume-queue nor one in its place: messages are kept, but cannot be read from queues")
        store.read_queues_from(queues or NoQueues())
    if INDEX not in config.dispatchers or not config.message_index_enable:
        store.look_keys_up_in(first_of(KeyLookup, dispatchers) or NoKeys())  # type: ignore[type-abstract]
    return store, policy


def _refuse_other_kinds(config: Config, registry: Registry) -> None:
    """The messages of another kind of store in the directory would seem to be gone. A store without tools keeps nothing there, and none is in its way."""
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
    config: Config, registry: Registry, clock: Clock, store: MessageStore, policy: FlushPolicy, pool: ConnectionPool, ip: str, port: int
) -> BrokerContext:
    """The broker's parts with their tables still to be loaded. `ip` and `port` are what clients are told."""
    held = HeldPulls()
    clients = ClientTable()
    levels_ms = parse_levels(config.message_delay_level)
    dispatchers = choose(config, registry)
    plugins = {name: registry.brought_by("dispatcher", name) for name in dispatchers}
    dispatching = Dispatching(store, dispatchers, plugins, levels_ms)
    directory = config.config_path
    return BrokerContext(
        config=config,
        registry=registry,
        clock=clock,
        store=store,
        topics=TopicTable(config, clock, directory),
        groups=GroupTable(config, clock, directory),
        offsets=OffsetTable(clock, directory),
        clients=clients,
        locks=QueueLocks(),
        held_pulls=held,
        dispatching=dispatching,
        put=Putter(
            store,
            registry.put_message_hooks,
            dispatching,
            held,
            policy.acknowledge_at,
            config.sync_flush_timeout,
            clock,
            levels_ms,
            parks_delayed="delay" in registry.services and "delay" not in config.disabled_services,
        ),
        stats=BrokerStats(clock.now_ms()),
        pool=pool,
        address=str(Address("tcp", ip, port)),
        store_host=pack_host(ip, port),
    )


def make_routers(broker: BrokerContext) -> tuple[Router, Router]:
    """The tables of the normal and of the fast port. A plugin's processor replaces a built-in one; two plugins for one code are an error."""
    table: dict[int, RequestProcessor] = dict.fromkeys(REFUSED, LaterProcessor())
    clients, queues, admin = ClientManageProcessor(broker), QueueInfoProcessor(broker), AdminProcessor(broker)
    for several in (clients, queues, admin):
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
            raise PluginError(f"two plugins bring a processor for request code {code}; name one of them in disabledPlugins")
        brought[code] = processor
        if long_wait:
            slow.add(code)

    broker.registry.manager.hook.rmqkit_register_processors(register=register, broker=broker)
    table.update(brought)
    return Router(table), Router({code: processor for code, processor in table.items() if code not in slow})
