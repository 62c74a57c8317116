"""Protocols besides RocketMQ's remoting: they bring bytes to Commands, and answers to bytes.

A protocol shares the ports of servers, where the first bytes of a connection or the ALPN name of TLS choose
it, or has ports of its own (`Broker.listen`, `Listen`). Limits, request hooks, runs, joined sends and the
drain are those of the server. Contract tests: `rmqkit.testing.protocol`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from rmqkit.errors import PluginError
from rmqkit.limits import MAX_FRAME_BYTES, MAX_PREFIX_BYTES, READ_CHUNK_BYTES
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.request import BROKER, Caller, Peer
from rmqkit.protocol.command import Command


class Recipient(ABC):
    """The side of a protocol that gets what the request pipeline sends to one peer. Its methods run between
    reads, and outside of every task: they must not block, and may set events and give to memory channels. An
    exception is logged and closes the connection."""

    @abstractmethod
    def answer(self, requests: Sequence[Command], answers: Sequence[Command]) -> None:
        """Send the answers to requests, which are the objects given to `handle`. Answers come as they are
        known: a protocol whose answers have the order of the requests keeps them until then. One-way requests
        get none."""

    def push(self, command: Command) -> bool:
        """Send a request of the server. A one-way request expects nothing; the answer to another one goes to
        `handle` with the same `opaque` and the response flag. Returns False where the protocol cannot carry
        it, the default."""
        return False


class ProtocolConnection(Protocol):
    """One accepted connection, from its first byte on."""

    @property
    def caller(self) -> Caller:
        """The other end, which the hooks have admitted."""

    async def receive(self, max_bytes: int = READ_CHUNK_BYTES) -> bytes:
        """The next bytes; waits while too much is unsent or unanswered. Empty when the other end has ended
        its stream, and when the server drains. Raises as `ServerStream.receive_some`."""

    def send(self, *parts: Buffer) -> None:
        """Send bytes behind those sent before. Never blocks; drops them when the connection has ended."""

    def peer(self, recipient: Recipient) -> Peer:
        """A peer of the request pipeline on this connection, for one client behind it. Its `attributes` are
        those of `caller`. Raises ProtocolError for more than MAX_PEERS_PER_CONNECTION."""

    async def handle(self, peer: Peer, commands: Sequence[Command]) -> None:
        """Give requests that arrived together to the request pipeline, in order; the answers go to the peer's
        recipient, now or later. Waits while too many requests of the connection are unanswered."""

    def forget(self, peer: Peer) -> None:
        """End a peer whose client has gone; the end of the connection ends all of them."""


class WireProtocol(ABC):
    """A protocol of a plugin.

    name      in log lines, and `Caller.protocol` of its peers
    prefixes  the first bytes of its connections, one of them for each kind of connection. On a shared port
              they choose the protocol; on a port of its own a connection with others is closed. Without
              prefixes, it can be chosen by ALPN and on its own ports only
    alpn      its names in the TLS handshake, which its ports and the shared ones offer
    servers   the servers whose ports it shares, by name (`Caller.server`); none for ports of its own only
    """

    name: str
    prefixes: Sequence[bytes] = ()
    alpn: Sequence[str] = ()
    servers: frozenset[str] = frozenset({BROKER})

    @abstractmethod
    async def serve(self, connection: ProtocolConnection) -> None:
        """Serve one connection until `receive` returns nothing. Afterwards the server sends the answers that
        are still owed, and closes it. ProtocolError closes the connection with a log line. Cancelled: the
        connection has ended."""


def check_prefixes(protocol: WireProtocol) -> None:
    """Refuse prefixes that remoting or TLS begins with, too. Raises PluginError."""
    for prefix in protocol.prefixes:
        if not 0 < len(prefix) <= MAX_PREFIX_BYTES:
            why = f"1 to {MAX_PREFIX_BYTES} bytes are allowed"
        elif int.from_bytes(prefix[:4].ljust(4, b"\0")) < MAX_FRAME_BYTES:
            why = "a frame of remoting may begin so"
        elif prefix.startswith(b"\x16"):
            why = "a TLS handshake begins so; name the protocol in alpn"
        else:
            continue
        raise PluginError(f"protocol {protocol.name!r} cannot be chosen by the first bytes {prefix!r}: {why}")


def check_together(protocols: Sequence[WireProtocol]) -> None:
    """Refuse protocols that the first bytes or an ALPN name cannot tell apart. Raises PluginError."""
    for at, one in enumerate(protocols):
        for other in protocols[:at]:
            if not one.servers & other.servers:
                continue
            for prefix in one.prefixes:
                if prefix.startswith(tuple(other.prefixes)) or any(
                    each.startswith(prefix) for each in other.prefixes
                ):
                    raise PluginError(
                        f"the protocols {other.name!r} and {one.name!r} both begin with {prefix!r}; name the"
                        " plugin of one of them in disabledPlugins"
                    )
            for name in {*one.alpn} & {*other.alpn}:
                raise PluginError(
                    f"the protocols {other.name!r} and {one.name!r} both have the ALPN name {name!r}; name"
                    " the plugin of one of them in disabledPlugins"
                )


__all__ = ["ProtocolConnection", "Recipient", "WireProtocol", "check_prefixes", "check_together"]
