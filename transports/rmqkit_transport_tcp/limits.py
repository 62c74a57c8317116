"""Limits of TLS, each with its reason."""

from __future__ import annotations

#: Time limit of a TLS handshake from its first byte on (Netty's default).
TLS_HANDSHAKE_TIMEOUT_MS = 10_000
#: Bytes produced by OpenSSL itself (about 30 per key update) that have not been sent with a write.
MAX_TLS_ANSWER_BYTES = 64 * 1024
