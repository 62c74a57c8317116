"""What a coordinator knows of a replica group: its state, and the members that are running.

The state is one key, and each change of it is a transaction that fails when the state has changed meanwhile.
A running member has a key of its own, which its lease removes. The functions here return the changed state;
the elector decides when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from attrs import field, frozen

from rmqkit.errors import RmqError
from rmqkit_failover.coordinator import Snapshot

#: Key of the state, and the beginning of the keys of members.
STATE = "state"
MEMBERS = "members/"
#: A group has at most this many members.
MAX_MEMBERS = 64

Name = Annotated[str, msgspec.Meta(max_length=255)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
Numbers = Annotated[dict[Name, Count], msgspec.Meta(max_length=MAX_MEMBERS)]
T = TypeVar("T")


class StateError(RmqError):
    """The coordinator has something under the group's keys that is not the state of a group."""


class GroupState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a replica group.

    epoch     number of the term of the last master; it grows with each election
    master    the member that was elected last; empty when it has given up the role, or was started again
    in_sync   the members that have every acknowledged message: one of them is elected
    alone     how often the set has shrunk to one member
    previous  the set before it shrank to one member, without those that may have lost messages since
    starts    of each member, the number of its last start
    ids       of each member, its id at name servers while it is not the master
    wanted    the member that shall be the master next; empty without a planned switch
    """

    epoch: Count = 0
    master: Name = ""
    in_sync: Names = ()
    alone: Count = 0
    previous: Names = ()
    starts: Numbers = {}
    ids: Numbers = {}
    wanted: Name = ""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A running member.

    start       number of the start of its process
    address     where clients connect, `host:port`
    ha_address  where replicas connect, `host:port`
    log_end     physical offset at which its log ended when it registered
    epoch       the newest epoch that it knew then; 0 when it has never been in an elected group
    """

    start: Count
    address: Name
    ha_address: Name
    log_end: Count = 0
    epoch: Count = 0


@frozen
class Past:
    """What a process of a member knows of the earlier ones.

    is_whole  whether it has what they acknowledged: they stopped in order, the machine has not stopped since,
              or messages are on the disk before they are acknowledged
    is_own    whether its directory is theirs
    alone     `GroupState.alone` when they began to acknowledge messages alone; 0 when they never did
    """

    is_whole: bool = True
    is_own: bool = True
    alone: int = 0


@frozen
class Registered:
    """A member's record, with the revision and the lease of its key."""

    record: MemberRecord
    revision: int
    lease: int


@frozen
class GroupView:
    """What a snapshot of the coordinator says of a group.

    revision  revision of the state; 0 when there is none
    """

    state: GroupState = field(factory=GroupState)
    revision: int = 0
    members: Mapping[str, Registered] = field(factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> GroupView:
        """Decode what the coordinator has of a group. Raises StateError."""
        entry = snapshot.entries.get(STATE)
        members = {
            key.removeprefix(MEMBERS): Registered(
                _decoded(key, found.value, MemberRecord), found.revision, found.lease
            )
            for key, found in snapshot.entries.items()
            if key.startswith(MEMBERS)
        }
        if entry is None:
            return cls(members=members)
        return cls(_decoded(STATE, entry.value, GroupState), entry.revision, members)

    @property
    def is_new(self) -> bool:
        """Whether the group has never had a master."""
        return not self.state.epoch

    def is_running(self, name: str) -> bool:
        """Whether the last start of a member has a lease."""
        return name in self.members and self.members[name].record.start == self.state.starts.get(name)


def encoded(value: GroupState | MemberRecord) -> bytes:
    return msgspec.json.encode(value)


def _decoded(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"the coordinator's key {key} has no {kind.__name__}: {error}") from error


def started(state: GroupState, name: str, start: int, past: Past) -> GroupState:
    """A process of a member has started, and gives up what an earlier one was.

    A member that may have lost acknowledged messages leaves the in-sync set, and so does one with another
    directory. The last one stays, for nobody has more, unless it may have lost some that it has not
    acknowledged alone: then the set is the one before. Raises StateError when the group has too many members.
    """
    if name not in state.starts and len(state.starts) >= MAX_MEMBERS:
        raise StateError(
            f"the group has {MAX_MEMBERS} members: remove one that does not come back with `rmqkit failover"
            " remove`"
        )
    if not past.is_own:
        state = _lost(state, name)
    elif not past.is_whole:
        others = _without(state.previous, name)
        if state.in_sync != (name,):
            state = _lost(state, name)
        elif others and past.alone != state.alone:
            state = msgspec.structs.replace(state, in_sync=others, previous=())
    free = (number for number in range(1, MAX_MEMBERS + 1) if number not in state.ids.values())
    return msgspec.structs.replace(
        state,
        master=_unless(state.master, name),
        starts=state.starts | {name: start},
        ids=state.ids if name in state.ids else state.ids | {name: next(free)},
    )


def elected(state: GroupState, name: str, newest: int = 0) -> GroupState:
    """A member is the master of an epoch after `newest`, the last one that somebody knows. The others stay in
    the in-sync set until the master knows that they do not follow it."""
    return msgspec.structs.replace(
        state,
        epoch=max(state.epoch, newest) + 1,
        master=name,
        in_sync=(name, *_without(state.in_sync, name)),
        wanted=_unless(state.wanted, name),
    )


def resigned(state: GroupState) -> GroupState:
    """The master has given up its role."""
    return msgspec.structs.replace(state, master="")


def joined(state: GroupState, *names: str) -> GroupState:
    return msgspec.structs.replace(state, in_sync=(*state.in_sync, *names), previous=())


def left(state: GroupState, *names: str) -> GroupState:
    """Members do not follow the master; messages will be acknowledged without them."""
    rest = _without(state.in_sync, *names)
    if len(rest) != 1:
        return msgspec.structs.replace(state, in_sync=rest)
    return msgspec.structs.replace(state, in_sync=rest, alone=state.alone + 1, previous=state.in_sync)


def wanting(state: GroupState, name: str, *, is_unclean: bool = False) -> GroupState:
    """A member shall be the master next; empty ends a wish. `is_unclean` makes it the only member of the
    in-sync set although it may lack acknowledged messages: they are lost when it is elected."""
    if is_unclean:
        state = msgspec.structs.replace(state, in_sync=(name,), previous=())
    return msgspec.structs.replace(state, wanted=name)


def removed(state: GroupState, name: str) -> GroupState:
    """A member does not come back."""
    return msgspec.structs.replace(
        _lost(state, name),
        starts={each: start for each, start in state.starts.items() if each != name},
        ids={each: number for each, number in state.ids.items() if each != name},
        wanted=_unless(state.wanted, name),
    )


def _lost(state: GroupState, name: str) -> GroupState:
    """A member may have lost messages."""
    return msgspec.structs.replace(
        state, in_sync=_without(state.in_sync, name), previous=_without(state.previous, name)
    )


def _without(names: Sequence[str], *gone: str) -> tuple[str, ...]:
    return tuple(each for each in names if each not in gone)


def _unless(found: str, name: str) -> str:
    return "" if found == name else found


__all__ = [
    "MEMBERS",
    "STATE",
    "GroupState",
    "GroupView",
    "MemberRecord",
    "Past",
    "Registered",
    "StateError",
    "elected",
    "encoded",
    "joined",
    "left",
    "removed",
    "resigned",
    "started",
    "wanting",
]
