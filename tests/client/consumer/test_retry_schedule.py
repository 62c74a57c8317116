"""Levels of retries, with the table of the behaviour sheet, section B11."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client.consumer.retry_schedule import BROKER_CHOOSES, DEAD_LETTER, LEVEL_DELAYS_S, RetrySchedule

TABLE_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def test_the_delays_grow_as_in_the_table() -> None:
    """Retry 1 comes after 10 s, retry 16 after 2 h, further ones too."""
    schedule = RetrySchedule(17)
    levels = [schedule.own_level(times, schedule.level(times)) for times in range(16)]
    assert tuple(LEVEL_DELAYS_S[level - 1] for level in levels) == TABLE_S
    assert schedule.own_level(40, BROKER_CHOOSES) == len(LEVEL_DELAYS_S)


@given(st.integers(1, 40), st.integers(0, 60))
def test_the_last_attempt_is_followed_by_the_dead_letter_topic(attempts: int, earlier: int) -> None:
    """A message is delivered `max_attempts` times, whatever delay its handler asks for."""
    schedule = RetrySchedule(attempts)
    dead = earlier + 1 >= attempts
    assert (schedule.level(earlier) == DEAD_LETTER) is dead
    assert (schedule.level(earlier, 5.0) == DEAD_LETTER) is dead
    assert schedule.max_reconsume_times == attempts - 1


@given(st.integers(0, 1_000_000))
def test_without_a_limit_no_attempt_is_the_last(earlier: int) -> None:
    """Ordered groups repeat a message for ever."""
    assert RetrySchedule(None).level(earlier) == BROKER_CHOOSES


@given(st.floats(0, 100_000))
def test_a_requested_delay_is_rounded_up(after_s: float) -> None:
    """The level's delay is not below the requested one, and the level before it would be; the longest level
    is the limit."""
    level = RetrySchedule(16).level(0, after_s)
    assert 1 <= level <= len(LEVEL_DELAYS_S)
    assert LEVEL_DELAYS_S[level - 1] >= after_s or level == len(LEVEL_DELAYS_S)
    assert level == 1 or LEVEL_DELAYS_S[level - 2] < after_s
