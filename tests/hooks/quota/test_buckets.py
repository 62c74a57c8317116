"""Rates, and what has passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_hook_quota import buckets
from rmqkit_hook_quota.buckets import Buckets, Rate


def test_a_rate_in_words() -> None:
    """It says what it limits."""
    assert str(Rate(10, 0)) == "10 messages/s"
    assert str(Rate(10, 2_000)) == "10 messages/s, 2000 bytes/s"
    assert not Rate(0, 0).limits


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.001, 3)), max_size=60))
def test_no_more_passes_than_the_rate_and_a_second(steps: list[tuple[float, float]]) -> None:
    """Whoever waits as told gets at most the time that has gone by, the second that may be made up for, and
    one thing more; and nobody waits who has been silent for a second after all was paid for."""
    bucket, now, passed = Buckets(), 100.0, 0.0
    for pause_s, span_s in steps:
        now += pause_s
        now += bucket.wait_s("a", now)
        assert passed <= now - 100.0 + 1.0 + 1e-6
        bucket.charge("a", span_s, now)
        passed += span_s
    later = now + bucket.wait_s("a", now) + 1.0
    assert bucket.wait_s("a", later) == 0
    assert bucket.wait_s("b", now) == 0


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are paid for are dropped first, then those that owe least."""
    monkeypatch.setattr(buckets, "_MAX_BUCKETS", 4)
    found = Buckets()
    for name, span_s in (("a", 3.0), ("b", 0.5), ("c", 0.5), ("d", 0.5), ("e", 9.0)):
        found.charge(name, span_s, 10.0)
    assert found.wait_s("a", 10.0) == 2.0
    for at in range(8):
        found.charge(f"{at}", 50.0 + at, 10.0)
    assert len(found._paid_until) <= 4
    assert found.wait_s("7", 10.0) == 56.0
