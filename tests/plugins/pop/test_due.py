"""Times at which something is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqkit_pop.due import STEP_MS, DueTimes


@given(st.lists(st.integers(0, 2_000)), st.sets(st.integers(0, 30)), st.integers(0, 2_500))
def test_nothing_is_due_early_and_all_is_due_within_a_step(
    times: list[int], removed: set[int], now_ms: int
) -> None:
    """Values come in the order of their steps; removed ones do not come."""
    due: DueTimes[int] = DueTimes()
    for number, time_ms in enumerate(times):
        due.add(number, time_ms)
    for number in removed & set(range(len(times))):
        due.remove(number, times[number])
    left = [number for number in range(len(times)) if number not in removed]
    found = list(due.take(now_ms))
    assert all(times[number] <= now_ms for number in found)
    assert {number for number in left if times[number] + STEP_MS <= now_ms} <= set(found)
    steps = [-(-times[number] // STEP_MS) for number in found]
    assert steps == sorted(steps)
    rest = set(left) - set(found)
    next_ms = due.next_ms()
    assert (next_ms is None) == (not rest)
    if next_ms is not None:
        assert next_ms > now_ms
        assert next_ms - STEP_MS < min(times[number] for number in rest) <= next_ms


def test_a_value_may_be_added_again_while_due_ones_are_taken() -> None:
    """It comes at its new time."""
    due: DueTimes[str] = DueTimes()
    due.add("a", 10)
    for value in due.take(100):
        due.add(value, 500)
        break
    assert list(due.take(100)) == []
    due.remove("b", 500)
    assert list(due.take(600)) == ["a"]
    due.add("a", 1)
    due.clear()
    assert due.next_ms() is None
