"""The members of an elected group and its in-sync set (Java: AutoSwitchHAService, ReplicasManager)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from math import inf

import trio
from attrs import define

from rmqkit.config import CONSUME_QUEUE
from rmqkit.errors import ProtocolError, RequestRefused, StoreError
from rmqkit.plugin.acks import AckCondition
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.positions import BEYOND_LOG, LogPosition
from rmqkit.plugin.replication import MemberProgress, ReplicaGroup
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import ResponseCode
from rmqkit_ha.damage import KnownDamage
from rmqkit_ha.epochs import Epochs
from rmqkit_ha.greeting import Greeting, Welcome
from rmqkit_ha.limits import MAX_MEMBERS
from rmqkit_ha.settings import options

_log = logging.getLogger(__name__)


@define(eq=False)
class GroupMember:
    """A member that has connected in this epoch. `connection` is cancelled to end its connection; None
    without one. `mark` is a moment, and the end of the log then."""

    name: str
    start: int
    connection: trio.CancelScope | None = None
    acknowledged: int = 0
    is_caught_up: bool = False
    caught_up_s: float = -inf
    heard_s: float = -inf
    mark: tuple[float, int] = (-inf, 0)


class ElectedGroup(ReplicaGroup):
    """The group of one broker.

    position  the log offset before which the in-sync set has the log, as its master knows, or has told this
              slave; beyond every offset on a slave that was not told yet
    epochs    the epochs of this broker's log
    """

    def __init__(self) -> None:
        self.name = ""
        self.start = 0
        self.broker_id = 0
        self.on_progress: list[Callable[[], None]] = []
        self.starts: Callable[[], Mapping[str, int]] | None = None
        self.position = LogPosition(self._position)
        self.epochs: Epochs
        self._broker: Broker
        self._damage: KnownDamage
        self._in_sync = self._next = self._first = frozenset[str]()
        self._members: dict[str, GroupMember] = {}
        self._reached = 0
        self._epoch_start = 0
        self._knows_confirmed = self._has_seen_confirmed = False

    def begin(self, broker: Broker, damage: KnownDamage) -> None:
        """Fence an assembled broker until it is elected. Raises ConfigError."""
        self._broker, self._damage = broker, damage
        self.name = options(broker.config).member_name or broker.address
        self._in_sync = frozenset({self.name})
        self.epochs = Epochs(broker.config.config_path)
        self.epochs.load()
        broker.replication.group = self
        broker.role.preparations.append(self._prepare)
        broker.role.on_change.append(self._role_changed)
        broker.store.positions.follow_truncation(self._truncated)
        broker.role.begin(Role.FENCED, self.epochs.last)
        _log.warning("member %s of %s waits to be elected", self.name, broker.config.broker_name)

    # What an elector uses.

    @property
    def in_sync(self) -> frozenset[str]:
        return self._in_sync

    @property
    def next(self) -> frozenset[str]:
        return self._next

    def set_in_sync(self, current: Set[str], next: Set[str] = frozenset()) -> None:
        self._check(current)
        if self._broker.role.current is not Role.MASTER:
            return
        if not self._others:
            # Everything so far needed no other member.
            self._reached = max(self._reached, self.log_end())
        self._in_sync, self._next = frozenset(current), frozenset(next)
        self._advance()

    def lead_with(self, in_sync: Set[str]) -> None:
        self._check(in_sync)
        self._first = frozenset(in_sync)

    def _check(self, in_sync: Set[str]) -> None:
        if self.name not in in_sync:
            raise ValueError(f"the in-sync set {sorted(in_sync)} lacks its master, {self.name}")

    def members(self) -> Mapping[str, MemberProgress]:
        if self._broker.role.current is not Role.MASTER:
            return {}
        return {name: self._progress(each) for name, each in self._members.items()}

    @property
    def knows_confirmed(self) -> bool:
        return self._knows_confirmed

    def confirmed(self) -> int:
        return min(self._broker.store.positions.written.offset, self.position.offset)

    def log_end(self) -> int:
        return self._broker.store.end_offset

    def log_epoch(self) -> int:
        return self.epochs.of_log(self.log_end())

    # What the master's connections use.

    def welcome(self, greeting: Greeting) -> Welcome:
        """The answer to a slave; `refusal` says why it is not served."""
        role, config = self._broker.role, self._broker.config
        refusal, own = "", (config.broker_cluster_name, config.broker_name)
        known = self._members.get(greeting.member)
        start = (known.start if known else 0) if self.starts is None else self.starts().get(greeting.member)
        if own != (greeting.cluster, greeting.group):
            refusal = f"it is {greeting.group} of {greeting.cluster}, and the master {own[1]} of {own[0]}"
        elif greeting.member == self.name:
            refusal = f"master and slave both have the memberName {self.name}"
        elif greeting.epoch > role.epoch:
            refusal = (
                f"it knows epoch {greeting.epoch}, and this master is of epoch {role.epoch}:"
                " it is not a master"
            )
        elif start is None:
            refusal = f"the coordinator has no member {greeting.member}"
        elif greeting.start < start or (greeting.start > start and self.starts is not None):
            refusal = f"start {start} of {greeting.member} is known, and it is start {greeting.start}"
        elif known is None and len(self._members) >= MAX_MEMBERS:
            refusal = f"more than {MAX_MEMBERS} members"
        return Welcome(self.name, role.epoch, self.epochs.known, self.log_end(), refusal)

    def connected(self, greeting: Greeting, connection: trio.CancelScope) -> GroupMember:
        """A slave that was welcomed; its former connection ends. Raises ProtocolError."""
        if refusal := self.welcome(greeting).refusal:
            raise ProtocolError(refusal)
        member = self._members.setdefault(greeting.member, GroupMember(greeting.member, greeting.start))
        if member.connection is not None:
            member.connection.cancel()
        member.connection, member.start = connection, greeting.start
        # Its log may have become shorter.
        member.acknowledged, member.is_caught_up = 0, False
        return member

    def disconnected(self, member: GroupMember, connection: trio.CancelScope) -> None:
        """What the member has acknowledged still counts: it is on its disk."""
        if member.connection is connection:
            member.connection, member.is_caught_up = None, False
            self._tell()

    def acknowledge(self, member: GroupMember, connection: trio.CancelScope, offset: int) -> None:
        """A member has the log before an offset. Reports of a connection that was replaced are ignored."""
        if member.connection is not connection:
            return
        now, end = trio.current_time(), self.log_end()
        member.acknowledged, member.heard_s = offset, now
        if offset >= end:
            member.caught_up_s = now
        elif offset >= member.mark[1]:
            member.caught_up_s = max(member.caught_up_s, member.mark[0])
        if offset >= member.mark[1]:
            member.mark = now, end
        self._advance()
        was_caught_up, member.is_caught_up = member.is_caught_up, self._is_caught_up(member)
        if member.is_caught_up != was_caught_up:
            self._tell()

    # What a slave's connection uses.

    def confirmed_seen(self, confirmed: int) -> None:
        """The master says that the log before an offset is confirmed; this one may not go so far yet."""
        if self._broker.role.current is not Role.SLAVE:
            return
        reached = min(confirmed, self.log_end())
        self._reached = max(self._reached, reached) if self._has_seen_confirmed else reached
        self._has_seen_confirmed = self._knows_confirmed = True
        self.position.moved()

    # The position.

    @property
    def _others(self) -> frozenset[str]:
        return (self._in_sync | self._next) - {self.name}

    def _position(self) -> int:
        return self._reached if self._others or self._has_seen_confirmed else BEYOND_LOG

    def _advance(self) -> None:
        found = [self._members[name].acknowledged if name in self._members else 0 for name in self._others]
        if found:
            self._reached = max(self._reached, min(found))
        if min(found, default=self._epoch_start) >= self._epoch_start:
            self._knows_confirmed = True
        self.position.moved()

    def _is_caught_up(self, member: GroupMember) -> bool:
        return member.connection is not None and member.acknowledged >= max(
            self.confirmed(), self._epoch_start
        )

    def _progress(self, member: GroupMember) -> MemberProgress:
        has_all = member.connection is not None and member.acknowledged >= self.log_end()
        return MemberProgress(
            member.name,
            member.start,
            member.acknowledged,
            member.connection is not None,
            self._is_caught_up(member),
            trio.current_time() if has_all else member.caught_up_s,
            member.heard_s,
        )

    def _tell(self) -> None:
        for listener in list(self.on_progress):
            listener()

    # The role.

    async def _prepare(self, role: Role, epoch: int) -> None:
        """Bring log, queues and tables of a new master to a consistent end, and begin the epoch: at the end,
        or where the log was damaged, for the others are to have what this one has. Raises StaleEpoch,
        StoreError."""
        if role is not Role.MASTER:
            return
        store = self._broker.store
        end = store.end_offset
        await store.flush()
        if store.end_offset != end or store.positions.going_back:
            raise StoreError("the log changes while its master is prepared")
        await self._know_topics()
        damaged_from = self._damage.offset
        start = end if damaged_from is None else min(end, max(damaged_from, store.start_offset))
        await self.epochs.begin(epoch, start, store.start_offset)
        await self._damage.forget()
        self._members.clear()
        self._in_sync, self._next = self._first | {self.name}, frozenset()
        self._first = frozenset()
        self._reached = self._epoch_start = end
        # What this one has beyond the set may be removed, if it does not become the master after all.
        self._knows_confirmed = False
        self._limit_offsets()

    async def _know_topics(self) -> None:
        """Serve the topics whose messages were copied after the master's table was."""
        topics, stored = self._broker.topics, self._broker.store.queues().items()
        try:
            await topics.know(
                (topic, each) for topic, ids in stored if topics.get(topic) is None for each in ids
            )
        except RequestRefused as error:
            _log.error("topics that have messages are not served: %s", error)

    def _role_changed(self) -> None:
        """A fenced broker remembers what was confirmed, a new slave has to be told. A new master may have
        more than its set, and one of the others may be elected next."""
        role = self._broker.role.current
        if role is Role.SLAVE:
            self._in_sync, self._next = frozenset({self.name}), frozenset()
        if role is not Role.FENCED:
            self._has_seen_confirmed = False
            self._knows_confirmed = role is Role.MASTER and not self._others
        self.position.moved()

    async def _truncated(self, end: int) -> None:
        await trio.lowlevel.checkpoint()
        self._reached = min(self._reached, end)
        self._limit_offsets()

    def _limit_offsets(self) -> None:
        """Consumer offsets do not go beyond the queues. A queue that a plugin keeps may be behind the log."""
        if CONSUME_QUEUE not in self._broker.config.dispatchers:
            return
        changed = self._broker.offsets.limit(self._broker.store.max_offset)
        if changed:
            _log.warning(
                "%d consumer offsets were beyond the ends of their queues and are there now", changed
            )


class InSyncCondition(AckCondition):
    """All members of the in-sync set have the message. Consumers do not see it before.

    A message is refused, not stored, while the set has fewer than `least` members (minInSyncReplicas).
    """

    title = "the in-sync set"
    timeout_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    gates_reads = True

    def __init__(self, group: ElectedGroup, timeout_ms: int, least: int) -> None:
        self.group = group
        self.timeout_ms = timeout_ms
        self._least = least

    @property
    def position(self) -> LogPosition:
        return self.group.position

    def refusal(self) -> RequestRefused | None:
        found = len(self.group.in_sync)
        if found >= self._least:
            return None
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"in-sync replicas not enough: {found}, and minInSyncReplicas is {self._least}",
        )


__all__ = ["ElectedGroup", "GroupMember", "InSyncCondition"]
