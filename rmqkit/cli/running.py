"""How a server process runs: tuned for the message path, until a signal asks it to stop."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from rmqkit.broker.run import RunningBroker, run_broker
from rmqkit.config import Config
from rmqkit.plugins import Registry

#: Garbage collections are rarer than Python's default: the message path makes few cycles and many young objects.
_GC_THRESHOLDS = (50_000, 20, 50)

Main = Callable[[trio.Event], Awaitable[None]]


def tune() -> None:
    """Settings of the whole process. The soft limit of open files goes up to the hard one, as the JVM does: every connection and many files of a
    store cost one."""
    gc.set_threshold(*_GC_THRESHOLDS)
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def until_signal(main: Main) -> None:
    """Run `main` with an event that SIGTERM or SIGINT sets: the first one asks for a graceful stop, a second one cancels it."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def watch(task_status: trio.TaskStatus[None]) -> None:
            asked = False
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                task_status.started()
                async for _ in signals:
                    if asked:
                        nursery.cancel_scope.cancel()
                    asked = True
                    stop.set()

        await nursery.start(watch)
        await main(stop)
        nursery.cancel_scope.cancel()


async def broker_until(stop: trio.Event, config: Config, registry: Registry, ready: Callable[[RunningBroker], Awaitable[None]]) -> None:
    """A broker of this process; `ready` is called when it serves and has registered, and `stop` ends it gracefully. Raises and, cancelled, leaves
    behind what `run_broker` does."""
    async with trio.open_nursery() as nursery:
        running: RunningBroker = await nursery.start(partial(run_broker, config, registry))
        gc.collect()
        gc.freeze()
        await ready(running)
        await stop.wait()
        running.stop.set()
