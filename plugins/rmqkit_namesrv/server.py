"""The name server as a process role (Java: NamesrvController, BrokerHousekeepingService; behaviour sheet,
D1 and D4)."""

from __future__ import annotations

from pathlib import Path

import trio

from rmqkit.config import Config
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.registrations import Registrations
from rmqkit.plugin.request import Peer
from rmqkit.plugin.server import Listen, Server, ServerHandle
from rmqkit.toolkit.interval import sleep_interval
from rmqkit_namesrv.kv import KvConfig
from rmqkit_namesrv.processor import NameServerProcessor
from rmqkit_namesrv.settings import NameServerSettings
from rmqkit_namesrv.state import NameServerState

_log = limited_logger(__name__)
#: Maximum number of brokers named in the log line about a closed connection.
_NAMED = 5
#: Time limit for requests in flight when the name server stops.
_DRAIN_TIMEOUT_MS = 3_000


class NameServer(Server):
    """Serves name server requests on its listeners. Routes are kept in memory only: after a restart the name
    server has no routes until the brokers register again, and name servers never exchange data."""

    name = "namesrv"

    async def run(
        self,
        config: Config,
        registry: Registrations,
        listen: Listen,
        task_status: trio.TaskStatus[ServerHandle],
    ) -> None:
        """Run a name server. Raises ConfigError for an address that cannot be bound or an invalid
        kvConfig.json, PluginError for an unknown scheme. When cancelled, stops accepting, answers requests in
        flight (at most 3 s), and closes everything."""
        path = config.owned(NameServerSettings).kv_config_path
        kv = KvConfig(Path(path) if path else None)
        state = NameServerState(config, _monotonic_ms, tuple(registry.settings.values()), kv=kv)
        processor = NameServerProcessor(state)
        serving = await listen(
            dict.fromkeys(processor.codes, processor),
            default=processor,
            on_closed=lambda peer: _on_closed(state, peer),
        )
        changing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as changes:
            # Requests in flight are answered while `serving` drains.
            changes.start_soon(_change, state, changing)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serving.run, _DRAIN_TIMEOUT_MS)
                    nursery.start_soon(_scan, state)
                    _log.info("name server listens on %s", ", ".join(map(str, serving.addresses)))
                    task_status.started(ServerHandle(serving.addresses))
            finally:
                changing.cancel()


async def _change(state: NameServerState, scope: trio.CancelScope) -> None:
    with scope:
        await state.changes.run()


async def _scan(state: NameServerState) -> None:
    """Remove brokers without heartbeats and close their connections (Java: scanNotActiveBroker)."""
    while True:
        await sleep_interval(state.on_change, lambda: state.settings.scan_not_active_broker_interval)
        for entry in state.tables.expire(state.now_ms()):
            _log.warning(
                "broker %s at %s was silent for more than %s ms, removed",
                entry.broker_name,
                entry.key.address,
                entry.timeout_ms,
            )
            if isinstance(entry.connection, Peer) and not state.tables.registered_over(entry.connection):
                entry.connection.close()


def _on_closed(state: NameServerState, peer: Peer) -> None:
    removed = state.tables.unregister_connection(peer)
    if removed:
        named = ", ".join(f"{entry.broker_name} at {entry.key.address}" for entry in removed[:_NAMED])
        more = f" and {len(removed) - _NAMED} more" if len(removed) > _NAMED else ""
        _log.warning(
            "connection from %s closed, its brokers are removed: %s%s", peer.remote_text, named, more
        )


def _monotonic_ms() -> int:
    return int(trio.current_time() * 1000)
