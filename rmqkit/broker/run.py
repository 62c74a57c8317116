"""Runs a broker: ordered start, one nursery, graceful stop (Java: BrokerController.start and shutdown; behaviour sheet, C1).

Start: bind, open the store, load the tables, open the dispatchers and give them what they missed, store services, serve, services. Stop, in reverse:
hooks, services (unregister first), stop accepting and finish what is in flight, write the tables, close the dispatchers, close the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import time

import trio
from attrs import define

from rmqkit.abc import Address, Clock, Peer, Service
from rmqkit.broker import assemble
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors.own_routes import OwnRoutesProcessor
from rmqkit.config import Config, store_host
from rmqkit.errors import ConfigError
from rmqkit.plugins import Registry
from rmqkit.protocol.message_id import unpack_host
from rmqkit.remoting.dial import TCP, Dialer
from rmqkit.remoting.listen import Listener, bind
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.serve import RequestServer, Router

_log = logging.getLogger(__name__)
DRAIN_TIMEOUT_MS = 10_000
_SERVICE_STOP_TIMEOUT_MS = 5_000
_EXPIRE_MS = 1_000
_RECHECK_MS = 5_000
_HOUSEKEEPING_MS = 10_000
_PORT_TRIES = 20


class SystemClock:
    """Wall-clock time."""

    def now_ms(self) -> int:
        return int(time() * 1000)


@define(eq=False)
class RunningBroker:
    """A broker that serves. `address` is where clients connect, `stop` ends it gracefully; `others` are those that the setting `listeners` names."""

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
    """Run until `RunningBroker.stop` is set, then stop gracefully. Cancelled: connections are cut, but tables and store are still closed cleanly.

    `scheme` is that of the normal and the fast port, and of plain addresses that the broker connects to. Port 0 takes free ports. Raises ConfigError,
    PluginError, StoreInUse, StoreCorrupt at the start; what a service raises later ends the broker.
    """
    clock = clock or SystemClock()
    listeners, address, fast_address = await _bind(config, registry, scheme)
    try:
        extra, others = await bind(registry, _additional(config))
        listeners += extra
        config = config.with_values(listen_port=address.port)
        ip, _ = unpack_host(store_host(config))
        store, policy = assemble.make_store(config, registry, clock)
        async with ConnectionPool(connect=Dialer(config, registry, None if scheme == TCP else scheme)) as pool:
            context = assemble.make_context(config, registry, clock, store, policy, pool, ip, address.port)
            await store.open()
            try:
                for table in (context.topics, context.groups, context.offsets):
                    table.load()
                context.topics.warn_of_unknown(store.queues())
                await context.dispatching.open()
                await _run_opened(context, listeners, RunningBroker(context, address, fast_address, trio.Event(), others), task_status)
            finally:
                with trio.CancelScope(shield=True):
                    try:
                        await context.offsets.persist()
                    finally:
                        await context.dispatching.close()
                        await store.close()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _run_opened(
    broker: BrokerContext, listeners: list[Listener], running: RunningBroker, task_status: trio.TaskStatus[RunningBroker]
) -> None:
    services = [service for name, service in broker.registry.services.items() if name not in broker.config.disabled_services]
    hook = broker.registry.manager.hook
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.store.run)
        await nursery.start(broker.dispatching.run)
        await nursery.start(broker.put.settling.run)
        servers = _servers(broker, running)
        nursery.start_soon(_expire_held_pulls, broker)
        nursery.start_soon(_persist_offsets, broker)
        nursery.start_soon(_drop_silent_clients, broker)
        for server, listener in zip(servers, listeners, strict=True):
            await nursery.start(_serve, server, listener)
        started: list[Service] = []
        for service in services:
            await nursery.start(_run_service, service, broker)
            started.append(service)
        hook.rmqkit_broker_started(broker=broker)
        task_status.started(running)
        await running.stop.wait()
        hook.rmqkit_broker_stopping(broker=broker)
        await _stop(broker, started, servers)
        nursery.cancel_scope.cancel()


async def _stop(broker: BrokerContext, services: list[Service], servers: list[RequestServer]) -> None:
    for service in reversed(services):
        with trio.move_on_after(_SERVICE_STOP_TIMEOUT_MS / 1000) as scope:
            try:
                await service.stop(broker)
            except Exception:  # noqa: BLE001 - one service's trouble must not keep the others from stopping
                _log.exception("service %s failed to stop cleanly", service.name)
        if scope.cancelled_caught:
            _log.warning("service %s did not stop within %s ms", service.name, _SERVICE_STOP_TIMEOUT_MS)
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(server.drain, DRAIN_TIMEOUT_MS)


def _servers(broker: BrokerContext, running: RunningBroker) -> list[RequestServer]:
    """One for each listener: the normal port, the fast one, and what `listeners` names."""

    def closed(peer: Peer) -> None:
        broker.held_pulls.drop_peer(peer)
        broker.clients.drop_peer(peer)

    def server(router: Router, name: str) -> RequestServer:
        return RequestServer(router, rpc_hooks=broker.registry.rpc_hooks, on_closed=closed, name=name)

    normal, fast = assemble.make_routers(broker)
    servers = [server(normal, "broker")]
    if running.fast_address is not None:
        servers.append(server(fast, "broker, fast port"))
    for address in running.others:
        own = OwnRoutesProcessor(broker, address)
        servers.append(server(Router({**normal.processors, **dict.fromkeys(own.codes(), own)}, normal.default), f"broker, {address}"))
    return servers


async def _serve(server: RequestServer, listener: Listener, task_status: trio.TaskStatus[None]) -> None:
    await server.serve([listener], task_status=task_status)


async def _run_service(service: Service, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
    await service.run(broker, task_status)


async def _bind(config: Config, registry: Registry, scheme: str) -> tuple[list[Listener], Address, Address | None]:
    """The normal listener and the fast one, two ports below it. With port 0 a pair of free ports is looked for."""
    wanted = Address(scheme, config.bind_address, config.listen_port)
    for _ in range(_PORT_TRIES):
        listeners, (address, *_) = await bind(registry, [wanted])
        if address.port <= 2:
            return listeners, address, None
        try:
            fast, (fast_address, *_) = await bind(registry, [Address(scheme, config.bind_address, address.port - 2)])
        except ConfigError:
            for listener in listeners:
                await trio.aclose_forcefully(listener)
            if config.listen_port:
                raise
        else:
            return listeners + fast, address, fast_address
    raise ConfigError(f"no two free ports at a distance of 2 were found on {config.bind_address}; name one with listenPort")


def _additional(config: Config) -> list[Address]:
    try:
        return [Address.parse(text) for text in config.listeners]
    except ValueError as error:
        raise ConfigError(f"listeners: {error}") from error


async def _expire_held_pulls(broker: BrokerContext) -> None:
    passed_ms = 0
    while True:
        await trio.sleep(_EXPIRE_MS / 1000)
        broker.held_pulls.expire(broker.clock.now_ms())
        passed_ms += _EXPIRE_MS
        if passed_ms >= _RECHECK_MS:
            passed_ms = 0
            broker.held_pulls.recheck(broker.store.max_offset)


async def _persist_offsets(broker: BrokerContext) -> None:
    while True:
        await trio.sleep(broker.config.flush_consumer_offset_interval / 1000)
        try:
            await broker.offsets.persist()
        except OSError as error:
            _log.error("consumer offsets cannot be written, trying again: %s", error)


async def _drop_silent_clients(broker: BrokerContext) -> None:
    """Java: ClientHousekeepingService."""
    while True:
        await trio.sleep(_HOUSEKEEPING_MS / 1000)
        for peer in broker.clients.silent_peers(broker.clock.now_ms(), broker.config.channel_expired_timeout):
            _log.info("client at %s has sent no heartbeat for %s ms, closed", peer.remote_text, broker.config.channel_expired_timeout)
            broker.clients.drop_peer(peer)
            peer.close()
