"""Lanes of one connection: over a transport that carries several streams side by side, big answers do not hold up small ones.

The first lane carries heartbeats, offsets and whatever else is small; sends have a lane, and so have requests that are answered with messages. All
sends of a client to a broker share one lane, so they arrive in the order in which they were made, as over TCP. The server sees a connection for each lane.
A lane is opened when the first request needs it, and anew when the server has closed it for being idle.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import ByteStream, TaskGroup

from rmqkit.abc import LanedStream
from rmqkit.errors import ConnectionLost
from rmqkit.protocol.codes import RequestCode
from rmqkit.remoting.connection import Connection

SENDS, MESSAGES = "sends", "messages"
#: Request code -> lane; the others take the first one.
LANE_OF_CODE: dict[int, str] = {
    RequestCode.SEND_MESSAGE: SENDS,
    RequestCode.SEND_MESSAGE_V2: SENDS,
    RequestCode.SEND_BATCH_MESSAGE: SENDS,
    RequestCode.SEND_REPLY_MESSAGE: SENDS,
    RequestCode.SEND_REPLY_MESSAGE_V2: SENDS,
    RequestCode.CONSUMER_SEND_MSG_BACK: SENDS,
    RequestCode.PULL_MESSAGE: MESSAGES,
    RequestCode.LITE_PULL_MESSAGE: MESSAGES,
    RequestCode.POP_MESSAGE: MESSAGES,
    RequestCode.PEEK_MESSAGE: MESSAGES,
    RequestCode.QUERY_MESSAGE: MESSAGES,
    RequestCode.VIEW_MESSAGE_BY_ID: MESSAGES,
}


class Lanes:
    """The lanes of the connection whose first lane is `first`, over `stream`. `make` makes a Connection over the stream of a further lane."""

    def __init__(self, first: Connection, stream: LanedStream, make: Callable[[ByteStream], Connection]) -> None:
        self.first = first
        self._stream = stream
        self._make = make
        self._further: dict[str, Connection] = {}
        self._opening = anyio.Lock()
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """As `Connection.run`, for all of them. When the first lane has ended, calls on the others may still be answered; then these end too."""
        async with anyio.create_task_group() as self._group:
            await self.first.run()
            for connection in self.all:
                connection.retire()

    @property
    def all(self) -> list[Connection]:
        """Those that are open, the first one first."""
        return [connection for connection in (self.first, *self._further.values()) if not connection.closed]

    async def carrying(self, code: int) -> Connection:
        """The lane for a request code, opened where needed. Raises ConnectionLost."""
        lane = LANE_OF_CODE.get(code)
        if lane is None:
            return self.first
        connection = self._further.get(lane)
        if connection is None or connection.closed:
            async with self._opening:
                connection = self._further.get(lane)
                if connection is None or connection.closed:
                    connection = await self._open(lane)
        return connection

    async def _open(self, lane: str) -> Connection:
        if self.first.closed or self._group is None:
            raise ConnectionLost(self.first.address, "the connection has ended")
        try:
            stream = await self._stream.open_lane()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(self.first.address, str(error)) from error
        connection = self._further[lane] = self._make(stream)
        connection.lanes = self
        self._group.start_soon(connection.run)
        return connection
