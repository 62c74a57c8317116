"""Serving requests on addresses, for process roles besides the broker (`rmqkit.plugin.server`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from rmqkit.config import Config
from rmqkit.limits import IDLE_TIMEOUT_MS
from rmqkit.plugin.address import Address, Connect
from rmqkit.plugin.listen import Listener, bind
from rmqkit.plugin.protocols import WireProtocol, check_prefixes
from rmqkit.plugin.request import Peer, RequestProcessor
from rmqkit.plugin.server import Listen
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.remoting.waiting import WaitingRequests

if TYPE_CHECKING:
    from rmqkit.plugin.registrations import Registrations


class ServedAddresses:
    """`rmqkit.plugin.server.Serving` over one request server."""

    def __init__(
        self, server: RequestServer, listeners: Sequence[Listener], addresses: Sequence[Address]
    ) -> None:
        self.addresses = addresses
        self._server = server
        self._listeners = listeners

    async def run(
        self, drain_ms: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        serving = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve, serving)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await self._server.drain(drain_ms)
                serving.cancel()

    async def _serve(self, scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        """Shielded, so that a cancelled server drains first; `scope` ends it."""
        with scope:
            await self._server.serve(self._listeners, task_status=task_status)


def port_protocols(registry: Registrations, kind: str, alone: WireProtocol | None = None) -> PortProtocols:
    """What connections to the ports of a server speak."""
    if alone is not None:
        return PortProtocols(alone=alone)
    return PortProtocols([each for each in registry.protocols.values() if kind in each.servers])


async def listen(
    registry: Registrations,
    addresses: Iterable[Address],
    router: Router,
    *,
    kind: str,
    name: str,
    on_closed: Callable[[Peer], None] | None = None,
    protocol: WireProtocol | None = None,
    idle_timeout_s: float = IDLE_TIMEOUT_MS / 1000,
    waiting: WaitingRequests | None = None,
) -> ServedAddresses:
    """Listen on all addresses or none, for `protocol` alone or for what the server's ports take. Raises
    ConfigError, PluginError."""
    if protocol is not None:
        check_prefixes(protocol)
    protocols = port_protocols(registry, kind, protocol)
    bound, where = await bind(registry, addresses, protocols.alpn)
    server = RequestServer(
        router,
        rpc_hooks=registry.rpc_hooks,
        kind=kind,
        protocols=protocols,
        on_closed=on_closed,
        name=name,
        idle_timeout_s=idle_timeout_s,
        waiting=waiting,
    )
    return ServedAddresses(server, bound, where)


class _Listening:
    """`rmqkit.plugin.server.Listen`."""

    def __init__(self, registry: Registrations, addresses: Iterable[Address], name: str) -> None:
        self._registry = registry
        self._addresses = addresses
        self._name = name

    async def __call__(
        self,
        processors: Mapping[int, RequestProcessor],
        *,
        default: RequestProcessor | None = None,
        on_closed: Callable[[Peer], None] | None = None,
        protocol: WireProtocol | None = None,
        addresses: Iterable[Address] | None = None,
    ) -> ServedAddresses:
        return await listen(
            self._registry,
            self._addresses if addresses is None else addresses,
            Router(dict(processors), default=default),
            kind=self._name,
            name=self._name,
            on_closed=on_closed,
            protocol=protocol,
        )

    def connect(self, config: Config) -> Connect:
        return Dialer(config, self._registry)

    def pool(self, config: Config) -> ConnectionPool:
        return ConnectionPool(connect=self.connect(config), hooks=self._registry.call_hooks)


def listen_on(registry: Registrations, addresses: Iterable[Address], name: str) -> Listen:
    """What a server process called `name` listens and connects with."""
    return _Listening(registry, addresses, name)
