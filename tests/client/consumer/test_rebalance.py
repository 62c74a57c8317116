"""The division of queues among members, as values."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client import MessageQueue
from rmqkit.client.consumer.rebalance import Rebalance, changes
from rmqkit.config import Config
from rmqkit.plugin import loader
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit_allocation import Averagely, ByConfig, ByMachineRoom

STRATEGIES = loader.load(Config()).allocation_strategies
queues = st.builds(MessageQueue, st.sampled_from("ST"), st.sampled_from("ab"), st.integers(0, 5))
members = st.lists(st.sampled_from(["c1", "c2", "c3", "c4"]), min_size=1, unique=True)


@pytest.mark.row("S163", "S177", "S178")
@given(st.sampled_from(sorted(STRATEGIES)), st.sets(queues), members, st.randoms())
def test_each_queue_has_one_owner(
    strategy: str, route: set[MessageQueue], group: list[str], order: random.Random
) -> None:
    """The members' shares are a partition of the queues, in whatever order a member sees queues and
    members."""
    given_out: list[MessageQueue] = []
    for member in group:
        rebalance = Rebalance("g", member, STRATEGIES[strategy])
        for topic in "ST":
            seen = [queue for queue in route if queue.topic == topic]
            order.shuffle(seen)
            order.shuffle(group := list(group))
            share = rebalance.share(topic, seen, group)
            assert share == sorted(share)
            given_out += share
    assert sorted(given_out) == sorted(route)


@given(st.sets(queues), st.dictionaries(st.sampled_from("STU"), st.none() | st.sets(queues, max_size=4)))
def test_changes_lead_from_the_held_queues_to_the_shares(
    held: set[MessageQueue], drawn: dict[str, set[MessageQueue] | None]
) -> None:
    """What is held afterwards is the share of each topic; a topic whose share is unknown keeps its queues, a
    topic that is not subscribed loses them."""
    shares = {
        topic: None if share is None else [queue for queue in share if queue.topic == topic]
        for topic, share in drawn.items()
    }
    change = changes(held, shares)
    assert set(change.lost) <= held
    assert not set(change.gained) & held
    after = (held - set(change.lost)) | set(change.gained)
    for topic in "STU":
        expected = shares.get(topic, [])
        if expected is None:
            expected = [queue for queue in held if queue.topic == topic]
        assert {queue for queue in after if queue.topic == topic} == set(expected)


def test_broadcasting_takes_every_queue() -> None:
    """Without a strategy the other members do not matter."""
    route = [MessageQueue("T", "a", number) for number in (2, 0, 1)]
    rebalance = Rebalance("g", "c1", None)
    assert not rebalance.needs_members
    assert rebalance.share("T", route, []) == sorted(route)


@pytest.mark.row("S179")
def test_queues_of_other_topics_are_left_out() -> None:
    """A fixed list names the queues of several topics; each topic gets its own."""
    wanted = [MessageQueue("S", "a", 0), MessageQueue("T", "a", 1)]
    rebalance = Rebalance("g", "c1", ByConfig(wanted))
    assert rebalance.share("T", [MessageQueue("T", "a", 0)], ["c1", "c2"]) == [MessageQueue("T", "a", 1)]


def test_the_error_of_a_strategy_is_raised() -> None:
    """The caller decides what happens to the queues of the topic."""
    rebalance = Rebalance("g", "c1", Averagely())
    with pytest.raises(ValueError, match="no clients"):
        rebalance.share("T", [MessageQueue("T", "a", 0)], [])
    assert rebalance.share("T", [], []) == []


def test_a_member_that_the_broker_does_not_know_has_no_share() -> None:
    """The other members divide all queues among themselves."""
    strategy: AllocationStrategy = Averagely()
    assert Rebalance("g", "c9", strategy).share("T", [MessageQueue("T", "a", 0)], ["c1", "c2"]) == []


@pytest.mark.row("S180")
def test_machine_rooms_divide_their_own_queues() -> None:
    """Queues of brokers in other rooms have no owner; the others are divided evenly."""
    ours = [MessageQueue("T", "room@a", number) for number in range(5)]
    route = [*ours, MessageQueue("T", "elsewhere@b", 0), MessageQueue("T", "b", 0)]
    group = ["c1", "c2"]
    shares = [Rebalance("g", member, ByMachineRoom(["room"])).share("T", route, group) for member in group]
    assert [len(share) for share in shares] == [3, 2]
    assert sorted([*shares[0], *shares[1]]) == ours
