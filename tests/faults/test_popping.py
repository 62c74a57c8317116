"""SIGKILL while clients pop, repeatedly, over one store (tests.faults.popping contains the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.popping import kill_often

RUNS = 4
SEED = 20_263


@pytest.mark.parametrize("ordered", [False, True], ids=["any-order", "by-key"])
@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_leases_survive_kills(tmp_path: Path, store: str, ordered: bool) -> None:
    """No message is lost, none comes after its acknowledgement was answered, and none while a lease that was
    answered lasts."""
    done = await kill_often(tmp_path / "store", RUNS, SEED, store, ordered=ordered)
    assert done["kills"] == RUNS
    assert done["acknowledgements"] > 20
    assert done["deliveries"] > done["acknowledgements"]
