"""A pair of brokers under SIGKILL (tests.faults.replicating contains the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.replicating import KILLS, survive


@pytest.mark.row("S274", "S280", "S332")
async def test_no_acknowledged_message_is_lost_by_kills_of_either_broker(tmp_path: Path) -> None:
    """Every message that was answered with SEND_OK is in both logs, which are equal up to the slave's end."""
    pair = await survive(tmp_path, seed=1)
    assert pair.kills >= KILLS
    assert pair.torn
    assert len(pair.acknowledged) > 5 * KILLS
