"""Rounds of cold reads, and thresholds that adapt to them."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit_protection.cold_budget import ColdBudget
from rmqkit_protection.cold_settings import ColdReadSettings

ROUND_MS, MINUTE_MS = 5_000, 60_000


def budget(**keys: Any) -> ColdBudget:
    return ColdBudget(ColdReadSettings(cg_cold_read_threshold=100, global_cold_read_threshold=1_000, **keys))


def read(of: ColdBudget, round_number: int, **sizes: int) -> dict[str, int]:
    """The thresholds of the groups after a round in which they have read so much."""
    for group, size_bytes in sizes.items():
        of.add(group, size_bytes, round_number * ROUND_MS)
    of.next_round((round_number + 1) * ROUND_MS)
    return {group: of.threshold(group) for group in sizes}


def test_a_group_has_a_budget_for_each_round() -> None:
    """It is used up with the last byte, and whole again in the next round."""
    one = budget()
    assert not one.is_used_up("g")
    one.add("g", 99, 0)
    assert not one.is_used_up("g")
    one.add("g", 1, 0)
    assert one.is_used_up("g")
    one.next_round(ROUND_MS)
    assert not one.is_used_up("g")
    assert (one.total_bytes, one.groups["g"].size_bytes) == (0, 0)


def test_all_groups_share_one_budget() -> None:
    """Once it is used up, every group that reads cold data waits; a group that has read none does not."""
    one = budget()
    one.add("greedy", 1_000, 0)
    one.add("modest", 1, 0)
    assert one.is_used_up("modest")
    assert not one.is_used_up("new")


def test_an_administrator_sets_the_threshold_of_a_group() -> None:
    """It counts in place of that of all, and is never adapted."""
    one = budget(cold_ctr_strategy_enable=True, use_pid_cold_ctr_strategy=False)
    one.thresholds["g"] = 10
    one.add("g", 10, 0)
    assert one.is_used_up("g")
    assert read(one, 0, g=500) == {"g": 10}


def test_a_group_that_reads_no_cold_data_is_forgotten() -> None:
    """A minute after its last read, with what was adapted for it."""
    one = budget(cold_ctr_strategy_enable=True, use_pid_cold_ctr_strategy=False)
    assert read(one, 0, g=100) == {"g": 150}
    one.next_round(MINUTE_MS - 1)
    assert "g" in one.groups
    one.next_round(MINUTE_MS)
    assert not one.groups
    assert not one.adapted


def test_thresholds_stay_without_the_strategy() -> None:
    """And what it had adapted is forgotten when it is switched off."""
    one = budget()
    one.adapted["g"] = 400
    assert read(one, 0, g=200) == {"g": 100}
    assert not one.adapted


def test_thresholds_grow_and_shrink_in_steps() -> None:
    """By half while all read less than they may together; by a fifth when they read more, the three highest
    ones, not below that of all groups."""
    one = budget(cold_ctr_strategy_enable=True, use_pid_cold_ctr_strategy=False)
    assert read(one, 0, a=100, b=99) == {"a": 150, "b": 100}
    assert read(one, 1, a=150) == {"a": 225}
    assert read(one, 2, a=900, b=200) == {"a": 180, "b": 100}
    one.adapted = {"a": 110, "b": 300, "c": 400, "d": 200}
    assert read(one, 3, a=1_100) == {"a": 110}
    assert one.adapted == {"a": 110, "b": 240, "c": 320, "d": 160}
    one.adapted = {"a": 110}
    assert read(one, 4, a=1_100) == {"a": 100}


@pytest.mark.parametrize(("first_bytes", "after"), [(100, 150), (900, 100)])
def test_the_controller_waits_for_ten_rounds(first_bytes: int, after: int) -> None:
    """Then thresholds grow where all have read less than four fifths of what they may, and shrink, or stay,
    where they have read more."""
    one = budget(cold_ctr_strategy_enable=True)
    for number in range(9):
        assert read(one, number, g=first_bytes) == {"g": 100}
    assert read(one, 9, g=first_bytes) == {"g": after}


def test_the_controller_shrinks_thresholds() -> None:
    """What it adapted comes down to that of all groups."""
    one = budget(cold_ctr_strategy_enable=True)
    for number in range(10):
        one.adapted["g"] = 200
        read(one, number, g=900)
    assert one.threshold("g") == 160
