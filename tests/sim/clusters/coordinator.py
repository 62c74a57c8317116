"""The coordinator, beyond the simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

import trio

from rmqkit_failover.coordinator import Coordinator, CoordinatorError, LeaseLost, Put, Snapshot
from rmqkit_failover.memory import MemoryLedger
from rmqkit_failover.watching import snapshots
from tests.sim.clusters.machine import Process
from tests.sim.clusters.network import Network

#: The name of its machine.
COORDINATOR = "coordinator"
T = TypeVar("T")


class DistantCoordinator(Coordinator):
    """What one process has of the ledger. A question that is not answered in time may be answered later, and
    what it asks for may happen."""

    def __init__(
        self, network: Network, ledger: MemoryLedger, process: Process, prefix: str, timeout_s: float
    ) -> None:
        self._network = network
        self._ledger = ledger
        self._process = process
        self._prefix = prefix
        self._timeout_s = timeout_s

    async def _ask(self, question: Callable[[], T]) -> T:
        """Raises CoordinatorError."""
        name = self._process.machine.name
        if self._process.is_dead:
            raise CoordinatorError("the process was killed")
        answered, answers = trio.Event(), list[T | LeaseLost]()

        def arrive() -> None:
            try:
                found: T | LeaseLost = question()
            except LeaseLost as error:
                found = error
            self._network.carry(COORDINATOR, name, partial(answer, found))

        def answer(found: T | LeaseLost) -> None:
            answers.append(found)
            answered.set()

        self._network.carry(name, COORDINATOR, arrive)
        with trio.move_on_after(self._timeout_s):
            await answered.wait()
        if not answers:
            raise CoordinatorError("the coordinator does not answer")
        if isinstance(answers[0], LeaseLost):
            raise answers[0]
        return answers[0]

    async def grant(self, time_s: int) -> int:
        return await self._ask(lambda: self._ledger.grant(time_s))

    async def renew(self, lease: int) -> None:
        await self._ask(lambda: self._ledger.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._ledger.revoke(lease))

    async def read(self) -> Snapshot:
        return await self._ask(lambda: self._ledger.read(self._prefix))

    async def write(self, conditions: Mapping[str, int], changes: Sequence[Put]) -> int | None:
        return await self._ask(lambda: self._ledger.write(self._prefix, conditions, changes))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Snapshot]]:
        return snapshots(self.read, self._follow)

    async def _follow(self, changed: Callable[[], None]) -> None:
        """A change is not told while the way here is cut; the keys are read every now and then."""
        name = self._process.machine.name

        def tell() -> None:
            if self._network.cut_until(COORDINATOR, name) <= trio.current_time():
                self._network.carry(COORDINATOR, name, changed)

        await self._ledger.follow(tell)
