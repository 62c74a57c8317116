"""Signals to a server process."""

from __future__ import annotations

import signal

import pytest
import trio

from rmqkit.cli.running import until_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_a_graceful_stop(number: signal.Signals) -> None:
    """What is under way may end by itself."""
    steps: list[str] = []

    async def main(stop: trio.Event) -> None:
        signal.raise_signal(number)
        await stop.wait()
        await trio.testing.wait_all_tasks_blocked()
        steps.append("stopped")

    await until_signal(main)
    assert steps == ["stopped"]


async def test_the_second_signal_cancels() -> None:
    """Whoever waits for a stop that takes too long can cut it short."""
    steps: list[str] = []

    async def main(stop: trio.Event) -> None:
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        signal.raise_signal(signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            steps.append("cut")

    await until_signal(main)
    assert steps == ["cut"]


async def test_a_stop_by_other_means_is_no_signal() -> None:
    """A broker process that its parent stops may get the same signal as its parent, and still stops gracefully."""
    steps: list[str] = []

    async def main(stop: trio.Event) -> None:
        stop.set()
        signal.raise_signal(signal.SIGTERM)
        await trio.testing.wait_all_tasks_blocked()
        steps.append("stopped")

    await until_signal(main)
    assert steps == ["stopped"]
