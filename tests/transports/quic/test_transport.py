"""The QUIC transport passes the contract of transports; what is particular to it in sockets and settings."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import trio
from aioquic.quic.configuration import QuicConfiguration

from rmqkit.config import load
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader as plugins
from rmqkit.plugin.transport import Address, Transport
from rmqkit.testing.listening import Listening, listening
from rmqkit.testing.transport import TransportContract
from rmqkit_transport_quic import transport as module
from rmqkit_transport_quic.credentials import for_peer
from rmqkit_transport_quic.limits import QUIC_LOOPBACK_DATAGRAM_BYTES
from rmqkit_transport_quic.settings import SMALLEST_DATAGRAM_BYTES, QuicSettings, Retry
from rmqkit_transport_quic.transport import QuicTransport
from rmqkit_transport_tcp.tcp import TcpTransport
from tests.transports.quic import kit

ANY = Address("quic", "127.0.0.1", 0)


class TestQuic(TransportContract):
    """The contract over IPv4."""

    def make_transport(self, directory: Path) -> Transport:
        return kit.transport(directory)

    def where(self, directory: Path) -> Address:
        return ANY

    @asynccontextmanager
    async def silent(self, at: Listening) -> AsyncIterator[Address]:
        """A socket that is never read."""
        with socket.socket(type=socket.SOCK_DGRAM) as deaf:
            deaf.bind(("127.0.0.1", 0))
            yield Address("quic", *deaf.getsockname())


async def test_over_ipv6(tmp_path: Path) -> None:
    """Both ends report the other's address without IPv6's extra numbers."""
    async with (
        listening(kit.transport(tmp_path), Address("quic", "::1", 0)) as at,
        at.pair() as (server, client),
    ):
        assert server.remote[0] == server.local[0] == "::1"
        await server.send_all(bytes(100_000))
        await kit.read(client, 100_000)  # type: ignore[arg-type]


async def test_one_port_for_tcp_and_quic(tmp_path: Path) -> None:
    """TCP and UDP have separate port numbers, so a broker has both on its registered port."""
    tcp = TcpTransport(kit.config(tmp_path))
    async with listening(tcp, Address("tcp", "127.0.0.1", 0)) as one:
        address = Address("quic", "127.0.0.1", one.address.port)
        async with (
            listening(kit.transport(tmp_path), address) as other,
            one.pair() as (_, first),
            other.pair() as (server, _),
        ):
            await first.send(b"x")
            assert server.local[1] == one.address.port


@pytest.mark.parametrize("retry", Retry)
async def test_addresses_are_proved_over_sockets_too(retry: Retry, tmp_path: Path) -> None:
    """The token is bound to the address reported by the operating system."""
    async with (
        listening(kit.transport(tmp_path, QuicSettings(retry=retry)), ANY) as at,
        at.pair() as (server, client),
    ):
        await client.send(b"x")
        assert await server.receive_some() == b"x"


async def test_a_larger_datagram_where_paths_are_known(tmp_path: Path) -> None:
    """Fewer, larger datagrams carry the same bytes."""
    transport = kit.transport(tmp_path, QuicSettings(datagram_bytes=8_000))
    async with listening(transport, ANY) as at, at.pair() as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, bytes(300_000))
        while server.lane.read < 300_000:  # type: ignore[attr-defined]
            await server.receive_some()


@pytest.mark.parametrize(
    ("host", "datagram_bytes"),
    [
        ("127.0.0.1", QUIC_LOOPBACK_DATAGRAM_BYTES),
        ("127.9.9.9", QUIC_LOOPBACK_DATAGRAM_BYTES),
        ("::ffff:127.0.0.1", QUIC_LOOPBACK_DATAGRAM_BYTES),
        ("10.0.0.9", SMALLEST_DATAGRAM_BYTES),
        ("2001:db8::7", SMALLEST_DATAGRAM_BYTES),
        ("fe80::1%lo", SMALLEST_DATAGRAM_BYTES),
        ("a name", SMALLEST_DATAGRAM_BYTES),
    ],
)
def test_the_size_of_datagrams_depends_on_the_peer(host: str, datagram_bytes: int) -> None:
    """Within a machine they are larger, on other paths as small as any path carries; a size in the settings
    is used for all."""
    small = QuicConfiguration(max_datagram_size=SMALLEST_DATAGRAM_BYTES)
    assert for_peer(small, QuicSettings(), (host, 1)).max_datagram_size == datagram_bytes
    given = QuicSettings(datagram_bytes=SMALLEST_DATAGRAM_BYTES)
    assert for_peer(small, given, (host, 1)).max_datagram_size == SMALLEST_DATAGRAM_BYTES


async def test_connections_within_a_machine_use_larger_datagrams(tmp_path: Path) -> None:
    """Both sides of a connection over loopback do."""
    async with listening(kit.transport(tmp_path), ANY) as at, at.pair() as (server, client):
        await client.send(b"x")
        assert await server.receive_some() == b"x"
        for stream in (server, client):
            machine = stream.lane._connection.machine  # type: ignore[union-attr]
            assert machine._max_datagram_size == QUIC_LOOPBACK_DATAGRAM_BYTES


def test_the_plugin_brings_quic(tmp_path: Path) -> None:
    """The plugin uses the settings of its table; a wrong one is reported by name."""
    config = load(environ={}, flags={"plugins.quic.retry": "always", "plugins.quic.idleTimeoutMs": 5_000})
    transport = plugins.load(config).chosen("transports", "quic")
    assert isinstance(transport, QuicTransport)
    assert transport._settings == QuicSettings(retry=Retry.ALWAYS, idle_timeout_ms=5_000)
    for key, value, reason in (
        ("retry", "never", "retry"),
        ("idleTimeoutMs", 5, "idleTimeoutMs must be"),
        ("datagrams", 5, "no such setting"),
    ):
        with pytest.raises(ConfigError, match=reason):
            plugins.load(load(environ={}, flags={f"plugins.quic.{key}": value}))


async def test_without_the_extra_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing extra is reported when QUIC is used, not before."""

    def none(name: str) -> ModuleSpec | None:
        assert name == "aioquic"
        return None

    monkeypatch.setattr(module, "find_spec", none)
    transport = kit.transport(tmp_path)
    for attempt in (transport.listen(ANY), transport.connect(ANY, 1_000)):
        with pytest.raises(ConfigError, match=r"pip install '\.\[quic\]'"):
            await attempt


def test_the_plugin_loads_without_the_extra() -> None:
    """The plugin does not import aioquic, so a plain installation has all its transports."""
    program = (
        "import sys; sys.modules['aioquic'] = None; from rmqkit import config; from rmqkit.plugin import"
        " loader; print(*loader.load(config.Config()).transports)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "quic" in result.stdout.split()
