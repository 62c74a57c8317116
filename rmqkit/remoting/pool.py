"""Connections by address, made when first needed (Java: NettyRemotingClient; wire-protocol sheet, section 9).

One connection per address carries any number of requests at a time. A connection that died is replaced by the next call. Nothing here
retries a request, save for GO_AWAY, by which the server says that it did not handle it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskGroup

from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout
from rmqkit.protocol.codes import CLIENT_VERSION, ResponseCode, SerializeType
from rmqkit.protocol.command import Command
from rmqkit.remoting.connection import Connection

log = logging.getLogger(__name__)

#: `(host, port, timeout_ms) -> stream`; raises OSError or TimeoutError.
Connect = Callable[[str, int, int], Awaitable[ByteStream]]
#: Answers a request of a server, with the address of its connection; see `connection.RequestHandler`.
AddressedHandler = Callable[[Command, str], "Command | Awaitable[Command | None] | None"]

CONNECT_TIMEOUT_MS = 3000
#: Unsent requests get this long to leave when the pool closes.
FLUSH_TIMEOUT_S = 1.0
#: A call that ran out of at least so much time on a connection that was silent meanwhile takes the connection with it: it may be half open.
SUSPICIOUS_TIMEOUT_MS = 1000


async def connect_tcp(host: str, port: int, timeout_ms: int) -> ByteStream:
    """A TCP stream with TCP_NODELAY. Raises OSError, TimeoutError. Cancelled: nothing stays open."""
    with anyio.fail_after(timeout_ms / 1000):
        stream = await anyio.connect_tcp(host, port)
    stream.extra(SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` -> host and port. Raises ConnectFailed naming the text, since nothing can be reached there."""
    host, separator, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConnectFailed(address, "not of the form host:port with a port between 1 and 65535")
    return host, int(port)


class _Dial:
    """A connect in progress, shared by all that want the address."""

    __slots__ = ("connection", "done", "why")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.connection: Connection | None = None
        self.why = ""


