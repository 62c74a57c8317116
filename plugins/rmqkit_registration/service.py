"""Registers a broker with every name server, again and again (Java: BrokerController, BrokerOuterAPI; behaviour sheet, C9).

Every name server has a task of its own: one that is dead or slow holds up nobody else. Each registers at the start, then every period, and
as soon as the topics change. Changes that come in a burst share a registration: the first goes out at once, the next after a gap that
grows with what a registration costs. So a client that was just told of a new topic finds its route, and a broker with many topics is not
busy registering. A failure is logged each time and mended by the next round.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from rmqkit.abc import Service
from rmqkit.broker.context import BrokerContext
from rmqkit.errors import RmqError
from rmqkit_registration.requests import (
    Identity,
    check_success,
    read_register_answer,
    register_body,
    register_request,
    unregister_request,
)

_log = logging.getLogger(__name__)
#: Java clamps registerNameServerPeriod to this range.
MIN_PERIOD_MS = 10_000
MAX_PERIOD_MS = 60_000
#: Least and longest time between two registrations with one name server for changed topics; in between, `GAP_FACTOR` times what the last one took.
MIN_GAP_MS = 5
MAX_GAP_MS = 1_000
GAP_FACTOR = 4
#: One name server gets this long to answer when the broker leaves.
UNREGISTER_TIMEOUT_MS = 3_000


class RegistrationService(Service):
    """Service "registration". Without name servers it does nothing."""

    name = "registration"

    def __init__(self) -> None:
        self._rounds = trio.CancelScope()

    async def run(self, broker: BrokerContext, task_status: trio.TaskStatus[None]) -> None:
        """Started once every name server was tried once. Cancelled: a registration under way is given up; `stop` unregisters."""
        with trio.CancelScope() as self._rounds:
            async with trio.open_nursery() as nursery:
                loops = [_Loop(broker, address) for address in dict.fromkeys(broker.config.name_servers)]
                broker.topics.on_change += [loop.wake for loop in loops]
                try:
                    async with trio.open_nursery() as first_round:
                        for loop in loops:
                            first_round.start_soon(partial(nursery.start, loop.run))
                    task_status.started()
                    await trio.sleep_forever()
                finally:
                    for loop in loops:
                        broker.topics.on_change.remove(loop.wake)
        # `stop` ended the rounds; the broker ends the service.
        await trio.sleep_forever()

    async def stop(self, broker: BrokerContext) -> None:
        """Unregister from all name servers at the same time, 3 s each. Failures are logged: the name server finds out by itself."""
        self._rounds.cancel()
        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(broker.config.name_servers):
                nursery.start_soon(_unregister, broker, address)


class _Loop:
    """Registrations with one name server."""

    def __init__(self, broker: BrokerContext, address: str) -> None:
        self._broker = broker
        self._address = address
        self._changed = trio.Event()
        self._registered = False
        self._took_ms = 0.0

    def wake(self) -> None:
        """Listener for changed topics."""
        self._changed.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        period_ms = min(max(self._broker.config.register_name_server_period, MIN_PERIOD_MS), MAX_PERIOD_MS)
        await self._register()
        task_status.started()
        while True:
            gap_ms = min(max(GAP_FACTOR * self._took_ms, MIN_GAP_MS), MAX_GAP_MS)
            await trio.sleep(gap_ms / 1000)
            with trio.move_on_after((period_ms - gap_ms) / 1000):
                await self._changed.wait()
            await self._register()

    async def _register(self) -> None:
        """One attempt; whatever goes wrong is logged with the name server's address."""
        self._changed = trio.Event()
        broker, address = self._broker, self._address
        began_s = trio.current_time()
        command = register_request(_identity(broker), register_body(broker.topics.table(), broker.config.broker_permission))
        try:
            answer = await broker.pool.call(address, command, broker.config.register_broker_timeout_mills)
            read_register_answer(answer, address)
        except RmqError as error:
            self._registered = False
            _log.warning("cannot register with the name server %s, next try in the next round: %s", address, error)
            return
        self._took_ms = (trio.current_time() - began_s) * 1000
        _log.log(logging.DEBUG if self._registered else logging.INFO, "registered with the name server %s", address)
        self._registered = True


async def _unregister(broker: BrokerContext, address: str) -> None:
    try:
        with trio.fail_after(UNREGISTER_TIMEOUT_MS / 1000):
            check_success(await broker.pool.call(address, unregister_request(_identity(broker)), UNREGISTER_TIMEOUT_MS), address)
    except (RmqError, trio.TooSlowError) as error:
        _log.warning("cannot unregister from the name server %s: %s", address, error or "no answer")


def _identity(broker: BrokerContext) -> Identity:
    config = broker.config
    return Identity(cluster=config.broker_cluster_name, broker_name=config.broker_name, broker_id=config.broker_id, address=broker.address)
