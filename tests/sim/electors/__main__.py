"""Simulates replica groups: `python -m tests.sim.electors --runs 1000 --seed 1`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.seeded_runs import repeat
from tests.sim.electors.world import simulate


def _counts(_: Path, seed: int) -> dict[str, int]:
    world = simulate(seed)
    return {
        "disturbances": len(world.done),
        "masters": len(world.epochs),
        "messages acknowledged": len(world.messages),
    }


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.sim.electors",
            "Simulate replica groups under disturbances; nothing acknowledged may be lost.",
            _counts,
        )
    )
