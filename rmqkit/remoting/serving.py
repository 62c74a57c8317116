"""Serving requests on addresses, for process roles besides the broker (`rmqkit.plugin.server`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from rmqkit.plugin.listen import Listener, bind
from rmqkit.plugin.request import Peer, RequestProcessor
from rmqkit.plugin.server import Listen
from rmqkit.plugin.transport import Address
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer

if TYPE_CHECKING:
    from rmqkit.plugin.loader import Registry


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


def listen_on(registry: Registry, addresses: Iterable[Address], name: str) -> Listen:
    """What a server process called `name` listens with."""

    async def listen(
        processors: Mapping[int, RequestProcessor],
        *,
        default: RequestProcessor | None = None,
        on_closed: Callable[[Peer], None] | None = None,
    ) -> ServedAddresses:
        bound, where = await bind(registry, addresses)
        router = Router(dict(processors), default=default)
        server = RequestServer(router, rpc_hooks=registry.rpc_hooks, on_closed=on_closed, name=name)
        return ServedAddresses(server, bound, where)

    return listen
