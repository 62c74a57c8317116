"""Simulated clusters (tests.sim.clusters.world contains the runs). Each run has a process of its own: what a
process did before would decide the order of some events."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from tests.sim.clusters.world import simulate

world = simulate(2, Path(sys.argv[1]))
print(world.done, sorted(world.journal.places.items()), sorted(world.journal.masters.items()))
"""


def output(*words: str) -> str:
    """What a program prints, which must succeed."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if words[0] == "-m" else subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    return done.stdout


def test_nothing_acknowledged_is_lost() -> None:
    """Under kills, losses of power, suspensions, cuts, and disks that hang or are full; the cluster serves
    afterwards, and everything is consumed."""
    text = output("-m", "tests.sim", "--runs", "1", "--seed", "3")
    disturbances, masters, acknowledged, consumed = map(int, re.findall(r", (\d+) [a-z]", text)[:4])
    assert disturbances > 5
    assert masters > 2
    assert consumed >= acknowledged > 50


def test_a_seed_replays_a_run(tmp_path: Path) -> None:
    """The same things happen at the same moments, and every message is at the same place."""
    runs = [output("-c", PROGRAM, str(tmp_path / name)) for name in ("one", "other")]
    assert "TopicTest" in runs[0]
    assert runs[0] == runs[1]
