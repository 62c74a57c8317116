"""`rmqkit serve --memory --control HOST:PORT`: servers for the tests of programs in any language, with a port
that puts their clock forward and makes faults (`rmqkit.testing.control`)."""

from __future__ import annotations

import errno
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import trio

from rmqkit.cli import options, readiness, running
from rmqkit.config.values import DAY_MS
from rmqkit.errors import ConfigError, MissingExtra
from rmqkit.plugin.address import Address
from rmqkit.testing.clock import SettableClock
from rmqkit.testing.faults import NAME_SERVER
from rmqkit.testing.rocketmq import RocketMQ, rocketmq_in_loop

_MEMORY = "memory"
_FIRST = "broker-a"
#: Clients are not to look silent because the clock is put forward.
_PATIENT: Mapping[str, Any] = {
    "channelExpiredTimeout": DAY_MS,
    "serverChannelMaxIdleTimeSeconds": DAY_MS // 1_000,
}


def run(arguments: Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, MissingExtra."""
    options.start_logging(arguments)
    for given, name in (
        (not arguments.memory, "--memory, which it needs, is missing"),
        (arguments.data is not None, "--data: nothing is kept"),
        (arguments.replicas, "--replicas: take --brokers"),
        (arguments.config is not None, "--config: give settings with --set"),
        (arguments.grpc is not None, "--grpc: clients of gRPC connect to the broker's port"),
    ):
        if given:
            raise ConfigError(f"--control runs servers for tests: {name}")
    if find_spec("h11") is None:
        raise MissingExtra("--control", "metrics")
    running.tune()
    clock = SettableClock()
    trio.run(running.until_signal, partial(_serve, arguments, clock), clock=clock)
    return 0


async def _serve(arguments: Namespace, clock: SettableClock, stop: trio.Event) -> None:
    # Imported here because it needs an extra.
    from rmqkit.testing.control import Control

    wanted = {NAME_SERVER: arguments.namesrv, _FIRST: arguments.broker}
    addresses = {name: str(address) for name, address in wanted.items() if address is not None}
    async with rocketmq_in_loop(
        brokers=arguments.brokers,
        store=_MEMORY,
        settings={**_PATIENT, **dict(arguments.set)},
        addresses=addresses,
    ) as servers:
        control = Control(servers, clock)
        listeners = await _listeners(arguments.control)
        host, port = listeners[0].socket.getsockname()[:2]
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_listeners, control.responder.serve, listeners))
            _print_ready(servers, f"{host}:{port}")
            await stop.wait()
            nursery.cancel_scope.cancel()


async def _listeners(where: Address) -> list[trio.SocketListener]:
    try:
        return list(await trio.open_tcp_listeners(where.port, host=where.host))
    except OSError as error:
        taken = "; choose another port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"--control: cannot listen on {where}: {error.strerror or error}{taken}") from error


def _print_ready(servers: RocketMQ, control: str) -> None:
    brokers = ",".join(servers.address(name) for name in servers.brokers)
    door = f" grpc={servers.address(servers.brokers[0])}" if find_spec("google.protobuf") else ""
    readiness.announce(
        f"namesrv={servers.namesrv_text} broker={brokers} name={','.join(servers.brokers)}"
        f" store={_MEMORY} control={control}{door}"
    )
