"""Size and time of micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.read.source import QueueKey
from pyspark_rocketmq.stream.rate import Limits, Throttle, Trigger, share

QUEUES = [QueueKey("orders", "broker-a", number) for number in range(8)]
A, B, C = QUEUES[:3]

counts = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10**12))
bounds = st.none() | st.integers(1, 10**12)


def test_share() -> None:
    """A limit is divided in proportion to the queues' messages."""
    assert share({A: 900, B: 90, C: 10}, {}, Limits(max_records=100)) == {A: 90, B: 9, C: 1}


def test_small_queues_are_not_starved() -> None:
    """A queue with a share below one message still gives one; an empty one gives none."""
    assert share({A: 1_000_000, B: 3, C: 0}, {}, Limits(max_records=10)) == {A: 9, B: 1, C: 0}


def test_bytes() -> None:
    """A limit in bytes uses each queue's mean record length; the same fraction is taken from all queues."""
    assert share({A: 1000, B: 1000}, {A: 100, B: 300}, Limits(max_bytes=40_000)) == {A: 100, B: 100}


def test_the_smaller_limit_holds() -> None:
    """With both limits, the stricter one applies."""
    available, mean = {A: 1000}, {A: 100}
    assert share(available, mean, Limits(max_records=50, max_bytes=90_000)) == {A: 50}
    assert share(available, mean, Limits(max_records=50, max_bytes=3_000)) == {A: 30}


@given(counts, bounds, bounds, st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 10**7)))
def test_share_in_general(
    available: dict[QueueKey, int], records: int | None, size: int | None, means: dict[QueueKey, int]
) -> None:
    """The share never exceeds the available messages, takes something from each non-empty queue, exceeds a
    limit by less than one message per queue, and takes everything if that fits."""
    mean = dict.fromkeys(QUEUES, 1024) | means
    taken = share(available, mean, Limits(max_records=records, max_bytes=size))
    assert set(taken) == set(available)
    assert all(min(1, count) <= taken[queue] <= count for queue, count in available.items())
    used = [queue for queue in available if available[queue]]
    total, total_bytes = sum(available.values()), sum(available[queue] * mean[queue] for queue in used)
    if records is not None:
        assert sum(taken.values()) <= records + len(used)
    if size is not None:
        assert sum(taken[queue] * mean[queue] for queue in used) <= size + sum(mean[queue] for queue in used)
    if (records is None or total <= records) and (size is None or total_bytes <= size):
        assert taken == available


def test_minimum_holds_back() -> None:
    """Fewer messages than the minimum wait until the delay since the last batch is over; the first batch of a
    run does not wait."""
    trigger, limits = Trigger(), Limits(min_records=100, max_delay_ms=60_000)
    assert trigger.due(1, limits, now=1000.0)
    assert not trigger.due(99, limits, now=1001.0)
    assert not trigger.due(99, limits, now=1059.9)
    assert trigger.due(99, limits, now=1060.0)
    assert not trigger.due(99, limits, now=1061.0)
    assert trigger.due(100, limits, now=1062.0)
    assert not trigger.due(1, limits, now=1121.9)
    assert trigger.due(1, limits, now=1122.0)


def test_no_minimum() -> None:
    """Without a minimum no batch is delayed."""
    trigger = Trigger()
    assert [trigger.due(1, Limits(), now=now) for now in (1.0, 1.0, 1.1)] == [True, True, True]


def test_throttle() -> None:
    """After a query without new messages the next one waits for the rest of the interval; after any other it
    does not."""
    throttle = Throttle(100)
    assert throttle.wait_s(5.0) == 0
    throttle.found_nothing(5.0, 5.01)
    assert throttle.wait_s(5.01) == pytest.approx(0.09)
    assert throttle.wait_s(5.07) == pytest.approx(0.03)
    assert throttle.wait_s(5.2) == 0
    throttle.found_nothing(5.2, 5.21)
    throttle.found_something()
    assert throttle.wait_s(5.21) == 0


def test_costly_questions_are_rare() -> None:
    """Slow queries, as for many topics, take at most a quarter of the time."""
    throttle = Throttle(100)
    throttle.found_nothing(5.0, 5.5)
    assert throttle.wait_s(5.5) == pytest.approx(1.5)
