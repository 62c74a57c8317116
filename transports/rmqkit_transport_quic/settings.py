"""Settings of the QUIC transport: the table `[plugins.quic]`. Certificates are those of TLS, `tls.*`.
Imports nothing of the extra `quic`."""

from __future__ import annotations

from enum import Enum

import msgspec

from rmqkit.config import IntervalMs

#: The application protocol that both ends must announce (RFC 7301).
ALPN = "rocketmq"
#: The datagram size permitted on any path (RFC 9000, section 14), and the maximum of UDP.
SMALLEST_DATAGRAM_BYTES = 1_200
LARGEST_DATAGRAM_BYTES = 65_527
#: Shorter idle time-outs would end connections to busy peers.
SMALLEST_IDLE_TIMEOUT_MS = 1_000


class Retry(Enum):
    """When a server makes a client prove that it owns its address, before it keeps any state for it (RFC
    9000, section 8.1.2)."""

    ALWAYS = "always"
    LOAD = "load"
    """While many handshakes are in progress or starting, see `rmqkit_transport_quic.limits`."""


class QuicSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`config.plugin_settings("quic", QuicSettings)`.

    retry            see Retry
    idle_timeout_ms  time of silence after which a peer counts as dead; the smaller value of both sides
                     applies, and clients ping three times as often
    datagram_bytes   payload of the largest datagram sent; more than 1200 only if every path is known to carry
                     it, because datagrams are not fragmented; 0: 1200, and more within one machine
    """

    retry: Retry = Retry.LOAD
    idle_timeout_ms: IntervalMs = 30_000
    datagram_bytes: int = 0

    def __post_init__(self) -> None:
        if self.idle_timeout_ms < SMALLEST_IDLE_TIMEOUT_MS:
            raise ValueError(f"idleTimeoutMs must be {SMALLEST_IDLE_TIMEOUT_MS} at least")
        allowed = range(SMALLEST_DATAGRAM_BYTES, LARGEST_DATAGRAM_BYTES + 1)
        if self.datagram_bytes and self.datagram_bytes not in allowed:
            raise ValueError(
                f"datagramBytes must be 0 or between {SMALLEST_DATAGRAM_BYTES} and {LARGEST_DATAGRAM_BYTES}"
            )
