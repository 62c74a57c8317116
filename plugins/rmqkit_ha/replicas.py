"""The slaves of a master, and the acknowledgement condition that they fulfil (store-format sheet, section
13.2; Java: GroupTransferService)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define

from rmqkit.errors import RequestRefused
from rmqkit.plugin.acks import AckCondition, ConditionLost
from rmqkit.plugin.positions import BEYOND_LOG, LogPosition, wait_moved
from rmqkit.protocol.codes import ResponseCode
from rmqkit_ha.meter import Meter
from rmqkit_ha.settings import HaSettings

_log = logging.getLogger(__name__)


@define(eq=False)
class Replica:
    """A connected slave. Offsets are physical: the log before `acknowledged` is on the slave, that before
    `sent` was sent. `report` is called with each offset that a member of an elected group acknowledges, and
    `member` is its name."""

    address: str
    acknowledged: int
    sent: int
    meter: Meter
    member: str = ""
    report: Callable[[int], None] | None = None


class Replicas:
    """The connected slaves of one master.

    end    the end of the master's log; set when the broker is assembled
    moved  the position up to which `copies` brokers, the master included, have the log
    """

    def __init__(self, copies: int = 1, max_gap_bytes: int = BEYOND_LOG) -> None:
        self.copies = copies
        self.connected: list[Replica] = []
        self.moved = LogPosition(lambda: self._reached)
        self._max_gap_bytes = max_gap_bytes
        self._reached = 0
        self._end = self.moved

    def begin(self, end: LogPosition) -> None:
        """Set the position that is the end of the master's log."""
        self._end = end

    @contextmanager
    def joined(self, replica: Replica) -> Iterator[Replica]:
        """The replica counts within the context."""
        self.connected.append(replica)
        try:
            self.acknowledge(replica, replica.acknowledged)
            yield replica
        finally:
            self.connected.remove(replica)

    def acknowledge(self, replica: Replica, offset: int) -> None:
        """The replica has the log before an offset."""
        replica.acknowledged = offset
        if replica.report is not None:
            replica.report(offset)
        others = sorted((each.acknowledged for each in self.connected), reverse=True)
        needed = self.copies - 1
        reached = others[needed - 1] if 0 < needed <= len(others) else 0
        # What a replica had when it left is still on its disk.
        if reached > self._reached:
            self._reached = reached
            self.moved.moved()

    def lag_bytes(self, replica: Replica) -> int:
        return max(0, self._end.offset - replica.acknowledged)

    def is_in_sync(self, replica: Replica) -> bool:
        """Whether a replica is near enough to the end to be waited for."""
        return self.lag_bytes(replica) < self._max_gap_bytes

    @property
    def in_sync(self) -> int:
        """Number of brokers that are in sync, the master included."""
        return 1 + sum(map(self.is_in_sync, self.connected))

    async def truncated(self, end: int) -> None:
        """The master's log was cut."""
        await trio.lowlevel.checkpoint()
        self._reached = min(self._reached, end)


class ReplicaCondition(AckCondition):
    """SYNC_MASTER: `replicas.copies` brokers have the message.

    Without enough slaves in sync a message is stored and answered with SLAVE_NOT_AVAILABLE at once, as by
    Apache's brokers up to 4.9; later ones wait for `slaveTimeout` in vain.
    """

    title = "the number of replicas that inSyncReplicas demands"
    timeout_code = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def __init__(self, replicas: Replicas, timeout_ms: int) -> None:
        self.replicas = replicas
        self.timeout_ms = timeout_ms

    @property
    def position(self) -> LogPosition:
        return self.replicas.moved

    async def wait_passed(self, offset: int) -> None:
        replicas = self.replicas
        if replicas.moved.offset < offset and replicas.in_sync < replicas.copies:
            raise ConditionLost(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                f"{replicas.in_sync} of {replicas.copies} replicas are in sync, this broker included",
            )
        await wait_moved(replicas.moved, offset - 1)


class LeastReplicaCondition(ReplicaCondition):
    """A replica condition that also refuses messages, which are not stored then, while fewer than `least`
    brokers are in sync (minInSyncReplicas)."""

    def __init__(self, replicas: Replicas, timeout_ms: int, least: int) -> None:
        super().__init__(replicas, timeout_ms)
        self._least = least

    def refusal(self) -> RequestRefused | None:
        found = self.replicas.in_sync
        if found >= self._least:
            return None
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"in-sync replicas not enough: {found}, and minInSyncReplicas is {self._least}",
        )


def condition(given: HaSettings) -> ReplicaCondition | None:
    """The condition of SYNC_MASTER; None where no slave is waited for."""
    if given.copies < 2:
        return None
    replicas = Replicas(given.copies, given.ha_max_gap_not_in_sync)
    if given.min_in_sync_replicas > 1:
        return LeastReplicaCondition(replicas, given.slave_timeout, given.min_in_sync_replicas)
    return ReplicaCondition(replicas, given.slave_timeout)
