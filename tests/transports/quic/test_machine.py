"""The used internals of aioquic behave as expected: windows follow the reader, and a driver gets the state it
needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from aioquic.quic.connection import NetworkAddress
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription
from attrs import define, field

from rmqkit_transport_quic.carrier import described
from rmqkit_transport_quic.credentials import client_configuration, server_credentials
from rmqkit_transport_quic.limits import QUIC_CONNECTION_WINDOW_BYTES, QUIC_LANE_WINDOW_BYTES
from rmqkit_transport_quic.machine import Machine, alert_of
from rmqkit_transport_quic.settings import QuicSettings
from tests.transports.quic import kit

CLIENT: NetworkAddress = ("10.0.0.1", 1)
SERVER: NetworkAddress = ("10.0.0.9", 2)
LANES = 8


@define
class Both:
    """Two machines without a network."""

    client: Machine
    server: Machine
    now: float = 0.0
    events: dict[Machine, list[QuicEvent]] = field(factory=dict)

    def exchange(self, rounds: int = 200) -> None:
        """Exchange datagrams until there are none, or for this many rounds; time passes."""
        for _ in range(rounds):
            self.now += 0.001
            quiet = True
            for sender, receiver, address in (
                (self.client, self.server, CLIENT),
                (self.server, self.client, SERVER),
            ):
                timer = sender.get_timer()
                if timer is not None and timer <= self.now:
                    sender.handle_timer(self.now)
                for data, _ in sender.datagrams_to_send(self.now):
                    quiet = False
                    receiver.receive_datagram(data, address, self.now)
                    self._take(receiver)
            if quiet and self.now > 1:
                return

    def _take(self, machine: Machine) -> None:
        while (event := machine.next_event()) is not None:
            self.events.setdefault(machine, []).append(event)
            if isinstance(event, StreamDataReceived):
                machine.read_bytes.setdefault(event.stream_id, 0)

    def arrived(self, stream_id: int) -> int:
        """Bytes of a stream received by the server."""
        found = (event for event in self.events.get(self.server, []) if isinstance(event, StreamDataReceived))
        return sum(len(event.data) for event in found if event.stream_id == stream_id)

    def read(self, stream_id: int, count: int) -> None:
        """Let the server's application read bytes."""
        self.server.read_bytes[stream_id] += count


