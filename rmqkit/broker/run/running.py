"""Runs a broker: ordered start, one nursery, graceful stop (Java: BrokerController.start and shutdown;
behaviour sheet, C1).

Start: bind, open the store, load the tables, open the dispatchers and replay missed entries, store services,
serve, services. Stop, in reverse: hooks, services (unregister first), stop accepting and complete requests in
flight, write the tables, close the dispatchers, close the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import trio
from attrs import define

from rmqkit.broker.processors.embedded_name_server import EmbeddedNameServer
from rmqkit.broker.roles.role import ServiceRunner
from rmqkit.broker.roles.role_refusals import follow_role
from rmqkit.broker.run import assemble, checks
from rmqkit.broker.run.context import BrokerContext
from rmqkit.broker.run.deleted_topics import forget_deleted_topics
from rmqkit.broker.stats import SAMPLE_MS
from rmqkit.config import FREE_PORT, Config, store_host, with_texts
from rmqkit.errors import ConfigError
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.filter import FilterIndex
from rmqkit.plugin.listen import Listener, Serving, bind
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.protocols import WireProtocol
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.transport import Address
from rmqkit.protocol.message_id import unpack_host
from rmqkit.remoting.dial import TCP, Dialer
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.remoting.serving import listen, port_protocols
from rmqkit.toolkit.interval import sleep_interval
from rmqkit.toolkit.log_state import dispatch_behind_bytes
from rmqkit.toolkit.system_clock import SystemClock

_log = logging.getLogger(__name__)
DRAIN_TIMEOUT_MS = 10_000
_EXPIRE_MS = 1_000
_RECHECK_MS = 5_000
_HOUSEKEEPING_MS = 10_000
_DISPATCH_LOG_MS = 60_000
_PORT_TRIES = 20


@define(eq=False)
class RunningBroker:
    """A running broker. Clients connect to `address`, `stop` ends it gracefully; `others` are the addresses
    of the setting `listeners`."""

    context: BrokerContext
    address: Address
    fast_address: Address | None
    stop: trio.Event
    others: Sequence[Address] = ()


async def run_broker(
    config: Config,
    registry: Registry,
    *,
    clock: Clock | None = None,
    scheme: str = "tcp",
    task_status: trio.TaskStatus[RunningBroker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run until `RunningBroker.stop` is set, then stop gracefully. When cancelled, connections are cut, but
    tables and store are still closed cleanly.

    `scheme` is that of the normal and the fast port, and of addresses without a scheme to which the broker
    connects. Port 0 selects free ports. Raises ConfigError, PluginError, StoreInUse, StoreCorrupt at the
    start; a later error of a service ends the broker.
    """
    checks.check(config, registry)
    clock = clock or SystemClock()
    listeners, address, fast_address = await _bind(config, registry, scheme)
    try:
        alpn = port_protocols(registry, BROKER).alpn
        extra, others = await bind(registry, _additional(config), alpn)
        listeners += extra
        if not config.listen_port:
            config = with_texts(config, {"listenPort": str(address.port)}, {"listenPort": FREE_PORT})
        ip, _ = unpack_host(store_host(config))
        store, policy = assemble.make_store(config, registry, clock)
        async with ConnectionPool(
            connect=Dialer(config, registry, None if scheme == TCP else scheme), hooks=registry.call_hooks
        ) as pool:
            context = assemble.make_context(config, registry, clock, store, policy, pool, ip, address.port)
            await store.open()
            try:
                await _run_with_tables(
                    context,
                    listeners,
                    RunningBroker(context, address, fast_address, trio.Event(), others),
                    task_status,
                )
            finally:
                with trio.CancelScope(shield=True):
                    await context.dispatching.close()
                    await store.close()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _run_with_tables(
    broker: BrokerContext,
    listeners: list[Listener],
    running: RunningBroker,
    task_status: trio.TaskStatus[RunningBroker],
) -> None:
    """Tables that could not be read are not written."""
    assemble.load_tables(broker)
    try:
        await broker.dispatching.open()
        await _run_opened(broker, listeners, running, task_status)
    finally:
        broker.held.abandon()
        with trio.CancelScope(shield=True):
            await broker.topics.close()
            await broker.groups.close()
            await broker.offsets.persist()
            await broker.filters.persist()


