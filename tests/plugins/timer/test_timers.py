"""The rules of wheel and log together, without a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit_timer.counts import Counts
from rmqkit_timer.timer_log import TimerLog
from rmqkit_timer.timers import Timers
from rmqkit_timer.units import DEFAULT, DELETE, ROLL, Unit, unpack
from rmqkit_timer.wheel import SLOTS, Wheel
from tests.plugins.timer.kit import place

NOW_MS = 1_700_000_000_000


def make(window_slots: int = 172_800, precision_ms: int = 1_000) -> Timers:
    timers = Timers(Wheel(precision_ms), TimerLog(None, 1 << 20), Counts(), window_slots, NOW_MS)
    timers.follow_clock(NOW_MS)
    return timers


@pytest.fixture
def timers() -> Iterator[Timers]:
    made = make()
    yield made
    made.wheel.close()


def unit_at(timers: Timers, position: int) -> Unit:
    found = unpack(timers.log._memory, position)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("delay_slots", "slot", "rolls"),
    [(0, 0, False), (899, 899, False), (900, 450, True), (1_199, 450, True), (1_200, 900, True)],
)
def test_where_a_message_waits(delay_slots: int, slot: int, rolls: bool) -> None:
    """In its slot; beyond the window for half of one if a third is left, else for a whole one."""
    timers = make(window_slots=900)
    assert timers.enter(NOW_MS + delay_slots * 1_000, place(77, deletes=True))
    found = timers.wheel.slot(NOW_MS + slot * 1_000)
    assert found is not None
    unit = unit_at(timers, found.last)
    assert unit == Unit(-1, DEFAULT | DELETE | (ROLL if rolls else 0), NOW_MS, slot * 1_000, 77, 100, 84)
    timers.wheel.close()


def test_slots_are_read_when_they_are_over(timers: Timers) -> None:
    """One after the other; a slot that is not over is not read, and takes messages."""
    for seconds in (3, 3, 8):
        timers.enter(NOW_MS + seconds * 1_000, place())
    assert timers.waiting == 3
    assert timers.next_slot() is None
    timers.follow_clock(NOW_MS + 3_999)
    assert timers.next_slot() is None
    timers.follow_clock(NOW_MS + 4_000)
    slot = timers.next_slot()
    assert slot is not None
    assert (slot.time_ms, slot.number) == (NOW_MS + 3_000, 2)
    assert timers.next_slot() == slot
    timers.finish(slot)
    assert timers.next_slot() is None
    assert (timers.waiting, timers.read_time_ms) == (1, NOW_MS + 4_000)


def test_a_slot_that_is_still_to_be_read_is_not_overwritten(timers: Timers) -> None:
    """After weeks without a broker the wheel is full of what is overdue; that is read first."""
    timers.enter(NOW_MS + 5_000, place())
    turn_ms = SLOTS * 1_000
    timers.advance(NOW_MS + turn_ms)
    assert not timers.enter(NOW_MS + turn_ms + 5_000, place())
    slot = timers.next_slot()
    assert slot is not None
    timers.finish(slot)
    assert timers.enter(NOW_MS + turn_ms + 5_000, place())


def test_a_snapshot_names_one_moment(timers: Timers) -> None:
    """Queue, log, slot and the place of later deliveries; a failed one is repeated with the next."""
    timers.enter(NOW_MS + 5_000, place())
    checkpoint = timers.checkpoint(7, 1_234, NOW_MS)
    assert (checkpoint.read_time_ms, checkpoint.queue_offset, checkpoint.log_position) == (NOW_MS, 7, 52)
    assert checkpoint.master_queue_offset == 7
    assert checkpoint.moment is not None
    assert (checkpoint.moment.deliveries_from, checkpoint.moment.log_end) == (1_234, 52)
    snapshot = timers.snapshot(checkpoint, b"")
    assert len(snapshot.pages) == 1
    timers.failed(snapshot)
    assert timers.snapshot(checkpoint, b"").pages == snapshot.pages
    assert timers.checkpoint(7, 1_234, NOW_MS).counter == checkpoint.counter + 1


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 60)),
        st.tuples(st.just("pass"), st.integers(1, 30)),
        st.tuples(st.just("back"), st.integers(1, 30)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STEPS)
def test_whatever_the_clock_does_each_message_is_read_once_and_never_early(steps: list[Step]) -> None:
    """A model: times of messages that wait; a slot is read when the clock is beyond it."""
    timers = make(window_slots=600_000)
    now_ms, waiting = NOW_MS, list[int]()
    for what, number in steps:
        if what == "enter":
            due_ms = timers.wheel.floor(now_ms) + number * 1_000
            assert due_ms >= timers.write_time_ms
            assert timers.enter(due_ms, place())
            waiting.append(due_ms)
            continue
        now_ms += number * 1_000 if what == "pass" else -number * 1_000
        timers.follow_clock(now_ms)
        read = 0
        while timers.read_time_ms < timers.write_time_ms:
            slot = timers.next_slot()
            if slot is not None:
                assert slot.time_ms + 1_000 <= now_ms
                assert slot.number == waiting.count(slot.time_ms)
                read += slot.number
                waiting = [each for each in waiting if each != slot.time_ms]
                timers.finish(slot)
        assert all(each >= timers.wheel.floor(now_ms) for each in waiting)
        assert timers.waiting == len(waiting)
    timers.wheel.close()