class ConnectionPool:
    """`async with ConnectionPool() as pool: await pool.call("127.0.0.1:10911", command, 3000)`. Runs under trio and asyncio.

    Leaving it gives unsent one-way requests a second to go out, then closes everything; an error of the body passes through unwrapped.

    connect            how to open a stream; default TCP
    on_request         answers requests of the servers: `(command, address) -> answer or None`, plain or coroutine function
    serialize_type     header form of what goes out
    connect_timeout_ms limit of one connect
    """

    def __init__(
        self,
        *,
        connect: Connect = connect_tcp,
        on_request: AddressedHandler | None = None,
        serialize_type: SerializeType = SerializeType.JSON,
        version: int = CLIENT_VERSION,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> None:
        self._connect = connect
        self._on_request = on_request
        self._serialize_type = serialize_type
        self._version = version
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, _Dial] = {}
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> ConnectionPool:
        if self._group is not None:
            raise ClientError("the connection pool is open already")
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        group, self._group = self._group, None
        assert group is not None
        if isinstance(error, anyio.get_cancelled_exc_class()):
            group.cancel_scope.cancel()
            return await group.__aexit__(kind, error, trace)
        with anyio.move_on_after(FLUSH_TIMEOUT_S, shield=True):
            for connection in list(self._connections.values()):
                await connection.flush()
        group.cancel_scope.cancel()
        # The task group is not shown an error of the body: it would wrap it into an exception group.
        await group.__aexit__(None, None, None)
        return None

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request, connecting first where needed, and wait for the answer, whatever its code.

        The time-out covers the connect too. Answered GO_AWAY, the request goes out once more on a new connection, with a time-out anew. Raises ConnectFailed,
        ConnectionLost, RequestTimeout, ClientError, ProtocolError (frame too large). Cancelled: as `Connection.call`; a connect goes on for
        whoever else wants it.
        """
        connection = self._connections.get(address)
        left_ms = timeout_ms
        if connection is None or connection.closed:
            connection, left_ms = await self._within(address, timeout_ms)
        response = await self._call(connection, command, left_ms)
        if response.code == ResponseCode.GO_AWAY:
            log.info("%s is going away, connecting anew", address)
            if self._connections.get(address) is connection:
                del self._connections[address]
            connection.retire()
            connection, left_ms = await self._within(address, timeout_ms)
            response = await self._call(connection, command, left_ms)
        return response

    async def oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Send a one-way request, connecting first where needed. It is handed over, not confirmed.

        Raises ConnectFailed, ConnectionLost, RequestTimeout (no room in the send buffer in time), ProtocolError (frame too large).
        """
        with anyio.move_on_after(timeout_ms / 1000):
            connection = await self.ensure(address)
            await connection.oneway(command)
            return
        raise RequestTimeout(address, timeout_ms)

    async def ensure(self, address: str) -> Connection:
        """The open connection to an address; connects when there is none. All that wait share one connect. Raises ConnectFailed."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._group is None:
            raise ConnectFailed(address, "the connection pool is not open; use it inside `async with`")
        dial = self._dials.get(address)
        if dial is None:
            host, port = split_address(address)
            dial = self._dials[address] = _Dial()
            self._group.start_soon(self._dial_and_run, dial, address, host, port)
        await dial.done.wait()
        if dial.connection is None:
            raise ConnectFailed(address, dial.why)
        return dial.connection

    def close(self, address: str) -> None:
        """Drop the connection to an address, if there is one: its waiting calls fail with ConnectionLost, the next call connects anew."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def addresses(self) -> list[str]:
        """Addresses with an open connection."""
        return [address for address, connection in self._connections.items() if not connection.closed]

    async def _within(self, address: str, timeout_ms: int) -> tuple[Connection, int]:
        """An open connection and the ms that are left of the time-out."""
        began_s = anyio.current_time()
        with anyio.move_on_after(timeout_ms / 1000):
            connection = await self.ensure(address)
            return connection, max(timeout_ms - int((anyio.current_time() - began_s) * 1000), 1)
        raise RequestTimeout(address, timeout_ms)

    async def _call(self, connection: Connection, command: Command, timeout_ms: int) -> Command:
        try:
            return await connection.call(command, timeout_ms)
        except RequestTimeout:
            began_s = anyio.current_time() - timeout_ms / 1000
            if timeout_ms >= SUSPICIOUS_TIMEOUT_MS and connection.last_received_s <= began_s:
                connection.close(f"silent for {timeout_ms} ms with a request unanswered")
            raise

    async def _dial_and_run(self, dial: _Dial, address: str, host: str, port: int) -> None:
        stream = None
        try:
            stream = await self._connect(host, port, self._connect_timeout_ms)
        except TimeoutError:
            dial.why = f"no connection within {self._connect_timeout_ms} ms"
        except OSError as error:
            dial.why = _connect_reason(error)
        except ConnectionLost as error:
            dial.why = str(error)
        finally:
            if stream is None:
                dial.why = dial.why or "the connection pool was closed"
                self._dials.pop(address, None)
                dial.done.set()
        if stream is None:
            return
        handler = self._on_request
        connection = Connection(
            stream,
            address,
            on_request=None if handler is None else partial(_with_address, handler, address),
            serialize_type=self._serialize_type,
            version=self._version,
        )
        self._dials.pop(address, None)
        self._connections[address] = dial.connection = connection
        dial.done.set()
        try:
            await connection.run()
        finally:
            if self._connections.get(address) is connection:
                del self._connections[address]


def _with_address(handler: AddressedHandler, address: str, command: Command) -> Command | Awaitable[Command | None] | None:
    return handler(command, address)


def _connect_reason(error: OSError) -> str:
    """anyio wraps what the socket said; the inner text is the useful one."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(str(inner) for inner in cause.exceptions))
    return str(cause or error) or type(error).__name__
