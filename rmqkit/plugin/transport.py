"""Transports: addresses, listeners and byte streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import anyio.abc
import trio

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.address import Address, LanedStream, TransportInfo

__all__ = ["Address", "LanedStream", "ServerStream", "Transport", "TransportInfo", "WorkingListener"]


class ServerStream(trio.abc.Stream):
    """One accepted connection. `remote` is the peer as `(ip, port)`, `local` this end; `("127.0.0.1", 0)` for
    a transport without IP addresses. `scheme` is that of the listener's address."""

    remote: tuple[str, int]
    local: tuple[str, int]
    scheme: str = "tcp"

    @property
    def transport(self) -> TransportInfo:
        """How the connection came in; complete once `opened` has returned. Default: an unencrypted one to
        `local`."""
        return TransportInfo(Address(self.scheme, *self.local))

    async def opened(self) -> ServerStream:
        """The stream to read and write, after the handshake if the transport has one. Called once, before all
        other methods, in the connection's own task.

        Raises BrokenResourceError. Cancelled or failed: the stream must still be closed.
        """
        return self

    @abstractmethod
    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Send all parts in order, without joining them where the transport can (scatter-gather). Raises
        like `send_all`."""

    def fileno(self) -> int:
        """The descriptor that is readable when `receive_now` has data; -1 for a transport without one."""
        return -1

    def receive_now(self, max_bytes: int) -> bytes | None:
        """What `receive_some` would return without waiting, None when it would wait. A stream with a
        descriptor must not keep data back that the descriptor no longer tells of. Raises like
        `receive_some`."""
        return None

    def send_now(self, data: Buffer) -> int:
        """Send as many bytes as possible without waiting, and return their number: 0 for a transport that
        cannot tell. No other send may be in progress. Raises like `send_all`."""
        return 0


class WorkingListener(trio.abc.Listener[ServerStream]):
    """A listener with work to do besides accepting: moving datagrams, watching certificate files."""

    @abstractmethod
    async def run(self) -> None:
        """Do the background work; a server runs it as long as it serves the listener or one of its
        connections, then cancels it. An exception ends the server."""


class Transport(ABC):
    """Provides byte streams (Java: NettyRemotingServer, NettyRemotingClient). Contract tests:
    `rmqkit.testing.transport`."""

    scheme: str
    #: Whether an address has host and port; otherwise it may have a name or path in their place.
    needs_port: bool = False

    @abstractmethod
    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        """Bound listeners; port 0 takes a free one. A transport with TLS over TCP offers the names `alpn` in
        its handshakes; a client that offers none of them is served, too. Raises OSError (address in use, not
        local), ConfigError (the settings of the transport)."""

    @abstractmethod
    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """A connected stream; runs under trio and asyncio. Raises OSError, TimeoutError, ConfigError.
        Cancelled: nothing stays open.

        `receive` and `send` may be under way at the same time, one each. The stream raises anyio's errors.
        """

    @abstractmethod
    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        """The actual address of a listener."""
