"""Threads under a clock that jumps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock


def at_once(run_sync: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A stand-in for `to_thread.run_sync`, trio's or anyio's, that does the work in the event loop if its
    clock jumps, which does not wait for threads. `rmqkit.testing.clock.threads_hold_the_clock` keeps the
    threads, for work that calls back into the loop; here `wait_all_tasks_blocked` waits for the work as well.
    Loops of other threads keep theirs."""

    async def run(work: Callable[..., Any], *arguments: object, **options: object) -> Any:
        if not (trio.lowlevel.in_trio_run() and isinstance(trio.lowlevel.current_clock(), MockClock)):
            return await run_sync(work, *arguments, **options)
        await trio.lowlevel.checkpoint()
        return work(*arguments)

    return run