async def _run_opened(
    broker: BrokerContext,
    listeners: list[Listener],
    running: RunningBroker,
    task_status: trio.TaskStatus[RunningBroker],
) -> None:
    disabled = broker.config.disabled_services
    services = {name: each for name, each in broker.registry.services.items() if name not in disabled}
    hook = broker.registry.manager.hook
    assemble.announce(broker)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.store.run)
        await nursery.start(broker.dispatching.run)
        await nursery.start(broker.appender.acks.run)
        await nursery.start(broker.role.run)
        await nursery.start(broker.topics.run)
        await nursery.start(broker.groups.run)
        servers = _servers(broker, running)
        nursery.start_soon(broker.work.run)
        nursery.start_soon(_expire_held_pulls, broker)
        nursery.start_soon(_persist_offsets, broker)
        nursery.start_soon(forget_deleted_topics, broker)
        if broker.filters.index is not None:
            nursery.start_soon(_persist_filters, broker, broker.filters.index)
        nursery.start_soon(_drop_silent_clients, broker)
        nursery.start_soon(_keep_statistics, broker)
        for server, listener in zip(servers, listeners, strict=True):
            await nursery.start(_serve, server, listener)
        broker.role.services = runner = ServiceRunner(broker, services, nursery)
        await runner.follow()
        hook.rmqkit_broker_started(broker=broker)
        task_status.started(running)
        await running.stop.wait()
        hook.rmqkit_broker_stopping(broker=broker)
        broker.role.services = None
        await runner.stop()
        await _drain(servers)
        nursery.cancel_scope.cancel()


async def _drain(servers: list[RequestServer]) -> None:
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(server.drain, DRAIN_TIMEOUT_MS)


def _servers(broker: BrokerContext, running: RunningBroker) -> list[RequestServer]:
    """One server for each listener: the normal port, the fast one, and those of `listeners`."""

    def closed(peer: Peer) -> None:
        broker.held.drop_peer(peer)
        broker.clients.drop_peer(peer)

    registry = broker.registry
    protocols = port_protocols(registry, BROKER)

    def server(router: Router, name: str) -> RequestServer:
        follow_role(broker.role, router)
        return RequestServer(
            router,
            rpc_hooks=registry.rpc_hooks,
            protocols=protocols,
            on_closed=closed,
            name=name,
            idle_timeout_s=broker.config.server_channel_max_idle_time_seconds,
            waiting=broker.waiting,
        )

    async def open_port(protocol: WireProtocol, addresses: Iterable[Address]) -> Serving:
        return await listen(
            registry,
            addresses,
            normal,
            kind=BROKER,
            name=f"broker, {protocol.name}",
            on_closed=closed,
            idle_timeout_s=broker.config.server_channel_max_idle_time_seconds,
            protocol=protocol,
            waiting=broker.waiting,
        )

    normal, fast = assemble.make_routers(broker)
    broker.open_port = open_port
    routers = [(normal, "broker")]
    if running.fast_address is not None:
        routers.append((fast, "broker, fast port"))
    for address in running.others:
        own = EmbeddedNameServer(broker, address)
        table = {**normal.processors, **dict.fromkeys(own.codes(), own)}
        routers.append((Router(table, normal.default), f"broker, {address}"))
    return [server(router, name) for router, name in routers]


async def _serve(server: RequestServer, listener: Listener, task_status: trio.TaskStatus[None]) -> None:
    await server.serve([listener], task_status=task_status)


