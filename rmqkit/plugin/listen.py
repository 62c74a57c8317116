"""Listening on addresses through the registry's transports."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from rmqkit.errors import ConfigError
from rmqkit.plugin.transport import Address, ServerStream, WorkingListener

if TYPE_CHECKING:
    from rmqkit.plugin.registrations import Registrations

Listener = trio.abc.Listener[ServerStream]


class Serving(Protocol):
    """Listeners whose requests are ready to be served."""

    @property
    def addresses(self) -> Sequence[Address]:
        """The actual addresses, one for each listener."""

    async def run(self, drain_ms: int, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Serve until cancelled; then stop accepting, and finish requests in flight within `drain_ms`."""


async def bind(
    registry: Registrations, addresses: Iterable[Address], alpn: Sequence[str] = ()
) -> tuple[list[Listener], list[Address]]:
    """Listeners and their actual addresses; all or none. `alpn` as in `Transport.listen`. Raises ConfigError
    with the address, the cause and a remedy."""
    bound: list[Listener] = []
    where: list[Address] = []
    try:
        for address in addresses:
            transport = registry.transport(address)
            try:
                listeners = await transport.listen(address, alpn)
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {address}: {error.strerror or error}; {_next_step(error, address)}"
                ) from error
            for listener in listeners:
                bound.append(listener)
                where.append(transport.bound_address(listener))
    except BaseException:
        for listener in bound:
            await trio.aclose_forcefully(listener)
        raise
    return bound, where


def start_work(listeners: Sequence[trio.abc.Listener[ServerStream]], nursery: trio.Nursery) -> None:
    """Start the tasks of those listeners that have one, before they accept."""
    for listener in listeners:
        if isinstance(listener, WorkingListener):
            nursery.start_soon(listener.run)


def _next_step(error: OSError, address: Address) -> str:
    match error.errno:
        case errno.EADDRINUSE if address.name:
            return "stop it, or choose another name"
        case errno.EADDRINUSE:
            return "another process has the port: stop it, or choose another port"
        case errno.EADDRNOTAVAIL:
            return "the address does not belong to this machine: choose one that does, such as 127.0.0.1"
        case errno.EACCES if address.name:
            return "this user may not write there: choose another folder"
        case errno.EACCES:
            return "ports below 1024 need privileges: choose a higher one"
        case _:
            return "check the address"
