"""The decision with whom a QUIC server begins a handshake, with time passed in."""

from __future__ import annotations

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet import QuicHeader, QuicPacketType, pull_quic_header

from rmqkit_transport_quic.gate import Begin, Gate
from rmqkit_transport_quic.limits import (
    MAX_QUIC_CONNECTIONS,
    MAX_QUIC_HANDSHAKES,
    QUIC_RETRY_ABOVE_ATTEMPTS_PER_S,
    QUIC_RETRY_ABOVE_HANDSHAKES,
)
from rmqkit_transport_quic.settings import Retry

V1 = 1
CLIENT = ("203.0.113.7", 4711)
FIRST_ID = b"chosenby"


def initial(
    token: bytes = b"",
    destination: bytes = FIRST_ID,
    version: int = V1,
    kind: QuicPacketType = QuicPacketType.INITIAL,
) -> QuicHeader:
    return QuicHeader(
        version=version,
        packet_type=kind,
        packet_length=1200,
        destination_cid=destination,
        source_cid=b"clientid",
        token=token,
        integrity_tag=b"",
        supported_versions=[],
    )


def decide(
    gate: Gate,
    header: QuicHeader,
    *,
    now: float = 0.0,
    size: int = 1200,
    address: tuple[str, int] = CLIENT,
    connections: int = 0,
    handshakes: int = 0,
) -> Begin | bytes | None:
    return gate.decide(header, size, address, now, connections=connections, handshakes=handshakes)


def test_a_first_datagram_begins_a_handshake() -> None:
    """The handshake uses the id chosen by the client; without a token there was no retry."""
    assert decide(Gate([V1], Retry.LOAD), initial()) == Begin(FIRST_ID, None)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (initial(), 1199),
        (initial(destination=b"seven--"), 1200),
        (initial(kind=QuicPacketType.HANDSHAKE), 1200),
        (initial(kind=QuicPacketType.ZERO_RTT), 1200),
        (initial(kind=QuicPacketType.VERSION_NEGOTIATION, version=0), 1200),
        (initial(version=2), 1199),
        (initial(token=b"made up"), 1200),
        (initial(token=bytes(100)), 1200),
    ],
    ids=[
        "short",
        "short id",
        "handshake",
        "early data",
        "negotiation",
        "short with an unknown version",
        "token",
        "long token",
    ],
)
def test_everything_else_is_not_answered(header: QuicHeader, size: int) -> None:
    """These datagrams are ignored (RFC 9000, sections 5.2.2, 7.2, 8.1.3 and 14.1)."""
    assert decide(Gate([V1], Retry.LOAD), header, size=size) is None


def test_a_full_server_does_not_answer() -> None:
    """Datagrams are ignored with too many connections, and with too many handshakes in progress."""
    gate = Gate([V1], Retry.ALWAYS)
    assert decide(gate, initial(), connections=MAX_QUIC_CONNECTIONS) is None
    assert decide(gate, initial(), handshakes=MAX_QUIC_HANDSHAKES) is None
    assert (
        decide(gate, initial(), connections=MAX_QUIC_CONNECTIONS - 1, handshakes=MAX_QUIC_HANDSHAKES - 1)
        is not None
    )


def test_under_load_addresses_are_checked() -> None:
    """Load is measured by handshakes in progress, and by attempts within a second."""
    gate = Gate([V1], Retry.LOAD)
    assert isinstance(decide(gate, initial(), handshakes=QUIC_RETRY_ABOVE_HANDSHAKES - 1), Begin)
    assert isinstance(decide(gate, initial(), handshakes=QUIC_RETRY_ABOVE_HANDSHAKES), bytes)
    decisions = [
        decide(gate, initial(), now=5 + number / 1000)
        for number in range(QUIC_RETRY_ABOVE_ATTEMPTS_PER_S + 10)
    ]
    assert [isinstance(each, bytes) for each in decisions] == [False] * QUIC_RETRY_ABOVE_ATTEMPTS_PER_S + [
        True
    ] * 10
    assert isinstance(decide(gate, initial(), now=6), Begin)


def retried(gate: Gate, now: float = 0.0, address: tuple[str, int] = CLIENT) -> QuicHeader:
    """The next datagram of a client that received a retry packet."""
    packet = decide(gate, initial(), now=now, address=address, handshakes=QUIC_RETRY_ABOVE_HANDSHAKES)
    assert isinstance(packet, bytes)
    assert len(packet) < 200
    header = pull_quic_header(Buffer(data=packet))
    assert header.packet_type is QuicPacketType.RETRY
    assert header.destination_cid == b"clientid"
    return initial(token=header.token, destination=header.source_cid)


def test_a_client_that_comes_back_with_its_token_is_let_in() -> None:
    """The token is accepted with and without load; both ids are repeated to the client, which uses them to
    verify the server (RFC 9000, section 7.3)."""
    for retry in Retry:
        gate = Gate([V1], retry)
        again = retried(gate)
        assert decide(gate, again, now=1) == Begin(FIRST_ID, again.destination_cid)


def test_a_token_is_for_one_address_and_one_moment() -> None:
    """A token is invalid from another address or port, for another id, much later, or on another server."""
    gate = Gate([V1], Retry.LOAD)
    again = retried(gate)
    assert decide(gate, again, address=("203.0.113.8", CLIENT[1])) is None
    assert decide(gate, again, address=(CLIENT[0], 1)) is None
    assert decide(gate, initial(token=again.token)) is None
    assert decide(gate, again, now=3_600) is None
    assert decide(Gate([V1], Retry.LOAD), again) is None


def test_ipv6_addresses_have_tokens_too() -> None:
    """Sockets represent such addresses with two more numbers, which may change."""
    gate = Gate([V1], Retry.LOAD)
    address = ("2001:db8::1", 4711, 0, 0)
    again = retried(gate, address=address)  # type: ignore[arg-type]
    assert isinstance(decide(gate, again, address=("2001:db8::1", 4711, 5, 0)), Begin)  # type: ignore[arg-type]
