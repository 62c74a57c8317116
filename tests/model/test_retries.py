"""How often and when a message is delivered again: its own properties, and its group's settings."""

from __future__ import annotations

import pytest

from rmqkit.model.retries import LONGEST_DELAY_MS, MOST_DELAYS, MOST_RETRIES, Retries, own_retries, retries_of
from rmqkit.model.topic import GroupRetryPolicy, SubscriptionGroupConfig

TIMES, DELAYS = "RMQKIT_RETRY_TIMES", "RMQKIT_RETRY_DELAYS"
OF_GROUP = GroupRetryPolicy.of_delays([1_000])
GROUP = SubscriptionGroupConfig(group_name="g", retry_max_times=5, group_retry_policy=OF_GROUP)


def test_the_group_says_it() -> None:
    """One without a policy leaves the time to others."""
    assert retries_of(GROUP, {}) == (5, OF_GROUP)
    assert retries_of(SubscriptionGroupConfig(group_name="g"), {"a": "b"}) == (16, None)


def test_a_message_says_it_itself() -> None:
    """Each property alone, or both."""
    found = retries_of(GROUP, {DELAYS: "500ms,2m"})
    assert found.most == 5
    assert found.policy is not None
    assert [found.policy.delay_ms(failed) for failed in range(4)] == [500, 120_000, 120_000, 120_000]
    assert retries_of(GROUP, {TIMES: "0"}) == Retries(0, OF_GROUP)
    assert own_retries({TIMES: "7"}) == 7


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5", "٣", "9" * 5])
def test_an_illegal_number_counts_for_nothing(text: str) -> None:
    assert own_retries({TIMES: text}) is None
    assert retries_of(GROUP, {TIMES: text}).most == 5


def test_a_number_has_a_limit() -> None:
    assert own_retries({TIMES: str(MOST_RETRIES * 9)}) == MOST_RETRIES


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "5",
        "5s,",
        "5s,never",
        "-5s",
        f"{LONGEST_DELAY_MS + 1}ms",
        ",".join(["1s"] * (MOST_DELAYS + 1)),
    ],
)
def test_illegal_delays_count_for_nothing(text: str) -> None:
    """None of them, if one is illegal."""
    assert retries_of(GROUP, {DELAYS: text}).policy == OF_GROUP


def test_as_many_delays_as_are_allowed() -> None:
    policy = retries_of(GROUP, {DELAYS: ",".join(["1s"] * MOST_DELAYS)}).policy
    assert policy is not None
    assert policy != OF_GROUP
