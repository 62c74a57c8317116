"""Serving requests on addresses, for process roles besides the broker (`rmqkit.plugin.server`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from rmqkit.config import Config
from rmqkit.plugin.listen import Listener, bind
from rmqkit.plugin.request import Peer, RequestProcessor
from rmqkit.plugin.server import Listen
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer

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
    ) -> ServedAddresses:
        bound, where = await bind(self._registry, self._addresses)
        router = Router(dict(processors), default=default)
        server = RequestServer(
            router, rpc_hooks=self._registry.rpc_hooks, kind=self._name, on_closed=on_closed, name=self._name
        )
        return ServedAddresses(server, bound, where)

    def pool(self, config: Config) -> ConnectionPool:
        return ConnectionPool(connect=Dialer(config, self._registry), hooks=self._registry.call_hooks)


def listen_on(registry: Registrations, addresses: Iterable[Address], name: str) -> Listen:
    """What a server process called `name` listens and connects with."""
    return _Listening(registry, addresses, name)
