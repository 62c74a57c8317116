"""TCP with TCP_NODELAY, a backlog of 4096, scatter-gather sends, and optional TLS on the same port
(wire-protocol sheet, section 9)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from functools import partial

import anyio.abc
import trio

from rmqkit.config import Config
from rmqkit.config.tls import DISABLED, PERMISSIVE, effective_mode
from rmqkit.plugin.transport import Address, ServerStream, Transport, WorkingListener
from rmqkit.toolkit.certificate_files import CertificateFiles
from rmqkit.toolkit.connect import connect_tcp
from rmqkit.toolkit.sockets import BACKLOG, ListeningSocket, SocketStream, accepted
from rmqkit_transport_tcp.contexts import server_context
from rmqkit_transport_tcp.handshakes import HandshakeTurns
from rmqkit_transport_tcp.secure import TlsSniffingStream
from rmqkit_transport_tcp.settings import PLUGIN, TcpSettings


class TcpListener(trio.abc.Listener[ServerStream]):
    """A bound, listening socket for plain connections."""

    def __init__(self, sock: ListeningSocket) -> None:
        self.socket = sock

    async def accept(self) -> ServerStream:
        return SocketStream(*await accepted_without_delay(self.socket))

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class SecureListener(WorkingListener):
    """A bound, listening socket for TLS connections, and with `plain` also for others."""

    def __init__(
        self,
        sock: ListeningSocket,
        certificates: CertificateFiles[ssl.SSLContext],
        *,
        plain: bool,
        scheme: str,
    ) -> None:
        self.socket = sock
        self._scheme = scheme
        self._certificates = certificates
        self._turns = HandshakeTurns()
        self._plain = plain

    async def accept(self) -> ServerStream:
        return TlsSniffingStream(
            *await accepted_without_delay(self.socket),
            self._certificates,
            self._turns,
            plain=self._plain,
            scheme=self._scheme,
        )

    async def run(self) -> None:
        """Watch the certificate's files."""
        await self._certificates.watch()

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class TcpTransport(Transport):
    """Scheme `tcp`. Listens according to the setting tls.server.mode; connects without TLS."""

    scheme = "tcp"
    needs_port = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._reuse_port = config.plugin_settings(PLUGIN, TcpSettings).reuse_port

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        mode = effective_mode(self._config)
        if mode == DISABLED:
            return [TcpListener(await bound_socket(address, reuse_port=self._reuse_port))]
        return [await secure_listener(address, self._config, alpn, plain=mode == PERMISSIVE)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        return await connect_tcp(address, timeout_ms)

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, (TcpListener, SecureListener)):
            raise TypeError(f"{listener!r} is not a TCP listener")
        return bound_at(listener.socket, self.scheme)


async def secure_listener(
    address: Address, config: Config, alpn: Sequence[str], *, plain: bool
) -> SecureListener:
    """Listen at an address, by TLS and with `plain` also without. Raises OSError, and ConfigError for the
    files given by the settings."""
    reuse_port = config.plugin_settings(PLUGIN, TcpSettings).reuse_port
    sock = await bound_socket(address, reuse_port=reuse_port)
    try:
        return SecureListener(
            sock,
            CertificateFiles(config, str(bound_at(sock, "tls")), partial(server_context, alpn=alpn)),
            plain=plain,
            scheme=address.scheme,
        )
    except BaseException:
        sock.close()
        raise


async def bound_socket(address: Address, *, reuse_port: bool = False) -> ListeningSocket:
    """A listening socket at the first address of the host; with `reuse_port` one of several. Raises
    OSError."""
    found = await trio.socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, target = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        await sock.bind(target)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return ListeningSocket(socket.socket(fileno=sock.detach()))


def bound_at(sock: ListeningSocket, scheme: str) -> Address:
    """The address of a listening socket."""
    return Address(scheme, *sock.getsockname())


async def accepted_without_delay(
    listening: ListeningSocket,
) -> tuple[socket.socket, tuple[str, int], tuple[str, int]]:
    """The next connection with TCP_NODELAY set, the peer's address and the local address. Raises as
    `sockets.accepted`."""
    while True:
        sock, remote = await accepted(listening)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock, remote[:2], sock.getsockname()[:2]  # type: ignore[index]
        except OSError:
            # The peer has already closed the connection; some systems report that here.
            sock.close()
