"""At-least-once delivery through restarts of the broker and cut connections (`storms` has the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.client.consumer.storms import weather


@pytest.mark.parametrize("seed", range(3))
async def test_no_acknowledged_message_is_lost(tmp_path: Path, autojump_clock: MockClock, seed: int) -> None:
    """Every acknowledged message is handled, however often the broker restarts and connections are cut; no
    offset is committed before its messages are handled, and in the end every offset is."""
    storm = await weather(tmp_path, seed)
    assert len(storm.acknowledged) > 50
    assert storm.lives > 1
