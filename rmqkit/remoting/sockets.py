"""Accepted stream sockets on trio: what the transports over sockets of the operating system share.

Reading waits for readiness first: a request that is not there yet then costs no failing system call. Writing tries at once and is a checkpoint only
when it has to wait; whoever writes in a loop reads in between.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import trio

from rmqkit.abc import Buffer, ServerStream

BACKLOG = 1024
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


class SocketStream(ServerStream):
    """An accepted socket, non-blocking. `remote` and `local` are what the transport says they are."""

    def __init__(self, sock: socket.socket, remote: tuple[str, int], local: tuple[str, int]) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.remote = remote
        self.local = local

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(max_bytes or 65_536)
            except BlockingIOError:
                continue
            except OSError as error:
                raise translated(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = await self._some(data)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(view):
                sent += await self._some(view[sent:])

    async def _some(self, data: Buffer | bytearray) -> int:
        while True:
            try:
                return self.socket.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
            except OSError as error:
                raise translated(error) from error

    def send_now(self, data: Buffer) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise translated(error) from error

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) <= _JOIN_BYTES:
            await self.send_all(b"".join(parts))
            return
        for start in range(0, len(parts), _MAX_PARTS):
            await self._send_vector([memoryview(part) for part in parts[start : start + _MAX_PARTS] if len(part)])

    async def _send_vector(self, views: list[memoryview]) -> None:
        while views:
            try:
                sent = self.socket.sendmsg(views)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
                continue
            except OSError as error:
                raise translated(error) from error
            whole = 0
            while whole < len(views) and sent >= len(views[whole]):
                sent -= len(views[whole])
                whole += 1
            del views[:whole]
            if sent:
                views[0] = views[0][sent:]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self.socket)

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()


def translated(error: OSError) -> Exception:
    """What trio's streams raise instead of a socket's error."""
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("this socket was already closed")
    return trio.BrokenResourceError(f"socket connection broken: {error}")


async def accepted(listening: trio.socket.SocketType) -> tuple[socket.socket, object]:
    """The next connection and the peer's address, passing over those that ended before they were taken.

    Raises OSError when the system is short of something (EMFILE, ENFILE, ENOBUFS, ENOMEM: trio.serve_listeners waits and tries again), ClosedResourceError.
    """
    while True:
        try:
            sock, remote = await listening.accept()
        except OSError as error:
            if error.errno in _IGNORED_AT_ACCEPT:
                continue
            raise
        return socket.socket(fileno=sock.detach()), remote
