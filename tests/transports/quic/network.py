"""A deterministic in-memory network for QUIC endpoints with configurable delay, loss and address changes, on
the test's clock."""

from __future__ import annotations

import errno
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any

import anyio
from attrs import define

from rmqkit.plugin.transport import Address
from rmqkit_transport_quic.udp import Datagram, Datagrams

Where = tuple[str, int]


@define
class Sent:
    """A datagram as it was sent."""

    at_s: float
    source: Where
    target: Where
    data: bytes


class FakeSocket(Datagrams):
    def __init__(self, network: FakeNetwork, local: Where, peer: Where | None = None) -> None:
        self.local = local
        self.refused = False
        self._network = network
        self._peer = peer
        self._inbox: list[tuple[float, int, bytes, Where]] = []
        self._changed = anyio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def wait(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            if self._closed:
                raise anyio.ClosedResourceError
            if self.refused or (self._inbox and self._inbox[0][0] <= anyio.current_time()):
                return
            with anyio.CancelScope(deadline=self._inbox[0][0] if self._inbox else inf):
                await self._changed.wait()

    def receive(self) -> tuple[list[Datagram], bool]:
        found: list[Datagram] = []
        while self._inbox and self._inbox[0][0] <= anyio.current_time():
            _, _, data, source = heappop(self._inbox)
            found.append((data, source))
        refused, self.refused = self.refused, False
        return found, refused

    def send(self, datagrams: list[Datagram]) -> None:
        for data, target in datagrams:
            self._network.carry(self, self._peer or target, data)

    def close(self) -> None:
        self._closed = True
        self._network.sockets.pop(self.local, None)
        self.wake()

    def arrive(self, at_s: float, number: int, data: bytes, source: Where) -> None:
        heappush(self._inbox, (at_s, number, data, source))
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class FakeNetwork:
    """`loss` is the probability that a datagram is lost, `delay_s` the one-way delay. `sent` contains all
    datagrams, lost or not."""

    def __init__(self, *, delay_s: float = 0.001, loss: float = 0.0, seed: int = 1) -> None:
        self.delay_s = delay_s
        self.loss = loss
        self.down = False
        self.sent: list[Sent] = []
        self.lost = 0
        self.sockets: dict[Where, FakeSocket] = {}
        self._random = Random(seed)
        #: The external addresses of endpoints behind an address translation, and the reverse mapping.
        self._outside: dict[Where, Where] = {}
        self._inside: dict[Where, Where] = {}
        self._ports = iter(range(40_000, 60_000))
        self._numbers = count()

    async def bind(self, address: Address) -> FakeSocket:
        where = (address.host, address.port or next(self._ports))
        if where in self.sockets:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return self._add(where, None)

    async def find(self, address: Address) -> list[Any]:
        return [(address.host, address.port)]

    def connect(self, target: Any) -> FakeSocket:
        return self._add(("10.0.0.1", next(self._ports)), target)

    def _add(self, local: Where, peer: Where | None) -> FakeSocket:
        sock = self.sockets[local] = FakeSocket(self, local, peer)
        return sock

    def client(self) -> FakeSocket:
        """The endpoint that connected last."""
        return [sock for (host, _), sock in self.sockets.items() if host == "10.0.0.1"][-1]

    def rebind(self, sock: FakeSocket) -> Where:
        """Give the endpoint another external port; its old one leads nowhere."""
        new = ("10.0.0.2", next(self._ports))
        self._inside = {
            outside: inside for outside, inside in self._inside.items() if inside != sock.local
        } | {new: sock.local}
        self._outside[sock.local] = new
        return new

    def carry(self, sender: FakeSocket, target: Where, data: bytes) -> None:
        source = self._outside.get(sender.local, sender.local)
        self.sent.append(Sent(anyio.current_time(), source, target, data))
        if self.down or self._random.random() < self.loss:
            self.lost += 1
            return
        self.inject(source, target, data)

    def inject(self, source: Where, target: Where, data: bytes) -> None:
        """Deliver a datagram with a forged source address."""
        translated = target in self._outside
        receiver = self.sockets.get(self._inside.get(target, target)) if not translated else None
        if receiver is not None:
            receiver.arrive(anyio.current_time() + self.delay_s, next(self._numbers), data, source)
        elif not translated and (sender := self.sockets.get(self._inside.get(source, source))) is not None:
            sender.refused = True
            sender.wake()
