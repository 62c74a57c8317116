"""The role of a broker, and the services that run in it (Java: BrokerController.changeToMaster,
changeToSlave)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from rmqkit.errors import StaleEpoch
from rmqkit.plugin.acks import ConditionLost
from rmqkit.plugin.role import Preparation, Role

if TYPE_CHECKING:
    from rmqkit.broker.appending.acks import AckQueue
    from rmqkit.plugin.broker import Broker
    from rmqkit.plugin.service import Service

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0


class RoleState:
    """`rmqkit.plugin.role.BrokerRole` of one broker: master with epoch 0 until it is changed. `run` must be
    running where a role has a deadline."""

    def __init__(self, acks: AckQueue) -> None:
        self.current = Role.MASTER
        self.epoch = 0
        self.until_s = inf
        self.on_change: list[Callable[[], None]] = []
        self.preparations: list[Preparation] = []
        self.services: ServiceRunner | None = None
        self._acks = acks
        self._gate = acks.gate
        #: The newest order, which may be in preparation; FENCED where it has failed or its deadline has
        #: passed.
        self._ordered = Role.MASTER, 0
        self._changing = trio.Lock()
        self._deadline_changed = trio.Event()

    @property
    def is_fenced(self) -> bool:
        """Whether the broker may be a former master: its role says so, or its deadline has passed."""
        return self.current is not Role.SLAVE and self._gate.closed() is not None

    def begin(self, role: Role, epoch: int) -> None:
        assert self.services is None, "services have been started for another role"
        self._ordered = role, epoch
        self._change(role, epoch)

    async def set(self, role: Role, epoch: int, until_s: float = inf) -> None:
        last, last_epoch = self._ordered
        if (role, epoch) == (Role.MASTER, last_epoch) == self._ordered:
            self.extend(epoch, until_s)
            await trio.lowlevel.checkpoint()
            return
        if epoch < last_epoch or (role is Role.MASTER and epoch == last_epoch):
            raise StaleEpoch(f"{role.name} of epoch {epoch}: this broker is {last.name} of {last_epoch}")
        self._ordered = role, epoch
        self.until_s = until_s if role is Role.MASTER else inf
        if self.current is Role.MASTER:
            self._change(Role.FENCED, epoch)
        try:
            async with self._changing:
                await self._prepare(role, epoch)
                if (self.current, self.epoch) != (role, epoch):
                    self._change(role, epoch)
                await self._follow()
        except BaseException as error:
            self._fence(role, epoch)
            if isinstance(error, Exception):
                async with self._changing:
                    await self._follow()
            raise

    def extend(self, epoch: int, until_s: float) -> bool:
        if self._ordered != (Role.MASTER, epoch) or trio.current_time() >= self.until_s:
            return False
        self.until_s = max(self.until_s, until_s)
        if self.current is Role.MASTER:
            self._gate.until_s = self.until_s
            self._deadline_changed.set()
        return True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fence a master when its deadline passes, until cancelled."""
        task_status.started()
        while True:
            self._deadline_changed = trio.Event()
            with trio.move_on_at(self._gate.until_s):
                await self._deadline_changed.wait()
            if trio.current_time() < self._gate.until_s:
                continue
            _log.warning("the master of epoch %s was not confirmed in time", self.epoch)
            self._fence(Role.MASTER, self.epoch)
            async with self._changing:
                await self._follow()

    async def _prepare(self, role: Role, epoch: int) -> None:
        """End the services of the old role and run the preparations of the new one. Raises StaleEpoch when a
        later order has come meanwhile, or the deadline has passed."""
        if self.services is not None:
            await self.services.leave(role)
        for prepare in self.preparations:
            await prepare(role, epoch)
        await trio.lowlevel.checkpoint()
        if self._ordered != (role, epoch):
            raise StaleEpoch(f"{role.name} of epoch {epoch}: a later order has come during its preparation")
        if role is Role.MASTER and trio.current_time() >= self.until_s:
            raise StaleEpoch(f"{role.name} of epoch {epoch}: its deadline passed during its preparation")

    def _fence(self, role: Role, epoch: int) -> None:
        """End an order, unless a later one has come."""
        if self._ordered == (role, epoch):
            self._ordered = Role.FENCED, epoch
            self._change(Role.FENCED, epoch)

    async def _follow(self) -> None:
        if self.services is not None:
            await self.services.follow()

    def _change(self, role: Role, epoch: int) -> None:
        self.current, self.epoch = role, epoch
        if role is Role.MASTER:
            self._gate.open(self.until_s)
        else:
            self._gate.close(f"this broker is {role.name} of epoch {epoch} and takes no messages")
            self._acks.abandon()
        self._deadline_changed.set()
        _log.info("the broker is %s of epoch %s", role.name, epoch)
        for follower in self.on_change:
            follower()


@define(eq=False)
class _Running:
    """A running service. `ended` is set when its `run` has returned."""

    service: Service
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)


class ServiceRunner:
    """Starts and stops the services that belong to the broker's role, in order. Services run in `nursery`: an
    error of a service ends the broker."""

    def __init__(self, broker: Broker, services: Mapping[str, Service], nursery: trio.Nursery) -> None:
        self._broker = broker
        self._services = services
        self._nursery = nursery
        self._running: dict[str, _Running] = {}
        self._changing = trio.Lock()

    async def follow(self) -> None:
        """Stop services that do not run in the broker's role, in reverse order, then start those that do.
        Raises a service's error at its start."""
        async with self._changing:
            await self._leave(self._broker.role.current)
            for name, service in self._services.items():
                if name not in self._running and self._broker.role.current in service.roles:
                    await self._nursery.start(self._run, name, _Running(service))

    async def leave(self, role: Role) -> None:
        """Stop services that do not run in a role, in reverse order."""
        async with self._changing:
            await self._leave(role)

    async def _leave(self, role: Role) -> None:
        for name in [*reversed(self._running)]:
            if role not in self._running[name].service.roles:
                await self._end(name)

    async def stop(self) -> None:
        """Call `stop` of every service, in reverse order, after a change that is in progress. Their tasks run
        until the nursery ends."""
        async with self._changing:
            for running in reversed(self._running.values()):
                await self._announce_end(running.service)

    async def _run(self, name: str, running: _Running, task_status: trio.TaskStatus[None]) -> None:
        self._running[name] = running
        try:
            with running.scope:
                await running.service.run(self._broker, task_status)
        finally:
            running.ended.set()

    async def _end(self, name: str) -> None:
        running = self._running[name]
        await self._announce_end(running.service)
        running.scope.cancel()
        await running.ended.wait()
        del self._running[name]

    async def _announce_end(self, service: Service) -> None:
        with trio.move_on_after(_STOP_TIMEOUT_S) as scope:
            try:
                await service.stop(self._broker)
            except ConditionLost as lost:
                _log.info("service %s has not saved its last progress: %s", service.name, lost)
            except Exception:  # noqa: BLE001 - other services must still be stopped
                _log.exception("service %s failed to stop cleanly", service.name)
        if scope.cancelled_caught:
            _log.warning("service %s did not stop within %s s", service.name, _STOP_TIMEOUT_S)
