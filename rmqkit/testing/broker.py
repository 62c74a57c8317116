"""A real broker inside a test, with sockets on free loopback ports, started within milliseconds.

Brokers run under trio, and so do the tests that use these context managers. `rmqkit.testing.rocketmq` is for
tests of applications, under any event loop or none.

Store and transport are chosen by the test or by the options of `rmqkit.testing.pytest_plugin`. A transport
whose addresses have no ports, such as unix sockets, carries all traffic with clients, which connect to it
whatever the routes contain; the broker's ports are then memory pipes.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from anyio.abc import ByteStream
from attrs import frozen

from rmqkit import config as settings
from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.config import Config, with_values
from rmqkit.plugin import loader
from rmqkit.plugin.address import Connect
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.remoting.background import under_asyncio
from rmqkit.remoting.dial import TCP, Dialer
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.choice import chosen

#: These require a certificate; the one of the TLS test mode is used.
_ENCRYPTED = ("tls", "quic")
_UNIX, _BEHIND_UNIX = "unix", "memory"
#: Host and port of a broker -> the socket address at which clients reach it.
_sockets: dict[tuple[str, int], Address] = {}


def test_config(directory: Path, **keys: Any) -> Config:
    """Settings for tests: the chosen store, free ports, small files. Keys as in broker.conf."""
    if "store" not in keys:
        chosen().used.add("store")
    defaults: dict[str, Any] = {
        "storePathRootDir": str(directory),
        "store": chosen().store,
        "listenPort": 0,
        "namesrvListen": "127.0.0.1:0",
        "mappedFileSizeCommitLog": 8 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1_000,
        "maxIndexNum": 10_000,
        "maxMessageSize": 4 * 1024 * 1024,
    }
    return settings.load(environ={}, flags=defaults | keys)


test_config.__test__ = False  # type: ignore[attr-defined]


class _Finding(Dialer):
    """Also resolves brokers that are reached by a socket."""

    async def __call__(self, address: Address, timeout_ms: int) -> ByteStream:
        return await super().__call__(_sockets.get((address.host, address.port), address), timeout_ms)


def dialer(scheme: str | None = None) -> Connect:
    """A function that connects a test's client to brokers and name servers of a scheme, by default the chosen
    one."""
    scheme = scheme or chosen().scheme
    config = settings.load(environ={}, flags=scheme_keys(scheme))
    return _Finding(config, loader.load(config), scheme if scheme not in (TCP, _UNIX) else None)


def scheme_keys(scheme: str) -> dict[str, Any]:
    """The settings that a scheme requires of broker and clients."""
    return {"tls.test.mode.enable": True} if scheme in _ENCRYPTED else {}


def refuse_asyncio() -> None:
    """Check that a broker can run in this test. Raises RuntimeError in an asyncio task."""
    if under_asyncio():
        raise RuntimeError(
            "the broker needs trio, and this test runs under asyncio: use the fixture `rocketmq`, or `with"
            " rmqkit.testing.rocketmq.rocketmq_in_thread() as rocketmq:`, which runs it in another thread"
        )


def _used(scheme: str | None) -> str:
    refuse_asyncio()
    if scheme is None:
        chosen().used.add("transport")
    return scheme or chosen().scheme


@contextmanager
def places(scheme: str) -> Iterator[tuple[str, str]]:
    """Free addresses as text: the listen address of a server, and the socket of a broker whose scheme has no
    ports (otherwise empty)."""
    if scheme != _UNIX:
        yield f"{scheme}://127.0.0.1:0", ""
        return
    # The length of a socket path is limited.
    with tempfile.TemporaryDirectory(prefix="rmqkit-") as folder:
        yield f"unix://{folder}/namesrv", f"unix://{folder}/broker"


@asynccontextmanager
async def serving_broker(
    config: Config, registry: Registry, scheme: str, socket: str, clock: Clock | None = None
) -> AsyncIterator[RunningBroker]:
    """A broker with ports of the scheme, or reached by a socket. Leaving the context stops it gracefully."""
    if socket:
        config = with_values(config, listeners=(socket, *config.listeners))
    async with trio.open_nursery() as nursery:
        run = partial(run_broker, config, registry, clock=clock, scheme=_BEHIND_UNIX if socket else scheme)
        running: RunningBroker = await nursery.start(run)
        ports = (running.address.host, running.address.port)
        if socket:
            running.address, *running.others = running.others
            _sockets[ports] = running.address
        try:
            yield running
        finally:
            _sockets.pop(ports, None)
            running.stop.set()


@asynccontextmanager
async def running_broker(
    directory: Path,
    *,
    extra: Iterable[tuple[str, object]] = (),
    clock: Clock | None = None,
    scheme: str | None = None,
    **keys: Any,
) -> AsyncIterator[RunningBroker]:
    """A broker that registers only when configured to. Leaving the context stops it gracefully.

    extra   plugins in addition to the installed ones
    scheme  of its transport, by default the chosen one; "memory" needs no sockets. `dialer` connects to it
    """
    scheme = _used(scheme)
    config = test_config(directory, **scheme_keys(scheme) | keys)
    with places(scheme) as (_, socket):
        async with serving_broker(config, loader.load(config, extra=extra), scheme, socket, clock) as running:
            yield running


@frozen
class Cluster:
    """A name server and a broker registered with it. `connect` reaches both; pass it to clients and
    connection pools."""

    broker: RunningBroker
    namesrv: Address
    connect: Connect

    @property
    def namesrv_text(self) -> str:
        return str(self.namesrv)


@asynccontextmanager
async def running_namesrv(
    directory: Path, *, scheme: str | None = None, **keys: Any
) -> AsyncIterator[Address]:
    """A name server without a broker; `dialer` connects to it. Leaving the context stops it gracefully."""
    scheme = _used(scheme)
    with places(scheme) as (place, _):
        config = test_config(directory, **{"namesrvListen": place} | scheme_keys(scheme) | keys)
        async with serving_namesrv(config, loader.load(config)) as address:
            yield address


@asynccontextmanager
async def serving_namesrv(config: Config, registry: Registry) -> AsyncIterator[Address]:
    """A name server at `namesrvListen`. Leaving the context stops it gracefully."""
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        listen = listen_on(registry, [Address.parse(config.namesrv_listen)], server.name)
        handle: ServerHandle = await nursery.start(server.run, config, registry, listen)
        yield handle.addresses[0]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def cluster_of(
    config: Config, registry: Registry, *, socket: str = "", clock: Clock | None = None
) -> AsyncIterator[Cluster]:
    """A name server and a broker in this process with the given settings. Leaving the context stops both
    gracefully.

    The broker's ports have the scheme of namesrvListen; for a scheme without ports, clients reach the broker
    at `socket`.
    """
    async with serving_namesrv(config, registry) as namesrv:
        config = with_values(config, namesrv_addr=str(namesrv))
        connect = _Finding(config, registry, namesrv.scheme if namesrv.scheme not in (TCP, _UNIX) else None)
        async with serving_broker(config, registry, namesrv.scheme, socket, clock) as running:
            yield Cluster(running, namesrv, connect)


@asynccontextmanager
async def running_cluster(
    directory: Path,
    *,
    extra: Iterable[tuple[str, object]] = (),
    clock: Clock | None = None,
    scheme: str | None = None,
    **keys: Any,
) -> AsyncIterator[Cluster]:
    """A name server and a broker with the settings of `test_config`; `clock` is the broker's, `scheme` as for
    `running_broker`."""
    scheme = _used(scheme)
    with places(scheme) as (namesrv, socket):
        config = test_config(directory, **{"namesrvListen": namesrv} | scheme_keys(scheme) | keys)
        registry = loader.load(config, extra=extra)
        async with cluster_of(config, registry, socket=socket, clock=clock) as cluster:
            yield cluster
