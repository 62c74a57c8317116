"""Carries out what the elector of a member decides: keeps the lease, follows the group's state, and changes
the role of the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

import trio
from attrs import evolve

from rmqkit.errors import ConfigError, RmqError, StaleEpoch
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.flush import Level
from rmqkit.plugin.replication import ReplicaGroup
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit_failover.coordinator import Coordinator, CoordinatorError, LeaseLost, Snapshot
from rmqkit_failover.disk import DiskProbe
from rmqkit_failover.elector import (
    Candidate,
    Elector,
    Fence,
    Follow,
    Lead,
    MemberView,
    SetInSync,
    Step,
    Write,
)
from rmqkit_failover.settings import FailoverOptions, group_prefix, options
from rmqkit_failover.start_file import StartFile
from rmqkit_failover.state import GroupView, MemberRecord, Past, StateError

_log = logging.getLogger(__name__)
#: The lease is renewed this often within its time.
_RENEWALS = 4
#: A term ends this part of a lease before the lease does: the coordinator's clock may be faster.
_MARGIN = 0.1
#: Time between two looks at what changes without an event, such as a slave that falls behind.
_LOOK_S = 0.2
#: Time until a step that failed is taken again.
_PAUSE_S = 0.5

#: Makes the coordinator for the keys with a prefix.
Connect = Callable[[FailoverOptions, str], Coordinator]


class FailoverService(Service):
    """Service "failover"."""

    name = "failover"

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.driver: Driver | None = None

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        """Counts as started at once: a broker without its coordinator is fenced, and waits. Cancelled: the
        lease goes on until it is over, or `stop` ends it. Raises ConfigError for a start file that cannot be
        read or written."""
        given, config = options(broker.config), broker.config
        coordinator = self._connect(
            given, group_prefix(given, config.broker_cluster_name, config.broker_name)
        )
        try:
            self.driver = Driver(broker, coordinator, given)
            task_status.started()
            await self.driver.run()
            # `stop` ended it, and needs the coordinator; the broker cancels the service.
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await coordinator.aclose()

    async def stop(self, broker: Broker) -> None:
        """Give up role and lease, so that another member is elected at once."""
        if self.driver is not None:
            await self.driver.stop()


class Driver:
    """One process of one member.

    is_waiting  whether it has a lease, and the elector has seen everything and has nothing to do
    """

    def __init__(self, broker: Broker, coordinator: Coordinator, given: FailoverOptions) -> None:
        assert broker.replication.group is not None, "the plugin has checked plugins.ha.elected"
        self._broker = broker
        self._role = broker.role
        self._group: ReplicaGroup = broker.replication.group
        self.coordinator = coordinator
        self._given = given
        self._file = StartFile(broker.config.config_path)
        self.disk = DiskProbe(broker.config.config_path, given.lease_s / _RENEWALS / 2)
        self._view = MemberView(trio.current_time(), GroupView())
        self._group.starts = lambda: self._view.group.state.starts
        self._elector: Elector | None = None
        self._snapshot_revision = -1
        #: Revision of the state on which a transaction with an unknown outcome depends.
        self._unknown = 0
        self._is_registered = False
        self._has_failed = False
        self._said = ""
        self.is_waiting = False
        self._changed = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            self._file.load()
        except OSError as error:
            raise ConfigError(f"{self._broker.config.config_path}: {error}") from error
        listeners = [self._role.on_change, self._group.on_progress, self._broker.replication.on_change]
        for each in listeners:
            each.append(self._wake)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.disk.run)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._keep_lease)
                    nursery.start_soon(self._take_steps)
        finally:
            for each in listeners:
                each.remove(self._wake)

    async def stop(self) -> None:
        """End role and lease. Messages that are not acknowledged are answered with SERVICE_NOT_AVAILABLE."""
        self._scope.cancel()
        if self._role.current is Role.MASTER:
            await self._role.set(Role.FENCED, self._role.epoch)
        lease, self._view = self._view.lease, evolve(self._view, lease=0, until_s=-inf)
        if lease:
            try:
                await self.coordinator.revoke(lease)
            except CoordinatorError as error:
                _log.warning("failover: the lease goes on for up to %d s: %s", self._given.lease_s, error)

    def _wake(self) -> None:
        self.is_waiting = False
        self._changed.set()

    def _see(self, view: MemberView) -> None:
        self._view = view
        self._wake()

    # The coordinator.

    async def _watch(self) -> None:
        async with self.coordinator.watch() as snapshots:
            async for snapshot in snapshots:
                self._learn(snapshot)

    def _learn(self, snapshot: Snapshot) -> None:
        """Take over the cluster state as read; reads may return an older state than an earlier read."""
        if snapshot.revision < self._snapshot_revision:
            return
        try:
            group = GroupView.of(snapshot)
        except StateError as error:
            self._failed("failover: %s", error)
            return
        self._snapshot_revision = snapshot.revision
        is_same = group.revision == self._view.group.revision
        since_s = self._view.since_s if is_same else trio.current_time()
        self._see(evolve(self._view, group=group, since_s=since_s))

    async def _keep_lease(self) -> None:
        period_s = self._given.lease_s / _RENEWALS
        await self.disk.wrote.wait()
        while True:
            await self._renew()
            await trio.sleep(period_s)

    async def _renew(self) -> None:
        """Renew the lease, or get one. The term ends with it, counted from now. A lease whose renewals get no
        answer is given up when the term is over: they may arrive, and keep others from being elected."""
        sent_s, lease = trio.current_time(), self._view.lease
        if not self.disk.wrote_since(sent_s - self._given.lease_s / 2):
            return
        try:
            if lease:
                await self.coordinator.renew(lease)
            else:
                lease = await self.coordinator.grant(self._given.lease_s)
        except LeaseLost:
            _log.warning("failover: the lease of this member is over")
            self._see(evolve(self._view, lease=0, until_s=-inf))
            return
        except CoordinatorError as error:
            self._failed("failover: the coordinator is not reached: %s", error)
            if lease and trio.current_time() >= self._view.until_s:
                self._see(evolve(self._view, lease=0, until_s=-inf))
            return
        self._has_failed = False
        until_s = sent_s + self._given.lease_s * (1 - _MARGIN)
        self._see(evolve(self._view, lease=lease, until_s=until_s))
        self._role.extend(self._role.epoch, until_s)

    def _failed(self, text: str, error: Exception) -> None:
        """Say it once, until something succeeds."""
        _log.log(logging.DEBUG if self._has_failed else logging.WARNING, text, error)
        self._has_failed = True

    # Steps.

    async def _take_steps(self) -> None:
        while True:
            self._changed = trio.Event()
            try:
                if not await self._take_one():
                    self.is_waiting = bool(self._view.lease) and not self._changed.is_set()
                    with trio.move_on_after(_LOOK_S):
                        await self._changed.wait()
            except CoordinatorError as error:
                self._failed("failover: the coordinator does not answer: %s", error)
                await trio.sleep(_PAUSE_S)
            except (RmqError, OSError) as error:
                _log.error("failover: %s", error)
                await trio.sleep(_PAUSE_S)

    async def _take_one(self) -> bool:
        """Take a step; returns whether there was one. Raises CoordinatorError, StateError, StoreError,
        OSError."""
        elector = self._elector or await self._begin()
        if elector is None:
            return False
        view = self._look()
        if not self._is_registered and elector.is_registered(view):
            await trio.to_thread.run_sync(self._file.registered)
            self._is_registered = True
            self._group.broker_id = view.group.state.ids.get(elector.member.name, 0)
            self._elector = elector = evolve(elector, member=evolve(elector.member, past=Past()))
        step = elector.next_step(view)
        if step is not None:
            await self._take(step)
        else:
            self._say_why(elector, view)
        return step is not None

    def _say_why(self, elector: Elector, view: MemberView) -> None:
        """Tell the operator, once, why the group has no master, or this process no part in it."""
        name, state = elector.member.name, view.group.state
        found = view.group.members.get(name)
        reason = ""
        if view.lease and found is not None and not elector.is_registered(view):
            reason = (
                f"another process of member {name}, at {found.record.address}, runs or has a lease that is"
                " not over: this one waits until then. Each member has a plugins.ha.memberName of its own"
            )
        elif elector.is_registered(view) and not state.in_sync and (not view.group.is_new or view.role_epoch):
            reason = (
                "no member is known to have every acknowledged message, so none is elected: `rmqkit failover"
                " switch NAME --unclean` elects one whatever it lacks"
            )
        elif view.role_epoch > state.epoch and not view.group.is_new:
            reason = (
                f"this member knows epoch {view.role_epoch}, and the coordinator epoch {state.epoch}: its"
                " state is older than this group"
            )
        if reason and reason != self._said:
            _log.error("failover: %s", reason)
        self._said = reason

    async def _begin(self) -> Elector | None:
        """The elector, once the state of the group and the addresses of this broker are known."""
        own, group = self._broker.replication.own, self._view.group
        if self._snapshot_revision < 0 or not own:
            return None
        name, config = self._group.name, self._broker.config
        registered = group.state.starts.get(name, 0)
        policy = self._broker.registry.chosen("flush_policies", config.flush_policy)(config)
        past = self._file.past(registered, is_synced=policy.acknowledge_at is Level.FLUSHED)
        if not past.is_own:
            _log.warning(
                "failover: the directory of %s is not the one of its start %d: it begins as a new member",
                name,
                registered,
            )
        self._group.start = await trio.to_thread.run_sync(self._file.begin, registered)
        record = MemberRecord(
            start=self._group.start,
            address=self._broker.address,
            ha_address=own,
            log_end=self._group.log_end(),
            epoch=self._role.epoch,
        )
        given = self._given
        self._elector = Elector(Candidate(name, record, past), given.lag_ms / 1000, given.patience_ms / 1000)
        return self._elector

    def _look(self) -> MemberView:
        replication, is_master = self._broker.replication, self._role.current is Role.MASTER
        self._view = evolve(
            self._view,
            now_s=trio.current_time(),
            role=self._role.current,
            role_epoch=self._role.epoch,
            in_sync=self._group.in_sync if is_master else frozenset(),
            joining=self._group.next if is_master else frozenset(),
            progress=self._group.members(),
            follows=(replication.master, replication.master_ha),
            uncertain=self._unknown,
        )
        return self._view

    async def _take(self, step: Step) -> None:
        match step:
            case Write():
                await self._write(step)
            case Lead(epoch, in_sync, alone):
                await self._alone(alone)
                self._group.lead_with(in_sync)
                await self._order(Role.MASTER, epoch, self._view.until_s)
                self._view = evolve(self._view, term_s=trio.current_time())
            case Follow(epoch, address, ha_address):
                self._broker.replication.assign(address, ha_address)
                await self._order(Role.SLAVE, epoch)
            case Fence(epoch):
                await self._order(Role.FENCED, epoch)
            case SetInSync(in_sync, joining, alone):
                await self._alone(alone)
                self._group.set_in_sync(in_sync, joining)

    async def _alone(self, number: int) -> None:
        if number and number != self._file.known.alone:
            await trio.to_thread.run_sync(self._file.alone, number)

    async def _order(self, role: Role, epoch: int, until_s: float = inf) -> None:
        """Give the broker a role. Raises StoreError, OSError."""
        try:
            await self._role.set(role, epoch, until_s)
        except StaleEpoch as error:
            # Its deadline passed meanwhile; the next look sees it.
            _log.warning("failover: %s", error)
        _log.info("failover: this member is %s of epoch %d", self._role.current.name, self._role.epoch)

    async def _write(self, step: Write) -> None:
        """Write a step of the election to the coordinator. Raises CoordinatorError; the outcome is then
        unknown."""
        revision, before = self._view.group.revision, self._unknown
        if step.confirm:
            self._learn(await self.coordinator.read())
            if self._view.group.revision != revision:
                return
        self._unknown = revision
        found = await self.coordinator.write(step.conditions, step.changes)
        _log.info("failover: %s: %s", step.reason, "done" if found is not None else "the state has changed")
        if found is None:
            # This transaction will not happen; an earlier one may.
            self._unknown = before
        self._learn(await self.coordinator.read())


__all__ = ["Connect", "Driver", "FailoverService"]
