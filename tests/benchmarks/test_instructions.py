"""Instructions of the broker for each message."""

from __future__ import annotations

import pytest
import trio

from benchmarks import instructions


def test_messages_in_batches_cost_fewer_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load is counted, also with hooks; a message of a batch takes fewer instructions than one sent
    alone."""
    monkeypatch.setattr(
        instructions, "LOADS", {load: (size, 2) for load, (size, _) in instructions.LOADS.items()}
    )
    plain = trio.run(instructions.measure, "none")
    assert 0 < plain["batch"] < plain["window"] < plain["single"]
    assert all(found > 0 for found in trio.run(instructions.measure, "audit").values())
