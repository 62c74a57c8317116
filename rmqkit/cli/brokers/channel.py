"""What a parent and its broker processes tell each other: JSON, one message a line, over a socket pair."""

from __future__ import annotations

import socket

import msgspec
import trio

from rmqkit.config import Config

_READ_BYTES = 65_536


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First word of the parent: be this broker. Dates that TOML has under keys that only plugins know arrive as text."""

    config: Config
    log_level: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop gracefully; a channel that ends means the same. Before the broker is ready: give the start up."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Stop now: connections are cut, tables and store are closed."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The broker serves at `address` (`host:port`) and has registered."""

    address: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Last word of a child that ends because of an error: what is wrong, and the exit code that says so."""

    faults: tuple[str, ...]
    exit_code: int


Message = Start | Stop | Cut | Ready | Failed


class Channel:
    """One end. One task may send and one receive at a time."""

    def __init__(self, end: socket.socket) -> None:
        """Takes the socket over."""
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._received = bytearray()

    async def send(self, message: Message) -> None:
        """Nothing happens when the other end has gone: `receive` tells."""
        try:
            await self._stream.send_all(msgspec.json.encode(message) + b"\n")
        except trio.BrokenResourceError:
            return

    async def receive(self) -> Message | None:
        """The next message; None when the other end has gone. Cancelled: nothing is lost."""
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
