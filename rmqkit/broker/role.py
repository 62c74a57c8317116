"""The role of a broker, and the services that run in it (Java: BrokerController.changeToMaster,
changeToSlave)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from rmqkit.errors import StaleEpoch
from rmqkit.plugin.role import Role

if TYPE_CHECKING:
    from rmqkit.broker.context import BrokerContext
    from rmqkit.broker.log_appender import LogAppender
    from rmqkit.plugin.service import Service

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0


class RoleState:
    """`rmqkit.plugin.role.BrokerRole` of one broker: master with epoch 0 until it is changed."""

    def __init__(self, put: LogAppender) -> None:
        self.current = Role.MASTER
        self.epoch = 0
        self.on_change: list[Callable[[], None]] = []
        self.services: ServiceRunner | None = None
        self._put = put

    def begin(self, role: Role, epoch: int) -> None:
        assert self.services is None, "services have been started for another role"
        self._change(role, epoch)

    async def set(self, role: Role, epoch: int) -> None:
        promoted = role is Role.MASTER and self.current is not Role.MASTER
        if epoch < self.epoch or (promoted and epoch == self.epoch):
            raise StaleEpoch(
                f"{role.name} of epoch {epoch}: this broker is {self.current.name} of {self.epoch}"
            )
        self._change(role, epoch)
        if self.services is not None:
            await self.services.follow()
        else:
            await trio.lowlevel.checkpoint()

    def _change(self, role: Role, epoch: int) -> None:
        self.current, self.epoch = role, epoch
        self._put.refusal = None
        if role is not Role.MASTER:
            self._put.refusal = f"this broker is {role.name} of epoch {epoch} and takes no messages"
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

    def __init__(self, broker: BrokerContext, services: Mapping[str, Service], nursery: trio.Nursery) -> None:
        self._broker = broker
        self._services = services
        self._nursery = nursery
        self._running: dict[str, _Running] = {}
        self._changing = trio.Lock()

    async def follow(self) -> None:
        """Stop services that do not run in the broker's role, in reverse order, then start those that do.
        Raises a service's error at its start."""
        async with self._changing:
            for name in [*reversed(self._running)]:
                if self._broker.role.current not in self._running[name].service.roles:
                    await self._end(name)
            for name, service in self._services.items():
                if name not in self._running and self._broker.role.current in service.roles:
                    await self._nursery.start(self._run, name, _Running(service))

    async def stop(self) -> None:
        """Call `stop` of every service, in reverse order. Their tasks run until the nursery ends."""
        for running in reversed(self._running.values()):
            await self._last_words(running.service)

    async def _run(self, name: str, running: _Running, task_status: trio.TaskStatus[None]) -> None:
        self._running[name] = running
        try:
            with running.scope:
                await running.service.run(self._broker, task_status)
        finally:
            running.ended.set()

    async def _end(self, name: str) -> None:
        running = self._running[name]
        await self._last_words(running.service)
        running.scope.cancel()
        await running.ended.wait()
        del self._running[name]

    async def _last_words(self, service: Service) -> None:
        with trio.move_on_after(_STOP_TIMEOUT_S) as scope:
            try:
                await service.stop(self._broker)
            except Exception:  # noqa: BLE001 - other services must still be stopped
                _log.exception("service %s failed to stop cleanly", service.name)
        if scope.cancelled_caught:
            _log.warning("service %s did not stop within %s s", service.name, _STOP_TIMEOUT_S)
