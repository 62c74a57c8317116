"""Servers: process roles besides the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import trio
from attrs import frozen

from rmqkit.config import Config
from rmqkit.plugin.request import Peer, RequestProcessor
from rmqkit.plugin.transport import Address

if TYPE_CHECKING:
    from rmqkit.plugin.broker import Pool
    from rmqkit.plugin.registrations import Registrations


@frozen
class ServerHandle:
    """The addresses of a running server."""

    addresses: Sequence[Address]


class Serving(Protocol):
    """Listeners whose requests are ready to be served."""

    @property
    def addresses(self) -> Sequence[Address]:
        """The actual addresses, one for each listener."""

    async def run(self, drain_ms: int, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Serve until cancelled; then stop accepting, and finish requests in flight within `drain_ms`."""


class Listen(Protocol):
    """Listens on the addresses of a server process, and connects to other servers; given to its
    `Server`."""

    async def __call__(
        self,
        processors: Mapping[int, RequestProcessor],
        *,
        default: RequestProcessor | None = None,
        on_closed: Callable[[Peer], None] | None = None,
    ) -> Serving:
        """Listen on all addresses or none. `processors` by request code, `default` for others; `on_closed`
        is called for each connection that ends. Raises ConfigError, PluginError."""

    def pool(self, config: Config) -> AbstractAsyncContextManager[Pool]:
        """Connections to other servers, open inside the context."""


class Server(ABC):
    """A process role besides the broker: the name server, the filter server."""

    name: str

    @abstractmethod
    async def run(
        self,
        config: Config,
        registry: Registrations,
        listen: Listen,
        task_status: trio.TaskStatus[ServerHandle],
    ) -> None:
        """Serve until cancelled; then stop accepting, complete requests in flight, and return."""
