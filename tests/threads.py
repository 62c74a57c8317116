"""Threads under a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_at_once(work: Callable[..., T], *arguments: object, **_options: object) -> T:
    """A stand-in for `to_thread.run_sync`, trio's and anyio's, that does the work in the event loop: a clock
    that jumps does not wait for threads. `rmqkit.testing.clock.threads_hold_the_clock` keeps the threads, for
    work that calls back into the loop; here `wait_all_tasks_blocked` waits for the work as well."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)
