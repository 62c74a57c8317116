"""Waits for intervals that change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from rmqkit.toolkit.interval import sleep_interval

DAY_MS = 86_400_000


class Waiting:
    """One wait; `took_ms` is its duration once it is over."""

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.on_change: list[Callable[[], None]] = []
        self.took_ms: int | None = None

    async def run(self) -> None:
        began_s = trio.current_time()
        await sleep_interval(self.on_change, lambda: self.interval_ms)
        self.took_ms = round((trio.current_time() - began_s) * 1000)

    def change(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        for listener in self.on_change:
            listener()


@pytest.mark.parametrize("interval_ms", [5_000, 0, -1])
async def test_an_interval_passes(autojump_clock: trio.testing.MockClock, interval_ms: int) -> None:
    """Without a change the wait lasts as long as the interval, and its listener is gone afterwards."""
    waiting = Waiting(interval_ms)
    await waiting.run()
    assert (waiting.took_ms, waiting.on_change) == (max(interval_ms, 0), [])


@pytest.mark.parametrize(
    ("changes", "took_ms"),
    [([5_000], 5_000), ([1_000], 2_000), ([DAY_MS // 2, 4_000], 4_000), ([0], 2_000), ([DAY_MS], DAY_MS)],
)
async def test_a_change_counts_from_the_beginning(
    autojump_clock: trio.testing.MockClock, changes: list[int], took_ms: int
) -> None:
    """Two seconds after the beginning an interval of a day becomes another one, and perhaps another one
    again: what has passed counts, and what is over ends the wait at once."""
    waiting = Waiting(DAY_MS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.run)
        await trio.sleep(2)
        for interval_ms in changes:
            waiting.change(interval_ms)
            await trio.testing.wait_all_tasks_blocked()
    assert (waiting.took_ms, waiting.on_change) == (took_ms, [])


async def test_a_cancelled_wait_leaves_no_listener(autojump_clock: trio.testing.MockClock) -> None:
    """Services that are stopped and started again do not add up."""
    waiting = Waiting(DAY_MS)
    with trio.move_on_after(1):
        await waiting.run()
    assert (waiting.took_ms, waiting.on_change) == (None, [])
