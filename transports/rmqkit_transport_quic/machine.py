"""aioquic's state machine, with flow-control windows that move as the application reads.

aioquic doubles a window when half of it has arrived, whether the bytes have been read or not, so a peer could
fill the memory. Here a window is the number of bytes read plus a fixed size. aioquic also hides state that a
driver needs. Everything of aioquic that is not public is used only in this module;
tests/transports/quic/test_machine.py verifies that it still behaves as expected.
"""

from __future__ import annotations

import logging

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    Limit,
    QuicConnection,
    QuicConnectionState,
)
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate

#: aioquic logs every fault of a peer and several lines per connection. Users who want these lines set a
#: level.
_library_log = logging.getLogger("quic")
if _library_log.level == logging.NOTSET:
    _library_log.setLevel(logging.ERROR)


class Machine(QuicConnection):
    """One QUIC connection without I/O.

    peer_lanes       maximum number of bidirectional streams opened by the peer; it may open no unidirectional
                     ones
    ask_certificate  whether a server requests a client certificate. aioquic then checks that the client owns
                     the key of its certificate, but neither who signed it nor whether there is one: see
                     `peer_certificates`
    ids              connection ids, see QuicConnection
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        peer_lanes: int,
        ask_certificate: bool = False,
        **ids: bytes | None,
    ) -> None:
        super().__init__(configuration=configuration, **ids)  # type: ignore[arg-type]
        #: Bytes of each stream that the application has read; streams that are missing here are not read at
        #: all.
        self.read_bytes: dict[int, int] = {}
        self._ask_certificate = ask_certificate
        self._local_max_streams_bidi = Limit(QuicFrameType.MAX_STREAMS_BIDI, "max_streams_bidi", peer_lanes)
        self._local_max_streams_uni = Limit(QuicFrameType.MAX_STREAMS_UNI, "max_streams_uni", 0)

    # --- state needed by a driver ---------------------------------------------------------------------------

    @property
    def ending(self) -> ConnectionTerminated | None:
        """The reason of the end, as soon as either side has announced it; the event follows some round trips
        later."""
        return self._close_event

    @property
    def began(self) -> bool:
        """Whether a packet of the peer was decrypted."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent and arriving data may be dropped."""
        return self._state is QuicConnectionState.TERMINATED

    @property
    def idle_timeout_s(self) -> float:
        """The shorter of both sides' idle time-outs."""
        return self._idle_timeout()

    @property
    def peer_certificates(self) -> list[Certificate]:
        """The certificates sent by the peer, its own first; empty when it has sent none."""
        own = self.tls._peer_certificate
        return [] if own is None else [own, *self.tls._peer_certificate_chain]

    @property
    def certificate(self) -> bytes | None:
        """The peer's own certificate in DER form; None when it has sent none."""
        own = self.tls._peer_certificate
        return None if own is None else own.public_bytes(Encoding.DER)

    def unsent_bytes(self, stream_id: int, written: int) -> int:
        """Bytes of a stream that have not been sent, of those given to `send_stream_data`."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else max(written - stream.sender.highest_offset, 0)

    def is_delivered(self, stream_id: int) -> bool:
        """Whether the peer has acknowledged all data of a stream whose sending ended, or does not want it."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    def knows(self, stream_id: int) -> bool:
        """Whether data of a stream may still arrive or be sent."""
        return stream_id in self._streams

    # --- windows --------------------------------------------------------------------------------------------

    def owes_window(self, stream_id: int) -> bool:
        """Whether the peer should be told of a larger window."""
        stream = self._streams.get(stream_id)
        return (stream is not None and self._stream_step(stream) > 0) or self._connection_step() > 0

    def _stream_step(self, stream: QuicStream) -> int:
        """How far the window of a stream moves: at least half a window, to avoid packets that contain only
        window updates."""
        read = self.read_bytes.get(stream.stream_id) if stream.stream_id is not None else None
        if read is None or stream.receiver.is_finished:
            return 0
        window = self._configuration.max_stream_data
        step = read + window - stream.max_stream_data_local
        return step if step >= window // 2 else 0

    def _connection_step(self) -> int:
        window, limit = self._configuration.max_data, self._local_max_data
        step = limit.used + window - limit.value
        if step < window // 2:
            return 0
        step -= self.unread_bytes
        return step if step >= window // 2 else 0

    @property
    def unread_bytes(self) -> int:
        """Buffered data of all streams, including data after gaps, and the gaps: the memory that the streams
        may use."""
        total = 0
        for stream_id, stream in self._streams.items():
            taken = self.read_bytes.get(stream_id)
            receiver = stream.receiver
            total += receiver.highest_offset - (receiver.starting_offset() if taken is None else taken)
        return total

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        stream.max_stream_data_local += self._stream_step(stream)
        if stream.max_stream_data_local_sent != stream.max_stream_data_local and stream.stream_id is not None:
            buffer = builder.start_frame(
                QuicFrameType.MAX_STREAM_DATA,
                capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
                handler=self._on_max_stream_data_delivery,
                handler_args=(stream,),
            )
            buffer.push_uint_var(stream.stream_id)
            buffer.push_uint_var(stream.max_stream_data_local)
            stream.max_stream_data_local_sent = stream.max_stream_data_local

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        self._local_max_data.value += self._connection_step()
        for limit in (self._local_max_data, self._local_max_streams_bidi):
            if limit.value != limit.sent:
                buffer = builder.start_frame(
                    limit.frame_type,
                    capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                    handler=self._on_connection_limit_delivery,
                    handler_args=(limit,),
                )
                buffer.push_uint_var(limit.value)
                limit.sent = limit.value

    # --- certificates ---------------------------------------------------------------------------------------

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self._ask_certificate:
            self.tls._request_client_certificate = True


def alert_of(ending: ConnectionTerminated) -> tls.AlertDescription | None:
    """The TLS alert that ended a connection, None for another reason (RFC 9001, section 4.8)."""
    try:
        return tls.AlertDescription(ending.error_code - 0x100) if ending.frame_type is not None else None
    except ValueError:
        return None
