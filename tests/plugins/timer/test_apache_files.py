"""Files that Apache's broker 5.5.0 wrote for six timed messages, read and written byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqkit_timer import checkpoint as checkpoints
from rmqkit_timer import units
from rmqkit_timer.counts import Counts
from rmqkit_timer.timer_log import TimerLog
from rmqkit_timer.timers import Place, Timers
from rmqkit_timer.units import DEFAULT, DELETE, ROLL, UNIT_BYTES, Unit
from rmqkit_timer.wheel import PAGE_BYTES, SLOT_BYTES, WHEEL_BYTES, Wheel

VECTOR = Path(__file__).parents[2] / "vectors" / "timers.json"


@pytest.fixture(scope="module")
def apache() -> dict[str, Any]:
    """Parts of the files: the used slots by number, the log, the checkpoint, the counts."""
    found: dict[str, Any] = msgspec.json.decode(VECTOR.read_bytes())
    return found


def log_of(apache: dict[str, Any]) -> list[Unit]:
    log = bytes.fromhex(apache["log"])
    found = [units.unpack(log, at) for at in range(0, len(log), UNIT_BYTES)]
    return [each for each in found if each is not None]


def slots_of(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """The number and the bytes of each used slot."""
    for start, page in wheel.take_changed():
        for at in range(0, PAGE_BYTES, SLOT_BYTES):
            if any(page[at : at + SLOT_BYTES]):
                yield str((start + at) // SLOT_BYTES), page[at : at + SLOT_BYTES].hex()


def test_the_same_messages_make_the_same_files(apache: dict[str, Any]) -> None:
    """Messages of one slot, a deletion, and one beyond the window, entered at the same time."""
    theirs = log_of(apache)
    assert [unit.magic for unit in theirs] == [DEFAULT] * 4 + [DEFAULT | DELETE, DEFAULT | ROLL]
    timers = Timers(Wheel(1_000), TimerLog(None, 1 << 20), Counts(), 172_800, theirs[0].write_ms)
    assert apache["wheelBytes"] == WHEEL_BYTES
    for unit in theirs:
        # One beyond the window by half of it waits for a whole one.
        due_ms = unit.slot_ms + (86_000_000 if unit.rolls else 0)
        deletes = bool(unit.magic & DELETE)
        timers.advance(unit.write_ms)
        timers.enter(due_ms, Place(unit.physical_offset, unit.size_bytes, unit.topic_hash, deletes))
    assert bytes(timers.log._memory).hex() == apache["log"]
    assert dict(slots_of(timers.wheel)) == apache["slots"]


def test_the_checkpoint_and_the_counts_are_read(apache: dict[str, Any]) -> None:
    """And written with the same numbers."""
    data = bytes.fromhex(apache["check"])
    found = checkpoints.decode(data)
    assert (found.log_position, found.queue_offset, found.master_queue_offset) == (6 * UNIT_BYTES, 6, 6)
    assert found.moment is None
    assert checkpoints.encode(found)[: len(data)] == data
    counts = msgspec.json.decode(apache["metrics"], type=Counts)
    assert {topic: each.count for topic, each in counts.timing_count.items()} == {"Timed": 3, "Other": 1}