@pytest.fixture
def both(tmp_path: Path) -> Both:
    config = kit.config(tmp_path)
    client = Machine(client_configuration(config, QuicSettings(), "localhost"), peer_lanes=0)
    client.connect(SERVER, 0.0)
    first = client.datagrams_to_send(0.0)[0][0]
    server = Machine(
        server_credentials(QuicSettings(), config).configuration,
        peer_lanes=LANES,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    assert not server.began
    server.receive_datagram(first, CLIENT, 0.0)
    assert server.began
    made = Both(client, server)
    made.exchange(20)
    return made


def test_a_window_follows_the_reader(both: Both) -> None:
    """Unread data never exceeds one window, and reading permits more, however much has passed."""
    both.client.send_stream_data(0, bytes(20 * QUIC_LANE_WINDOW_BYTES))
    for _ in range(12):
        both.exchange()
        unread = both.arrived(0) - both.server.read_bytes[0]
        assert QUIC_LANE_WINDOW_BYTES // 2 <= unread <= QUIC_LANE_WINDOW_BYTES
        assert not both.server.owes_window(0)
        assert both.client.unsent_bytes(
            0, 20 * QUIC_LANE_WINDOW_BYTES
        ) == 20 * QUIC_LANE_WINDOW_BYTES - both.arrived(0)
        both.read(0, unread)
        assert both.server.owes_window(0)
    assert both.arrived(0) > 6 * QUIC_LANE_WINDOW_BYTES


def test_all_lanes_share_a_window(both: Both) -> None:
    """Unread lanes stop together at the connection's window; what one lane gives back is available to the
    others."""
    for lane in range(LANES):
        both.client.send_stream_data(4 * lane, bytes(2 * QUIC_LANE_WINDOW_BYTES))
    both.exchange(400)
    assert sum(both.arrived(4 * lane) for lane in range(LANES)) == QUIC_CONNECTION_WINDOW_BYTES
    for lane in range(LANES):
        both.read(4 * lane, both.arrived(4 * lane))
    both.exchange(400)
    assert both.server.unread_bytes == QUIC_CONNECTION_WINDOW_BYTES


def test_what_lies_behind_a_gap_counts_as_unread(both: Both) -> None:
    """Memory is counted up to the highest byte received, also on unknown lanes, so the connection's window
    limits it."""
    both.client.send_stream_data(0, b"x")
    both.exchange(20)
    both.read(0, 1)
    before = both.server._local_max_data.value
    for lane in range(4):
        stream = both.client._get_or_create_stream_for_send(4 * lane)
        far = QUIC_LANE_WINDOW_BYTES - 1_000
        stream.sender._buffer_start = stream.sender._buffer_stop = far
        stream.sender.highest_offset = far
        both.client._remote_max_data += far
        both.client.send_stream_data(4 * lane, b"y")
    both.exchange(20)
    assert both.server.ending is None
    assert both.server.unread_bytes > 3.9 * (QUIC_LANE_WINDOW_BYTES - 1_000)
    assert both.arrived(4) == 0
    assert both.server._local_max_data.value == before


def test_a_peer_that_ignores_a_window_is_cut(both: Both) -> None:
    """The connection is closed with the reason."""
    both.client.send_stream_data(0, bytes(2 * QUIC_LANE_WINDOW_BYTES))
    both.exchange(20)
    both.client._streams[0].max_stream_data_remote *= 2
    both.exchange()
    assert both.server.ending is not None
    assert both.server.ending.error_code == QuicErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("stream_id", [4 * LANES, 2], ids=["one lane too many", "a lane in one direction"])
def test_a_peer_that_opens_too_much_is_cut(both: Both, stream_id: int) -> None:
    """At most eight bidirectional lanes are permitted, and no unidirectional ones."""
    both.client._remote_max_streams_bidi = both.client._remote_max_streams_uni = 100
    both.client._remote_max_stream_data_uni = 100
    both.client.send_stream_data(stream_id, b"x")
    both.exchange()
    assert both.server.ending is not None
    assert both.server.ending.error_code == QuicErrorCode.STREAM_LIMIT_ERROR


def test_a_server_opens_no_lanes(both: Both) -> None:
    """A server cannot open lanes."""
    both.server.send_stream_data(1, b"x")
    both.exchange()
    assert not any(isinstance(event, StreamDataReceived) for event in both.events.get(both.client, []))


def test_what_was_delivered_is_known(both: Both) -> None:
    """A lane is finished when the peer has acknowledged its end; then no state of it remains."""
    both.client.send_stream_data(0, bytes(5_000), end_stream=True)
    assert not both.client.is_delivered(0)
    both.exchange()
    assert both.client.is_delivered(0)
    assert both.client.knows(0)
    both.server.send_stream_data(0, b"", end_stream=True)
    both.exchange()
    assert not both.client.knows(0)
    assert both.client.unsent_bytes(0, 5_000) == 0


def test_an_ending_is_known_at_once(both: Both) -> None:
    """Both sides know the end before the closing period is over; then everything is over."""
    assert both.client.ending is None
    both.client.close(QuicErrorCode.NO_ERROR)
    both.exchange(2)
    assert both.client.ending is not None
    assert both.server.ending is not None
    assert not both.server.over
    both.now += 5
    for machine in (both.client, both.server):
        machine.handle_timer(both.now)
        assert machine.over


def test_endings_in_words() -> None:
    """The peer's reason is shortened and cannot affect a terminal or a log."""

    def ended(code: int, frame_type: int | None = None, reason: str = "") -> ConnectionTerminated:
        return ConnectionTerminated(error_code=code, frame_type=frame_type, reason_phrase=reason)

    assert described(ended(0)) == "the connection was closed"
    assert described(ended(1, 0, "Idle timeout")) == "Idle timeout"
    assert (
        described(ended(0xA, 6, "no\x1b[31m\nred"))
        == r"QUIC ended the connection: PROTOCOL_VIOLATION (no\x1b[31m\nred)"
    )
    assert described(ended(0x100 + 116, 6)) == "TLS refused the connection: certificate_required"
    assert described(ended(4711)) == "QUIC ended the connection: error 4711"
    assert len(described(ended(0xA, 6, "x" * 10_000))) < 300
    assert alert_of(ended(0x100 + 42, 6)) is AlertDescription.bad_certificate
    assert alert_of(ended(0x100 + 42)) is alert_of(ended(3, 6)) is None
