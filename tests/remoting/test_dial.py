"""Which transport an address is reached by, and the errors when that fails."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio.abc
import pytest
import trio

from rmqkit import hookimpl
from rmqkit.config import Config, load
from rmqkit.errors import ConfigError, ConnectionLost, PluginError
from rmqkit.plugin import loader
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Address, Transport
from rmqkit.protocol.command import request
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.toolkit.connect import connect_tcp


class Noting(Transport):
    """A transport that notes the addresses it is asked for and refuses them."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.asked: list[tuple[str, int]] = []

    async def listen(self, address: Address, alpn: Sequence[str] = ()) -> Any:
        raise NotImplementedError

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        self.asked.append((str(address), timeout_ms))
        raise ConnectionRefusedError("noted")

    def bound_address(self, listener: Any) -> Address:
        raise NotImplementedError

    @hookimpl
    def rmqkit_register_transports(self, register: Register[Transport]) -> None:
        register(self.scheme, self)


@contextmanager
def refusing() -> Iterator[int]:
    """A port that refuses connections for as long as the block lasts."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize(
    ("settings", "plain", "address", "reached"),
    [
        ({}, None, "unix:///run/s", "unix:///run/s"),
        ({}, None, "tls://a:1", "tls://a:1"),
        ({"tls.enable": True}, None, "a:1", "tls://a:1"),
        ({"tls.enable": True}, "", "a:1", "tls://a:1"),
        ({"tls.enable": True}, "unix", "memory://a", "memory://a"),
        ({}, "memory", "a:1", "memory://a:1"),
        ({"tls.enable": True}, "memory", "a:1", "memory://a:1"),
    ],
)
async def test_the_scheme_decides(
    settings: dict[str, Any], plain: str | None, address: str, reached: str
) -> None:
    """The scheme of an address selects the transport; without a scheme the client's setting does, else
    tls.enable."""
    config = load(environ={}, flags=settings)
    transports = [Noting(scheme) for scheme in ("tls", "unix", "memory")]
    registry = loader.load(config, extra=[(each.scheme, each) for each in transports], entry_points=False)
    with pytest.raises(ConnectionRefusedError, match="noted"):
        await Dialer(config, registry, plain)(Address.parse(address), 17)
    assert [asked for each in transports for asked in each.asked] == [(reached, 17)]


async def test_what_the_user_wrote_as_tcp_stays_tcp() -> None:
    """A name server given as `tcp://` is reached by TCP, whatever transport plain addresses use; the same
    address in a route does not change this."""
    registry = loader.load(load(environ={}), extra=[("memory", Noting("memory"))], entry_points=False)
    with refusing() as port:
        dial = Dialer(
            load(environ={}), registry, "memory", written=[f"tcp://127.0.0.1:{port}", "unix:///run/s"]
        )
        with pytest.raises(ConnectionRefusedError, match="refused"):
            await dial(Address.parse(f"tcp://127.0.0.1:{port}"), 5_000)
        with pytest.raises(ConnectionRefusedError, match="noted"):
            await dial(Address.parse(f"tcp://127.0.0.1:{port - 1}"), 5_000)


async def test_plain_tcp_needs_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """For TCP no plugin is loaded; for another scheme the installed plugins are loaded, once."""
    loads: list[Config] = []
    load_plugins = loader.load

    def counting(config: Config) -> loader.Registry:
        loads.append(config)
        return load_plugins(config)

    monkeypatch.setattr(loader, "load", counting)
    dial = Dialer(load(environ={}))
    with refusing() as port:
        with pytest.raises(ConnectionRefusedError, match="refused"):
            await dial(Address("tcp", "127.0.0.1", port), 5_000)
        assert loads == []
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError, match="memory://nobody has no listener"):
                await dial(Address("memory", name="nobody"), 5_000)
        assert len(loads) == 1


async def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without settings uses RMQKIT_TLS_ENABLE."""
    monkeypatch.setenv("RMQKIT_TLS_ENABLE", "true")
    monkeypatch.setenv("RMQKIT_TLS_CLIENT_TRUST_CERT_PATH", "nowhere.pem")
    async with ConnectionPool(connect=Dialer()) as pool:
        with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath = nowhere\.pem"):
            await pool.call("127.0.0.1:1", request(10), 5_000)


async def test_a_scheme_that_nobody_brings() -> None:
    """An unknown scheme raises PluginError with the list of the known ones; through a pool it is a failed
    connect."""
    dial = Dialer(Config())
    with pytest.raises(PluginError, match=r"'carrier-pigeon'.*tcp"):
        await dial(Address("carrier-pigeon", name="loft"), 5_000)
    async with ConnectionPool(connect=dial) as pool:
        with pytest.raises(ConfigError, match=r"cannot connect to carrier-pigeon://loft: .*tcp"):
            await pool.call("carrier-pigeon://loft", request(10), 5_000)


async def test_the_reason_of_a_refusal() -> None:
    """The error has the operating system's text, not anyio's; with several addresses it has the reason of
    each."""
    with refusing() as port:
        with pytest.raises(ConnectionRefusedError, match="Connection refused"):
            await connect_tcp(Address("tcp", "127.0.0.1", port), 5_000)
        with pytest.raises(OSError, match="Connection refused"):
            await connect_tcp(Address("tcp", "localhost", port), 5_000)


async def test_a_server_that_hangs_up_at_once() -> None:
    """The error suggests that the port may expect TLS, because a client without TLS sees only the hang-up."""
    async with trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            await stream.aclose()

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, hang_up, [listener])
        async with ConnectionPool() as pool:
            with pytest.raises(ConnectionLost, match=r"before it said anything.*tls\.enable"):
                await pool.call(f"127.0.0.1:{port}", request(10), 5_000)
        nursery.cancel_scope.cancel()
