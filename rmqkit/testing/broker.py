"""A real broker inside a test: real sockets on loopback, free ports, up in a few milliseconds.

What store and transport it has a test says, or leaves to the one who runs it: see `rmqkit.testing.pytest_plugin`. A transport whose addresses have no
ports, such as unix sockets, carries everything from and to clients, who are sent there whatever the routes say; the ports behind are memory pipes.
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
from rmqkit import plugins
from rmqkit.abc import Address, Clock, Server, ServerHandle
from rmqkit.broker.run import RunningBroker, run_broker
from rmqkit.config import Config
from rmqkit.plugins import Registry
from rmqkit.remoting.dial import TCP, Connect, Dialer
from rmqkit.testing.choice import chosen

#: They cannot do without a certificate: that of the test mode will do.
_ENCRYPTED = ("tls", "quic")
_UNIX, _BEHIND_UNIX = "unix", "memory"
#: Host and port of a broker -> the socket it is reached by.
_sockets: dict[tuple[str, int], Address] = {}


def test_config(directory: Path, **keys: Any) -> Config:
    """Settings for tests: the chosen store, free ports, small files. Keys are broker.conf's."""
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
    """Finds also the brokers that are reached by a socket."""

    async def __call__(self, address: Address, timeout_ms: int) -> ByteStream:
        return await super().__call__(_sockets.get((address.host, address.port), address), timeout_ms)


def dialer(scheme: str | None = None) -> Connect:
    """How a client of the test reaches brokers and name servers of a scheme, the chosen one unless one is given."""
    scheme = scheme or chosen().scheme
    config = settings.load(environ={}, flags=scheme_keys(scheme))
    return _Finding(config, plugins.load(config), scheme if scheme not in (TCP, _UNIX) else None)


def scheme_keys(scheme: str) -> dict[str, Any]:
    """What broker and clients are to be told for a scheme."""
    return {"tls.test.mode.enable": True} if scheme in _ENCRYPTED else {}


def _used(scheme: str | None) -> str:
    if scheme is None:
        chosen().used.add("transport")
    return scheme or chosen().scheme


@contextmanager
def places(scheme: str) -> Iterator[tuple[str, str]]:
    """Free addresses as text: what a server is to listen on, and the socket of a broker whose scheme has no ports, else an empty text."""
    if scheme != _UNIX:
        yield f"{scheme}://127.0.0.1:0", ""
        return
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="rmqkit-") as folder:
        yield f"unix://{folder}/namesrv", f"unix://{folder}/broker"


@asynccontextmanager
async def _serving(
    config: Config, registry: Registry, scheme: str, socket: str, clock: Clock | None = None
) -> AsyncIterator[RunningBroker]:
    """A broker with ports of the scheme, or reached by a socket."""
    if socket:
        config = config.with_values(listeners=(socket, *config.listeners))
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
    directory: Path, *, extra: Iterable[tuple[str, object]] = (), clock: Clock | None = None, scheme: str | None = None, **keys: Any
) -> AsyncIterator[RunningBroker]:
    """A broker that registers nowhere, unless told to; leaving stops it gracefully.

    extra   plugins besides the installed ones
    scheme  of its transport, default the chosen one; with "memory" it needs no sockets. `dialer` reaches it
    """
    scheme = _used(scheme)
    config = test_config(directory, **scheme_keys(scheme) | keys)
    with places(scheme) as (_, socket):
        async with _serving(config, plugins.load(config, extra=extra), scheme, socket, clock) as running:
            yield running


@frozen
class Cluster:
    """A name server and a broker registered with it. `connect` leads to both: give it to clients and connection pools."""

    broker: RunningBroker
    namesrv: Address
    connect: Connect

    @property
    def namesrv_text(self) -> str:
        return str(self.namesrv)


@asynccontextmanager
async def running_namesrv(directory: Path, *, scheme: str | None = None, **keys: Any) -> AsyncIterator[Address]:
    """A name server alone, for several brokers; `dialer` reaches it. Leaving stops it gracefully."""
    scheme = _used(scheme)
    with places(scheme) as (place, _):
        config = test_config(directory, **{"namesrvListen": place} | scheme_keys(scheme) | keys)
        async with _namesrv(config, plugins.load(config)) as address:
            yield address


@asynccontextmanager
async def _namesrv(config: Config, registry: Registry) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await nursery.start(server.run, config, registry, [Address.parse(config.namesrv_listen)])
        yield handle.addresses[0]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def cluster_of(config: Config, registry: Registry, *, socket: str = "") -> AsyncIterator[Cluster]:
    """A name server and a broker in this process, with any settings; leaving stops both gracefully.

    The broker's ports are of the scheme that namesrvListen has; `socket` is where clients reach it instead, for a scheme that has no ports.
    """
    async with _namesrv(config, registry) as namesrv:
        config = config.with_values(namesrv_addr=str(namesrv))
        connect = _Finding(config, registry, namesrv.scheme if namesrv.scheme not in (TCP, _UNIX) else None)
        async with _serving(config, registry, namesrv.scheme, socket) as running:
            yield Cluster(running, namesrv, connect)


@asynccontextmanager
async def running_cluster(
    directory: Path, *, extra: Iterable[tuple[str, object]] = (), scheme: str | None = None, **keys: Any
) -> AsyncIterator[Cluster]:
    """A name server and a broker with the settings of `test_config`; `scheme` as in `running_broker`."""
    scheme = _used(scheme)
    with places(scheme) as (namesrv, socket):
        config = test_config(directory, **{"namesrvListen": namesrv} | scheme_keys(scheme) | keys)
        async with cluster_of(config, plugins.load(config, extra=extra), socket=socket) as cluster:
            yield cluster
