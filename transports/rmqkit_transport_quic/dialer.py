"""The client's end: a UDP socket with one connection, and the lanes of the connection.

A client's connect has no task group, and a connection must acknowledge and retransmit while its owner does
something else, as the kernel does for TCP. So the connection has a task of the loop itself: a trio system
task, or an asyncio task.
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

from rmqkit.config import Config
from rmqkit.plugin.transport import Address, LanedStream
from rmqkit.toolkit.certificate_files import CertificateFiles, client_files
from rmqkit_transport_quic.carrier import Carrier
from rmqkit_transport_quic.credentials import client_configuration, for_peer
from rmqkit_transport_quic.lane import CLIENT_ERRORS, Lane
from rmqkit_transport_quic.machine import Machine, alert_of
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.udp import Datagrams, Network

_log = logging.getLogger(__name__)
#: asyncio keeps no strong references to its tasks.
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
        """Close without waiting: the connection completes the transmission of sent data, while the loop runs
        and for at most QUIC_LINGER_MS."""
        self.lane.close()
        await anyio.lowlevel.checkpoint()


def client_credentials(config: Config, settings: QuicSettings) -> CertificateFiles[QuicConfiguration]:
    """The client's credentials for `dial`, read from its files. Raises ConfigError."""
    return CertificateFiles(
        config, "QUIC client", lambda config: client_configuration(config, settings, ""), client_files(config)
    )


async def dial(
    address: Address,
    credentials: CertificateFiles[QuicConfiguration],
    settings: QuicSettings,
    network: Network,
) -> QuicStream:
    """A new connection with its first lane; the addresses of the host are tried in turn. Raises OSError. When
    cancelled, nothing stays open."""
    await credentials.look()
    configuration = replace(credentials.made, server_name=address.host.partition("%")[0])
    failure: OSError | None = None
    for target in await network.find(address):
        try:
            machine = Machine(for_peer(configuration, settings, target), peer_lanes=0)
            return await _dial(network.connect(target), target, machine)
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
    """The reason why there is no connection, with a remedy."""
    why, ending = endpoint.carrier.why, endpoint.carrier.machine.ending
    if endpoint.refused or ending is None:
        return ConnectionRefusedError(why)
    # Only the client checks a certificate before the handshake is complete.
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
    """The owner of a client's only carrier. Its descriptor is closed as soon as the connection is known to
    end."""

    takes_lanes = False

    def __init__(self, udp: Datagrams, machine: Machine) -> None:
        #: Whether the operating system has reported that no process listens at the port.
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
        """End the connection, if it has not ended, and close the socket, at once. May be called twice."""
        self.carrier.cut(anyio.current_time())
        self._gone.set()
        self._udp.close()
        self.carrier.abandon("the connection was cut")

    async def _run(self) -> None:
        """The connection's task. When trio ends, it stays until the peer has the sent data, for at most
        QUIC_LINGER_MS. asyncio cancels all tasks of a loop at once: there the connection is cut; all data was
        sent once, but lost datagrams are not retransmitted."""
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
                self.carrier.abandon("the port is not in use; add quic:// to the listeners of the server")

    # --- methods called by the carrier ----------------------------------------------------------------------

    def transmit(self, datagrams: list[tuple[bytes, NetworkAddress]]) -> None:
        if not self._udp.closed:
            self._udp.send(datagrams)

    def admit(self, carrier: Carrier) -> str | None:
        return None

    def route(self, connection_id: bytes, carrier: Carrier) -> None:
        """All datagrams that arrive here belong to the one carrier."""

    def unroute(self, connection_id: bytes) -> None:
        """Does nothing, as there is only one carrier (`route`)."""

    def opened_lane(self, carrier: Carrier, lane: Lane) -> None:
        raise AssertionError("a server cannot open lanes: its limit is zero")

    def ended(self, carrier: Carrier) -> None:
        self.cut()

    def over(self, carrier: Carrier) -> None:
        self.cut()


def spawn(run: Callable[[], Awaitable[None]]) -> None:
    """Start a task of the loop, which ends with the loop."""
    if trio.lowlevel.in_trio_run():
        trio.lowlevel.spawn_system_task(run)
        return
    task = asyncio.ensure_future(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
