"""The time for which a call has held the event loop."""

from __future__ import annotations

import pytest

from rmqkit.toolkit import held_time
from rmqkit.toolkit.held_time import HeldTime


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "switches", "expected_s"),
    [(0.005, 0.005, 0, 0.005), (0.005, 0.001, 0, 0.001), (0.005, 0.001, 1, 0.005), (0.0059, 0.005, 1, 0.005)],
    ids=["computed", "preempted", "waited", "waited for a moment"],
)
def test_waiting_counts_and_preemption_does_not(
    monkeypatch: pytest.MonkeyPatch, wall_s: float, cpu_s: float, switches: int, expected_s: float
) -> None:
    """What other programs use is not the callee's; a callee that waits holds the loop."""
    now = {"perf_counter": 10.0, "thread_time": 1.0, "switches": 7}
    for name in now:
        monkeypatch.setattr(held_time, name, lambda name=name: now[name])
    held = HeldTime()
    now["perf_counter"] += wall_s
    now["thread_time"] += cpu_s
    now["switches"] += switches
    assert held.elapsed_s() == pytest.approx(expected_s)
