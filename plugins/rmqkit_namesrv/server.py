"""The name server as a process role (Java: NamesrvController, BrokerHousekeepingService; behaviour sheet, D1 and D4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import trio

from rmqkit.abc import Address, Peer, Server, ServerHandle, ServerStream
from rmqkit.config import Config
from rmqkit.plugins import Registry
from rmqkit.remoting.listen import bind
from rmqkit.remoting.serve import RequestServer, Router
from rmqkit_namesrv.kv import KvConfig
from rmqkit_namesrv.processor import NameServerProcessor
from rmqkit_namesrv.state import NameServerState

_log = logging.getLogger(__name__)
#: What requests in flight get when the name server stops.
_DRAIN_TIMEOUT_MS = 3_000


class NameServer(Server):
    """Serves name server requests on its listeners. Routes are kept in memory only: a name server that restarts knows nothing until the
    brokers register again, and name servers never talk to each other."""

    name = "namesrv"

    async def run(
        self, config: Config, registry: Registry, listeners: Iterable[Address], task_status: trio.TaskStatus[ServerHandle]
    ) -> None:
        """Raises ConfigError for an address that cannot be bound or a bad kvConfig.json, PluginError for an unknown scheme.
        Cancelled: stops accepting, answers what is in flight (at most 3 s), closes everything."""
        path = Path(config.kv_config_path) if config.kv_config_path else None
        state = NameServerState(config, _monotonic_ms, kv=KvConfig(path))
        bound, addresses = await bind(registry, listeners)
        processor = NameServerProcessor(state)
        router = Router(dict.fromkeys(processor.codes, processor), default=processor)
        server = RequestServer(router, rpc_hooks=registry.rpc_hooks, on_closed=lambda peer: _on_closed(state, peer), name=self.name)
        serving = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, server, bound, serving)
            nursery.start_soon(_scan, state)
            _log.info("name server listens on %s", ", ".join(map(str, addresses)))
            task_status.started(ServerHandle(addresses))
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await server.drain(_DRAIN_TIMEOUT_MS)
                serving.cancel()


async def _serve(
    server: RequestServer,
    listeners: list[trio.abc.Listener[ServerStream]],
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None],
) -> None:
    """Shielded, so that a cancelled name server drains first; `scope` ends it."""
    with scope:
        await server.serve(listeners, task_status=task_status)


async def _scan(state: NameServerState) -> None:
    """Forget the brokers that went silent and close their connections (Java: scanNotActiveBroker)."""
    while True:
        await trio.sleep(max(state.config.scan_not_active_broker_interval, 1) / 1000)
        for entry in state.tables.expire(state.now_ms()):
            _log.warning("broker %s at %s was silent for more than %s ms, removed", entry.broker_name, entry.key.address, entry.timeout_ms)
            shared = any(other.connection is entry.connection for other in state.tables.live.values())
            if isinstance(entry.connection, Peer) and not shared:
                entry.connection.close()


def _on_closed(state: NameServerState, peer: Peer) -> None:
    for entry in state.tables.unregister_connection(peer):
        _log.warning("connection of broker %s at %s from %s closed, removed", entry.broker_name, entry.key.address, peer.remote_text)


def _monotonic_ms() -> int:
    return int(trio.current_time() * 1000)