async def _bind(
    config: Config, registry: Registry, scheme: str
) -> tuple[list[Listener], Address, Address | None]:
    """The normal listener and the fast one, two ports below it. With port 0 free ports are used, and the one
    above them is free as well: RocketMQ replicates there."""
    wanted = Address(scheme, config.bind_address, config.listen_port)
    alpn = port_protocols(registry, BROKER).alpn
    for _ in range(_PORT_TRIES):
        listeners, (address, *_) = await bind(registry, [wanted], alpn)
        if address.port <= 2:
            return listeners, address, None
        try:
            if not config.listen_port:
                above, _ = await bind(registry, [Address(scheme, config.bind_address, address.port + 1)])
                for listener in above:
                    await trio.aclose_forcefully(listener)
            fast, (fast_address, *_) = await bind(
                registry, [Address(scheme, config.bind_address, address.port - 2)], alpn
            )
        except ConfigError:
            for listener in listeners:
                await trio.aclose_forcefully(listener)
            if config.listen_port:
                raise
        else:
            return listeners + fast, address, fast_address
    raise ConfigError(
        f"no two free ports at a distance of 2 were found on {config.bind_address}; name one with listenPort"
    )


def _additional(config: Config) -> list[Address]:
    try:
        return [Address.parse(text) for text in config.listeners]
    except ValueError as error:
        raise ConfigError(f"listeners: {error}") from error


async def _expire_held_pulls(broker: BrokerContext) -> None:
    """Java: PullRequestHoldService."""
    passed_ms = 0
    while True:
        await trio.sleep(_EXPIRE_MS / 1000)
        broker.held.expire(broker.clock.now_ms())
        passed_ms += _EXPIRE_MS
        config = broker.config
        recheck_ms = _RECHECK_MS if config.long_polling_enable else config.short_polling_time_mills
        if passed_ms >= recheck_ms:
            passed_ms = 0
            broker.held.recheck(broker.store.max_offset)


async def _persist_offsets(broker: BrokerContext) -> None:
    while True:
        await sleep_interval(broker.on_config_change, lambda: broker.config.flush_consumer_offset_interval)
        try:
            await broker.offsets.persist()
        except OSError as error:
            _log.error("consumer offsets cannot be written, trying again: %s", error)


async def _persist_filters(broker: BrokerContext, index: FilterIndex) -> None:
    while True:
        await sleep_interval(broker.on_config_change, lambda: index.persist_interval_ms)
        try:
            await index.persist()
        except OSError as error:
            _log.error("the filters of groups cannot be written, trying again: %s", error)


async def _drop_silent_clients(broker: BrokerContext) -> None:
    """Java: ClientHousekeepingService."""
    while True:
        await sleep_interval(
            broker.on_config_change,
            lambda: max(_EXPIRE_MS, min(_HOUSEKEEPING_MS, broker.config.channel_expired_timeout)),
        )
        for peer in broker.clients.silent_peers(broker.clock.now_ms(), broker.config.channel_expired_timeout):
            _log.info(
                "client at %s has sent no heartbeat for %s ms, closed",
                peer.remote_text,
                broker.config.channel_expired_timeout,
            )
            broker.clients.drop_peer(peer)
            peer.close()


async def _keep_statistics(broker: BrokerContext) -> None:
    """Sample the counters every second, and log every minute how far dispatching is behind (Java:
    StoreStatsService, BrokerController)."""
    passed_ms = 0
    while True:
        await trio.sleep(SAMPLE_MS / 1000)
        broker.stats.advance(broker.clock.now_ms())
        passed_ms += SAMPLE_MS
        if passed_ms >= _DISPATCH_LOG_MS:
            passed_ms = 0
            _log_dispatch(broker)


def _log_dispatch(broker: BrokerContext) -> None:
    behind_bytes = dispatch_behind_bytes(broker)
    _log.log(
        logging.INFO if behind_bytes else logging.DEBUG,
        "the slowest dispatcher is %d bytes behind the log",
        behind_bytes,
    )
