"""Simulated replica groups (tests.sim.electors.world contains the runs)."""

from __future__ import annotations

import pytest

from tests.sim.electors.world import simulate


@pytest.mark.parametrize("seed", range(1, 41))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Under kills, losses of power, suspensions, cuts and late transactions; the group serves afterwards."""
    world = simulate(seed)
    assert len(world.done) > 5
    assert len(world.messages) > 100
