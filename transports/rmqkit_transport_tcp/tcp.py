"""TCP: TCP_NODELAY, a backlog of 1024, scatter-gather sends, and TLS on the same port where the settings say so (wire-protocol sheet, section 9)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

import anyio.abc
import trio

from rmqkit.abc import Address, ServerStream, Transport, WorkingListener
from rmqkit.config import Config
from rmqkit.remoting.certificate_files import CertificateFiles
from rmqkit.remoting.dial import connect_tcp
from rmqkit.remoting.sockets import BACKLOG, SocketStream, accepted
from rmqkit.tls_settings import DISABLED, PERMISSIVE, effective_mode
from rmqkit_transport_tcp.contexts import server_context
from rmqkit_transport_tcp.secure import UndecidedStream


class TcpListener(trio.abc.Listener[ServerStream]):
    """A bound, listening socket of plain connections."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = sock

    async def accept(self) -> ServerStream:
        return SocketStream(*await accepted_without_delay(self.socket))

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class SecureListener(WorkingListener):
    """A bound, listening socket of TLS connections, and with `plain` also of others."""

    def __init__(self, sock: trio.socket.SocketType, certificates: CertificateFiles[ssl.SSLContext], *, plain: bool) -> None:
        self.socket = sock
        self._certificates = certificates
        self._plain = plain

    async def accept(self) -> ServerStream:
        return UndecidedStream(*await accepted_without_delay(self.socket), self._certificates, plain=self._plain)

    async def run(self) -> None:
        """Watch the certificate's files."""
        await self._certificates.watch()

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class TcpTransport(Transport):
    """Scheme `tcp`. Listens as the setting tls.server.mode says; connects plainly."""

    scheme = "tcp"

    def __init__(self, config: Config) -> None:
        self._config = config

    async def listen(self, address: Address) -> Sequence[trio.abc.Listener[ServerStream]]:
        mode = effective_mode(self._config)
        if mode == DISABLED:
            return [TcpListener(await bound_socket(address))]
        return [await secure_listener(address, self._config, plain=mode == PERMISSIVE)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        return await connect_tcp(address, timeout_ms)

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, (TcpListener, SecureListener)):
            raise TypeError(f"{listener!r} is not a TCP listener")
        return bound_at(listener.socket, self.scheme)


async def secure_listener(address: Address, config: Config, *, plain: bool) -> SecureListener:
    """Raises OSError, ConfigError for the files that the settings name."""
    sock = await bound_socket(address)
    try:
        return SecureListener(sock, CertificateFiles(config, str(bound_at(sock, "tls")), server_context), plain=plain)
    except BaseException:
        sock.close()
        raise


async def bound_socket(address: Address) -> trio.socket.SocketType:
    """A listening socket at the first address that the host has. Raises OSError."""
    found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await sock.bind(target)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def bound_at(sock: trio.socket.SocketType, scheme: str) -> Address:
    """Where a listening socket is."""
    host, port = sock.getsockname()[:2]
    return Address(scheme, host, port)


async def accepted_without_delay(listening: trio.socket.SocketType) -> tuple[socket.socket, tuple[str, int], tuple[str, int]]:
    """The next connection with TCP_NODELAY set, the peer's address and this end's. Raises as `sockets.accepted`."""
    while True:
        sock, remote = await accepted(listening)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock, remote[:2], sock.getsockname()[:2]  # type: ignore[index]
        except OSError:
            # The peer is gone already; some systems say so here.
            sock.close()
