"""Decides what a member of a replica group does next. No input or output, no clock, no memory: what is known
goes in, and the next step comes out (design: Patroni, LavinMQ).

The rules by which no acknowledged message is lost:

- The in-sync set of the master always contains the one in the coordinator: a member is added to the master's
  before, and removed after, the coordinator's state has changed. A transaction whose outcome is unknown may
  still happen until the state has changed; nobody is removed from the master's set before.
- Only a member of the coordinator's set is elected, and only when the last master's lease is over or it has
  given up the role. A member that cannot know that it still has its log leaves the set when it registers.
- The term of a master ends before its lease does: `MemberView.until_s` counts from the moment at which the
  last renewal was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from attrs import field, frozen

from rmqkit.plugin.replication import MemberProgress
from rmqkit.plugin.role import Role
from rmqkit_failover.coordinator import Put
from rmqkit_failover.state import (
    MEMBERS,
    STATE,
    GroupState,
    GroupView,
    MemberRecord,
    Past,
    elected,
    encoded,
    joined,
    left,
    resigned,
    started,
)


@frozen
class Candidate:
    """This member.

    record  what others need of it
    past    of its earlier processes; the default from the first registration on, for this process does not
            lose what it wrote
    """

    name: str
    record: MemberRecord
    past: Past = field(factory=Past)


@frozen
class MemberView:
    """What a member knows.

    now_s      the time, as all of them of a monotonic clock
    group      what the coordinator said last, and `since_s`, when that was first seen
    lease      its lease; 0 without one
    until_s    end of its term when it is the master; in the past without a lease
    term_s     when its term began
    role       its role and `role_epoch`: of the last order, also while that is carried out
    in_sync    the master's own set, and `joining`, those who are about to join it; empty on others
    progress   the members that follow this master
    follows    the addresses of the master that it follows
    uncertain  revision of the state on which a transaction with an unknown outcome depends; 0 without one
    """

    now_s: float
    group: GroupView
    since_s: float = 0.0
    lease: int = 0
    until_s: float = -inf
    term_s: float = -inf
    role: Role = Role.FENCED
    role_epoch: int = 0
    in_sync: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    progress: Mapping[str, MemberProgress] = field(factory=dict)
    follows: tuple[str, str] = ("", "")
    uncertain: int = 0


@frozen
class Write:
    """A transaction.

    conditions  the revisions of keys, 0 for a key that must not exist
    confirm     whether the coordinator must have answered immediately before: what a member that hears nobody
                sends may arrive, and nobody could be elected in its place
    """

    reason: str
    conditions: Mapping[str, int]
    changes: Sequence[Put]
    confirm: bool = False


@frozen
class Lead:
    """Be the master of an epoch, and acknowledge messages when the members of the in-sync set have them.
    `alone` as in SetInSync."""

    epoch: int
    in_sync: frozenset[str]
    alone: int = 0


@frozen
class Follow:
    """Be a slave of the master of an epoch, at its addresses for clients and for replicas."""

    epoch: int
    address: str
    ha_address: str


@frozen
class Fence:
    """Stop being the master."""

    epoch: int


@frozen
class SetInSync:
    """Wait for these members before a message is acknowledged. `alone`: the number that is written to the
    disk before (`Past.alone`), when the set shrinks to this member; 0 otherwise."""

    in_sync: frozenset[str]
    joining: frozenset[str] = frozenset()
    alone: int = 0


Step = Write | Lead | Follow | Fence | SetInSync


@frozen
class Elector:
    """Decides for one member. `lag_s`: a slave that does not have the whole log for this long leaves the
    in-sync set. `patience_s`: a planned switch whose member does nothing for this long is ignored."""

    member: Candidate
    lag_s: float
    patience_s: float

    def next_step(self, view: MemberView) -> Step | None:
        """The next step; None: wait until something changes."""
        if not self.is_registered(view):
            return self._register(view)
        state = view.group.state
        if state.master == self.member.name:
            return self._act_as_master(view)
        if state.master and view.group.is_running(state.master):
            return self._follow(view)
        return self._run_for_master(view)

    # Registration.

    def is_registered(self, view: MemberView) -> bool:
        """Whether the coordinator knows this process, and its lease is not over as far as is known. From the
        first time on `Candidate.past` is the default, and the disk may say that its log is whole."""
        found = view.group.members.get(self.member.name)
        return (
            view.lease != 0
            and found is not None
            and (found.record, found.lease) == (self.member.record, view.lease)
            and view.group.is_running(self.member.name)
        )

    def _register(self, view: MemberView) -> Step | None:
        if view.role is Role.MASTER and view.now_s >= view.until_s:
            return Fence(view.role_epoch)
        name, group = self.member.name, view.group
        if not view.lease or name in group.members:
            # Another process of this name runs, or has a lease that is not over.
            return None
        state = started(group.state, name, self.member.record.start, self.member.past)
        return Write(
            "register",
            {STATE: group.revision, MEMBERS + name: 0},
            [Put(STATE, encoded(state)), Put(MEMBERS + name, encoded(self.member.record), view.lease)],
        )

    # The master.

    def _act_as_master(self, view: MemberView) -> Step | None:
        state, name = view.group.state, self.member.name
        if (view.role, view.role_epoch) != (Role.MASTER, state.epoch):
            if view.role_epoch < state.epoch:
                if view.now_s >= view.until_s:
                    return None
                return Lead(state.epoch, frozenset(state.in_sync), _alone(state))
            # Its term ended, or it was ended for a planned switch; this epoch has no master any more.
            return self._write(view, "give up the role", resigned(state))
        successor = state.wanted
        if successor not in ("", name) and self._may_succeed(view, successor):
            return Fence(state.epoch)
        return self._keep_in_sync(view)

    def _may_succeed(self, view: MemberView, name: str) -> bool:
        progress = view.progress.get(name)
        return (
            name in view.group.state.in_sync
            and view.group.is_running(name)
            and progress is not None
            and progress.is_caught_up
        )

    def _keep_in_sync(self, view: MemberView) -> Step | None:
        state = view.group.state
        certain = frozenset(state.in_sync)
        is_settled = view.uncertain < view.group.revision
        if lagging := [each for each in state.in_sync if self._is_lagging(view, each)]:
            return self._write(view, f"{', '.join(lagging)} is behind", left(state, *lagging), confirm=True)
        ready = [each for each in view.progress if each not in certain and self._is_ready(view, each)]
        if ready and not certain.union(ready) <= view.in_sync | view.joining:
            return SetInSync(certain, view.joining | certain.union(ready))
        if ready:
            return self._write(view, f"{', '.join(ready)} has caught up", joined(state, *ready), *ready)
        if not certain <= view.in_sync | view.joining or (
            is_settled and (view.in_sync, view.joining) != (certain, frozenset())
        ):
            return SetInSync(certain, alone=_alone(state))
        return None

    def _is_ready(self, view: MemberView, name: str) -> bool:
        """Whether a member has the log, and its last start says so: an earlier one may have lost it."""
        progress = view.progress[name]
        return (
            progress.is_caught_up
            and not self._is_lagging(view, name)
            and view.group.is_running(name)
            and progress.start == view.group.state.starts[name]
        )

    def _is_lagging(self, view: MemberView, name: str) -> bool:
        """Whether a member has no lease, or has not had the whole log for too long."""
        if name == self.member.name:
            return False
        progress = view.progress.get(name)
        caught_up_s = -inf if progress is None else progress.caught_up_s
        return not view.group.is_running(name) or view.now_s - max(caught_up_s, view.term_s) > self.lag_s

    # The others.

    def _follow(self, view: MemberView) -> Step | None:
        state = view.group.state
        master = view.group.members[state.master].record
        wanted = Follow(state.epoch, master.address, master.ha_address)
        is_done = (
            view.role is Role.SLAVE
            and view.role_epoch == state.epoch
            and view.follows == (master.address, master.ha_address)
        )
        return None if is_done or view.role_epoch > state.epoch else wanted

    def _run_for_master(self, view: MemberView) -> Step | None:
        """Be elected: the last master is gone, or there was none."""
        state, name = view.group.state, self.member.name
        if name not in state.in_sync and not (view.group.is_new and self._is_first(view)):
            return None
        if self._waits_for_another(view):
            return None
        newest = max(view.role_epoch, *(each.record.epoch for each in view.group.members.values()))
        conditions = {MEMBERS + state.master: 0} if state.master else {}
        return self._write(
            view, "election", elected(state, name, newest), conditions=conditions, confirm=True
        )

    def _is_first(self, view: MemberView) -> bool:
        """Whether this member has the most of a group that was never elected. Where a member has been in an
        elected group, the coordinator has lost its state: only an operator can tell who has every message."""
        members = view.group.members
        if view.group.state.in_sync or any(each.record.epoch for each in members.values()):
            return False
        most = max(each.record.log_end for each in members.values())
        return self.member.name == min(each for each in members if members[each].record.log_end == most)

    def _waits_for_another(self, view: MemberView) -> bool:
        state = view.group.state
        return (
            state.wanted not in ("", self.member.name)
            and state.wanted in state.in_sync
            and view.group.is_running(state.wanted)
            and view.now_s - view.since_s < self.patience_s
        )

    def _write(
        self,
        view: MemberView,
        reason: str,
        state: GroupState,
        *running: str,
        conditions: Mapping[str, int] | None = None,
        confirm: bool = False,
    ) -> Write:
        """A change of the state by this member while it has its lease, as have those of `running`."""
        members = view.group.members
        keys = {MEMBERS + each: members[each].revision for each in (self.member.name, *running)}
        return Write(
            reason,
            {STATE: view.group.revision, **keys, **(conditions or {})},
            [Put(STATE, encoded(state))],
            confirm,
        )


def _alone(state: GroupState) -> int:
    return state.alone if len(state.in_sync) == 1 else 0


__all__ = ["Candidate", "Elector", "Fence", "Follow", "Lead", "MemberView", "SetInSync", "Step", "Write"]
