"""One QUIC connection in an event loop, between datagrams and timers on one side and lanes on the other. Used
by servers and clients.

A connection has three phases. HANDSHAKE has a time limit. OPEN lasts while there are lanes; on a server it
lasts a while longer, to wait for new ones. LEAVING waits briefly for the acknowledgement of sent data, then
closes. Only `run`, which serves the timers, waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Protocol

import anyio
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.tls import AlertDescription

from rmqkit.model.buffer import Buffer
from rmqkit_transport_quic.lane import Errors, Lane
from rmqkit_transport_quic.limits import QUIC_EMPTY_TIMEOUT_MS, QUIC_HANDSHAKE_TIMEOUT_MS, QUIC_LINGER_MS
from rmqkit_transport_quic.machine import Machine, alert_of

_log = logging.getLogger(__name__)
#: A port reported as closed is accepted as closed when the peer does not answer within this time.
_DOUBT_S = 1.0
#: Number of pings within the time after which the peer considers this end dead.
_PINGS_PER_IDLE_TIMEOUT = 3
_REASON_LIMIT = 200
#: Minimum delay of a timer.
_TICK_S = 0.0001


class Phase(Enum):
    HANDSHAKE = "HANDSHAKE"
    OPEN = "OPEN"
    LEAVING = "LEAVING"


class Owner(Protocol):
    """The endpoint to which a carrier belongs."""

    def transmit(self, datagrams: list[tuple[bytes, NetworkAddress]]) -> None:
        """Send datagrams now, or lose them."""

    def route(self, connection_id: bytes, carrier: Carrier) -> None:
        """Deliver datagrams with this connection id to the carrier."""

    def unroute(self, connection_id: bytes) -> None:
        """Stop delivering datagrams with this connection id."""

    def admit(self, carrier: Carrier) -> str | None:
        """Called when the handshake is complete. Returns the reason to reject the peer, or None."""

    @property
    def takes_lanes(self) -> bool:
        """Whether the peer may open lanes now."""

    def opened_lane(self, carrier: Carrier, lane: Lane) -> None:
        """Called when the peer has sent the first bytes of a lane."""

    def ended(self, carrier: Carrier) -> None:
        """Called when the connection is ending; lanes have been informed."""

    def over(self, carrier: Carrier) -> None:
        """Called when nothing more will be sent or received."""


class Carrier:
    """One connection. A client keeps it alive by pings while it has lanes; a server ends a connection that
    has had none for too long."""

    def __init__(self, machine: Machine, owner: Owner, errors: Errors, *, is_client: bool) -> None:
        self.machine = machine
        self.phase = Phase.HANDSHAKE
        #: Set when the handshake has succeeded or failed.
        self.decided = anyio.Event()
        #: The reason of the end, None while the connection is alive.
        self.why: str | None = None
        self.lanes: dict[int, Lane] = {}
        self._owner = owner
        self._errors = errors
        self._is_client = is_client
        self._heard = False
        self._leaving_lanes: set[int] = set()
        self._finished = False
        now = anyio.current_time()
        self._deadline = now + QUIC_HANDSHAKE_TIMEOUT_MS / 1000
        self._ping_at = self._doubt_at = inf
        self._alarm = anyio.CancelScope()
        self._alarm_at = self._deadline

    # --- methods for the endpoint ---------------------------------------------------------------------------

    def received(self, data: bytes, address: NetworkAddress, now: float) -> None:
        """Process a datagram for this connection; `settle` must be called after the last one of a pass."""
        if self._finished:
            return
        self._doubt_at = inf
        self._heard = True
        try:
            self.machine.receive_datagram(data, address, now)
        except Exception:  # noqa: BLE001 - what a stranger's bytes do to one connection must not reach the others
            _log.exception("QUIC connection with %s failed", address)
            self.abandon("an internal error of QUIC")

    def refused(self, now: float) -> None:
        """Handle the operating system's report that no process listens at the peer's port. The report may be
        forged, so the peer is queried."""
        if self._doubt_at == inf and not self._finished:
            self._doubt_at = now + _DOUBT_S
            self.machine.send_ping(0)
            self.settle(now)

    def settle(self, now: float) -> None:
        """Act on received data, send pending data and set the timer. Must be called after every change."""
        if self._finished:
            return
        try:
            while (event := self.machine.next_event()) is not None:
                self._on_event(event, now)
            if self.phase is Phase.LEAVING and all(map(self.machine.is_delivered, self._leaving_lanes)):
                self.machine.close(QuicErrorCode.NO_ERROR)
            datagrams = self.machine.datagrams_to_send(now)
        except Exception:  # noqa: BLE001 - as in `received`
            _log.exception("QUIC connection failed")
            self.abandon("an internal error of QUIC")
            return
        if datagrams:
            self._owner.transmit(datagrams)
        if self._leaving_lanes:
            self._leaving_lanes = set(filter(self.machine.knows, self._leaving_lanes))
        for lane in self.lanes.values():
            lane.left()
        ending = self.machine.ending
        if ending is not None and self.why is None:
            self._tell(
                described(ending),
                orderly=ending.frame_type is None and ending.error_code == QuicErrorCode.NO_ERROR,
            )
        if self.machine.over:
            self._finish()
        elif not self._finished:
            self._arm(now)

    def leave(self, now: float) -> None:
        """Close when the peer has acknowledged the sent data or after a short time; open lanes are cut."""
        if self.phase is not Phase.LEAVING and self.why is None:
            self.phase = Phase.LEAVING
            self._deadline = now + QUIC_LINGER_MS / 1000
            for lane in list(self.lanes.values()):
                lane.close()
            self.settle(now)

    def cut(self, now: float) -> None:
        """Close at once with a closing message; unacknowledged data may be lost."""
        if self.why is None:
            self.machine.close(QuicErrorCode.NO_ERROR)
            self.settle(now)

    def abandon(self, why: str) -> None:
        """Close without a closing message."""
        if not self._finished:
            self._tell(why, orderly=False)
            self._finish()

    async def run(self) -> None:
        """Serve the timers until the connection is over. When cancelled, the connection is cut."""
        try:
            while not self._finished:
                with anyio.CancelScope(deadline=self._alarm_at) as self._alarm:
                    await anyio.sleep_forever()
                now = anyio.current_time()
                if not self._finished and now >= self._alarm_at:
                    self._on_time(now)
        finally:
            self.cut(anyio.current_time())
            self.abandon("the task of the connection was cancelled")

    # --- lanes ----------------------------------------------------------------------------------------------

    def open_lane(self) -> Lane:
        """Open a lane. The peer learns of it with its first byte. Raises the lanes' broken error when the
        connection has ended."""
        if self.why is not None or self.phase is not Phase.OPEN:
            raise self._errors.broken(self.why or "the connection is being closed")
        stream_id = self.machine.get_next_available_stream_id()
        self.machine.send_stream_data(stream_id, b"")
        return self._add_lane(stream_id)

    def _add_lane(self, stream_id: int) -> Lane:
        lane = self.lanes[stream_id] = Lane(self, stream_id, self._errors)
        self.machine.read_bytes[stream_id] = 0
        self._deadline = inf
        return lane

    def wrote(self, lane: Lane, data: Buffer, end: bool = False) -> None:
        lane.written += len(data)
        self.machine.send_stream_data(lane.stream_id, data, end)  # type: ignore[arg-type]

    def flush(self) -> None:
        self.settle(anyio.current_time())

    def unsent_bytes(self, lane: Lane) -> int:
        return self.machine.unsent_bytes(lane.stream_id, lane.written)

    def took(self, lane: Lane) -> None:
        self.machine.read_bytes[lane.stream_id] = lane.read
        if self.machine.owes_window(lane.stream_id):
            self.settle(anyio.current_time())

    def closed_lane(self, lane: Lane) -> None:
        self.lanes.pop(lane.stream_id, None)
        self.machine.read_bytes.pop(lane.stream_id, None)
        if self.why is not None:
            return
        # The peer need not be told about an unused lane if the connection ends with it.
        unused = self._is_client and not lane.written and not self.lanes
        if self.machine.knows(lane.stream_id) and not unused:
            self._leaving_lanes.add(lane.stream_id)
            lane.end_sending()
            if not lane.ended_receiving:
                self.machine.stop_stream(lane.stream_id, QuicErrorCode.NO_ERROR)
        now = anyio.current_time()
        if not self.lanes and self.phase is Phase.OPEN:
            self._without_lanes(now)
        self.settle(now)

    def _without_lanes(self, now: float) -> None:
        """Without lanes, a client closes the connection; a server leaves that to the client for a limited
        time."""
        if self._is_client:
            self.leave(now)
        else:
            self._deadline = now + QUIC_EMPTY_TIMEOUT_MS / 1000

    # --- events ---------------------------------------------------------------------------------------------

    def _on_event(self, event: QuicEvent, now: float) -> None:
        match event:
            case StreamDataReceived():
                self._on_data(event)
            case StreamReset():
                self._with_lane(event.stream_id, lambda lane: lane.no_more_reading("the peer cut this lane"))
            case StopSendingReceived():
                self._with_lane(
                    event.stream_id, lambda lane: lane.no_more_writing("the peer closed this lane")
                )
            case HandshakeCompleted():
                self._on_handshake(now)
            case ConnectionIdIssued():
                self._owner.route(event.connection_id, self)
            case ConnectionIdRetired():
                self._owner.unroute(event.connection_id)

    def _on_data(self, event: StreamDataReceived) -> None:
        if self.phase is Phase.HANDSHAKE or self.why is not None:
            return
        lane = self.lanes.get(event.stream_id)
        if lane is None:
            if event.stream_id in self._leaving_lanes or self.phase is Phase.LEAVING:
                return
            if not self._owner.takes_lanes:
                self.machine.stop_stream(event.stream_id, QuicErrorCode.NO_ERROR)
                self.machine.reset_stream(event.stream_id, QuicErrorCode.NO_ERROR)
                return
            lane = self._add_lane(event.stream_id)
            self._owner.opened_lane(self, lane)
        lane.arrived(event.data, event.end_stream)

    def _with_lane(self, stream_id: int, tell: Callable[[Lane], None]) -> None:
        lane = self.lanes.get(stream_id)
        if lane is not None:
            tell(lane)

    def _on_handshake(self, now: float) -> None:
        why = self._owner.admit(self)
        if why is not None:
            # As if TLS had rejected it (RFC 9001, section 4.8).
            code = QuicErrorCode.CRYPTO_ERROR + AlertDescription.access_denied
            self.machine.close(code, frame_type=QuicFrameType.CRYPTO, reason_phrase=why)
            return
        self.phase = Phase.OPEN
        self._deadline = inf
        if not self._is_client:
            self._without_lanes(now)
        self.decided.set()

    def _tell(self, why: str, *, orderly: bool) -> None:
        if self.why is None:
            self.why = why
            for lane in list(self.lanes.values()):
                lane.no_more_reading(None if orderly else why)
                lane.no_more_writing(why)
            self.decided.set()
            self._owner.ended(self)

    def _finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._alarm.cancel()
            self._owner.over(self)

    # --- time -----------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        if self._is_client and self._heard and self.phase is Phase.OPEN:
            self._heard = False
            self._ping_at = now + self.machine.idle_timeout_s / _PINGS_PER_IDLE_TIMEOUT
        timer = self.machine.get_timer()
        # Because of rounding, a due timer may remain due.
        timer = inf if timer is None else max(timer, now + _TICK_S)
        self._alarm_at = min(timer, self._deadline, self._ping_at, self._doubt_at)
        # A later time is set when the present timer fires.
        if self._alarm_at < self._alarm.deadline:
            self._alarm.deadline = self._alarm_at

    def _on_time(self, now: float) -> None:
        timer = self.machine.get_timer()
        if timer is not None and now >= timer:
            self.machine.handle_timer(now)
        if now >= self._doubt_at:
            self.abandon("the peer's port is no longer in use")
        if now >= self._ping_at:
            self._ping_at = now + self.machine.idle_timeout_s / _PINGS_PER_IDLE_TIMEOUT
            self.machine.send_ping(0)
        if now >= self._deadline:
            self._on_deadline(now)
        self.settle(now)

    def _on_deadline(self, now: float) -> None:
        self._deadline = inf
        match self.phase:
            case Phase.HANDSHAKE:
                self.abandon(f"no handshake within {QUIC_HANDSHAKE_TIMEOUT_MS} ms")
            case Phase.OPEN:
                self.leave(now)
            case Phase.LEAVING:
                self.machine.close(QuicErrorCode.NO_ERROR)


def described(ending: ConnectionTerminated) -> str:
    """The ending in words; a reason given by the peer is shortened and quoted."""
    alert = alert_of(ending)
    reason = ending.reason_phrase[:_REASON_LIMIT].encode("unicode_escape").decode()
    if ending.error_code == QuicErrorCode.NO_ERROR:
        return "the connection was closed"
    if alert is not None:
        return f"TLS refused the connection: {alert.name}" + (f" ({reason})" if reason else "")
    try:
        name = QuicErrorCode(ending.error_code).name
    except ValueError:
        name = f"error {ending.error_code}"
    return (
        reason
        if reason == "Idle timeout"
        else f"QUIC ended the connection: {name}" + (f" ({reason})" if reason else "")
    )
