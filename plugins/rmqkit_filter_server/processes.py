"""Starts and watches the filter servers of a broker (Java: FilterServerManager, FilterServerUtil).

No text that came from the network is on a command line, and no shell interprets one: the arguments are fixed,
and the settings travel through the standard input of the process, whose end stops it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable

import msgspec
import trio

from rmqkit.config import Config
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.service import Service
from rmqkit.plugin.transport import Address
from rmqkit_filter_server.registered import RegisteredFilterServers
from rmqkit_filter_server.settings import PLUGIN, FilterServerOptions, FilterServerSettings

_log = logging.getLogger(__name__)
#: Time between two looks for silent filter servers (Java: ClientHousekeepingService).
SCAN_INTERVAL_MS = 10_000
#: Time before a filter server that has ended is started again; doubled up to the maximum for each one that
#: ended sooner than this maximum after its start.
FIRST_RESTART_MS = 1_000
MAX_RESTART_MS = 30_000
#: Time for a filter server to end by itself.
STOP_TIMEOUT_MS = 5_000
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}

#: Starts a process, whose standard input is a pipe. Raises OSError.
Launch = Callable[[], Awaitable[trio.Process]]


def command_line() -> list[str]:
    """The arguments of a filter server's process. `-P` keeps the working directory out of the import path."""
    return [sys.executable, "-P", "-m", "rmqkit.cli", "filter-server", "--supervised"]


async def launch() -> trio.Process:
    """Start the program. It has its own session, so that signals of a terminal reach only the broker."""
    return await trio.lowlevel.open_process(command_line(), stdin=subprocess.PIPE, start_new_session=True)


class FilterServerProcesses(Service):
    """Service "filter-server": keeps `filterServerNums` filter servers running, and removes silent ones."""

    name = PLUGIN

    def __init__(self, launch: Launch = launch) -> None:
        self._launch = launch
        self._registered: RegisteredFilterServers | None = None

    def begin(self, registered: RegisteredFilterServers) -> None:
        """Set the table of the broker."""
        self._registered = registered

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Counts as started at once; consumers wait for the first registration. Cancelled: the filter servers
        are stopped, after five seconds killed."""
        count = broker.config.owned(FilterServerSettings).filter_server_nums
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self._keep, number, settings_of(broker))
            task_status.started()
            while True:
                await trio.sleep(SCAN_INTERVAL_MS / 1000)
                if self._registered is not None:
                    self._registered.scan()

    async def _keep(self, number: int, config: Config) -> None:
        wait_ms = FIRST_RESTART_MS
        while True:
            began_s = trio.current_time()
            try:
                process = await self._launch()
            except OSError as error:
                _log.error("filter server %s cannot be started: %s", number, error)
            else:
                _log.info("filter server %s is process %s", number, process.pid)
                code = await _run(process, config)
                _log.error("filter server %s ended with exit code %s", number, code)
            if trio.current_time() - began_s > MAX_RESTART_MS / 1000:
                wait_ms = FIRST_RESTART_MS
            await trio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, MAX_RESTART_MS)


async def _run(process: trio.Process, config: Config) -> int:
    """Give the process its settings and wait for its end."""
    assert process.stdin is not None, "it is a pipe"
    try:
        try:
            await process.stdin.send_all(msgspec.json.encode(config) + b"\n")
        except trio.BrokenResourceError:
            _log.debug("process %s ended before it had its settings", process.pid)
        return await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(STOP_TIMEOUT_MS / 1000):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


def settings_of(broker: Broker) -> Config:
    """The settings of the broker's filter servers, which reach it by the address where it listens. Consumers
    are given the host that they are given for the broker."""
    own, config = Address.parse(broker.address), broker.config
    host = _ANY_HOST.get(config.bind_address, config.bind_address)
    found = FilterServerOptions(
        broker=str(Address("tcp", host, own.port)),
        listen=str(Address("tcp", config.bind_address, 0)),
        advertised=own.host,
    )
    table = msgspec.to_builtins(found) | config.plugins.get(PLUGIN, {}) | {"broker": found.broker}
    return msgspec.structs.replace(
        config,
        plugins=config.plugins | {PLUGIN: table},
        sources={f"plugins.{PLUGIN}.{key}": "broker" for key in table} | config.sources,
    )
