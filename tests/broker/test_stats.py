"""Counters, and what GET_BROKER_RUNTIME_INFO makes of them is tested with the admin processor."""

from __future__ import annotations

from rmqkit.broker.stats import BrokerStats


def test_puts_and_gets_are_counted_in_all_and_by_name() -> None:
    """Totals in messages and bytes, puts by topic, gets by group and topic."""
    stats = BrokerStats(5)
    stats.put("T", 100)
    stats.put("U", 50)
    stats.got("g", "T", 3, 300)
    stats.got("h", "T", 1, 10)
    assert (stats.put_messages, stats.put_bytes, stats.got_messages, stats.got_bytes) == (2, 150, 4, 310)
    assert dict(stats.topic_put) == {"T": 1, "U": 1}
    assert dict(stats.group_got) == {("g", "T"): 3, ("h", "T"): 1}
    assert stats.boot_timestamp_ms == 5


def test_asking_for_an_unknown_name_is_zero() -> None:
    """Nothing was counted for it."""
    assert BrokerStats(0).topic_put["T"] == 0
