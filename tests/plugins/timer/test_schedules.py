"""Intervals and cron expressions: their times, and what is refused."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import DecodeError
from rmqkit_timer.schedules import HOP_MS, LEAST_MS, MOST_MS, Cron, Interval, parse, schedule

#: A Tuesday, 22:13:20.123 UTC.
NOW_MS = 1_700_000_000_123
#: What looks like a field of a cron expression.
FIELDS = st.text("0123456789*/-,L#WMONJA ", min_size=1, max_size=6)


def times(rule: str, count: int, first_ms: int = NOW_MS, after_ms: int = NOW_MS) -> list[int]:
    found = schedule(rule, str(first_ms))
    result: list[int] = []
    for _ in range(count):
        moment = found.after(result[-1] if result else after_ms)
        assert moment is not None
        result.append(moment)
    return result


def shown(rule: str, count: int, **moments: int) -> list[str]:
    return [
        datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%m-%d %H:%M:%S")
        for time_ms in times(rule, count, **moments)
    ]


@pytest.mark.parametrize(
    ("rule", "every_ms"),
    [
        ("1500ms", 1_500),
        ("1s", 1_000),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("366d", MOST_MS),
    ],
)
def test_intervals(rule: str, every_ms: int) -> None:
    """The times are the first one and each interval after it, however long ago that was."""
    assert parse(rule) == Interval(every_ms)
    assert times(rule, 2, after_ms=NOW_MS - 1) == [NOW_MS, NOW_MS + every_ms]
    late_ms = NOW_MS + 1_000_000 * every_ms + 1
    assert times(rule, 1, after_ms=late_ms) == [NOW_MS + 1_000_001 * every_ms]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("0 9 * * *", ["11-15 09:00:00", "11-16 09:00:00"]),
        ("*/20 22 * * *", ["11-14 22:20:00", "11-14 22:40:00"]),
        ("0 9 * * 1-5", ["11-15 09:00:00", "11-16 09:00:00", "11-17 09:00:00", "11-20 09:00:00"]),
        ("*/20 * * * * *", ["11-14 22:13:40", "11-14 22:14:00"]),
        ("0 0 L * *", ["11-30 00:00:00", "12-31 00:00:00"]),
        ("Europe/Paris 0 9 * * *", ["11-15 08:00:00", "11-16 08:00:00"]),
        ("America/New_York 30 17 * * *", ["11-14 22:30:00", "11-15 22:30:00"]),
        ("UTC 0 9 * * mon", ["11-20 09:00:00"]),
    ],
)
def test_cron_expressions(rule: str, expected: list[str]) -> None:
    """Five fields, or six with seconds, in UTC or in the zone before them."""
    assert shown(rule, len(expected)) == expected


def test_the_clock_of_a_zone_is_changed() -> None:
    """Nine o'clock is nine o'clock in summer and in winter; a time that does not exist is made up for."""
    spring_ms = int(datetime(2024, 3, 30, 12, tzinfo=UTC).timestamp() * 1000)
    given = {"first_ms": spring_ms, "after_ms": spring_ms}
    assert shown("Europe/Paris 0 9 * * *", 2, **given) == ["03-31 07:00:00", "04-01 07:00:00"]
    assert shown("Europe/Paris 30 2 * * *", 2, **given) == ["03-31 01:00:00", "04-01 00:30:00"]


def test_nothing_is_before_the_first_time() -> None:
    """A cron expression has no time before the first one that its sender asks for."""
    first_ms = NOW_MS + 86_400_000
    assert shown("0 9 * * *", 1, first_ms=first_ms) == ["11-16 09:00:00"]
    nine_ms = int(datetime(2023, 11, 16, 9, tzinfo=UTC).timestamp() * 1000)
    assert shown("0 9 * * *", 1, first_ms=nine_ms) == ["11-16 09:00:00"]
    assert shown("0 9 * * *", 1, first_ms=nine_ms + 1) == ["11-17 09:00:00"]


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.sampled_from(["1s", "1500ms", "90m", "400h", "*/7 * * * *", "5 4 3 2 *", "*/9 * * * * *"]),
    st.integers(0, 4_102_444_800_000),
    st.integers(0, 4_102_444_800_000),
)
def test_each_moment_leads_to_the_same_times(rule: str, first_ms: int, time_ms: int) -> None:
    """A time is behind the moment that was asked about, is one of the schedule's, and is the answer for each
    moment since. Between two times a message waits in hops of an hour at most."""
    found = schedule(rule, str(first_ms))
    following = found.after(time_ms)
    assert following is not None
    assert following > time_ms
    assert following >= first_ms
    assert found.has_between(following, following)
    assert found.has_between(time_ms + 1, following)
    assert following == time_ms + 1 or not found.has_between(time_ms + 1, following - 1)
    assert found.after((time_ms + following) // 2) == following
    assert found.after(following - 1) == following
    stop_ms = found.stop_after(time_ms)
    assert stop_ms is not None
    assert time_ms < stop_ms <= min(following, time_ms + HOP_MS)
    assert stop_ms == following or stop_ms % HOP_MS == 0


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("", "neither an interval"),
        ("30", "neither an interval"),
        ("30x", "neither an interval"),
        ("often", "neither an interval"),
        ("1s ", "neither an interval"),
        ("-1s", "neither an interval"),
        ("1.5s", "neither an interval"),
        ("\u0663s", "neither an interval"),
        ("9" * 13 + "s", "neither an interval"),
        (f"{LEAST_MS - 1}ms", "not between 1 s and 366 days"),
        ("0s", "not between 1 s and 366 days"),
        ("367d", "not between 1 s and 366 days"),
        ("* * * *", "neither an interval"),
        ("* * * * * * *", "neither an interval"),
        ("0  9 * * *", "neither an interval"),
        ("0\t9 * * *", "neither an interval"),
        ("60 * * * *", "Bad minute"),
        ("0 24 * * *", "Bad hour"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("*/0 * * * *", "Bad minute"),
        ("Mars/Base 0 9 * * *", "no time zone 'Mars/Base'"),
        ("America 0 9 * * *", "no time zone 'America'"),
        ("a/../../etc/passwd 0 9 * * *", "no time zone"),
        ("Europe/Paris 30s", "neither an interval"),
        ("0 9 * * * " + "1," * 200, "neither an interval"),
    ],
)
def test_what_is_no_schedule(rule: str, why: str) -> None:
    """The error names the fault."""
    with pytest.raises(DecodeError, match=why):
        parse(rule)


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.text(max_size=40)
    | st.lists(st.text("0123456789*/-,L#WMONJA ", min_size=1, max_size=6), min_size=4, max_size=7).map(
        " ".join
    )
)
def test_any_text_is_a_schedule_or_refused(rule: str) -> None:
    """Nothing but DecodeError is raised, and what is taken has times, or none for fifty years."""
    try:
        found = schedule(rule, str(NOW_MS))
    except DecodeError:
        return
    assert isinstance(found.rule, (Interval, Cron))
    following = found.after(NOW_MS)
    assert following is None or following > NOW_MS


@pytest.mark.parametrize("first", ["", "x", "-1", "1.5", "9" * 16, "200000000000001", "\u0661"])
def test_a_first_time_that_is_none(first: str) -> None:
    """It comes from a stored property or a handle, and may be anything."""
    with pytest.raises(DecodeError, match="first time"):
        schedule("30s", first)


def test_the_latest_first_time() -> None:
    """Its next time can be computed."""
    assert schedule("0 9 * * *", "200000000000000").after(0) is not None


def test_cron_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals need no package; the error for a cron expression says what to install."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert parse("30s") == Interval(30_000)
    with pytest.raises(DecodeError, match=r"no cron expressions, only intervals.*\[cron\]"):
        parse("0 9 * * *")
