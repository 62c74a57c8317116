"""A simulated network: streams between machines, which are slow, cut, or end when a process does.

Bytes are not lost, as with TCP: what was sent while a direction is cut arrives afterwards. A connection to a
machine without power stays silent, until the machine is on again and refuses what it does not know.
"""

from __future__ import annotations

import errno
import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

import anyio
import anyio.abc
import trio
from attrs import define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Address, ServerStream, Transport
from tests.sim.clusters.machine import Machine, Process

SCHEME = "sim"
#: Of one direction: what was sent and not read.
CAPACITY_BYTES = 256 * 1024
_RECEIVE_BYTES = 65_536
_AFTER_CUT_S = 0.05


class Network:
    """All connections, and what is on its way. `slow` is the share of packets that are late."""

    def __init__(self, chance: random.Random) -> None:
        self.slow = 0.0
        self.machines: dict[str, Machine] = {}
        self.listeners: dict[tuple[str, int], Listener] = {}
        self._chance = chance
        self._cuts: dict[tuple[str, str], float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self._earlier = trio.Event()

    def machine(self, name: str, host: str) -> Machine:
        """A machine of the network."""
        self.machines[host] = Machine(name, host)
        return self.machines[host]

    def cut(self, source: str, target: str, until_s: float) -> None:
        """Nothing arrives in this direction until then; names of machines."""
        self._cuts[source, target] = until_s

    def cut_until(self, source: str, target: str) -> float:
        return self._cuts.get((source, target), -inf)

    def mend(self) -> None:
        """End all cuts."""
        self._cuts.clear()

    def delay_s(self) -> float:
        if self._chance.random() < self.slow:
            return self._chance.uniform(0.01, 0.5)
        return self._chance.uniform(0.0002, 0.002)

    # What happens later.

    def at(self, moment_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_s, next(self._numbers), work))
        if self._events[0][0] == moment_s:
            self._earlier.set()

    async def run(self) -> None:
        """Let happen what is due, until cancelled."""
        while True:
            self._earlier = trio.Event()
            while self._events and self._events[0][0] <= trio.current_time():
                heapq.heappop(self._events)[2]()
            with trio.move_on_at(self._events[0][0] if self._events else inf):
                await self._earlier.wait()

    def carry(self, source: str, target: str, work: Callable[[], None]) -> None:
        """Let something happen at the other machine, once it has come there."""

        def arrive() -> None:
            until_s = self.cut_until(source, target)
            if until_s > trio.current_time():
                self.at(until_s + _AFTER_CUT_S, arrive)
            else:
                work()

        self.at(trio.current_time() + self.delay_s(), arrive)

    async def connect(self, process: Process, address: Address, timeout_ms: int) -> ClientStream:
        """Raises OSError, TimeoutError."""
        answered, found = trio.Event(), list[Connection]()
        source, target = process.machine, self.machines[address.host]
        is_waiting = True

        def arrive() -> None:
            if not (target.is_on and is_waiting):
                return
            listener = self.listeners.get((address.host, address.port))
            if listener is not None:
                found.append(listener.open(process, next(self._numbers)))
            self.carry(target.name, source.name, answered.set)

        self.carry(source.name, target.name, arrive)
        with anyio.fail_after(timeout_ms / 1000):
            try:
                await answered.wait()
            except trio.Cancelled:
                is_waiting = False
                for each in found:
                    each.close()
                raise
        if not found:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address}")
        return ClientStream(found[0])


