"""Connections by address, opened on first use (Java: NettyRemotingClient; wire-protocol sheet, section 9).

One connection per address carries any number of concurrent requests, on lanes if the transport has them
(`rmqkit.remoting.lanes`). A connection that died is replaced by the next call. Requests are never retried,
except after GO_AWAY, with which the server states that it did not handle them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType

import anyio
from anyio.abc import ByteStream, TaskGroup

from rmqkit.errors import ClientError, ConfigError, ConnectFailed, RequestTimeout, RmqError
from rmqkit.plugin.address import Address, Connect, LanedStream
from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.request_hooks import CallHook
from rmqkit.protocol.codes import CLIENT_VERSION, ResponseCode, SerializeType
from rmqkit.protocol.command import Command
from rmqkit.remoting.backend import async_backend
from rmqkit.remoting.connection import Connection
from rmqkit.remoting.lanes import Lanes
from rmqkit.toolkit.connect import connect_tcp

log = logging.getLogger(__name__)

#: Answers a request of a server, with the address of its connection; see `connection.RequestHandler`.
AddressedHandler = Callable[[Command, str], "Command | Awaitable[Command | None] | None"]

CONNECT_TIMEOUT_MS = 3000
_GO_AWAY = int(ResponseCode.GO_AWAY)
#: Time for unsent requests to be sent when the pool closes.
FLUSH_TIMEOUT_S = 1.0
#: A call that timed out after at least this time on a silent connection closes the connection, which may be
#: half open.
SUSPICIOUS_TIMEOUT_MS = 1000


def parse_address(address: str) -> Address:
    """An address from its text. Raises ConnectFailed with the text if it is not an address."""
    try:
        parsed = Address.parse(address)
    except ValueError as error:
        raise ConnectFailed(address, str(error)) from error
    if not parsed.name and not parsed.port:
        raise ConnectFailed(address, "not of the form host:port with a port between 1 and 65535")
    return parsed


class _Dial:
    """A connect in progress, shared by all callers of the address."""

    __slots__ = ("connection", "done", "misconfigured", "why")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.connection: Connection | None = None
        self.why = ""
        self.misconfigured: ConfigError | None = None


class ConnectionPool:
    """`async with ConnectionPool() as pool: await pool.call("127.0.0.1:10911", command, 3000)`. Runs under
    trio and asyncio.

    Leaving the context gives unsent one-way requests a second to be sent, then closes everything; an error of
    the body is passed on unwrapped.

    connect            function that opens a stream, such as a `Dialer`; default TCP
    on_request         answers requests of the servers: `(command, address) -> answer or None`, plain or
                       coroutine function
    serialize_type     header form of sent commands
    connect_timeout_ms limit of one connect
    hooks              around each request
    """

    def __init__(
        self,
        *,
        connect: Connect = connect_tcp,
        on_request: AddressedHandler | None = None,
        serialize_type: SerializeType = SerializeType.JSON,
        version: int = CLIENT_VERSION,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        hooks: Iterable[CallHook] = (),
    ) -> None:
        self.connect = connect
        self._on_request = on_request
        self._serialize_type = serialize_type
        self._version = version
        self._connect_timeout_ms = connect_timeout_ms
        self._hooks = Hooks.of("call hook", hooks)
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, _Dial] = {}
        self._group: TaskGroup | None = None
        self._time = anyio.current_time

    async def __aenter__(self) -> ConnectionPool:
        if self._group is not None:
            raise ClientError("the connection pool is open already")
        self._time = async_backend().current_time
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        group, self._group = self._group, None
        assert group is not None
        if isinstance(error, anyio.get_cancelled_exc_class()):
            group.cancel_scope.cancel()
            return await group.__aexit__(kind, error, trace)
        with anyio.move_on_after(FLUSH_TIMEOUT_S, shield=True):
            for connection in list(self._connections.values()):
                for lane in _lanes(connection):
                    await lane.flush()
        group.cancel_scope.cancel()
        # The body's error is not passed to the task group, which would wrap it into an exception group.
        await group.__aexit__(None, None, None)
        return None

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request, connecting first where needed, and wait for the answer, whatever its code; hooks
        see both.

        The time-out covers the connect too. Answered GO_AWAY, the request goes out once more on a new
        connection, within the same time-out. Raises ConnectFailed, ConnectionLost, RequestTimeout,
        ClientError, ProtocolError (frame too large). Cancelled: as `Connection.call`; a connect goes on for
        other callers. ConfigError as `ensure`.
        """
        for entry in self._hooks.entries:
            entry.call("before_call", command, address)
        response = await self.pass_on(address, command, timeout_ms)
        if self._hooks.entries:
            self._hooks.notify("after_call", command, response, address)
        return response

    async def pass_on(self, address: str, command: Command, timeout_ms: int) -> Command:
        """`call` with a request of somebody else, which no hook sees: it is not signed as this one's are."""
        connection = self._connections.get(address)
        deadline_s = self._time() + timeout_ms / 1000
        left_ms = timeout_ms
        if connection is None or connection.closed:
            connection, left_ms = await self._within(address, timeout_ms)
        response = await self._call(connection, command, left_ms)
        if response.code == _GO_AWAY:
            log.info("%s is going away, connecting again", address)
            if self._connections.get(address) is connection:
                del self._connections[address]
            for lane in _lanes(connection):
                lane.retire()
            left_ms = max(int((deadline_s - self._time()) * 1000), 1)
            connection, left_ms = await self._within(address, left_ms)
            response = await self._call(connection, command, left_ms)
        return response

    async def oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Send a one-way request, connecting first if needed. It is passed on without confirmation.

        Raises ConnectFailed, ConnectionLost, RequestTimeout (no room in the send buffer in time),
        ProtocolError (frame too large).
        """
        for entry in self._hooks.entries:
            entry.call("before_call", command, address)
        with anyio.move_on_after(timeout_ms / 1000):
            connection = await self.ensure(address)
            if connection.lanes is not None:
                connection = await connection.lanes.carrying(command.code)
            await connection.oneway(command)
            return
        raise RequestTimeout(address, timeout_ms)

    async def ensure(self, address: str) -> Connection:
        """The open connection to an address; connects if there is none. Concurrent callers share one connect.
        Raises ConnectFailed, and ConfigError when settings, plugin or package of the transport are wrong or
        missing."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._group is None:
            raise ConnectFailed(address, "the connection pool is not open; use it inside `async with`")
        dial = self._dials.get(address)
        if dial is None:
            where = parse_address(address)
            dial = self._dials[address] = _Dial()
            self._group.start_soon(self._dial_and_run, dial, address, where)
        await dial.done.wait()
        if dial.misconfigured is not None:
            raise ConfigError(
                f"cannot connect to {address}: {dial.why}", dial.misconfigured.faults
            ) from dial.misconfigured
        if dial.connection is None:
            raise ConnectFailed(address, dial.why)
        return dial.connection

    def close(self, address: str) -> None:
        """Close the connection to an address, if there is one: its waiting calls fail with ConnectionLost,
        and the next call connects again."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            for lane in _lanes(connection):
                lane.close()

    def addresses(self) -> list[str]:
        """Addresses with open connections."""
        return [address for address, connection in self._connections.items() if not connection.closed]

    async def _within(self, address: str, timeout_ms: int) -> tuple[Connection, int]:
        """An open connection and the rest of the time-out in ms."""
        began_s = anyio.current_time()
        with anyio.move_on_after(timeout_ms / 1000):
            connection = await self.ensure(address)
            return connection, max(timeout_ms - int((anyio.current_time() - began_s) * 1000), 1)
        raise RequestTimeout(address, timeout_ms)

    async def _call(self, connection: Connection, command: Command, timeout_ms: int) -> Command:
        if connection.lanes is not None:
            connection = await connection.lanes.carrying(command.code)
        try:
            return await connection.call(command, timeout_ms)
        except RequestTimeout:
            began_s = anyio.current_time() - timeout_ms / 1000
            suspects = _lanes(connection)
            if timeout_ms >= SUSPICIOUS_TIMEOUT_MS and all(
                lane.last_received_s <= began_s for lane in suspects
            ):
                for lane in suspects:
                    lane.close(f"silent for {timeout_ms} ms with a request unanswered")
            raise

    async def _dial_and_run(self, dial: _Dial, address: str, where: Address) -> None:
        stream = None
        try:
            stream = await self.connect(where, self._connect_timeout_ms)
        except TimeoutError:
            dial.why = f"no connection within {self._connect_timeout_ms} ms"
        except OSError as error:
            dial.why = str(error) or type(error).__name__
        except ConfigError as error:
            # Settings, plugin or package of the transport are wrong or missing, so a retry is useless.
            dial.why, dial.misconfigured = str(error), error
        except RmqError as error:
            dial.why = str(error)
        finally:
            if stream is None:
                dial.why = dial.why or "the connection pool was closed"
                self._dials.pop(address, None)
                dial.done.set()
        if stream is None:
            return
        connection = self._over(address, stream)
        run: Callable[[], Awaitable[None]] = connection.run
        if isinstance(stream, LanedStream):
            connection.lanes = Lanes(connection, stream, partial(self._over, address))
            run = connection.lanes.run
        self._dials.pop(address, None)
        self._connections[address] = dial.connection = connection
        dial.done.set()
        try:
            await run()
        finally:
            if self._connections.get(address) is connection:
                del self._connections[address]

    def _over(self, address: str, stream: ByteStream) -> Connection:
        handler = self._on_request
        return Connection(
            stream,
            address,
            on_request=None if handler is None else partial(_with_address, handler, address),
            serialize_type=self._serialize_type,
            version=self._version,
        )


def _lanes(connection: Connection) -> list[Connection]:
    """The connection, with the others that share its transport connection."""
    return [connection] if connection.lanes is None else connection.lanes.all


def _with_address(
    handler: AddressedHandler, address: str, command: Command
) -> Command | Awaitable[Command | None] | None:
    return handler(command, address)
