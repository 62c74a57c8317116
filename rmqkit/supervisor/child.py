"""The program of a broker process: `python -P -m rmqkit.supervisor NAME`, started only by `process.launch`.

Standard input is the channel to the parent. Standard output and standard error are the parent's; every line
of the log contains the broker's name.
"""

from __future__ import annotations

import logging
import os
import socket
from functools import partial

import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.cli import running
from rmqkit.config import Config
from rmqkit.log_lines import start_logging
from rmqkit.plugin import loader
from rmqkit.plugin.address import Address
from rmqkit.plugin.server import ServerHandle
from rmqkit.supervisor.channel import Channel, Cut, Failed, Ready, Role, Start
from rmqkit.supervisor.plan import label
from rmqkit.toolkit import output

_log = logging.getLogger(__name__)


def main() -> int:
    """Run the broker named by the parent. Returns the exit code."""
    return trio.run(_main, _take_channel())


def _take_channel() -> socket.socket:
    """Return standard input as a socket and replace it by the null device, so that nothing else reads from
    the channel."""
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return channel


async def _main(end: socket.socket) -> int:
    channel = Channel(end)
    first = await channel.receive()
    if not isinstance(first, Start):
        # The parent ended before it sent the settings.
        return 0
    start_logging(None, None, label(first.config))
    running.tune()
    try:
        await running.until_signal(partial(serve, first.config, channel, first.role))
    except Exception as error:  # noqa: BLE001 - reported to the parent, and logged when it indicates a defect
        told = output.fault_lines(error)
        if told is None:
            _log.critical("ends because of an unexpected error", exc_info=error)
            told = ([f"{type(error).__name__}, see the log"], 1)
        await channel.send(Failed(tuple(told[0]), told[1]))
        return told[1]
    return 0


async def serve(config: Config, channel: Channel, role: Role | None, stop: trio.Event) -> None:
    """Run the broker, or the server of another role, until `stop` is set or the parent requests the stop or
    ends. When cancelled, connections are closed, then tables and store."""
    registry = loader.load(config)
    serving = trio.Event()

    async def ready(server: RunningBroker | ServerHandle) -> None:
        serving.set()
        address = server.address if isinstance(server, RunningBroker) else server.addresses[0]
        await channel.send(Ready(str(address)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_obey, channel, stop, serving, nursery.cancel_scope)
        if role is not None:
            await running.role_until(stop, config, registry, role.name, Address.parse(role.listen), ready)
        else:
            await running.broker_until(stop, config, registry, ready)
        nursery.cancel_scope.cancel()


async def _obey(channel: Channel, stop: trio.Event, serving: trio.Event, scope: trio.CancelScope) -> None:
    while not isinstance(message := await channel.receive(), Cut):
        if message is None and not stop.is_set():
            _log.warning("the parent process has ended: this broker stops")
        stop.set()
        if not serving.is_set():
            # The broker is not in use yet, and opening a large store after a crash takes long.
            break
        if message is None:
            return
    scope.cancel()
