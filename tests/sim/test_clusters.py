"""Simulated clusters (tests.sim.clusters.world contains the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.clusters.world import simulate


@pytest.mark.parametrize("seed", [2, 3])
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    """Under kills, losses of power, suspensions, cuts, and disks that hang or are full; the cluster serves
    afterwards, and everything is consumed."""
    world = simulate(seed, tmp_path)
    assert len(world.done) > 5
    assert len(world.clients.acknowledged) > 50
    assert world.clients.acknowledged <= world.clients.consumed


def test_a_seed_replays_a_run(tmp_path: Path) -> None:
    """The same things happen at the same moments, and the same messages are acknowledged."""
    one, other = (simulate(1, tmp_path / name) for name in ("one", "other"))
    assert one.done == other.done
    assert one.journal.places == other.journal.places
    assert one.journal.masters == other.journal.masters
