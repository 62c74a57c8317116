"""Where to connect, and streams as clients use them; without trio, whose import takes longer than asyncio's
programs need."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable

import anyio.abc
from attrs import frozen

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
                f"address {text!r}: {scheme!r} is not a scheme; an address is like 127.0.0.1:10911 or unix:///run/rmqkit.sock"
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
    alpn          the protocol that both ends have chosen in the TLS handshake; None without a choice
    """

    listener: Address
    is_encrypted: bool = False
    certificate: bytes | None = None
    alpn: str | None = None


#: `(address, timeout_ms) -> stream`; raises OSError, TimeoutError or ConfigError. Cancelled: nothing stays
#: open.
Connect = Callable[[Address, int], Awaitable[anyio.abc.ByteStream]]


class LanedStream(anyio.abc.ByteStream):
    """A client's stream over a connection with several parallel lanes, which do not wait for each other."""

    @abstractmethod
    async def open_lane(self) -> LanedStream:
        """Open a further lane to the same server, which sees it as a new connection once bytes arrive. Raises
        anyio.BrokenResourceError."""
