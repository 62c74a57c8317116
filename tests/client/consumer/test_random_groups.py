"""Members that join, leave and die at random (`random_groups` has the runs)."""

from __future__ import annotations

import pytest

from tests.client.consumer.random_groups import simulate


@pytest.mark.row("S177", "S203")
@pytest.mark.parametrize("seed", range(8))
def test_at_rest_each_queue_has_one_owner(seed: int) -> None:
    """Whatever happened before, the living members share all queues in the end and keep their shares; every
    message was handled, and no commit was beyond an unfinished message."""
    assert simulate(seed).stored
