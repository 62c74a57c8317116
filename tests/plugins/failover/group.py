"""Members of a group with a coordinator in memory, in one loop, for the tests of the failover."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rmqkit.broker.run.running import RunningBroker
from rmqkit_failover.coordinator import Put
from rmqkit_failover.memory import MemoryCoordinator, MemoryLedger, shared_ledger
from rmqkit_failover.service import Driver, FailoverService
from rmqkit_failover.settings import FailoverOptions, group_prefix
from rmqkit_failover.state import STATE, GroupView, encoded, wanting
from tests.plugins.ha.pair import running_member, until

PREFIX = group_prefix(FailoverOptions(), "DefaultCluster", "group")
_names = itertools.count()


def fresh_coordinator() -> str:
    """The address of a coordinator in memory that nobody has used."""
    return f"memory://{next(_names)}"


def ledger_of(coordinator: str) -> MemoryLedger:
    return shared_ledger(coordinator.removeprefix("memory://"))


def group_view(coordinator: str) -> GroupView:
    """What a coordinator knows of the group."""
    return GroupView.of(ledger_of(coordinator).read(PREFIX))


@asynccontextmanager
async def failing_over(
    directory: Path, name: str, coordinator: str, **keys: Any
) -> AsyncIterator[RunningBroker]:
    """A member whose master is elected by means of a coordinator."""
    defaults = {"plugins.failover.coordinator": coordinator, "plugins.failover.leaseS": 2}
    async with running_member(directory / name, name, **(defaults | keys)) as broker:
        yield broker


def driver_of(broker: RunningBroker) -> Driver:
    service = broker.context.registry.services["failover"]
    assert isinstance(service, FailoverService)
    assert service.driver is not None
    return service.driver


@contextmanager
def cut(broker: RunningBroker) -> Iterator[None]:
    """A member does not reach the coordinator."""
    coordinator = driver_of(broker).coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    coordinator.is_cut = True
    try:
        yield
    finally:
        coordinator.is_cut = False


async def ask_for(coordinator: str, name: str, *, is_unclean: bool = False) -> None:
    """Ask for another master, as the command line does."""
    asking, done = MemoryCoordinator(ledger_of(coordinator), PREFIX), None
    while done is None:
        view = GroupView.of(await asking.read())
        wanted = encoded(wanting(view.state, name, is_unclean=is_unclean))
        done = await asking.write({STATE: view.revision}, [Put(STATE, wanted)])


async def in_sync(coordinator: str, *names: str) -> GroupView:
    """Wait until the in-sync set has these members, the master among them; returns the view."""

    def has_them() -> bool:
        view = group_view(coordinator)
        return sorted(view.state.in_sync) == sorted(names) and view.is_running(view.state.master)

    await until(has_them)
    return group_view(coordinator)
