"""Simulated clusters (tests.sim.clusters.world contains the runs)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.clusters.world import simulate

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from tests.sim.clusters.world import simulate

world = simulate(1, Path(sys.argv[1]))
print(world.done, sorted(world.journal.places.items()), sorted(world.journal.masters.items()))
"""


@pytest.mark.parametrize("seed", [2, 3])
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    """Under kills, losses of power, suspensions, cuts, and disks that hang or are full; the cluster serves
    afterwards, and everything is consumed."""
    world = simulate(seed, tmp_path)
    assert len(world.done) > 5
    assert len(world.clients.acknowledged) > 50
    assert world.clients.acknowledged <= world.clients.consumed


def test_a_seed_replays_a_run(tmp_path: Path) -> None:
    """In a process of its own the same things happen at the same moments, and every message is at the same
    place."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / name)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        ).stdout
        for name in ("one", "other")
    ]
    assert b"TopicTest" in runs[0]
    assert runs[0] == runs[1]
