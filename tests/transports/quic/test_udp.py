"""UDP sockets: batches of datagrams in both directions, with and without system support."""

from __future__ import annotations

import errno
import socket
from functools import partial
from typing import Any

import anyio
import pytest

from rmqkit.plugin.transport import Address
from rmqkit_transport_quic import udp
from rmqkit_transport_quic.udp import Datagram, UdpNetwork, UdpSocket

A, B = ("192.0.2.1", 1), ("192.0.2.2", 2)


@pytest.mark.parametrize(
    ("datagrams", "expected"),
    [
        ([], []),
        ([(b"aa", A)], [(2, 1, A)]),
        ([(b"aa", A), (b"bb", A), (b"c", A)], [(2, 3, A)]),
        ([(b"aa", A), (b"b", A), (b"cc", A)], [(2, 2, A), (2, 1, A)]),
        ([(b"a", A), (b"bb", A)], [(1, 1, A), (2, 1, A)]),
        ([(b"aa", A), (b"bb", B), (b"cc", B)], [(2, 1, A), (2, 2, B)]),
        ([(b"a", A)] * 100, [(1, 64, A), (1, 36, A)]),
        ([(bytes(10_000), A)] * 10, [(10_000, 6, A), (10_000, 4, A)]),
    ],
    ids=[
        "none",
        "one",
        "a shorter last one",
        "a shorter one between",
        "a longer one",
        "two peers",
        "many",
        "large",
    ],
)
def test_trains(datagrams: list[Datagram], expected: list[tuple[int, int, Any]]) -> None:
    """A group goes to one peer, has one size except for the last datagram, and at most 64 datagrams and 64
    KiB."""
    trains = list(udp._trains(datagrams))
    assert [(len(train[0]), len(train), where) for train, where in trains] == expected
    assert [data for train, _ in trains for data in train] == [data for data, _ in datagrams]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("trains", [True, False])
def test_datagrams_keep_their_borders(
    host: str, backend: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datagrams arrive separately with their sender's address, in both directions, with and without system
    support."""
    if not trains:
        monkeypatch.setattr(udp, "_try_option", lambda *_: False)

    async def talk() -> None:
        network = UdpNetwork()
        server = await network.bind(Address("quic", host, 0))
        (target,) = await network.find(Address("quic", host, server.local[1]))
        client = network.connect(target)
        sent = [bytes([number % 256]) * (1_200 if number % 30 else 700) for number in range(300)]
        client.send([(data, None) for data in sent])
        got: list[Datagram] = []
        while len(got) < len(sent):
            await server.wait()
            found, refused = server.receive()
            got += found
            assert not refused
        assert [data for data, _ in got] == sent
        assert {address[:2] for _, address in got} == {client.local}
        server.send([(b"answer", got[0][1])])
        await client.wait()
        assert client.receive() == ([(b"answer", target)], False)
        for each in (client, server):
            each.close()
            each.close()
            assert each.closed

    anyio.run(talk, backend=backend)


def test_a_closed_port_is_told_to_those_who_connected() -> None:
    """The operating system passes on the report of the peer's system."""

    async def talk() -> None:
        network = UdpNetwork()
        nobody = await network.bind(Address("quic", "127.0.0.1", 0))
        target = nobody.local
        nobody.close()
        client = network.connect(target)
        client.send([(b"anybody?", None)])
        await client.wait()
        assert client.receive() == ([], True)
        assert client.receive() == ([], False)
        client.close()

    anyio.run(talk, backend="trio")


def test_a_close_wakes_who_waits() -> None:
    """A waiting task gets ClosedResourceError."""

    async def talk() -> None:
        sock = await UdpNetwork().bind(Address("quic", "127.0.0.1", 0))

        async def close() -> None:
            await anyio.wait_all_tasks_blocked()
            sock.close()

        async with anyio.create_task_group() as group:
            group.start_soon(close)
            with pytest.raises(anyio.ClosedResourceError):
                await sock.wait()

    for backend in ("trio", "asyncio"):
        anyio.run(talk, backend=backend)


class Refusing:
    """A socket whose device does not support segmentation, or whose buffer is full."""

    def __init__(self, *errors: int) -> None:
        self.sent: list[list[bytes]] = []
        self._errors = list(errors)

    def sendmsg(self, train: list[bytes], *_: Any) -> None:
        if self._errors:
            raise OSError(self._errors.pop(0), "no")
        self.sent.append(train)


@pytest.mark.parametrize(
    ("errors", "sent"),
    [
        ([errno.EIO], [[b"aa"], [b"bb"], [b"c"]]),
        ([errno.EAGAIN], []),
        ([errno.EPERM], []),
        ([errno.EIO, errno.EMSGSIZE], [[b"bb"], [b"c"]]),
    ],
    ids=["no trains", "full", "filtered", "too large for the path"],
)
def test_what_cannot_be_sent_is_lost(errors: list[int], sent: list[list[bytes]]) -> None:
    """Datagrams that cannot be sent are dropped without an error, because QUIC retransmits them. Without
    segmentation, single datagrams are sent from then on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as real:
        endpoint = UdpSocket(real)
        endpoint._trains = True
        endpoint._socket = refusing = Refusing(*errors)  # type: ignore[assignment]
        endpoint.send([(b"aa", A), (b"bb", A), (b"c", A)])
        assert refusing.sent == sent
        endpoint.send([(b"dd", A), (b"ee", A)])
        assert refusing.sent[len(sent) :] == ([[b"dd"], [b"ee"]] if errno.EIO in errors else [[b"dd", b"ee"]])


def test_an_address_that_cannot_be_had_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is closed when binding fails."""
    made: list[socket.socket] = []

    class Recorded(socket.socket):
        def bind(self, address: Any) -> None:
            made.append(self)
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Recorded)
    with pytest.raises(OSError, match="assign"):
        anyio.run(partial(UdpNetwork().bind, Address("quic", "192.0.2.1", 4711)), backend="trio")
    assert [sock.fileno() for sock in made] == [-1]
