"""Accepted stream sockets on trio, shared by the transports over sockets of the operating system.

A read first waits until data is there, which avoids a failing system call. A write is tried immediately and
is a checkpoint only when it has to wait; a loop of writes therefore needs reads in between.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import trio

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import ServerStream
from rmqkit.toolkit.descriptors import is_reserved

BACKLOG = 4096
#: Maximum number of connections accepted per pass of the loop; with only one, a burst would take many passes.
_ACCEPTED_PER_TURN = 8
#: Parts smaller than this together are joined, which costs less than a vectored write.
_JOIN_BYTES = 128 * 1024
#: Errors of accept for a connection that ended before it was accepted (Linux man page accept(2)).
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
    """An accepted socket, non-blocking. The transport gives `remote`, `local` and its scheme."""

    def __init__(
        self, sock: socket.socket, remote: tuple[str, int], local: tuple[str, int], scheme: str = "tcp"
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.remote = remote
        self.local = local
        self.scheme = scheme

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            data = self.receive_now(max_bytes or 65_536)
            if data is not None:
                return data

    def fileno(self) -> int:
        return self.socket.fileno()

    def receive_now(self, max_bytes: int) -> bytes | None:
        try:
            return self.socket.recv(max_bytes)
        except BlockingIOError:
            return None
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
            await self._send_vector(
                [memoryview(part) for part in parts[start : start + _MAX_PARTS] if len(part)]
            )

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
    """The error of trio's streams that corresponds to a socket's error."""
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("this socket was already closed")
    return trio.BrokenResourceError(f"socket connection broken: {error}")


class ListeningSocket:
    """A listening socket of the operating system, which accepts several waiting connections per pass of the
    loop. A connection that uses a descriptor of the reserve is the last of its pass, so that the server
    refuses it before the next one is accepted."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._in_turn = 0

    async def accept(self) -> tuple[socket.socket, object]:
        """The next connection and the peer's address. Raises OSError, ClosedResourceError."""
        self._in_turn += 1
        if self._in_turn > _ACCEPTED_PER_TURN:
            self._in_turn = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            try:
                taken = self._socket.accept()
            except BlockingIOError:
                self._in_turn = 0
                await trio.lowlevel.wait_readable(self._socket)
            else:
                if is_reserved(taken[0].fileno()):
                    self._in_turn = _ACCEPTED_PER_TURN
                return taken

    def getsockname(self) -> tuple[str, int]:
        """Host and port of an IP socket."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def fileno(self) -> int:
        """The file descriptor, -1 after the close."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; an `accept` in progress ends with ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


async def accepted(listening: ListeningSocket) -> tuple[socket.socket, object]:
    """The next connection and the peer's address; connections that ended before they were accepted are
    skipped.

    Raises OSError when the system lacks a resource (EMFILE, ENFILE, ENOBUFS, ENOMEM: trio.serve_listeners
    waits and tries again), ClosedResourceError.
    """
    while True:
        try:
            return await listening.accept()
        except OSError as error:
            if error.errno not in _IGNORED_AT_ACCEPT:
                raise
