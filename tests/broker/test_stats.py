"""Counters; the test of the admin processor covers GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from rmqkit.broker.stats import BrokerStats, PutTimes
from rmqkit.model.message import Appended
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.testing.store.kit import message

HOUR_MS = 3_600_000


@pytest.fixture
def utc() -> Iterator[None]:
    """Local time is UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def put(stats: BrokerStats, topic: str, size_bytes: int) -> None:
    """One message is stored."""
    stats.put_many([message(topic)], [Appended(0, 0, size_bytes, 0)])


@pytest.mark.row("S063")
def test_puts_and_gets_are_counted_in_all_and_by_name() -> None:
    """Totals in messages and bytes, puts by topic, gets by group and topic."""
    stats = BrokerStats(5)
    put(stats, "T", 100)
    put(stats, "U", 50)
    stats.got("g", "T", 3, 300)
    stats.got("h", "T", 1, 10)
    assert (stats.put_messages, stats.put_bytes, stats.got_messages, stats.got_bytes) == (2, 150, 4, 310)
    assert {topic: item.count for topic, item in stats.topics.items()} == {"T": 1, "U": 1}
    assert {pair: item.size_bytes for pair, item in stats.groups.items()} == {("g", "T"): 300, ("h", "T"): 10}
    assert stats.boot_timestamp_ms == 5
    assert (stats.topics.count("unknown"), len(stats.topics)) == (0, 2)


@pytest.mark.row("S031", "S076", "S263")
@pytest.mark.usefixtures("utc")
def test_totals_are_noted_at_midnight(caplog: pytest.LogCaptureFixture) -> None:
    """The totals of users' topics are recorded at local midnight for today and yesterday, and the day's
    totals are logged."""
    caplog.set_level(logging.INFO)
    stats = BrokerStats(20 * HOUR_MS)
    put(stats, "T", 1)
    put(stats, SCHEDULE_TOPIC, 1)
    stats.advance(23 * HOUR_MS)
    assert stats.this_morning == (0, 0)
    stats.advance(24 * HOUR_MS)
    assert (stats.this_morning, stats.yesterday_morning) == ((1, 0), (0, 0))
    assert "yesterday 1 messages were stored and 0 were given" in caplog.text
    for _ in range(4):
        put(stats, "T", 1)
    stats.got("g", "T", 2, 2)
    stats.advance(48 * HOUR_MS)
    assert (stats.this_morning, stats.yesterday_morning) == ((5, 2), (1, 0))
    assert stats.users_totals == (5, 2)


@pytest.mark.row("S080", "S094")
def test_rates_of_ten_sixty_and_six_hundred_seconds() -> None:
    """Totals are sampled each second; an incomplete window counts from the start."""
    stats = BrokerStats(0)
    assert list(stats.rates()) == [(0.0, 0.0, 0.0, 0.0)] * 3
    for second in range(1, 701):
        put(stats, "T", 1)
        if second > 690:
            put(stats, "T", 1)
            stats.found_pulls += 1
            stats.got("g", "T", 3, 3)
        stats.missed_pulls += 1
        stats.advance(second * 1_000)
    ten, sixty, six_hundred = stats.rates()
    assert ten == (2.0, 1.0, 1.0, 3.0)
    assert sixty == pytest.approx((70 / 60, 10 / 60, 1.0, 30 / 60))
    assert six_hundred == pytest.approx((610 / 600, 10 / 600, 1.0, 30 / 600))


def test_samples_are_a_second_apart() -> None:
    """Queries in between add no sample, nor does a clock that is set back."""
    stats = BrokerStats(0)
    put(stats, "T", 1)
    for now_ms in (400, 999, 1_000, 1_500, 300):
        stats.advance(now_ms)
    assert next(stats.rates())[0] == 1.0


def test_the_names_of_view_broker_stats_data() -> None:
    """Topics by name, groups by topic and group, the broker by its cluster; what was never counted is
    None."""
    stats = BrokerStats(0)
    put(stats, "T", 100)
    put(stats, SCHEDULE_TOPIC, 7)
    stats.got("g", "T", 2, 20)
    stats.sent_back["g", "T"].add(1)
    stats.dead_lettered["g", "T"].add(1)
    counts = {
        ("TOPIC_PUT_NUMS", "T"): 1,
        ("GROUP_GET_NUMS", "T@g"): 2,
        ("GROUP_GET_SIZE", "T@g"): 2,
        ("SNDBCK_PUT_NUMS", "T@g"): 1,
        ("DLQ_PUT_NUMS", "T@g"): 1,
        ("BROKER_PUT_NUMS", "C"): 2,
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C"): 1,
        ("BROKER_GET_NUMS", "C"): 2,
    }
    for (name, key), count in counts.items():
        item = stats.view(name, key, "C")
        assert item is not None, name
        assert item.count == count
    for name, key in (
        ("TOPIC_PUT_NUMS", "U"),
        ("BROKER_PUT_NUMS", "D"),
        ("NOTHING", "T"),
        ("GROUP_GET_NUMS", "T"),
    ):
        assert stats.view(name, key, "C") is None
    assert len(stats.topics) == 2


def test_deleted_topics_and_groups_are_forgotten() -> None:
    """They are removed from every table; the totals stay."""
    stats = BrokerStats(0)
    for topic in ("T", "U"):
        put(stats, topic, 1)
        for group in ("g", "h"):
            stats.got(group, topic, 1, 1)
            stats.sent_back[group, topic].add(1)
    stats.forget_topic("T")
    stats.forget_group("g")
    assert (list(stats.topics), list(stats.groups), list(stats.sent_back)) == (
        ["U"],
        [("h", "U")],
        [("h", "U")],
    )
    assert (stats.put_messages, stats.got_messages) == (2, 4)


def test_put_latencies_of_the_last_minute() -> None:
    """Percentiles are interpolated within Java's intervals; the maximum is that of all time."""
    times = PutTimes()
    assert times.percentile_ms(0.99) == 0.0
    for _ in range(98):
        times.add(0.0002)
    times.add(0.015)
    times.add(0.150)
    times.next_minute()
    assert times.percentile_ms(0.5) == pytest.approx(50 / 98)
    assert times.percentile_ms(0.99) == 15.0
    assert times.percentile_ms(1.0) == 150.0
    assert times.distribution().startswith("[<=0ms]:98 [0~10ms]:0 [10~50ms]:1 [50~100ms]:0 [100~200ms]:1 ")
    times.add(3_000.0)
    times.next_minute()
    assert (times.max_ms, times.percentile_ms(1.0)) == (3_000_000, 10_000.0)
    times.next_minute()
    assert times.percentile_ms(0.99) == 0.0
