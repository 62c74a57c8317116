"""A real broker inside a test: real sockets on loopback, free ports, up in a few milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from rmqkit import config as settings
from rmqkit import plugins
from rmqkit.abc import Address, Clock, Server, ServerHandle
from rmqkit.broker.run import RunningBroker, run_broker
from rmqkit.config import Config
from rmqkit.plugins import Registry
from rmqkit.remoting.dial import TCP, Connect, Dialer


def test_config(directory: Path, **keys: Any) -> Config:
    """Settings for tests: memory store, free ports, small files. Keys are broker.conf's."""
    defaults: dict[str, Any] = {
        "storePathRootDir": str(directory),
        "store": "memory",
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


@asynccontextmanager
async def running_broker(
    directory: Path, *, extra: Iterable[tuple[str, object]] = (), clock: Clock | None = None, scheme: str = "tcp", **keys: Any
) -> AsyncIterator[RunningBroker]:
    """A broker that registers nowhere; leaving stops it gracefully. `extra` are plugins besides the installed ones; with `scheme` "memory" it needs no
    sockets."""
    config = test_config(directory, **keys)
    async with trio.open_nursery() as nursery:
        registry = plugins.load(config, extra=extra)
        running: RunningBroker = await nursery.start(partial(run_broker, config, registry, clock=clock, scheme=scheme))
        try:
            yield running
        finally:
            running.stop.set()


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
async def cluster_of(config: Config, registry: Registry) -> AsyncIterator[Cluster]:
    """A name server and a broker in this process, with any settings; leaving stops both gracefully.

    The broker's ports are of the scheme that namesrvListen has.
    """
    async with trio.open_nursery() as outer:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await outer.start(server.run, config, registry, [Address.parse(config.namesrv_listen)])
        namesrv = handle.addresses[0]
        async with trio.open_nursery() as nursery:
            config = config.with_values(namesrv_addr=str(namesrv))
            running: RunningBroker = await nursery.start(partial(run_broker, config, registry, scheme=namesrv.scheme))
            try:
                yield Cluster(running, namesrv, Dialer(config, registry, None if namesrv.scheme == TCP else namesrv.scheme))
            finally:
                running.stop.set()
        outer.cancel_scope.cancel()


@asynccontextmanager
async def running_cluster(
    directory: Path, *, extra: Iterable[tuple[str, object]] = (), scheme: str = "tcp", **keys: Any
) -> AsyncIterator[Cluster]:
    """A name server and a broker with the settings of `test_config`; with `scheme` "memory" they need no sockets."""
    config = test_config(directory, **{"namesrvListen": f"{scheme}://127.0.0.1:0"} | keys)
    async with cluster_of(config, plugins.load(config, extra=extra)) as cluster:
        yield cluster
