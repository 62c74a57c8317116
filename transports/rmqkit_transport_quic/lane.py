"""A lane is one bidirectional QUIC stream as a byte stream, for either side.

Reading and writing are the same on both sides; only the exceptions differ: trio's on a server, anyio's on a
client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.abc
import trio
from attrs import frozen

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import Address, ServerStream, TransportInfo
from rmqkit_transport_quic.limits import QUIC_SEND_AHEAD_BYTES


class Connection(Protocol):
    """The interface of the QUIC connection that a lane needs."""

    def wrote(self, lane: Lane, data: Buffer, end: bool = False) -> None: ...
    def flush(self) -> None: ...
    def unsent_bytes(self, lane: Lane) -> int: ...
    def took(self, lane: Lane) -> None: ...
    def closed_lane(self, lane: Lane) -> None: ...


@frozen
class Errors:
    """The exception types of a lane."""

    broken: type[Exception]
    closed: type[Exception]
    busy: type[Exception]


SERVER_ERRORS = Errors(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
CLIENT_ERRORS = Errors(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.BusyResourceError)


class Lane:
    """A byte stream in both directions. One task may read and one may write at a time."""

    def __init__(self, connection: Connection, stream_id: int, errors: Errors) -> None:
        self.stream_id = stream_id
        #: Number of bytes given to the connection, and number of bytes read.
        self.written = 0
        self.read = 0
        #: Whether the owner has ended its sending.
        self.ended_sending = False
        #: Whether the peer has ended its sending.
        self.ended_receiving = False
        self.closed = False
        self._connection = connection
        self._errors = errors
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._reader: anyio.Event | None = None
        self._writer: anyio.Event | None = None
        self._enough_room = 0
        self._is_writing = False
        self._why_no_reading: str | None = None
        self._why_no_writing: str | None = None

    # --- methods called by the connection -------------------------------------------------------------------

    def arrived(self, data: bytes, end: bool) -> None:
        """Bytes arrived in order; `end` marks the last ones."""
        if data:
            self._chunks.append(data)
            self._unread += len(data)
        self.ended_receiving = self.ended_receiving or end
        self._wake_reader()

    def no_more_reading(self, why: str | None) -> None:
        """After the bytes that have arrived comes the end, or an error if a reason is given."""
        if not self.ended_receiving:
            self.ended_receiving = True
            self._why_no_reading = why
            self._wake_reader()

    def no_more_writing(self, why: str) -> None:
        """The peer accepts no more data."""
        self._why_no_writing = self._why_no_writing or why
        self._wake_writer()

    def left(self) -> None:
        """Some bytes may have been sent."""
        if self._writer is not None and self._connection.unsent_bytes(self) <= self._enough_room:
            self._writer.set()

    def _wake_reader(self) -> None:
        if self._reader is not None:
            self._reader.set()

    def _wake_writer(self) -> None:
        if self._writer is not None:
            self._writer.set()

    # --- methods called by the owner ------------------------------------------------------------------------

    async def receive(self, max_bytes: int) -> bytes:
        """At least one byte, or nothing at the end. When cancelled, nothing is lost."""
        await anyio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise self._errors.closed("this lane was closed")
            if self._chunks:
                break
            if self.ended_receiving:
                if self._why_no_reading is not None:
                    raise self._errors.broken(self._why_no_reading)
                return b""
            if self._reader is not None:
                raise self._errors.busy("another task reads this lane")
            self._reader = anyio.Event()
            try:
                await self._reader.wait()
            finally:
                self._reader = None
        data = self._take(max_bytes)
        self._connection.took(self)
        return data

    def _take(self, max_bytes: int) -> bytes:
        if self._unread <= max_bytes:
            data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks.clear()
        else:
            taken, missing = [], max_bytes
            while missing:
                chunk = self._chunks.popleft()
                if len(chunk) > missing:
                    self._chunks.appendleft(chunk[missing:])
                    chunk = chunk[:missing]
                taken.append(chunk)
                missing -= len(chunk)
            data = b"".join(taken)
        self._unread -= len(data)
        self.read += len(data)
        return data

    async def send(self, parts: Sequence[Buffer | bytearray]) -> None:
        """Returns when everything has been sent; lost data is retransmitted automatically. When cancelled,
        part of the data may have been sent, and the lane can only be closed."""
        await anyio.lowlevel.checkpoint()
        with self._writing():
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(view), QUIC_SEND_AHEAD_BYTES):
                    self._check_writing()
                    self._connection.wrote(self, view[start : start + QUIC_SEND_AHEAD_BYTES])
                    if self._connection.unsent_bytes(self) > QUIC_SEND_AHEAD_BYTES:
                        self._connection.flush()
                        await self._wait_for_room(QUIC_SEND_AHEAD_BYTES)
            self._connection.flush()
            await self._wait_for_room(0)

    async def wait_for_room(self) -> None:
        """Wait until no data is waiting to be sent."""
        await anyio.lowlevel.checkpoint()
        with self._writing():
            await self._wait_for_room(0)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._is_writing:
            raise self._errors.busy("another task writes to this lane")
        self._is_writing = True
        try:
            yield
        finally:
            self._is_writing = False

    async def _wait_for_room(self, unsent_bytes: int) -> None:
        """Wait until at most this many bytes are waiting to be sent."""
        while True:
            self._check_writing()
            if self._connection.unsent_bytes(self) <= unsent_bytes:
                return
            self._writer, self._enough_room = anyio.Event(), unsent_bytes
            try:
                await self._writer.wait()
            finally:
                self._writer = None

    def _check_writing(self) -> None:
        if self.closed or self.ended_sending:
            raise self._errors.closed("this lane was closed")
        if self._why_no_writing is not None:
            raise self._errors.broken(self._why_no_writing)

    def end_sending(self) -> None:
        """End the sending: the peer sees an end after all sent data, and may continue to send."""
        if not self.ended_sending:
            self.ended_sending = True
            if self._why_no_writing is None:
                self._connection.wrote(self, b"", end=True)

    def close(self) -> None:
        """End both directions without waiting: the connection completes the transmission of sent data. May be
        called twice."""
        if not self.closed:
            self.closed = True
            self._chunks.clear()
            self._wake_reader()
            self._wake_writer()
            self._connection.closed_lane(self)


class QuicServerStream(ServerStream):
    """A lane that a client opened. `certificate` is the client's, in DER form."""

    scheme = "quic"

    def __init__(
        self, lane: Lane, remote: tuple[str, int], local: tuple[str, int], certificate: bytes | None
    ) -> None:
        self.lane = lane
        self.remote = remote
        self.local = local
        self._certificate = certificate

    @property
    def transport(self) -> TransportInfo:
        return TransportInfo(Address(self.scheme, *self.local), True, self._certificate)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.lane.receive(max_bytes or 65_536)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.lane.send([data])

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        await self.lane.send(parts)

    async def wait_send_all_might_not_block(self) -> None:
        await self.lane.wait_for_room()

    async def aclose(self) -> None:
        self.lane.close()
        await trio.lowlevel.checkpoint()
