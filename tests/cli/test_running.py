"""The process of a server: garbage collection and signals."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
import trio

from rmqkit.cli.running import tune, until_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_a_graceful_stop(number: signal.Signals) -> None:
    """The first signal lets running work complete."""
    steps: list[str] = []

    async def main(stop: trio.Event) -> None:
        signal.raise_signal(number)
        await stop.wait()
        await trio.testing.wait_all_tasks_blocked()
        steps.append("stopped")

    await until_signal(main)
    assert steps == ["stopped"]


async def test_the_second_signal_cancels() -> None:
    """A second signal cancels a stop that takes too long."""
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
    """A broker process that its parent stops may get the same signal as its parent, and still stops
    gracefully."""
    steps: list[str] = []

    async def main(stop: trio.Event) -> None:
        stop.set()
        signal.raise_signal(signal.SIGTERM)
        await trio.testing.wait_all_tasks_blocked()
        steps.append("stopped")

    await until_signal(main)
    assert steps == ["stopped"]


@pytest.fixture
def gc_settings() -> Iterator[None]:
    """Restores the settings of the tests' process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("gc_settings")
def test_no_usual_pass_of_the_collector_visits_many_objects() -> None:
    """With 400 000 live objects, a pass over the young or middle generation visits at most 25 000 of them,
    and no pass visits all: each costs the clients a microsecond."""
    visited: list[tuple[int, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generation = info["generation"]
            visited.append((generation, sum(len(gc.get_objects(young)) for young in range(generation + 1))))

    gc.collect()
    tune()
    gc.callbacks.append(note)
    try:
        kept: list[list[None]] = [[] for _ in range(400_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 400_000
    assert {generation for generation, _ in visited} == {0, 1}
    assert max(objects for _, objects in visited) <= 25_000
