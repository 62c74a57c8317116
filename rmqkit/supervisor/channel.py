"""Messages between a parent and its processes: JSON, one message per line, over a socket pair."""

from __future__ import annotations

import socket

import msgspec
import trio

from rmqkit.config import Config

_READ_BYTES = 65_536


class Role(msgspec.Struct, frozen=True):
    """A role besides the broker's: its name (`rmqkit.plugin.server`), and where its server listens."""

    name: str
    listen: str


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message of the parent: run this broker, or the server of another role. TOML dates under keys
    that only plugins know arrive as text."""

    config: Config
    role: Role | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop gracefully; the end of the channel means the same. Before the broker is ready, it aborts the
    start."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Stop now: connections are closed, then tables and store."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The broker serves at `address` (`host:port`) and has registered."""

    address: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Last message of a child that ends with an error: the error lines and the exit code."""

    faults: tuple[str, ...]
    exit_code: int


Message = Start | Stop | Cut | Ready | Failed


class Channel:
    """One end of a channel. One task may send and one may receive at a time."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over the socket."""
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._received = bytearray()

    async def send(self, message: Message) -> None:
        """Send a message. Does nothing when the other end is closed; `receive` reports that."""
        try:
            await self._stream.send_all(msgspec.json.encode(message) + b"\n")
        except trio.BrokenResourceError:
            return

    async def receive(self) -> Message | None:
        """The next message; None when the other end is closed. When cancelled, no message is lost."""
        while (end := self._received.find(b"\n")) < 0:
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        message: Message = msgspec.json.decode(line, type=Message)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()
