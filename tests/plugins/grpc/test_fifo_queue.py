"""The queue of a message group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_grpc.fifo_queue import jump, queue_for

GROUPS = st.text(min_size=1, max_size=40)


@given(GROUPS, st.integers(1, 64))
def test_a_group_has_one_queue(group: str, queues: int) -> None:
    """It is one of the topic's, and the same each time."""
    found = queue_for(group, queues)
    assert 0 <= found < queues
    assert queue_for(group, queues) == found


@given(GROUPS, st.integers(1, 64))
def test_a_further_queue_moves_groups_only_there(group: str, queues: int) -> None:
    """The hash is consistent: with one more queue a group stays, or goes to the new one."""
    assert queue_for(group, queues + 1) in (queue_for(group, queues), queues)


def test_groups_are_spread() -> None:
    """Each of eight queues gets about its share of many groups."""
    counts = [0] * 8
    for number in range(8_000):
        counts[queue_for(f"order-{number}", 8)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200


def test_known_buckets() -> None:
    """The numbers below 20 in 100 buckets, as Guava's consistentHash has them, which other servers use."""
    wanted = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [jump(number, 100) for number in range(20)] == wanted


@pytest.mark.parametrize(("group", "wanted"), [("order-1", 3), ("order-2", 2), ("", 0), ("Bestellung-ä", 6)])
def test_negative_hashes_have_queues_too(group: str, wanted: int) -> None:
    """The hash of a group is a signed number."""
    assert queue_for(group, 8) == wanted
