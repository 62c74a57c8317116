"""Every limit of QUIC, each with its reason. Units are in the names."""

from __future__ import annotations

#: QUIC connections of one listener. Each keeps a state machine of some 100 KiB in Python, besides what is
#: under way.
MAX_QUIC_CONNECTIONS = 4_096
#: QUIC handshakes under way at one listener: each takes milliseconds of the processor, and strangers can
#: begin them.
MAX_QUIC_HANDSHAKES = 256
#: Lanes a client may have open on one QUIC connection; ours uses three.
MAX_LANES_PER_QUIC_CONNECTION = 8
#: With more QUIC handshakes than that under way a client must prove its address first.
QUIC_RETRY_ABOVE_HANDSHAKES = 32
#: The same with more attempts in a second: what does not become a handshake costs time too.
QUIC_RETRY_ABOVE_ATTEMPTS_PER_S = 200
#: What a peer may send on one lane before it was read: at 20 ms of round trip 25 MB/s, more than Python
#: decrypts.
QUIC_LANE_WINDOW_BYTES = 512 * 1024
#: The same for all lanes of a connection together: it is what a connection may hold of memory, but two lanes
#: that nobody reads must not stop a third.
QUIC_CONNECTION_WINDOW_BYTES = 2 * 1024 * 1024
#: What is put into the state machine of a QUIC connection at a time: it copies what it keeps.
QUIC_SEND_AHEAD_BYTES = 64 * 1024
#: A handshake that takes longer is given up; three round trips and a few lost packets fit.
QUIC_HANDSHAKE_TIMEOUT_MS = 10_000
#: A QUIC connection without lanes is closed after this.
QUIC_EMPTY_TIMEOUT_MS = 10_000
#: At the end of a QUIC connection its last bytes get this long to be acknowledged.
QUIC_LINGER_MS = 2_000
#: Payload of a datagram to a peer on the same machine, where the kernel carries 64 KiB: a packet costs Python
#: nearly the same whatever its size. Ten, the first congestion window, fit into Linux's receive buffer.
QUIC_LOOPBACK_DATAGRAM_BYTES = 8 * 1024
