"""SIGKILL of a broker with timers, repeatedly, over one store (tests.faults.timing contains the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.timing import kill_often

SEED = 20_262


@pytest.mark.parametrize(
    ("store", "policy"), [("mmap", "ASYNC_FLUSH"), ("mmap", "ASYNC_FLUSH_BUFFERED"), ("lmdb", "ASYNC_FLUSH")]
)
async def test_each_timed_message_is_delivered_once_whatever_is_killed(
    tmp_path: Path, store: str, policy: str
) -> None:
    """None early, none twice, none of those that were deleted; messages that waited beyond the window as
    well."""
    done = await kill_often(tmp_path / "store", policy, 4, SEED, store)
    assert done.kills == 4
    assert len(done.due_ms) > 50
    assert done.deleted
