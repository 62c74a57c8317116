"""Windows over counts."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.broker.stats_items import DAY, HOUR, MINUTE, SPANS, TICK_MS, StatsItem, StatsSet, Ticks


def test_a_window_forgets_what_is_older() -> None:
    """The minute, the hour and the day have their own steps."""
    ticks = Ticks(0)
    item = StatsItem(ticks)
    item.add(5, 50)
    assert item.change(MINUTE) == (5, 50, 1, TICK_MS)
    assert item.change(MINUTE).per_second == 0.5
    ticks.advance(60_000)
    assert item.change(MINUTE) == (5, 50, 1, 60_000)
    ticks.advance(70_000)
    assert item.change(MINUTE) == (0, 0, 0, 60_000)
    assert item.change(HOUR).messages == 5
    item.add(1)
    assert (item.change(MINUTE).messages, item.change(HOUR).messages) == (1, 6)
    ticks.advance(2 * 3_600_000)
    assert (item.change(MINUTE).messages, item.change(HOUR).messages, item.change(DAY).messages) == (0, 0, 6)
    ticks.advance(26 * 3_600_000)
    assert item.change(DAY).messages == 0
    assert item.count == 6


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=60))
def test_a_window_counts_what_sampling_every_ten_seconds_would(steps: list[tuple[int, int]]) -> None:
    """The result equals sampling at every tick, whenever the value changed."""
    ticks = Ticks(0)
    item = StatsItem(ticks)
    values = deque([0])
    for passed, count in steps:
        for _ in range(passed):
            values.append(item.count)
        ticks.advance((len(values) - 1) * TICK_MS)
        item.add(count)
        for span in SPANS:
            start = ((len(values) - 1) // span.ticks - span.intervals) * span.ticks
            assert item.change(span).messages == item.count - (values[start] if start > 0 else 0)


def test_the_number_of_items_is_bounded() -> None:
    """Idle items are removed first, then the oldest."""
    ticks = Ticks(0)
    items: StatsSet[str] = StatsSet(ticks, 3, lambda key: False)
    for key in "abc":
        items[key].add(1)
    ticks.advance(2 * 3_600_000)
    items["a"].add(1)
    items["d"].add(1)
    assert (sorted(items), items.evicted) == (["a", "c", "d"], 1)
    items["c"].add(1)
    items["e"].add(1)
    assert (len(items), items.evicted) == (3, 2)
    assert items.count("e") == 1
