"""Changes of the state of a replica group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_failover.coordinator import Entry, Snapshot
from rmqkit_failover.state import (
    MAX_MEMBERS,
    GroupState,
    GroupView,
    MemberRecord,
    Past,
    StateError,
    elected,
    encoded,
    joined,
    left,
    removed,
    resigned,
    started,
    wanting,
)

PAIR = GroupState(epoch=3, master="a", in_sync=("a", "b"), starts={"a": 1, "b": 1}, ids={"a": 1, "b": 2})
RECORD = MemberRecord(start=1, address="h:1", ha_address="h:2")


def snapshot(**values: bytes) -> Snapshot:
    return Snapshot(9, {key.replace("_", "/"): Entry(value, 5, 7) for key, value in values.items()})


@given(
    st.builds(
        GroupState,
        epoch=st.integers(0, 2**53 - 1),
        master=st.text(max_size=20),
        in_sync=st.lists(st.text(max_size=5), max_size=5).map(tuple),
        starts=st.dictionaries(st.text(max_size=5), st.integers(0, 9)),
    )
)
def test_a_state_is_read_as_it_was_written(state: GroupState) -> None:
    """Through a snapshot of the coordinator."""
    assert GroupView.of(snapshot(state=encoded(state))).state == state


def test_a_group_that_nobody_has_written_is_new() -> None:
    """It has no state, and its members may be running."""
    view = GroupView.of(snapshot(members_a=encoded(RECORD)))
    assert (view.is_new, view.revision, view.members["a"].record) == (True, 0, RECORD)


@pytest.mark.parametrize("value", [b"", b"[]", b'{"epoch":-1}', b'{"epoch":"x"}', b"\xff"])
def test_something_else_under_the_keys_is_an_error(value: bytes) -> None:
    """With the key in the text."""
    with pytest.raises(StateError, match="state"):
        GroupView.of(snapshot(state=value))
    with pytest.raises(StateError, match="members/a"):
        GroupView.of(snapshot(members_a=value or b"x"))


def test_a_member_runs_when_its_last_start_has_a_lease() -> None:
    """An earlier start does not count."""
    view = GroupView.of(snapshot(state=encoded(PAIR), members_a=encoded(RECORD)))
    assert (view.is_running("a"), view.is_running("b")) == (True, False)
    later = started(PAIR, "a", 2, Past())
    assert not GroupView.of(snapshot(state=encoded(later), members_a=encoded(RECORD))).is_running("a")


def test_an_election_begins_a_new_epoch() -> None:
    """The epoch is newer than every one that is known, and the others stay in the set until the master drops
    them."""
    found = elected(resigned(PAIR), "b", newest=7)
    assert (found.epoch, found.master, found.in_sync) == (8, "b", ("b", "a"))
    assert elected(PAIR, "b").epoch == PAIR.epoch + 1


def test_a_start_ends_what_the_process_before_was() -> None:
    """A restarted master is not the master, and a member that has its log stays in the set."""
    found = started(PAIR, "a", 2, Past())
    assert (found.master, found.in_sync, found.starts["a"]) == ("", ("a", "b"), 2)
    assert started(PAIR, "b", 2, Past()).master == "a"


def test_a_member_that_may_have_lost_messages_leaves_the_set() -> None:
    """The other one has them."""
    assert started(PAIR, "b", 2, Past(is_whole=False)).in_sync == ("a",)


def test_the_last_member_stays_although_it_may_have_lost_messages() -> None:
    """Nobody has more. With another directory it has nothing, and leaves."""
    alone = GroupState(epoch=1, master="a", in_sync=("a",), starts={"a": 1})
    assert started(alone, "a", 2, Past(is_whole=False)).in_sync == ("a",)
    assert started(alone, "a", 2, Past(is_own=False)).in_sync == ()


def test_the_set_before_comes_back_when_the_last_member_never_acknowledged_alone() -> None:
    """The transaction that made it the last one happened when its process was gone."""
    alone = left(PAIR, "b")
    assert (alone.in_sync, alone.alone, alone.previous) == (("a",), 1, ("a", "b"))
    assert started(alone, "a", 2, Past(is_whole=False, alone=0)).in_sync == ("b",)
    assert started(alone, "a", 2, Past(is_whole=False, alone=1)).in_sync == ("a",)
    # The other one may have lost messages as well.
    lossy = started(alone, "b", 2, Past(is_whole=False))
    assert started(lossy, "a", 2, Past(is_whole=False, alone=0)).in_sync == ("a",)


def test_members_get_the_smallest_free_id() -> None:
    """A member keeps its own; 0 is the master's."""
    found = started(removed(PAIR, "a"), "c", 1, Past())
    assert found.ids == {"b": 2, "c": 1}
    assert started(found, "b", 2, Past()).ids == {"b": 2, "c": 1}


def test_a_removed_member_is_gone() -> None:
    """From the set, and from those who are known."""
    found = removed(wanting(PAIR, "b"), "b")
    assert (found.in_sync, found.wanted, found.starts) == (("a",), "", {"a": 1})


def test_an_unclean_switch_makes_one_member_the_set() -> None:
    """It is elected whatever it lacks; a planned one leaves the set alone."""
    assert wanting(PAIR, "c", is_unclean=True).in_sync == ("c",)
    wanted = wanting(PAIR, "b")
    assert (wanted.wanted, wanted.in_sync, wanting(wanted, "")) == ("b", ("a", "b"), PAIR)


def test_a_set_that_grows_forgets_the_one_before() -> None:
    """The others have acknowledged messages since."""
    assert joined(left(PAIR, "b"), "b").previous == ()


def test_a_group_has_a_limited_number_of_members() -> None:
    """The text says how to remove one."""
    full = GroupState(starts={str(number): 1 for number in range(MAX_MEMBERS)})
    with pytest.raises(StateError, match="rmqkit failover remove"):
        started(full, "more", 1, Past())
    assert started(full, "0", 2, Past()).starts["0"] == 2
