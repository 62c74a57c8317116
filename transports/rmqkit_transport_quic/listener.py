"""The server's end: one UDP socket, its connections by connection id, and the lanes that clients open.

Datagrams of strangers cost little: those that do not begin a handshake are dropped unread, and those that
cannot be decrypted leave no state.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial

import trio
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.packet import QuicHeader, pull_quic_header

from rmqkit.config import Config
from rmqkit.config.tls import NO_CLIENT_CERTIFICATE, REQUIRE, client_auth
from rmqkit.plugin.transport import Address, ServerStream, WorkingListener
from rmqkit.toolkit.certificate_files import CertificateFiles
from rmqkit_transport_quic.carrier import Carrier
from rmqkit_transport_quic.credentials import ServerCredentials, client_fault, for_peer, server_credentials
from rmqkit_transport_quic.gate import Begin, Gate
from rmqkit_transport_quic.lane import SERVER_ERRORS, Lane, QuicServerStream
from rmqkit_transport_quic.limits import MAX_LANES_PER_QUIC_CONNECTION
from rmqkit_transport_quic.machine import Machine
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.udp import Datagrams, Network

_log = logging.getLogger(__name__)
_LONG_HEADER = 0x80


class QuicListener(WorkingListener):
    """Accepts lanes; `run` processes the datagrams and watches the certificate's files.

    client_certificate  whether clients must send one (`rmqkit.config.tls.client_auth`)
    settings            when addresses are validated first, and the size of datagrams
    """

    def __init__(
        self,
        udp: Datagrams,
        files: CertificateFiles[ServerCredentials],
        *,
        client_certificate: str,
        settings: QuicSettings,
    ) -> None:
        self.local = udp.local
        #: The connections, each with the connection ids that clients may use for it.
        self.routes: dict[Carrier, set[bytes]] = {}
        #: The connections whose handshake is in progress.
        self.handshakes: set[Carrier] = set()
        self._carriers: dict[bytes, Carrier] = {}
        self._socket = udp
        self._files = files
        self._gate = Gate(files.made.configuration.supported_versions, settings.retry)
        self._settings = settings
        self._id_bytes = files.made.configuration.connection_id_length
        self._client_certificate = client_certificate
        self._lanes: deque[QuicServerStream] = deque()
        self._arrival = trio.Event()
        self._ending = trio.Event()
        self._closed = False
        self._running = trio.Lock()
        self._nursery: trio.Nursery | None = None

    # --- methods of a listener ------------------------------------------------------------------------------

    async def accept(self) -> ServerStream:
        await trio.lowlevel.checkpoint()
        while not self._lanes:
            if self._closed:
                raise trio.ClosedResourceError("this listener was closed")
            await self._arrival.wait()
        return self._lanes.popleft()

    async def aclose(self) -> None:
        """Accept no new connections and lanes. Accepted lanes stay open while `run` is running; connections
        without lanes are ended."""
        self._closed = True
        self._arrival = _rung(self._arrival)
        while self._lanes:
            self._lanes.popleft().lane.close()
        now = trio.current_time()
        for carrier in list(self.routes):
            if not carrier.lanes:
                carrier.leave(now)
        if self._nursery is None:
            self._socket.close()
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Process datagrams until cancelled. Then close all connections; unacknowledged data gets
        QUIC_LINGER_MS.

        If several tasks call it, the first one does the work and the others wait.
        """
        async with self._running:
            work = trio.CancelScope(shield=True)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._work, work)
                    try:
                        await trio.sleep_forever()
                    finally:
                        with trio.CancelScope(shield=True):
                            await self._goodbye()
                        work.cancel()
            finally:
                self._socket.close()

    async def _work(self, scope: trio.CancelScope) -> None:
        """Shielded, so that a cancelled listener closes its connections first; `scope` ends it."""
        with scope:
            try:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._files.watch)
                    if not self._socket.closed:
                        await self._move()
            finally:
                self._nursery = None

    async def _goodbye(self) -> None:
        await self.aclose()
        now = trio.current_time()
        for carrier in list(self.routes):
            carrier.leave(now)
        while any(carrier.why is None for carrier in self.routes):
            await self._ending.wait()

    # --- methods called by carriers -------------------------------------------------------------------------

    def transmit(self, datagrams: list[tuple[bytes, NetworkAddress]]) -> None:
        self._socket.send(datagrams)

    def route(self, connection_id: bytes, carrier: Carrier) -> None:
        self._carriers[connection_id] = carrier
        self.routes[carrier].add(connection_id)

    def unroute(self, connection_id: bytes) -> None:
        carrier = self._carriers.pop(connection_id, None)
        if carrier is not None:
            self.routes[carrier].discard(connection_id)

    def admit(self, carrier: Carrier) -> str | None:
        self.handshakes.discard(carrier)
        if self._client_certificate == NO_CLIENT_CERTIFICATE:
            return None
        shown = carrier.machine.peer_certificates
        if shown:
            return client_fault(shown, self._files.made.trusted)
        return "a client certificate is required" if self._client_certificate == REQUIRE else None

    @property
    def takes_lanes(self) -> bool:
        return not self._closed

    def opened_lane(self, carrier: Carrier, lane: Lane) -> None:
        remote = carrier.machine.get_peer_address()
        assert remote is not None
        self._lanes.append(QuicServerStream(lane, remote[:2], self.local, carrier.machine.certificate))
        self._arrival = _rung(self._arrival)

    def ended(self, carrier: Carrier) -> None:
        self.handshakes.discard(carrier)
        self._ending = _rung(self._ending)
        _log.debug("QUIC connection with %s ended: %s", carrier.machine.get_peer_address(), carrier.why)

    def over(self, carrier: Carrier) -> None:
        for connection_id in self.routes.pop(carrier, ()):
            del self._carriers[connection_id]

    # --- datagrams ------------------------------------------------------------------------------------------

    async def _move(self) -> None:
        while True:
            await self._socket.wait()
            now = trio.current_time()
            touched: dict[Carrier, None] = {}
            for data, address in self._socket.receive()[0]:
                carrier = self._deliver(data, address, now)
                if carrier is not None:
                    touched[carrier] = None
            for carrier in touched:
                carrier.settle(now)

    def _deliver(self, data: bytes, address: NetworkAddress, now: float) -> Carrier | None:
        if data and not data[0] & _LONG_HEADER:
            carrier = self._carriers.get(data[1 : 1 + self._id_bytes])
        else:
            try:
                header = pull_quic_header(Buffer(data=data), host_cid_length=self._id_bytes)
            except ValueError:
                return None
            carrier = self._carriers.get(header.destination_cid)
            if carrier is None:
                return self._stranger(header, data, address, now)
        if carrier is not None:
            carrier.received(data, address, now)
        return carrier

    def _stranger(
        self, header: QuicHeader, data: bytes, address: NetworkAddress, now: float
    ) -> Carrier | None:
        if self._closed or self._nursery is None:
            return None
        decision = self._gate.decide(
            header, len(data), address, now, connections=len(self.routes), handshakes=len(self.handshakes)
        )
        if isinstance(decision, bytes):
            self.transmit([(decision, address)])
        if not isinstance(decision, Begin):
            return None
        machine = Machine(
            for_peer(self._files.made.configuration, self._settings, address),
            peer_lanes=MAX_LANES_PER_QUIC_CONNECTION,
            ask_certificate=self._client_certificate != NO_CLIENT_CERTIFICATE,
            original_destination_connection_id=decision.original_id,
            retry_source_connection_id=decision.retry_id,
        )
        carrier = Carrier(machine, self, SERVER_ERRORS, is_client=False)
        self.routes[carrier] = set()
        carrier.received(data, address, now)
        if not machine.began:
            carrier.abandon("its first datagram does not decrypt")
            return None
        self.route(header.destination_cid, carrier)
        self.route(machine.host_cid, carrier)
        self.handshakes.add(carrier)
        self._nursery.start_soon(carrier.run)
        return carrier


async def listen(address: Address, config: Config, settings: QuicSettings, network: Network) -> QuicListener:
    """A listener bound at the first address of the host. Raises OSError, ConfigError (certificates)."""
    files = CertificateFiles(config, str(address), partial(server_credentials, settings))
    return QuicListener(
        await network.bind(address), files, client_certificate=client_auth(config), settings=settings
    )


def _rung(bell: trio.Event) -> trio.Event:
    """Wake all waiting tasks, and return a new event."""
    bell.set()
    return trio.Event()
