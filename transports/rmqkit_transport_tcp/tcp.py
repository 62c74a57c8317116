"""Plain TCP: TCP_NODELAY, a backlog of 1024, scatter-gather sends (wire-protocol sheet, section 9)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import anyio
import anyio.abc
import trio

from rmqkit.abc import Address, Buffer, ServerStream, Transport

_BACKLOG = 1024
#: Below this, joining the parts costs less than a vector of them.
_JOIN_BYTES = 128 * 1024
#: What accept says of a connection that ended before it was taken (Linux man page accept(2)); the next one may be fine.
_IGNORED_AT_ACCEPT = {
    errno.EPERM,
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
}
#: Parts of one sendmsg; the kernel's IOV_MAX is 1024.
_MAX_PARTS = 512


class TcpServerStream(ServerStream):
    """An accepted socket, non-blocking.

    Reading waits for readiness first: a request that is not there yet then costs no failing system call. Writing tries at once and is a
    checkpoint only when it has to wait; whoever writes in a loop reads in between.
    """

    def __init__(self, sock: socket.socket, remote: tuple[str, int]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.remote = remote
        self.local = sock.getsockname()[:2]

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(max_bytes or 65_536)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _translated(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = await self._some(data)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(view):
                sent += await self._some(view[sent:])

    async def _some(self, data: Buffer | bytearray) -> int:
        while True:
            try:
                return self._socket.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise _translated(error) from error

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) <= _JOIN_BYTES:
            await self.send_all(b"".join(parts))
            return
        for start in range(0, len(parts), _MAX_PARTS):
            await self._send_vector([memoryview(part) for part in parts[start : start + _MAX_PARTS] if len(part)])

    async def _send_vector(self, views: list[memoryview]) -> None:
        while views:
            try:
                sent = self._socket.sendmsg(views)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            except OSError as error:
                raise _translated(error) from error
            whole = 0
            while whole < len(views) and sent >= len(views[whole]):
                sent -= len(views[whole])
                whole += 1
            del views[:whole]
            if sent:
                views[0] = views[0][sent:]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


def _translated(error: OSError) -> Exception:
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("this socket was already closed")
    return trio.BrokenResourceError(f"socket connection broken: {error}")


class TcpListener(trio.abc.Listener[ServerStream]):
    """A bound, listening socket."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = sock

    async def accept(self) -> ServerStream:
        while True:
            try:
                sock, remote = await self.socket.accept()
            except OSError as error:
                if error.errno in _IGNORED_AT_ACCEPT:
                    continue
                raise
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                # The peer is gone already; some systems say so here.
                sock.close()
                continue
            return TcpServerStream(socket.socket(fileno=sock.detach()), remote[:2])

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class TcpTransport(Transport):
    """Scheme `tcp`."""

    scheme = "tcp"

    async def listen(self, address: Address) -> Sequence[trio.abc.Listener[ServerStream]]:
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, target = found[0]
        sock = trio.socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind(target)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return [TcpListener(sock)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        with anyio.fail_after(timeout_ms / 1000):
            stream = await anyio.connect_tcp(address.host, address.port)
        stream.extra(anyio.abc.SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, TcpListener):
            raise TypeError(f"{listener!r} is not a TCP listener")
        host, port = listener.socket.getsockname()[:2]
        return Address("tcp", host, port)
