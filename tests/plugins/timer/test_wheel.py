"""The wheel: slots by time, and the pages that have to be written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_timer.wheel import PAGE_BYTES, SLOT_BYTES, SLOTS, WHEEL_BYTES, Slot, Wheel

NOW_MS = 1_700_000_000_000
TURN_MS = SLOTS * 1_000


@pytest.fixture
def wheel() -> Iterator[Wheel]:
    made = Wheel(1_000)
    yield made
    made.close()


def test_the_file_is_as_large_as_apaches() -> None:
    """Two weeks of seconds, whatever the precision."""
    assert (SLOTS, SLOT_BYTES, WHEEL_BYTES) == (1_209_600, 32, 38_707_200)
    assert WHEEL_BYTES % PAGE_BYTES == 0


def test_a_slot_is_found_by_each_time_in_it(wheel: Wheel) -> None:
    """And by no other one, also of another turn of the wheel."""
    slot = Slot(NOW_MS, 52, 104, 2)
    wheel.put(slot)
    assert wheel.slot(NOW_MS) == wheel.slot(NOW_MS + 999) == slot
    assert wheel.slot(NOW_MS - 1) is wheel.slot(NOW_MS + 1_000) is wheel.slot(NOW_MS + TURN_MS) is None
    assert wheel.occupant(NOW_MS + TURN_MS) == slot
    assert wheel.occupant(NOW_MS + 1_000) is None


def test_the_bytes_of_a_slot(wheel: Wheel) -> None:
    """Time in units of the precision, first, last, number, zero (store-format sheet, section 10.3)."""
    wheel.put(Slot(NOW_MS, 52, 104, 2))
    ((at, page),) = wheel.take_changed()
    begin = NOW_MS // 1_000 % SLOTS * SLOT_BYTES
    assert at == begin // PAGE_BYTES * PAGE_BYTES
    assert page[begin - at : begin - at + SLOT_BYTES].hex(" ", 8) == (
        "000000006553f100 0000000000000034 0000000000000068 0000000200000000"
    )
    assert not any(page[: begin - at] + page[begin - at + SLOT_BYTES :])


def test_units_are_added_to_a_slot(wheel: Wheel) -> None:
    """The first stays, the last is the newest, and a deletion counts as one less."""
    for position, weight in ((0, 1), (52, 1), (520, -1)):
        wheel.add(NOW_MS, position, weight)
    assert wheel.slot(NOW_MS) == Slot(NOW_MS, 0, 520, 1)
    wheel.clear(NOW_MS)
    assert wheel.slot(NOW_MS) is None
    assert list(wheel.slots()) == []


@given(st.sets(st.integers(-3 * 86_400, 3 * 86_400), max_size=30), st.sampled_from([10, 100, 1_000]))
def test_slots_in_use_are_found_in_their_order(seconds: set[int], precision_ms: int) -> None:
    """Between two times, over the end of the wheel as well."""
    wheel = Wheel(precision_ms)
    start_ms = NOW_MS // (SLOTS * precision_ms) * (SLOTS * precision_ms)
    times = [start_ms + second * precision_ms for second in sorted(seconds)]
    for time_ms in times:
        wheel.put(Slot(time_ms, 0, 0, 3))
    begin, end = start_ms - 2 * 86_400 * precision_ms, start_ms + 2 * 86_400 * precision_ms
    wanted = [time_ms for time_ms in times if begin <= time_ms < end]
    found, time_ms = [], wheel.next_used(begin, end)
    while time_ms < end:
        found.append(time_ms)
        time_ms = wheel.next_used(time_ms + precision_ms, end)
    assert found == wanted
    assert time_ms == end
    assert wheel.count(begin, end) == 3 * len(wanted)
    assert sorted(slot.time_ms for slot in wheel.slots()) == times
    wheel.close()


def test_only_changed_pages_are_written(wheel: Wheel) -> None:
    """Again when they could not be; a wheel that was loaded from them has the same slots."""
    wheel.put(Slot(NOW_MS, 0, 0, 1))
    wheel.put(Slot(NOW_MS + 86_400_000, 52, 52, 1))
    pages = wheel.take_changed()
    assert len(pages) == 2
    assert wheel.take_changed() == []
    wheel.put_back(pages)
    assert wheel.take_changed() == pages
    other = Wheel(1_000)
    for at, page in pages:
        other.load_page(at // PAGE_BYTES, page)
    other.load_page(0, bytes(PAGE_BYTES))
    assert set(other.slots()) == set(wheel.slots())
    assert other.take_changed() == []
    other.close()
