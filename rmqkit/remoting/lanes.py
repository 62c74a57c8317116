"""Lanes of one connection: over a transport with several streams per connection, large answers do not delay
small ones.

The first lane carries heartbeats, offsets and other small requests; sends have a lane, and so have requests
whose answers contain messages. All sends of a client to a broker share one lane, so they arrive in order, as
over TCP. The server treats each lane as a connection. A lane is opened when a request first needs it, and
again after the server has closed it for being idle.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import ByteStream, TaskGroup

from rmqkit.errors import ConnectionLost
from rmqkit.plugin.address import LanedStream
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
    RequestCode.POP_LITE_MESSAGE: MESSAGES,
    RequestCode.PEEK_MESSAGE: MESSAGES,
    RequestCode.QUERY_MESSAGE: MESSAGES,
    RequestCode.VIEW_MESSAGE_BY_ID: MESSAGES,
}


class Lanes:
    """The lanes of the connection whose first lane is `first`, over `stream`. `make` creates a Connection
    over the stream of another lane."""

    def __init__(
        self, first: Connection, stream: LanedStream, make: Callable[[ByteStream], Connection]
    ) -> None:
        self.first = first
        self._stream = stream
        self._make = make
        self._further: dict[str, Connection] = {}
        self._opening = anyio.Lock()
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """Serve all lanes until the first one ends (`Connection.run`). Calls on the others may then still be
        answered, and after that they end too."""
        async with anyio.create_task_group() as self._group:
            await self.first.run()
            for connection in self.all:
                connection.retire()

    @property
    def all(self) -> list[Connection]:
        """The open lanes, the first one first."""
        return [connection for connection in (self.first, *self._further.values()) if not connection.closed]

    async def carrying(self, code: int) -> Connection:
        """The lane for a request code, opened if needed. Raises ConnectionLost."""
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
