"""Decides with whom a server begins a handshake. Plain values in, decisions out: no socket, no clock.

A handshake costs some milliseconds and some kilobytes, so their number is limited. When many have been
started, a client first has to return a token that it receives only at the address it claims (RFC 9000,
section 8.1.2). Until then no state is kept for it, and it is sent less than it sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from aioquic.quic.connection import NetworkAddress
from aioquic.quic.packet import QuicHeader, QuicPacketType, encode_quic_retry, encode_quic_version_negotiation
from aioquic.quic.retry import QuicRetryTokenHandler
from attrs import frozen

from rmqkit_transport_quic.limits import (
    MAX_QUIC_CONNECTIONS,
    MAX_QUIC_HANDSHAKES,
    QUIC_RETRY_ABOVE_ATTEMPTS_PER_S,
    QUIC_RETRY_ABOVE_HANDSHAKES,
)
from rmqkit_transport_quic.settings import SMALLEST_DATAGRAM_BYTES, Retry

#: Minimum length of a client's first connection id for the server (RFC 9000, section 7.2).
_SHORTEST_FIRST_ID_BYTES = 8
_RETRY_ID_BYTES = 8


@frozen
class Begin:
    """Begin a handshake. The ids must be repeated to the client, which uses them to detect interference."""

    original_id: bytes
    retry_id: bytes | None


class Gate:
    """Decides on datagrams that belong to no connection."""

    def __init__(self, versions: Sequence[int], retry: Retry) -> None:
        self._versions = list(versions)
        self._retry = retry
        self._tokens = QuicRetryTokenHandler()
        self._second = 0
        self._attempts = 0

    def decide(
        self,
        header: QuicHeader,
        size_bytes: int,
        address: NetworkAddress,
        now: float,
        *,
        connections: int,
        handshakes: int,
    ) -> Begin | bytes | None:
        """Begin a handshake, or send back these bytes, or ignore the datagram.

        `connections` and `handshakes` are their present numbers; `now` is in seconds.
        """
        if size_bytes < SMALLEST_DATAGRAM_BYTES or header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in self._versions:
            return encode_quic_version_negotiation(header.destination_cid, header.source_cid, self._versions)
        if (
            header.packet_type is not QuicPacketType.INITIAL
            or len(header.destination_cid) < _SHORTEST_FIRST_ID_BYTES
        ):
            return None
        if connections >= MAX_QUIC_CONNECTIONS or handshakes >= MAX_QUIC_HANDSHAKES:
            return None
        if header.token:
            return self._checked(header, address, now)
        self._count(now)
        if (
            self._retry is Retry.ALWAYS
            or handshakes >= QUIC_RETRY_ABOVE_HANDSHAKES
            or self._attempts > QUIC_RETRY_ABOVE_ATTEMPTS_PER_S
        ):
            return self._retry_packet(header, address, now)
        return Begin(header.destination_cid, None)

    def _count(self, now: float) -> None:
        if int(now) != self._second:
            self._second, self._attempts = int(now), 0
        self._attempts += 1

    def _checked(self, header: QuicHeader, address: NetworkAddress, now: float) -> Begin | None:
        """A token that was not issued here for this address, or has expired, gets no answer."""
        try:
            original = self._tokens.validate_token(
                address=address[:2], destination_cid=header.destination_cid, token=header.token, now=now
            )
        except ValueError:
            return None
        return Begin(original, header.destination_cid)

    def _retry_packet(self, header: QuicHeader, address: NetworkAddress, now: float) -> bytes:
        own_id = os.urandom(_RETRY_ID_BYTES)
        token = self._tokens.create_token(
            address=address[:2],
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=own_id,
            now=now,
        )
        assert header.version is not None
        return encode_quic_retry(
            version=header.version,
            source_cid=own_id,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
