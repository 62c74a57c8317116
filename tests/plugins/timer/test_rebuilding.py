"""Which records of the timer topic still wait, when wheel and log are made anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from rmqkit.errors import DecodeError
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.rebuilding import Rebuilding
from tests.broker.desk import open_desk
from tests.plugins.timer.kit import after, found, put, timed, timing

READ_MS = 1_000_000
FOUND = Rebuilding.of(Checkpoint(read_time_ms=READ_MS, queue_offset=9), 600, 1_000)


@pytest.mark.parametrize(
    ("slot_ms", "stored_ms", "waits"),
    [
        (READ_MS, READ_MS - 5_000, True),
        (READ_MS - 1_000, READ_MS - 5_000, False),
        (READ_MS + 5_000, READ_MS + 5_999, True),
        (READ_MS + 5_000, READ_MS + 6_000, False),
        # Beyond the window: stored anew after half of it, or after a whole one.
        (READ_MS + 599_000, READ_MS - 1_000, True),
        (READ_MS + 300_000, READ_MS - 360_000, True),
        (READ_MS + 300_000, READ_MS - 361_000, False),
        (READ_MS + 900_000, READ_MS - 660_000, True),
        (READ_MS + 900_000, READ_MS - 661_000, False),
    ],
)
def test_what_waits_still(slot_ms: int, stored_ms: int, waits: bool) -> None:
    """A record is over when its slot is read, when it was due at once, and when it was stored anew."""
    assert FOUND.waits({"TIMER_OUT_MS": str(slot_ms)}, stored_ms) is waits


def test_a_record_without_a_time_cannot_be_judged() -> None:
    """It is set aside as any other one."""
    with pytest.raises(DecodeError, match="TIMER_OUT_MS"):
        FOUND.waits({}, READ_MS)


@pytest.mark.only_store("memory", "mmap", why="moves a virtual clock")
@pytest.mark.parametrize("window", [172_800, 60])
async def test_timers_made_anew_deliver_the_same(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, window: int
) -> None:
    """A second run of the service, without the files of the first: nothing is lost, and nothing that was
    delivered comes again."""
    async with open_desk(tmp_path, timerRollWindowSlot=window) as desk:
        async with timing(desk):
            for seconds in (2, 4, 300, 302):
                put(desk, timed(b"%d" % seconds, {"TIMER_DELAY_SEC": str(seconds)}))
            await after(desk, 3_000)
            put(desk, timed(b"6", {"TIMER_DELAY_SEC": "3"}), timed(b"0", {"TIMER_DELAY_SEC": "0"}))
            await after(desk, 1_000)
            assert found(desk) == [b"2", b"0", b"4"]
        (tmp_path / "timerwheel").unlink(missing_ok=True)
        async with timing(desk):
            await after(desk, 2_000)
            assert found(desk) == [b"2", b"0", b"4", b"6"]
            for _ in range(100):
                await after(desk, 3_000)
            assert found(desk) == [b"2", b"0", b"4", b"6", b"300", b"302"]
