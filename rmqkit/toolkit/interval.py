"""Waits for an interval that is a setting, and may change meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import trio


async def sleep_interval(on_change: list[Callable[[], None]], interval_ms: Callable[[], float]) -> None:
    """Wait until an interval, in ms, has passed since the call. `interval_ms` is asked at the call and after
    each change of settings, of which `on_change` tells (`Broker.on_config_change`): a changed interval counts
    from the same beginning. An interval of 0 or less lets other tasks run. Cancelled: nothing remains."""
    began_s = trio.current_time()
    changed = trio.Event()

    def wake() -> None:
        changed.set()

    on_change.append(wake)
    try:
        while True:
            with trio.move_on_at(began_s + interval_ms() / 1000):
                await changed.wait()
                changed = trio.Event()
                continue
            return
    finally:
        on_change.remove(wake)
