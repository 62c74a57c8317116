"""The replicas of a broker: the addresses by which they find each other, and their progress.

A plugin that replicates the log sets its part, the one that registers the broker tells name servers and
learns the rest from their answers, and hooks read it. Where masters are elected, an elector says who the
master is (`Replication.assign`, `BrokerRole.set`) and which members must have a message
(`ReplicaGroup.set_in_sync`).

An elector lets a member join the in-sync set in three steps, so that no message is acknowledged without it:
`set_in_sync(current, {name})`, wait until `MemberProgress.is_caught_up`, then the change of the group's state
in the coordinator and `set_in_sync(current | {name})`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set

from attrs import frozen


@frozen
class ReplicaProgress:
    """A connected replica of this broker's log. `acknowledged` is a physical offset; `lag_ms` is the age of
    the oldest message that the replica does not have, 0 without one."""

    address: str
    acknowledged: int
    lag_bytes: int
    lag_ms: int
    in_sync: bool


@frozen
class MemberProgress:
    """A member of an elected group, as its master sees it in the present epoch. Times are those of
    `trio.current_time`, -inf for never.

    start         number of the start of the member's process, from its greeting
    acknowledged  physical offset before which the member has the log
    is_caught_up  whether it is connected, and has the log up to the confirmed offset and to the beginning of
                  the epoch
    caught_up_s   the last time at which it had all of the log
    heard_s       the time of its last report
    """

    name: str
    start: int
    acknowledged: int
    is_connected: bool
    is_caught_up: bool
    caught_up_s: float
    heard_s: float


class ReplicaGroup(ABC):
    """The group of brokers with copies of one log, whose master is elected.

    name         the name of this broker in the group
    start        number of the start of this process; set by the elector before the first role
    broker_id    the id of this broker at name servers while it is not the master, which has 0; set by the
                 elector. 0: it is not registered then
    on_progress  functions that are called when a member has connected, left or caught up. They must not block
    starts       returns, of each member, the number of its last start as the coordinator knows it; set by the
                 elector. None: what members say of themselves counts
    """

    name: str
    start: int
    broker_id: int
    on_progress: list[Callable[[], None]]
    starts: Callable[[], Mapping[str, int]] | None

    @property
    @abstractmethod
    def in_sync(self) -> frozenset[str]:
        """The members that must have a message before it is acknowledged, this broker included."""

    @property
    @abstractmethod
    def next(self) -> frozenset[str]:
        """The set to which `in_sync` is about to change, and whose members must have a message as well; empty
        without a change."""

    @abstractmethod
    def set_in_sync(self, current: Set[str], next: Set[str] = frozenset()) -> None:
        """Set both on a master; without effect on other brokers. Raises ValueError when this broker is not in
        `current`."""

    @abstractmethod
    def lead_with(self, in_sync: Set[str]) -> None:
        """Set the in-sync set with which this broker becomes the master next; without a call before, it is
        the broker alone. Raises ValueError when this broker is not in it."""

    @abstractmethod
    def members(self) -> Mapping[str, MemberProgress]:
        """The other members that have connected in this epoch; empty on a broker that is not the master."""

    @property
    @abstractmethod
    def knows_confirmed(self) -> bool:
        """Whether this broker knows which of its messages are confirmed: it is the master, and all members of
        its first in-sync set have what it had at its election; or a slave whose master has told it; or it
        was so until it was fenced."""

    @abstractmethod
    def confirmed(self) -> int:
        """The physical offset before which all members of the set have the log."""

    @abstractmethod
    def log_end(self) -> int:
        """The physical offset at which this broker's log ends."""

    @abstractmethod
    def log_epoch(self) -> int:
        """The epoch of the last record of this broker's log; 0 for an empty one, or one from before the
        elections."""


class MasterTable(ABC):
    """A table of a plugin that a slave copies from its master, with the tables of the broker itself, while
    it follows the master's log.

    code  of the request, without a header, that gets it
    """

    code: int

    @abstractmethod
    async def take(self, body: bytes) -> None:
        """Take over the master's answer. Raises DecodeError, OSError; the next round tries again."""


class Replication:
    """The replication of one broker. Addresses are `host:port`, empty while unknown.

    own         where replicas connect to this broker, for name servers
    master      the address for clients of the broker with this name and id 0, as a name server says
    master_ha   where replicas connect to that broker, as a name server says
    on_change   functions that are called after each change of an address
    on_wanted   functions that are called when somebody needs the present addresses of the master
    replicas    returns the connected replicas
    group       the group whose master is elected; None for a broker without elections
    tables      what slaves copy besides the broker's own tables; append your own
    """

    def __init__(self) -> None:
        self.own = ""
        self.master = ""
        self.master_ha = ""
        self.on_change: list[Callable[[], None]] = []
        self.on_wanted: list[Callable[[], None]] = []
        self.replicas: Callable[[], Sequence[ReplicaProgress]] = lambda: ()
        self.group: ReplicaGroup | None = None
        self.tables: list[MasterTable] = []
        self._is_assigned = False

    def announce(self, own: str) -> None:
        """Set `own`."""
        if own != self.own:
            self.own = own
            self._call(self.on_change)

    def learned(self, master: str, master_ha: str) -> None:
        """Set what a name server says of the master; empty texts say nothing."""
        if not self._is_assigned:
            self._set(master or self.master, master_ha or self.master_ha)

    def assign(self, master: str, master_ha: str) -> None:
        """Set both addresses of the master, as an elector says. Name servers are ignored from then on."""
        self._is_assigned = True
        self._set(master, master_ha)

    def _set(self, *found: str) -> None:
        if found != (self.master, self.master_ha):
            self.master, self.master_ha = found
            self._call(self.on_change)

    def want_master(self) -> None:
        """Ask the name servers soon."""
        self._call(self.on_wanted)

    @staticmethod
    def _call(listeners: Sequence[Callable[[], None]]) -> None:
        for listener in list(listeners):
            listener()
