"""Figures over the last minute and hour."""

from __future__ import annotations

import pytest

from rmqkit.client.consumer.statistics import ConsumeStatistics, SlidingWindow


def test_a_window_forgets_what_is_older() -> None:
    """Values leave the window at the end of its length, in steps of a sixth."""
    window = SlidingWindow(60)
    assert (window.total(5), window.mean(5), window.per_second(5)) == (0, 0, 0)
    for second in range(100):
        window.add(second, 1, float(second))
    assert window.total(99.9) == sum(range(40, 100))
    assert window.mean(99.9) == sum(range(40, 100)) / 60
    assert window.total(140) == sum(range(90, 100))
    assert window.total(151) == 0
    assert window.mean(151) == 0


def test_the_rate_of_a_young_window() -> None:
    """The sum is divided by the time since the first value, by ten seconds at least and a minute at most."""
    window = SlidingWindow(60)
    window.add(30, 30, 100.0)
    assert window.per_second(101) == 3
    assert window.per_second(130) == 1
    window.add(30, 30, 170.0)
    assert window.per_second(175) == 0.5


@pytest.mark.row("S172")
def test_topics_are_counted_apart() -> None:
    """Each topic has its pulls, calls of handlers and failures, the failures of an hour included."""
    statistics = ConsumeStatistics()
    statistics.pulled("A", 32, 0.1, 1000)
    statistics.pulled("A", 0, 0.3, 1000)
    statistics.consumed("A", 1, 0.05, 1001, ok=True)
    statistics.consumed("A", 4, 0.15, 1001, ok=False)
    statistics.consumed("B", 1, 1.0, 1001, ok=False)
    shown = statistics.described(1005)
    assert list(shown) == ["A", "B"]
    assert shown["A"] == {
        "pullRT": pytest.approx(200),
        "pullTPS": pytest.approx(3.2),
        "consumeRT": pytest.approx(100),
        "consumeOKTPS": pytest.approx(0.1),
        "consumeFailedTPS": pytest.approx(0.4),
        "consumeFailedMsgs": 4,
    }
    later = statistics.described(1600)["A"]
    assert (later["consumeFailedTPS"], later["consumeFailedMsgs"]) == (0, 4)
    assert statistics.described(5000)["A"]["consumeFailedMsgs"] == 0
