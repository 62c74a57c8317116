"""Servers: process roles besides the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import trio
from attrs import frozen

from rmqkit.config import Config
from rmqkit.plugin.address import Address, Connect
from rmqkit.plugin.listen import Serving
from rmqkit.plugin.request import Peer, RequestProcessor

if TYPE_CHECKING:
    from rmqkit.plugin.broker import Pool
    from rmqkit.plugin.protocols import WireProtocol
    from rmqkit.plugin.registrations import Registrations


@frozen
class ServerHandle:
    """The addresses of a running server."""

    addresses: Sequence[Address]


class Listen(Protocol):
    """Listens on the addresses of a server process, and connects to other servers; given to its
    `Server`."""

    async def __call__(
        self,
        processors: Mapping[int, RequestProcessor],
        *,
        default: RequestProcessor | None = None,
        on_closed: Callable[[Peer], None] | None = None,
        protocol: WireProtocol | None = None,
        addresses: Iterable[Address] | None = None,
    ) -> Serving:
        """Listen on all addresses or none: those of the server process, or `addresses`. `processors` by
        request code, `default` for others; `on_closed` is called for each peer that ends. With `protocol`,
        connections speak only that; without, remoting and what shares the ports of this server. Raises
        ConfigError, PluginError."""

    def connect(self, config: Config) -> Connect:
        """A function that opens connections by the transports of the plugins. A server that is itself a
        client of the cluster passes it to `rmqkit.client.Client`."""

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
