"""The time for which a half message is left alone, as Java reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_transaction.immunity import immunity_ms, is_late

NAME = "CHECK_IMMUNITY_TIME_IN_SECONDS"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (None, None),
        ("10", 10_000),
        ("+10", 10_000),
        ("0", 0),
        ("-1", 6_000),
        ("-2", -2_000),
        ("", 6_000),
        (" 10", 6_000),
        ("1.5", 6_000),
        ("1_0", 6_000),
        ("٣", 6_000),
        ("9223372036854775807", 9_223_372_036_854_775_807_000),
        ("9223372036854775808", 6_000),
    ],
)
def test_the_time_before_the_first_question(text: str | None, ms: int | None) -> None:
    """Seconds; the setting's time for -1 and for what Java's Long.parseLong refuses."""
    assert immunity_ms({} if text is None else {NAME: text}, 6_000) == ms


@given(st.text(max_size=25), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_least_time_for_an_end_is_the_setting(text: str, age_ms: int, time_out_ms: int) -> None:
    """No value makes an end late that comes within the setting's time."""
    assert not is_late({NAME: text}, min(age_ms, time_out_ms), time_out_ms)
    assert not is_late({}, age_ms, time_out_ms)
