"""Clocks for tests."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import anyio.to_thread
import trio
import trio.abc
import trio.testing

#: Steps of a clock that is put forward: short ones, but not more than these.
_STEP_S, _MAX_STEPS = 1.0, 1_000


class FakeClock:
    """A clock that tests move by hand: `rmqkit.plugin.clock.Clock` for tests. Times in ms since the epoch."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock; a negative number sets it back."""
        self._now_ms += ms


class SettableClock(trio.abc.Clock):
    """A clock for `trio.run` that goes like others, and can be put forward: what waits for a time that has
    come then goes on."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def start_clock(self) -> None:
        """It goes already."""

    def current_time(self) -> float:
        return time.perf_counter() + self._ahead_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    async def advance(self, ms: int) -> None:
        """Put the clock forward, in steps, each of which waits until the loop has done what was due. Raises
        ValueError for a negative number. When cancelled, it stays where it has come."""
        if ms < 0:
            raise ValueError(f"{ms} ms: the clock goes forward alone")
        step_s = max(_STEP_S, ms / 1_000 / _MAX_STEPS)
        left_s = ms / 1_000
        while left_s > 0:
            self._ahead_s += min(step_s, left_s)
            left_s -= step_s
            await trio.testing.wait_all_tasks_blocked()


class LoopClock:
    """`rmqkit.plugin.clock.Clock` that follows the clock of the trio loop, for tests in which that clock
    jumps: held pulls and delays then end when the test's sleeps do."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._start_s = trio.current_time()

    def now_ms(self) -> int:
        return self._start_ms + int((trio.current_time() - self._start_s) * 1000)


@contextmanager
def threads_hold_the_clock(clock: trio.testing.MockClock) -> Iterator[None]:
    """In the block, a clock that jumps does not jump while a thread of `to_thread.run_sync`, trio's or
    anyio's, works for the loop of that clock: no time passes for a task that waits for it. Loops of other
    threads are left alone."""
    working = 0
    threshold_s = clock.autojump_threshold

    def holding(run_sync: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*arguments: Any, **options: Any) -> Any:
            nonlocal working, threshold_s
            if not (trio.lowlevel.in_trio_run() and trio.lowlevel.current_clock() is clock):
                return await run_sync(*arguments, **options)
            if not working:
                threshold_s, clock.autojump_threshold = clock.autojump_threshold, math.inf
            working += 1
            try:
                return await run_sync(*arguments, **options)
            finally:
                working -= 1
                if not working:
                    clock.autojump_threshold = threshold_s

        return run

    with ExitStack() as stack:
        for module in (trio.to_thread, anyio.to_thread):
            stack.enter_context(mock.patch.object(module, "run_sync", holding(module.run_sync)))
        yield
