"""Running of a server process: tuned for the message path, until a signal stops it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.cli import readiness
from rmqkit.config import Config
from rmqkit.plugin.address import Address
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.remoting.serving import listen_on

_log = logging.getLogger(__name__)

#: A collector pass stops the event loop for up to a microsecond per visited object. With a constant number of
#: live objects, a pass over the youngest generation visits about this many, and a pass over the middle
#: generation four times as many. Full passes are rare (after some ten million new objects), because the
#: message path creates few cycles.
_GC_THRESHOLDS = (5_000, 2, 2_500)

Main = Callable[[trio.Event], Awaitable[None]]


def keep_private(config: Config) -> None:
    """Let the files and directories that this process makes from now on have the permissions that fileUmask
    leaves: by default no other user reads messages, tables and logs of this one."""
    os.umask(int(config.file_umask, 8))


def tune() -> None:
    """Tune the whole process. The soft limit of open files is raised to the hard limit, as the JVM does,
    because every connection and many files of a store need one."""
    gc.set_threshold(*_GC_THRESHOLDS)
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def until_signal(main: Main) -> None:
    """Run `main` with an event that SIGTERM or SIGINT sets. The first signal requests a graceful stop, a
    second one cancels `main`."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def watch(task_status: trio.TaskStatus[None]) -> None:
            asked = False
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                task_status.started()
                async for number in signals:
                    name = signal.Signals(number).name
                    if asked:
                        _log.warning("%s again: stopping at once", name)
                        nursery.cancel_scope.cancel()
                    else:
                        _log.info("%s: stopping", name)
                        readiness.stopping()
                    asked = True
                    stop.set()

        await nursery.start(watch)
        await main(stop)
        nursery.cancel_scope.cancel()
    _log.info("stopped")


async def role_until(
    stop: trio.Event,
    config: Config,
    registry: Registry,
    role: str,
    listener: Address,
    ready: Callable[[ServerHandle], Awaitable[None]],
) -> None:
    """Run the server of another role than the broker's in this process, as `broker_until`. Raises
    ConfigError, and what the server does."""
    server: Server = registry.chosen("servers", role)
    async with trio.open_nursery() as nursery:
        listen = listen_on(registry, [listener], server.name)
        handle: ServerHandle = await nursery.start(server.run, config, registry, listen)
        await ready(handle)
        await stop.wait()
        nursery.cancel_scope.cancel()


async def broker_until(
    stop: trio.Event, config: Config, registry: Registry, ready: Callable[[RunningBroker], Awaitable[None]]
) -> None:
    """Run a broker in this process. `ready` is called when it serves and has registered; `stop` ends it
    gracefully. Raises, and leaves behind when cancelled, what `run_broker` does."""
    async with trio.open_nursery() as nursery:
        running: RunningBroker = await nursery.start(partial(run_broker, config, registry))
        gc.collect()
        gc.freeze()
        await ready(running)
        await stop.wait()
        running.stop.set()
