"""Hostile datagrams: garbage, replays, forgeries and floods leave no state, get less data than they sent, and
do not affect others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest
import trio
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion, encode_quic_version_negotiation
from trio.testing import MockClock

from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import request
from rmqkit.remoting.request_loop import Router
from rmqkit.remoting.server import RequestServer
from rmqkit.testing.listening import Echo
from rmqkit_transport_quic.credentials import client_configuration
from rmqkit_transport_quic.limits import (
    MAX_QUIC_HANDSHAKES,
    QUIC_HANDSHAKE_TIMEOUT_MS,
    QUIC_RETRY_ABOVE_HANDSHAKES,
)
from rmqkit_transport_quic.settings import QuicSettings, Retry
from tests.transports.quic import kit
from tests.transports.quic.network import FakeNetwork, Where

WHERE: Where = (kit.SERVER.host, kit.SERVER.port)
STRANGER: Where = ("203.0.113.7", 1234)


def sent_to(network: FakeNetwork, target: Where) -> int:
    return sum(len(each.data) for each in network.sent if each.target == target)


def first_datagram(directory: Path) -> bytes:
    """The first datagram of a client."""
    connection = QuicConnection(
        configuration=client_configuration(kit.config(directory), QuicSettings(), "localhost")
    )
    connection.connect(WHERE, now=0.0)
    return connection.datagrams_to_send(now=0.0)[0][0]


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(1_200),
    "ones": b"\xff" * 1_200,
    "short": b"\x40",
    "an unknown connection": b"\x40" + bytes(1_300),
    "http": b"GET / HTTP/1.1\r\n\r\n" * 80,
    "a remoting frame": b"\0\0\0\x64\0\0\0\x60" + b"{" * 1_200,
    "an initial that does not decrypt": b"\xc3\0\0\0\x01\x08"
    + bytes(8)
    + b"\x08"
    + bytes(8)
    + b"\0\x44\x96"
    + bytes(1_200),
    "a version negotiation": encode_quic_version_negotiation(bytes(8), bytes(8), [1, 2]).ljust(1_200, b"\0"),
    "a huge token": b"\xc3\0\0\0\x01\x08" + bytes(8) + b"\x08" + bytes(8) + b"\x7f\xff" + bytes(1_200),
    "an id that is too short": b"\xc3\0\0\0\x01\x04"
    + bytes(4)
    + b"\x08"
    + bytes(8)
    + b"\0\x44\x96"
    + bytes(1_200),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_dropped(data: bytes, tmp_path: Path, autojump_clock: MockClock) -> None:
    """Garbage gets no answer and leaves no state; a connected client is not affected."""
    async with kit.served(tmp_path) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        for _ in range(10):
            pair.network.inject(STRANGER, WHERE, data)
            pair.network.inject(client_address(pair), WHERE, data)
        await trio.sleep(1)
        assert sent_to(pair.network, STRANGER) == 0
        assert len(pair.listener.routes) == 1
        await client.send(b"still here")
        assert await kit.read(server, 10) == b"still here"


def client_address(pair: kit.Pair) -> Where:
    return pair.network.client().local


async def test_noise_is_dropped(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Datagrams that begin like a packet, and real packets with a changed bit, are dropped too."""
    random = Random(7)
    real = first_datagram(tmp_path)
    async with kit.served(tmp_path) as pair:
        for number in range(300):
            data = bytearray(real if number % 2 else random.randbytes(1_200))
            data[random.randrange(1, 40)] ^= 1 << random.randrange(8)
            pair.network.inject(STRANGER, WHERE, bytes(data))
            await trio.sleep(0.02)
        await trio.sleep(QUIC_HANDSHAKE_TIMEOUT_MS / 1000)
        assert not pair.listener.routes
        assert sent_to(pair.network, STRANGER) <= 3 * 300 * 1_200
        await pair.accepted(await pair.connect())


