"""The steps of the election, each from what one member knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rmqkit.plugin.replication import MemberProgress
from rmqkit.plugin.role import Role
from rmqkit_failover.elector import Candidate, Elector, Fence, Follow, Lead, MemberView, SetInSync, Write
from rmqkit_failover.state import (
    MEMBERS,
    STATE,
    GroupState,
    GroupView,
    MemberRecord,
    Registered,
    elected,
    joined,
    left,
    resigned,
)

LAG_S = 10.0
PATIENCE_S = 5.0
NOW_S = 100.0
PAIR = GroupState(epoch=3, master="a", in_sync=("a", "b"), starts={"a": 1, "b": 1})
MASTER = {"role": Role.MASTER, "role_epoch": 3, "until_s": NOW_S + 1, "in_sync": frozenset("ab")}


def record(name: str, **values: Any) -> MemberRecord:
    return MemberRecord(start=1, address=f"{name}:1", ha_address=f"{name}:2", **values)


def group(state: GroupState, *members: str, **records: MemberRecord) -> GroupView:
    """The state at revision 9, with these members, whose lease is that of their letter."""
    running = {name: record(name) for name in members} | records
    registered = {name: Registered(each, ord(name), ord(name)) for name, each in running.items()}
    return GroupView(state, 9, registered)


def step(name: str, of: GroupView, **known: Any) -> object:
    """The next step of a registered member that runs since long."""
    own = of.members[name].record if name in of.members else record(name)
    view = MemberView(**{"now_s": NOW_S, "group": of, "lease": ord(name), **known})
    return Elector(Candidate(name, own), LAG_S, PATIENCE_S).next_step(view)


def progress(name: str, **values: Any) -> dict[str, MemberProgress]:
    """A member that has the whole log, except as stated."""
    known = {"start": 1, "acknowledged": 50, "caught_up_s": NOW_S, "heard_s": NOW_S}
    known |= {"is_caught_up": True, "is_connected": True}
    return {name: MemberProgress(name=name, **{**known, **values})}


def written(found: object) -> GroupState:
    assert isinstance(found, Write)
    return msgspec.json.decode({put.key: put.value for put in found.changes}[STATE], type=GroupState)


def test_a_member_registers_once_it_has_a_lease() -> None:
    """It writes its record under its lease, on condition that no other process of its name is there."""
    assert step("c", group(PAIR, "a"), lease=0) is None
    found = step("c", group(PAIR, "a"))
    assert isinstance(found, Write)
    assert found.conditions == {STATE: 9, MEMBERS + "c": 0}
    assert [(put.key, put.lease) for put in found.changes] == [(STATE, 0), (MEMBERS + "c", ord("c"))]
    assert step("b", group(PAIR, "a", "b"), lease=1) is None


def test_a_master_without_a_lease_is_fenced_at_the_end_of_its_term() -> None:
    """Until then it goes on: nobody else can be elected before."""
    lost = group(PAIR, "b")
    assert step("a", lost, lease=0, **MASTER) is None
    assert step("a", lost, lease=0, **{**MASTER, "until_s": NOW_S}) == Fence(3)


def test_an_elected_member_leads_while_its_term_lasts() -> None:
    """The set of the state is the one it waits for; an election whose term is over already has no effect."""
    both = group(PAIR, "a", "b")
    assert step("a", both, until_s=NOW_S + 1) == Lead(3, frozenset("ab"))
    assert step("a", both, until_s=NOW_S) is None
    alone = group(msgspec.structs.replace(PAIR, in_sync=("a",), alone=2), "a")
    assert step("a", alone, until_s=NOW_S + 1) == Lead(3, frozenset("a"), alone=2)


def test_a_member_that_is_no_master_any_more_gives_up_the_role() -> None:
    """Its term of this epoch ended; the state says then that there is no master."""
    found = step("a", group(PAIR, "a", "b"), role=Role.FENCED, role_epoch=3)
    assert written(found) == resigned(PAIR)


def test_others_follow_a_running_master_once() -> None:
    """A slave of this master and epoch has nothing to do, and a newer order is not taken back."""
    both = group(PAIR, "a", "b")
    assert step("b", both) == Follow(3, "a:1", "a:2")
    assert step("b", both, role=Role.SLAVE, role_epoch=3, follows=("a:1", "a:2")) is None
    assert step("b", both, role=Role.SLAVE, role_epoch=3, follows=("old:1", "old:2")) == Follow(
        3, "a:1", "a:2"
    )
    assert step("b", both, role_epoch=4) is None


def test_a_member_in_sync_is_elected_when_the_master_is_gone() -> None:
    """The master must still be gone when the election is written, and the coordinator must have answered."""
    found = step("b", group(PAIR, "b"))
    assert isinstance(found, Write)
    assert written(found) == elected(PAIR, "b", 0)
    assert found.conditions == {STATE: 9, MEMBERS + "b": ord("b"), MEMBERS + "a": 0}
    assert found.confirm


def test_a_member_out_of_sync_is_never_elected() -> None:
    """It may lack acknowledged messages, also when it is the only one left."""
    state = msgspec.structs.replace(PAIR, starts={**PAIR.starts, "c": 1})
    assert step("c", group(state, "c")) is None


def test_a_new_group_elects_the_member_with_the_most_of_the_log() -> None:
    """Among equal ones the first by name; nobody where a member was in an elected group before."""
    state = GroupState(starts={"a": 1, "b": 1})
    more = group(state, a=record("a", log_end=5), b=record("b", log_end=9))
    assert (step("a", more), written(step("b", more)).master) == (None, "b")
    equal = group(state, "a", "b")
    assert (written(step("a", equal)).master, step("b", equal)) == ("a", None)
    old = group(state, a=record("a", epoch=2), b=record("b"))
    assert (step("a", old), step("b", old)) == (None, None)


def test_an_election_is_after_every_known_epoch() -> None:
    """Also after one that the state does not know, but a member does."""
    found = step("b", group(PAIR, b=record("b", epoch=7)), role_epoch=6)
    assert written(found).epoch == elected(PAIR, "b", 7).epoch == 8


@pytest.mark.parametrize("waited_s", [PATIENCE_S - 1, PATIENCE_S])
def test_a_planned_successor_goes_first_for_a_while(waited_s: float) -> None:
    """When it does nothing for `patience_s`, the others do not wait any longer."""
    state = msgspec.structs.replace(PAIR, master="", wanted="a")
    found = step("b", group(state, "a", "b"), since_s=NOW_S - waited_s)
    assert (found is None) == (waited_s < PATIENCE_S)
    assert written(step("a", group(state, "a", "b"), since_s=NOW_S - waited_s)).master == "a"


def test_a_master_makes_room_for_a_planned_successor_that_has_everything() -> None:
    """Not for one that lacks a part of the log."""
    wanted = group(msgspec.structs.replace(PAIR, wanted="b"), "a", "b")
    assert step("a", wanted, **MASTER, progress=progress("b")) == Fence(3)
    behind = progress("b", is_caught_up=False)
    assert step("a", wanted, **MASTER, progress=behind) is None


@pytest.mark.parametrize("late_s", [LAG_S, LAG_S + 1])
def test_a_member_that_is_behind_for_too_long_leaves(late_s: float) -> None:
    """Exactly `lag_s` is not too long. A member without a lease leaves at once."""
    known = {**MASTER, "progress": progress("b", caught_up_s=NOW_S - late_s)}
    found = step("a", group(PAIR, "a", "b"), **known)
    assert (found is None) == (late_s == LAG_S)
    if found is not None:
        assert written(found) == left(PAIR, "b")
        assert isinstance(found, Write)
        assert found.confirm
    assert written(step("a", group(PAIR, "a"), **MASTER, progress=progress("b"))) == left(PAIR, "b")


def test_a_member_joins_only_after_messages_wait_for_it() -> None:
    """The set of the master grows first, then that of the coordinator; an older process does not join."""
    alone = msgspec.structs.replace(PAIR, in_sync=("a",), alone=1)
    both, known = group(alone, "a", "b"), {**MASTER, "in_sync": frozenset("a")}
    assert step("a", both, **known, progress=progress("b")) == SetInSync(frozenset("a"), frozenset("ab"))
    found = step("a", both, **known, joining=frozenset("ab"), progress=progress("b"))
    assert written(found) == joined(alone, "b")
    assert isinstance(found, Write)
    assert found.conditions == {STATE: 9, MEMBERS + "a": ord("a"), MEMBERS + "b": ord("b")}
    assert step("a", both, **known, progress=progress("b", start=0)) is None


def test_the_set_of_the_master_shrinks_after_the_state_has() -> None:
    """Not while a transaction with an unknown outcome may still change the state."""
    alone = msgspec.structs.replace(PAIR, in_sync=("a",), alone=1)
    one = group(alone, "a")
    assert step("a", one, **MASTER) == SetInSync(frozenset("a"), alone=1)
    assert step("a", one, **MASTER, uncertain=9) is None
