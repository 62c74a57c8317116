"""Simulated clusters (tests.sim.clusters.world contains the runs). Each run has a process of its own: what a
process did before would decide the order of some events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from tests.sim.clusters.world import simulate

world = simulate(3, Path(sys.argv[1]))
print(json.dumps({
    "done": world.done,
    "places": sorted(map(repr, world.journal.places.items())),
    "masters": sorted(map(repr, world.journal.masters.items())),
    "acknowledged": len(world.clients.acknowledged),
    "consumed": len(world.clients.consumed),
}))
"""


def simulated(directory: Path) -> dict[str, Any]:
    """What happened in a run of one seed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, directory], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return simulated(tmp_path_factory.mktemp("run"))


def test_nothing_acknowledged_is_lost(run: dict[str, Any]) -> None:
    """Under kills, losses of power, suspensions, cuts, and disks that hang or are full; the cluster serves
    afterwards, and everything is consumed."""
    assert len(run["done"]) > 5
    assert len(run["masters"]) > 2
    assert run["consumed"] >= run["acknowledged"] > 50


def test_a_seed_replays_a_run(run: dict[str, Any], tmp_path: Path) -> None:
    """The same things happen at the same moments, and every message is at the same place."""
    assert any("TopicTest" in place for place in run["places"])
    assert simulated(tmp_path) == run