async def test_an_unknown_version_is_told_those_there_are(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The answer is small and is sent only for a datagram of full size (RFC 9000, section 6.1)."""
    hello = b"\xc3\xba\xba\xba\xba\x08" + bytes(8) + b"\x08" + bytes(8)
    async with kit.served(tmp_path) as pair:
        pair.network.inject(STRANGER, WHERE, hello.ljust(1_199, b"\0"))
        await trio.sleep(1)
        assert sent_to(pair.network, STRANGER) == 0
        pair.network.inject(STRANGER, WHERE, hello.ljust(1_200, b"\0"))
        await trio.sleep(1)
        (answer,) = [each.data for each in pair.network.sent if each.target == STRANGER]
        assert answer.endswith(QuicProtocolVersion.VERSION_1.to_bytes(4, "big"))
        assert len(answer) < 50


async def test_a_replayed_first_datagram_harms_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Replays from the client's address and from others, during the connection and after it, leave no state
    and do not affect the client, and the claimed sender gets at most three times the data sent in its name.
    """
    async with kit.served(tmp_path) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        recorded = [each.data for each in pair.network.sent if each.target == WHERE][:3]
        assert len(recorded[0]) >= 1_200
        for data in recorded * 3:
            for source in (client_address(pair), STRANGER):
                pair.network.inject(source, WHERE, data)
        await trio.sleep(1)
        assert len(pair.listener.routes) == 1
        assert sent_to(pair.network, STRANGER) == 0
        await client.send(b"still here")
        assert await kit.read(server, 10) == b"still here"
        assert next(iter(pair.listener.routes)).machine.get_peer_address() == client_address(pair)
        await client.aclose()
        await trio.sleep(2)
        for _ in range(20):
            pair.network.inject(STRANGER, WHERE, recorded[0])
        await trio.sleep(1)
        assert len(pair.listener.routes) == 1
        assert len(pair.listener.handshakes) == 1
        assert 0 < sent_to(pair.network, STRANGER) <= 3 * 20 * len(recorded[0])
        await trio.sleep(QUIC_HANDSHAKE_TIMEOUT_MS / 1000)
        assert not pair.listener.routes


async def test_replayed_data_from_elsewhere_moves_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A recorded datagram sent again from another address neither repeats the data nor moves the
    connection."""
    async with kit.served(tmp_path) as pair:
        client = await pair.connect()
        server = await pair.accepted(client)
        await client.send(b"once")
        assert await kit.read(server, 4) == b"once"
        for each in [each.data for each in pair.network.sent if each.target == WHERE]:
            pair.network.inject(STRANGER, WHERE, each)
        await trio.sleep(1)
        await client.send(b" only")
        assert await server.receive_some() == b" only"
        assert sent_to(pair.network, STRANGER) == 0
        assert next(iter(pair.listener.routes)).machine.get_peer_address() == client_address(pair)


async def test_a_flood_of_handshakes_is_bounded(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Under load strangers get a short retry packet and no state is kept; a client that proves its address
    still connects."""
    hellos = [first_datagram(tmp_path) for _ in range(100)]
    async with kit.served(tmp_path) as pair:
        for number, hello in enumerate(hellos):
            pair.network.inject(("203.0.113.7", number), WHERE, hello)
        await trio.sleep(0.1)
        assert len(pair.listener.handshakes) == QUIC_RETRY_ABOVE_HANDSHAKES < MAX_QUIC_HANDSHAKES
        answers = [
            each
            for each in pair.network.sent
            if each.target[0] == "203.0.113.7" and each.target[1] >= QUIC_RETRY_ABOVE_HANDSHAKES
        ]
        assert len(answers) == len(hellos) - QUIC_RETRY_ABOVE_HANDSHAKES
        assert all(len(each.data) < 200 for each in answers)
        await pair.accepted(await pair.connect())
        await trio.sleep(QUIC_HANDSHAKE_TIMEOUT_MS / 1000)
        assert not pair.listener.handshakes


async def test_addresses_are_always_proved_when_the_setting_says_so(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first datagram is answered with a retry packet, and the connection succeeds; a stolen token is
    useless elsewhere."""
    async with kit.served(tmp_path, quic=QuicSettings(retry=Retry.ALWAYS)) as pair:
        pair.network.inject(STRANGER, WHERE, first_datagram(tmp_path))
        await trio.sleep(0.1)
        assert not pair.listener.routes
        assert 0 < sent_to(pair.network, STRANGER) < 200
        client = await pair.connect()
        await pair.accepted(client)
        with_token = [each.data for each in pair.network.sent if each.target == WHERE][1]
        await client.aclose()
        await trio.sleep(2)
        before = sent_to(pair.network, STRANGER)
        pair.network.inject(STRANGER, WHERE, with_token)
        await trio.sleep(1)
        assert not pair.listener.routes
        assert sent_to(pair.network, STRANGER) == before


async def test_a_lane_of_garbage_ends_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Under the request server a lane is a connection: broken framing ends it, and the others continue."""
    async with kit.served(tmp_path) as pair, trio.open_nursery() as nursery:
        echo = Echo()
        server = RequestServer(Router({1: echo}), name="test")
        nursery.start_soon(server.serve, [pair.listener])
        good = await pair.connect()
        bad = await good.open_lane()
        await bad.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(anyio.EndOfStream):
            await bad.receive()
        async with kit.calling(good) as connection:
            response = await connection.call(request(1, body=b"alive"), 1_000)
        assert (response.code, response.body) == (ResponseCode.SUCCESS, b"alive")
        nursery.cancel_scope.cancel()


async def test_a_bug_of_the_library_costs_one_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    """An exception raised by the library for received bytes ends only that connection."""
    async with kit.served(tmp_path) as pair:
        good, bad = await pair.connect(), await pair.connect()
        good_end, bad_end = await pair.accepted(good), await pair.accepted(bad)
        carrier = next(each for each in pair.listener.routes if each.lanes[0] is bad_end.lane)  # type: ignore[attr-defined]

        def fail(*_: object) -> None:
            raise TypeError("a bug")

        monkeypatch.setattr(carrier.machine, "receive_datagram", fail)
        await bad.send(b"x")
        with pytest.raises(trio.BrokenResourceError, match="internal error"):
            await bad_end.receive_some()
        assert "TypeError" in caplog.text
        assert len(pair.listener.routes) == 1
        await good.send(b"still here")
        assert await kit.read(good_end, 10) == b"still here"
