"""Connections of plugins' protocols: which protocol a connection speaks, and its way into the request
pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from rmqkit.errors import ConnectionLost, ProtocolError
from rmqkit.limits import MAX_PEERS_PER_CONNECTION, READ_CHUNK_BYTES
from rmqkit.log_limit import limited_logger
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.address import TransportInfo
from rmqkit.plugin.protocols import Recipient, WireProtocol
from rmqkit.plugin.request import Caller, Outcome, Peer, Ticket, Work, whole
from rmqkit.protocol.codes import FLAG_ONEWAY
from rmqkit.protocol.command import Command
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.value_frames import spoken
from rmqkit.remoting.admission import Entries
from rmqkit.remoting.answers import show
from rmqkit.remoting.served import Served
from rmqkit.remoting.socket_loop import socket_loop

_log = limited_logger(__name__)


class PortProtocols:
    """The protocols of one port: remoting and those that share it, or `alone` one of a plugin."""

    def __init__(self, sharing: Sequence[WireProtocol] = (), alone: WireProtocol | None = None) -> None:
        self._sharing = tuple(sharing)
        self._alone = alone
        self._by_alpn = {name: each for each in self._sharing for name in each.alpn}
        self._by_prefix = {prefix: each for each in self._sharing for prefix in each.prefixes}
        if alone is not None:
            self._by_prefix = dict.fromkeys(alone.prefixes, alone)
            self._by_alpn = dict.fromkeys(alone.alpn, alone)
        #: Whether remoting is all that the port takes.
        self.is_remoting = alone is None and not self._sharing

    @property
    def alpn(self) -> tuple[str, ...]:
        """The names that TLS listeners of the port offer."""
        return tuple(self._by_alpn)

    @property
    def names(self) -> str:
        """What the port takes, for log lines."""
        if self._alone is not None:
            return self._alone.name
        return " and ".join(["remoting", *(each.name for each in self._sharing)])

    def negotiated(self, alpn: str | None) -> WireProtocol | None:
        """The protocol that needs no look at the first bytes."""
        if self._alone is not None and not self._alone.prefixes:
            return self._alone
        return self._by_alpn.get(alpn) if alpn is not None else None

    def begun(self, first: bytes) -> tuple[bool, WireProtocol | None]:
        """Whether the first bytes decide, and the protocol; None for remoting. Raises ProtocolError when they
        are those of another protocol than the one of this port."""
        for prefix, protocol in self._by_prefix.items():
            if first.startswith(prefix):
                return True, protocol
        if any(prefix.startswith(first) for prefix in self._by_prefix):
            return False, None
        if self._alone is not None:
            found = spoken(first)
            what = f"it speaks {found}" if found else f"it begins with {first[:16]!r}"
            raise ProtocolError(f"{what}, and this port takes {self._alone.name}")
        return True, None


class Carrier(Protocol):
    """What carries a connection: the serving end that has accepted it."""

    core: ConnectionCore
    remote_host: bytes
    remote_text: str
    server: str
    attributes: dict[str, object]

    @property
    def transport(self) -> TransportInfo: ...

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end of the stream, or when the server drains."""

    def flush(self) -> None:
        """Send what is queued in `core`, at once or by a task."""

    async def uncongested(self) -> None:
        """Wait until the connection may take requests again."""

    def start(self, ticket: Ticket, work: Work) -> None:
        """Run work in a task of the connection."""

    def settle(self, ticket: Ticket, outcomes: Sequence[Outcome], peer: Served | None = None) -> None:
        """Send the answers to a ticket's requests, to a peer on the connection."""

    def close(self) -> None: ...


