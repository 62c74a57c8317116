"""The client's end: a UDP socket with one connection on it, and the lanes of it.

Nobody gives a client's connect a place for tasks, and a connection must go on acknowledging and sending again while its owner does something else. So
it has a task of the loop itself, as the operating system's kernel would do it: a trio system task, or a task of asyncio.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import anyio.abc
import trio
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress
from aioquic.tls import AlertDescription

from rmqkit.abc import Address, LanedStream
from rmqkit.config import Config
from rmqkit.remoting.certificate_files import CertificateFiles, client_files
from rmqkit_transport_quic.carrier import Carrier
from rmqkit_transport_quic.credentials import client_configuration
from rmqkit_transport_quic.lane import CLIENT_ERRORS, Lane
from rmqkit_transport_quic.machine import Machine, alert_of
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.udp import Datagrams, Network

_log = logging.getLogger(__name__)
#: asyncio keeps no reference to its tasks.
_tasks: set[asyncio.Task[None]] = set()


class QuicStream(LanedStream):
    """A lane that this client opened. The connection ends with its last lane."""

    def __init__(self, carrier: Carrier, lane: Lane) -> None:
        self.lane = lane
        self._carrier = carrier

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        data = await self.lane.receive(max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await self.lane.send([item])

    async def send_eof(self) -> None:
        self.lane.end_sending()
        self._carrier.flush()
        await anyio.lowlevel.checkpoint()

    async def open_lane(self) -> QuicStream:
        await anyio.lowlevel.checkpoint()
        return QuicStream(self._carrier, self._carrier.open_lane())

    async def aclose(self) -> None:
        """Does not wait: the connection sees to it that what was sent arrives, as long as the loop runs and for QUIC_LINGER_MS at most."""
        self.lane.close()
        await anyio.lowlevel.checkpoint()


def client_credentials(config: Config, settings: QuicSettings) -> CertificateFiles[QuicConfiguration]:
    """What `dial` needs, made of the client's files. Raises ConfigError."""
    return CertificateFiles(config, "QUIC client", lambda config: client_configuration(config, settings, ""), client_files(config))


async def dial(address: Address, credentials: CertificateFiles[QuicConfiguration], network: Network) -> QuicStream:
    """A new connection with its first lane; the addresses of the host are tried in turn. Raises OSError. Cancelled: nothing stays open."""
    await credentials.look()
    configuration = replace(credentials.made, server_name=address.host.partition("%")[0])
    failure: OSError | None = None
    for target in await network.find(address):
        try:
            return await _dial(network.connect(target), target, Machine(configuration, peer_lanes=0))
        except OSError as error:
            failure = failure or error
    raise failure or OSError(f"no address of {address.host} is known")


async def _dial(udp: Datagrams, target: NetworkAddress, machine: Machine) -> QuicStream:
    endpoint = _Endpoint(udp, machine)
    try:
        endpoint.start(target)
        await endpoint.carrier.decided.wait()
        if endpoint.carrier.why is not None:
            raise _failure(endpoint)
        return QuicStream(endpoint.carrier, endpoint.carrier.open_lane())
    except BaseException:
        endpoint.cut()
        raise


def _failure(endpoint: _Endpoint) -> OSError:
    """Why there is no connection, and what to do about it."""
    why, ending = endpoint.carrier.why, endpoint.carrier.machine.ending
    if endpoint.refused or ending is None:
        return ConnectionRefusedError(why)
    # Only this end looks at a certificate before the handshake is complete.
    match alert_of(ending):
        case AlertDescription.certificate_expired:
            step = "the server needs a new certificate"
        case AlertDescription.bad_certificate if "doesn't match" in ending.reason_phrase:
            step = "reach it by a name that its certificate carries, or give it one that carries this name"
        case AlertDescription.bad_certificate:
            step = "name the certificate that signed the server's in tls.client.trustCertPath"
        case AlertDescription.no_application_protocol:
            step = "is that a RocketMQ server?"
        case _:
            return ConnectionAbortedError(why)
    return ConnectionAbortedError(f"{why}; {step}")


class _Endpoint:
    """The owner of a client's only carrier. Gone as soon as the connection is known to end: its descriptor is free at once."""

    takes_lanes = False

    def __init__(self, udp: Datagrams, machine: Machine) -> None:
        #: The operating system says that nobody listens at the port.
        self.refused = False
        self._udp = udp
        self._gone = anyio.Event()
        self.carrier = Carrier(machine, self, CLIENT_ERRORS, is_client=True)

    def start(self, target: NetworkAddress) -> None:
        now = anyio.current_time()
        self.carrier.machine.connect(target, now)
        self.carrier.settle(now)
        spawn(self._run)

    def cut(self) -> None:
        """End the connection, if it has not ended, and close the socket, now. Safe to call twice."""
        self.carrier.cut(anyio.current_time())
        self._gone.set()
        self._udp.close()
        self.carrier.abandon("the connection was cut")

    async def _run(self) -> None:
        """The connection's task. When trio ends, it stays until the peer has what was sent, for QUIC_LINGER_MS at most. asyncio cancels all tasks of a
        loop at once: there the connection is cut, with everything sent once, but nothing sent again that was lost."""
        work = anyio.CancelScope(shield=True)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._work, work)
                try:
                    await self._gone.wait()
                finally:
                    self.carrier.leave(anyio.current_time())
                    with anyio.CancelScope(shield=True):
                        await self._gone.wait()
                    work.cancel()
        except Exception:  # noqa: BLE001 - a system task that raises ends the whole program
            _log.exception("a QUIC connection failed")
        finally:
            self.cut()

    async def _work(self, scope: anyio.CancelScope) -> None:
        with scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self.carrier.run)
                await self._move()
                group.cancel_scope.cancel()

    async def _move(self) -> None:
        while not self._udp.closed:
            try:
                await self._udp.wait()
            except anyio.ClosedResourceError:
                return
            now = anyio.current_time()
            datagrams, refused = self._udp.receive()
            for data, address in datagrams:
                self.carrier.received(data, address, now)
            self.carrier.settle(now)
            if refused and self.carrier.decided.is_set():
                self.carrier.refused(now)
            elif refused:
                self.refused = True
                self.carrier.abandon("nobody listens there; has the server quic:// among its listeners?")

    # --- what the carrier says -----------------------------------------------------------------------------------------

    def transmit(self, datagrams: list[tuple[bytes, NetworkAddress]]) -> None:
        if not self._udp.closed:
            self._udp.send(datagrams)

    def admit(self, carrier: Carrier) -> str | None:
        return None

    def route(self, connection_id: bytes, carrier: Carrier) -> None:
        """All that arrives here is for the one carrier."""

    def unroute(self, connection_id: bytes) -> None:
        """As for `route`."""

    def opened_lane(self, carrier: Carrier, lane: Lane) -> None:
        raise AssertionError("a server cannot open lanes: it is told that it may open none")

    def ended(self, carrier: Carrier) -> None:
        self.cut()

    def over(self, carrier: Carrier) -> None:
        self.cut()


def spawn(run: Callable[[], Awaitable[None]]) -> None:
    """A task of the loop, which ends with it."""
    if trio.lowlevel.in_trio_run():
        trio.lowlevel.spawn_system_task(run)
        return
    task = asyncio.ensure_future(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
