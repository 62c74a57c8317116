"""An elected group under SIGKILL and SIGSTOP (tests.faults.electing contains the runs)."""

from __future__ import annotations

from pathlib import Path

from tests.faults.electing import ROUNDS, survive


async def test_no_acknowledged_message_is_lost_by_changes_of_the_master(tmp_path: Path) -> None:
    """Every message that was answered with SEND_OK is in both logs, which are equal, and a master whose
    deadline passed while it was suspended acknowledges nothing."""
    group = await survive(tmp_path, seed=3)
    assert {"kill_master", "kill_slave", "kill_both", "suspend_master"} <= set(group.done)
    assert len(group.acknowledged) > 5 * ROUNDS
