"""The longest steps of an event loop."""

from __future__ import annotations

import time

import trio

from benchmarks.loop_steps import Steps


async def _busy(cpu_s: float) -> None:
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


async def _short() -> None:
    await trio.lowlevel.checkpoint()


async def _main() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_busy, 0.05)
        nursery.start_soon(_short)


def test_the_task_with_the_longest_step_is_named_first() -> None:
    """A task that computes for 50 ms has one step over the limit; the report begins anew afterwards."""
    steps = Steps()
    trio.run(_main, instruments=[steps])
    first, *others = steps.report("here", 2).splitlines()
    assert first.startswith("here")
    assert first.endswith("_busy")
    assert " 1 of      1 steps over 5 ms" in first
    assert len(others) == 1
    assert steps.report("here", 2) == ""
