"""Simulates whole clusters: `python -m tests.sim --runs 500 --seed 1`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.seeded_runs import repeat
from tests.sim.clusters.world import simulate


def _counts(directory: Path, seed: int) -> dict[str, int]:
    world = simulate(seed, directory)
    return {
        "disturbances": len(world.done),
        "masters": len(world.journal.masters),
        "messages acknowledged": len(world.clients.acknowledged),
        "for later": len(world.clients.timed),
        "consumed": len(world.clients.consumed),
        "popped": len(world.clients.popped),
        "transactions": len(world.clients.prepared),
    }


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.sim", "Simulate clusters under disturbances; nothing acknowledged may be lost.", _counts
        )
    )