class Wire:
    """One direction of a connection, from a process to another one.

    is_ended       the writer sends no more
    is_closed      the writer may not send
    is_broken      the writer has learned that nobody reads
    is_finished    the reader has everything, and its end
    reader_closed  the reader reads no more
    """

    def __init__(self, network: Network, source: Process, target: Process) -> None:
        self._network = network
        self._ends = source, target
        self._moving: deque[bytes | None] = deque()
        self._moving_bytes = 0
        self._data = bytearray()
        self._is_moving = False
        self._changed = trio.lowlevel.ParkingLot()
        self.is_ended = self.is_closed = self.is_broken = self.reader_closed = False
        self.is_finished = False

    # The writer.

    def send_now(self, data: Buffer) -> int:
        """Raises ClosedResourceError, BrokenResourceError."""
        if self.is_closed or self.is_ended:
            raise trio.ClosedResourceError("this end was closed")
        if self.is_broken:
            raise trio.BrokenResourceError("the other end was closed")
        size = min(len(data), CAPACITY_BYTES - self._moving_bytes - len(self._data))
        if size > 0:
            self._push(bytes(memoryview(data)[:size]))
        return max(0, size)

    async def send(self, data: Buffer | bytearray) -> None:
        rest = memoryview(data)
        while True:
            rest = rest[self.send_now(rest) :]
            if not rest:
                return
            await self._changed.park()

    async def wait_for_room(self) -> None:
        while (
            not (self.is_closed or self.is_broken) and self._moving_bytes + len(self._data) >= CAPACITY_BYTES
        ):
            await self._changed.park()

    def end(self) -> None:
        """The writer sends no more."""
        if not self.is_ended:
            self.is_ended = True
            self._push(None)

    def _push(self, piece: bytes | None) -> None:
        if not self._ends[0].machine.is_on:
            return
        self._moving.append(piece)
        self._moving_bytes += len(piece or b"")
        if not self._is_moving:
            self._move()

    def _move(self) -> None:
        """Bring the next piece to the reader."""
        self._is_moving = bool(self._moving)
        if self._is_moving:
            source, target = self._ends
            self._network.carry(source.machine.name, target.machine.name, self._arrive)

    def _arrive(self) -> None:
        source, target = self._ends
        piece = self._moving.popleft()
        self._moving_bytes -= len(piece or b"")
        if not target.machine.is_on:
            self._moving.clear()
        elif self.reader_closed or target.is_dead:
            if piece is not None:
                self._network.carry(target.machine.name, source.machine.name, self._break)
        elif piece is None:
            self.is_finished = True
        else:
            self._data += piece
        self._changed.unpark_all()
        self._move()

    def _break(self) -> None:
        self.is_broken = True
        self._changed.unpark_all()

    # The reader.

    async def receive(self, max_bytes: int) -> bytes:
        """Empty at the end. Raises ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        while not self._data:
            if self.reader_closed:
                raise trio.ClosedResourceError("this end was closed")
            if self.is_finished:
                return b""
            await self._changed.park()
        piece = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        self._changed.unpark_all()
        return piece

    def close_reader(self) -> None:
        self.reader_closed = True
        self._data.clear()
        self._changed.unpark_all()

    def close_writer(self) -> None:
        self.end()
        self.is_closed = True
        self._changed.unpark_all()


@define(eq=False)
class Connection:
    """Both directions, as one end sees them."""

    incoming: Wire
    outgoing: Wire

    def close(self) -> None:
        self.outgoing.close_writer()
        self.incoming.close_reader()

    @property
    def other(self) -> Connection:
        return Connection(self.outgoing, self.incoming)


class AcceptedStream(ServerStream):
    """The end of the server."""

    def __init__(self, connection: Connection, remote: tuple[str, int], local: tuple[str, int]) -> None:
        self._connection = connection
        self.remote = remote
        self.local = local

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self._connection.incoming.receive(max_bytes or _RECEIVE_BYTES)
        if not data and self._connection.outgoing.is_broken:
            raise trio.BrokenResourceError("the connection was reset")
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        await self._connection.outgoing.send(data)

    def send_now(self, data: Buffer) -> int:
        return self._connection.outgoing.send_now(data)

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        await self.send_all(b"".join(parts))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        await self._connection.outgoing.wait_for_room()

    async def aclose(self) -> None:
        self._connection.close()
        await trio.lowlevel.checkpoint()


class ClientStream(anyio.abc.ByteStream):
    """The end of the client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def receive(self, max_bytes: int = _RECEIVE_BYTES) -> bytes:
        try:
            data = await self._connection.incoming.receive(max_bytes)
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await trio.lowlevel.checkpoint()
        try:
            await self._connection.outgoing.send(item)
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        self._connection.outgoing.end()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._connection.close()
        await trio.lowlevel.checkpoint()


class Listener(trio.abc.Listener[ServerStream]):
    """Takes connections also while its process is suspended, like an operating system."""

    def __init__(self, network: Network, process: Process, address: Address) -> None:
        self.address = address
        self._network = network
        self._process = process
        self._connections = list[Connection]()
        self._arriving, self._accepting = trio.open_memory_channel[ServerStream](10_000)
        process.on_death.append(self._die)

    def open(self, client: Process, port: int) -> Connection:
        """A connection that waits to be accepted; returns the client's end."""
        own = Connection(
            Wire(self._network, client, self._process), Wire(self._network, self._process, client)
        )
        remote = client.machine.host, 1024 + port % 60_000
        self._connections = [each for each in self._connections if not each.outgoing.is_closed]
        self._connections.append(own)
        client.on_death.append(own.other.close)
        self._arriving.send_nowait(AcceptedStream(own, remote, (self.address.host, self.address.port)))
        return own.other

    def _die(self) -> None:
        self._forget()
        for each in self._connections:
            each.close()

    def _forget(self) -> None:
        place = self.address.host, self.address.port
        if self._network.listeners.get(place) is self:
            del self._network.listeners[place]

    async def accept(self) -> ServerStream:
        return await self._accepting.receive()

    async def aclose(self) -> None:
        self._forget()
        await self._accepting.aclose()


class SimulatedTransport(Transport):
    """Scheme `sim`, for the program of one process."""

    scheme = SCHEME
    needs_port = True

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        await trio.lowlevel.checkpoint()
        place = address.host, address.port
        if place in self._network.listeners:
            raise OSError(errno.EADDRINUSE, "another process has that address")
        found = self._network.listeners[place] = Listener(self._network, self._process, address)
        return [found]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        return await self._network.connect(self._process, address, timeout_ms)

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        assert isinstance(listener, Listener)
        return listener.address


@define
class TransportPlugin:
    """Registers the scheme for the program of one process."""

    network: Network
    process: Process

    @hookimpl
    def rmqkit_register_transports(self, register: Register[Transport], config: Config) -> None:
        register(SCHEME, SimulatedTransport(self.network, self.process))
