"""Transports: addresses, listeners and byte streams."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

import anyio.abc
import trio
from attrs import frozen

from rmqkit.model.buffer import Buffer

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@frozen
class Address:
    """A listen address: `127.0.0.1:10911` (tcp), `tls://broker-a:10911`, `unix:///run/rmqkit.sock`,
    `memory://name`.

    Either `host` and `port` are set, or `name`: a path, or another name that a scheme without ports gives its
    listeners. In the text an IPv6 host is in brackets, and the scheme tcp is left out.
    """

    scheme: str
    host: str = ""
    port: int = 0
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address. Raises ValueError, which names the error and shows the form."""
        scheme, separator, rest = text.strip().rpartition("://")
        scheme = scheme if separator else "tcp"
        if not _SCHEME.fullmatch(scheme):
            raise ValueError(
                f"address {text!r}: {scheme!r} is no scheme; an address is like 127.0.0.1:10911 or unix:///run/rmqkit.sock"
            )
        host, colon, port = rest.rpartition(":")
        if (
            scheme != "tcp"
            and rest
            and (rest.startswith("/") or not (host and port.isascii() and port.isdigit()))
        ):
            return cls(scheme, name=rest)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"address {text!r}: write an IPv6 host in brackets, as in [::1]:10911")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"address {text!r} is not of the form HOST:PORT, as in 127.0.0.1:10911")
        return cls(scheme, host, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = self.name or f"{host}:{self.port}"
        return where if self.scheme == "tcp" else f"{self.scheme}://{where}"


@frozen
class TransportInfo:
    """By which door a connection came.

    listener      where it was accepted: the address to which the peer connected, with its scheme
    is_encrypted  whether others on the way cannot read it
    certificate   the peer's certificate in DER form, checked by the transport; None when it showed none
    """

    listener: Address
    is_encrypted: bool = False
    certificate: bytes | None = None


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


class LanedStream(anyio.abc.ByteStream):
    """A client's stream over a connection with several parallel lanes, which do not wait for each other."""

    @abstractmethod
    async def open_lane(self) -> LanedStream:
        """Open a further lane to the same server, which sees it as a new connection once bytes arrive. Raises
        anyio.BrokenResourceError."""


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
    async def listen(self, address: Address) -> Sequence[trio.abc.Listener[ServerStream]]:
        """Bound listeners; port 0 takes a free one. Raises OSError (address in use, not local),
        ConfigError (the settings of the transport)."""

    @abstractmethod
    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        """A connected stream; runs under trio and asyncio. Raises OSError, TimeoutError, ConfigError.
        Cancelled: nothing stays open.

        `receive` and `send` may be under way at the same time, one each. The stream raises anyio's errors.
        """

    @abstractmethod
    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        """The actual address of a listener."""
