"""Stream sockets in the file system, for clients on the same machine. The file's mode controls who may
connect.

A peer has no IP address and counts as `127.0.0.1:0`, which becomes the born host of its messages.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import trio

from rmqkit.plugin.transport import Address, ServerStream, Transport, TransportInfo
from rmqkit.toolkit.sockets import BACKLOG, ListeningSocket, SocketStream, accepted

#: Access only for the user of the server.
DEFAULT_MODE = 0o600
#: The path length that all systems support (sun_path: 104 bytes on BSD and macOS, 108 on Linux), minus a
#: terminating zero byte.
MAX_PATH_BYTES = 103
#: The folder is locked during a bind.
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.02
_NOWHERE = ("127.0.0.1", 0)


class UnixServerStream(SocketStream):
    """An accepted connection to the socket at `path`."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        super().__init__(sock, _NOWHERE, _NOWHERE, "unix")
        self._path = path

    @property
    def transport(self) -> TransportInfo:
        return TransportInfo(Address(self.scheme, name=str(self._path)))


class UnixListener(trio.abc.Listener[ServerStream]):
    """A bound, listening socket. Closing it removes the file, unless it has been replaced."""

    def __init__(self, sock: ListeningSocket, path: Path) -> None:
        self.socket = sock
        self.path = path
        self._file = _identity(path)

    async def accept(self) -> ServerStream:
        sock, _ = await accepted(self.socket)
        return UnixServerStream(sock, self.path)

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0 and _identity(self.path) == self._file:
            self.path.unlink(missing_ok=True)
        self.socket.close()
        await trio.lowlevel.checkpoint()


class UnixTransport(Transport):
    """Scheme `unix`; `mode` is the mode of the file."""

    scheme = "unix"

    def __init__(self, mode: int = DEFAULT_MODE) -> None:
        self._mode = mode

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        """A stale socket file is replaced. Raises OSError when the path is too long, is another kind of file,
        or has a listener."""
        path = _path(address)
        sock = trio.socket.socket(socket.AF_UNIX)
        try:
            async with _alone_in(path.parent):
                _remove_stale(path)
                await sock.bind(str(path))
                # Connecting is impossible before listen is called, so a wider mode never takes effect.
                path.chmod(self._mode)
                sock.listen(BACKLOG)
                return [UnixListener(ListeningSocket(socket.socket(fileno=sock.detach())), path)]
        except BaseException:
            sock.close()
            raise

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        path = _path(address)
        with anyio.fail_after(timeout_ms / 1000):
            stream = await anyio.connect_unix(path)
        try:
            # With a full queue the system neither waits nor refuses: it leaves the socket unconnected.
            stream.extra(anyio.abc.SocketAttribute.raw_socket).getpeername()
        except OSError as error:
            await anyio.aclose_forcefully(stream)
            raise BlockingIOError(
                errno.EAGAIN, f"the server at {path} takes no connections at the moment"
            ) from error
        return stream

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        if not isinstance(listener, UnixListener):
            raise TypeError(f"{listener!r} is not a unix listener")
        return Address(self.scheme, name=str(listener.path))


def _path(address: Address) -> Path:
    path = Path(address.name)
    if not path.is_absolute():
        raise OSError(errno.EINVAL, f"{address} names no absolute path; the form is unix:///run/rmqkit.sock")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(
            errno.ENAMETOOLONG,
            f"the path is longer than {MAX_PATH_BYTES} bytes, which systems do not take: choose a"
            " shorter one",
        )
    return path


@asynccontextmanager
async def _alone_in(directory: Path) -> AsyncIterator[None]:
    """Lock the folder, so that two servers that start at once cannot both find a stale file and remove each
    other's new one. Raises OSError when the folder stays locked."""
    # Windows has no such module, and clients there load the transports.
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await trio.sleep(_LOCK_PAUSE_S)
            else:
                break
        else:
            raise OSError(
                errno.EAGAIN,
                f"another process keeps the folder {directory} locked: choose one that only this user may"
                " open",
            )
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(
            errno.EEXIST, "something that is not a socket lies there: choose another path, or remove it"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except BlockingIOError:
            # There is a listener with a full queue.
            raise _taken() from None
        else:
            raise _taken()


def _taken() -> OSError:
    return OSError(errno.EADDRINUSE, "another process listens there")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