class OtherConnection:
    """`rmqkit.plugin.protocols.ProtocolConnection`.

    first      what has arrived already
    pipeline   serves commands of a peer, from a number on, and returns how far it came
    on_closed  called for each peer that ends
    """

    def __init__(
        self,
        carrier: Carrier,
        caller: Caller,
        protocol: WireProtocol,
        first: bytes,
        pipeline: Callable[[Served, Sequence[Command], int], int],
        on_closed: Callable[[Peer], None] | None,
    ) -> None:
        self.caller = caller
        self.protocol = protocol.name
        self.carrier = carrier
        self._first = first
        self._pipeline = pipeline
        self._on_closed = on_closed
        self._peers: set[Peer] = set()
        self._in_pipeline = False

    async def receive(self, max_bytes: int = READ_CHUNK_BYTES) -> bytes:
        await self.carrier.uncongested()
        if self._first:
            data, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return data
        return await self.carrier.receive(max_bytes)

    def send(self, *parts: Buffer) -> None:
        core = self.carrier.core
        if core.closed:
            return
        core.outgoing += [part for part in parts if len(part)]
        core.unsent_bytes += sum(map(len, parts))
        if not self._in_pipeline:
            self.carrier.flush()

    def peer(self, recipient: Recipient) -> Peer:
        if len(self._peers) >= MAX_PEERS_PER_CONNECTION:
            raise ProtocolError(f"more than {MAX_PEERS_PER_CONNECTION} clients on one connection")
        made = OtherPeer(self, recipient)
        self._peers.add(made)
        return made

    async def handle(self, peer: Peer, commands: Sequence[Command]) -> None:
        if not isinstance(peer, OtherPeer) or peer not in self._peers:
            raise ValueError("requests of a peer that is none of this connection, or was forgotten")
        at = 0
        while at < len(commands):
            at = self._pipeline(peer, commands, at)
            self.carrier.flush()
            await trio.lowlevel.checkpoint()
            await self.carrier.uncongested()

    def forget(self, peer: Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            if self._on_closed is not None:
                self._on_closed(peer)

    def end(self) -> None:
        """Forget all peers."""
        for peer in list(self._peers):
            self.forget(peer)

    def has(self, peer: Peer) -> bool:
        """Whether the peer has not ended."""
        return peer in self._peers

    def tell(self, act: Callable[[], bool | None]) -> bool:
        """Let a recipient send, which is the plugin's code; what it sends is queued. Returns False when it
        cannot, or has failed."""
        was, self._in_pipeline = self._in_pipeline, True
        try:
            return act() is not False
        except Exception:  # noqa: BLE001 - the plugin's fault costs this connection alone
            _log.exception(
                "the protocol %s failed to send to %s, the connection is closed",
                self.protocol,
                self.carrier.remote_text,
            )
            self.carrier.close()
            return False
        finally:
            self._in_pipeline = was


class OtherPeer(Served):
    """One client behind a connection of another protocol."""

    def __init__(self, connection: OtherConnection, recipient: Recipient) -> None:
        carrier = connection.carrier
        self.core = carrier.core
        self.remote_host, self.remote_text = carrier.remote_host, carrier.remote_text
        self.server, self.attributes = carrier.server, carrier.attributes
        self.protocol = connection.protocol
        #: Its requests may always be joined: they come from a task.
        self.loop_pass = socket_loop()
        self._connection = connection
        self._carrier = carrier
        self._recipient = recipient

    @property
    def transport(self) -> TransportInfo:
        return self._carrier.transport

    @property
    def closed(self) -> bool:
        return self.core.closed or not self._connection.has(self)

    def postpone(self, requests: Sequence[Command], *, held: bool = False) -> Ticket:
        if not held:
            self.core.in_flight += len(requests)
        return Ticket(requests, self, held)

    def answer_async(self, request: Command, work: Work) -> Ticket:
        ticket = self.postpone((request,))
        self._carrier.start(ticket, work)
        return ticket

    def settle(self, ticket: Ticket, outcomes: Sequence[Outcome]) -> None:
        self._carrier.settle(ticket, outcomes, self)

    def queue(self, requests: Sequence[Command], outcomes: Sequence[Outcome], hooks: Entries) -> None:
        if self.closed or not requests or requests[0].flag & FLAG_ONEWAY:
            return
        answered: list[Command] = []
        answers: list[Command] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if outcome is None or isinstance(outcome, Ticket):
                continue
            answered.append(request)
            try:
                answers.append(whole(outcome))
            except Exception as error:  # noqa: BLE001 - a processor's answer that is none becomes an error
                answers.append(error_answer(request, error))
        if answered:
            self._connection.tell(lambda: self._recipient.answer(answered, answers))
            if hooks:
                show(hooks, answered, answers, self)

    def answered(self) -> None:
        self._carrier.flush()

    def push(self, command: Command) -> bool:
        if self.closed or not self.core.has_room:
            return False
        self.core.oneway(command)
        return self._push(command)

    def _push(self, command: Command) -> bool:
        sent = self._connection.tell(lambda: self._recipient.push(command))
        self._carrier.flush()
        return sent

    async def call(self, command: Command, timeout_ms: int) -> Command:
        if self.closed:
            raise ConnectionLost(self.remote_text)
        done = trio.Event()
        call = self.core.call(command, timeout_ms, trio.current_time(), done.set)
        try:
            if not self._push(command):
                raise ConnectionLost(
                    self.remote_text, f"the protocol {self.protocol} carries no requests of a server"
                )
            with trio.move_on_at(call.deadline):
                await done.wait()
        finally:
            self.core.forget(call)
        return self.core.result(call)

    def close(self) -> None:
        self._carrier.close()


__all__ = ["Carrier", "OtherConnection", "OtherPeer", "PortProtocols"]
