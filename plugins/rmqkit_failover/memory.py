"""A coordinator in the memory of one process, for tests."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import inf

import trio

from rmqkit_failover.coordinator import Coordinator, CoordinatorError, Entry, LeaseLost, Put, Snapshot
from rmqkit_failover.watching import snapshots

#: A coordinator that is cut off fails after this time.
TIMEOUT_S = 1.0


class MemoryLedger:
    """The keys and leases that the coordinators of several members share. Leases end by trio's clock."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self._leases: dict[int, tuple[int, float]] = {}
        self._numbers = itertools.count(1)
        self._changed = trio.Event()

    def grant(self, time_s: int) -> int:
        lease = next(self._numbers)
        self._leases[lease] = time_s, trio.current_time() + time_s
        self._tell()
        return lease

    def renew(self, lease: int) -> None:
        """Extend a lease by its full time. Raises LeaseLost."""
        self._check(lease)
        time_s, _ = self._leases[lease]
        self._leases[lease] = time_s, trio.current_time() + time_s

    def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is None:
            return
        for key in [each for each, entry in self.entries.items() if entry.lease == lease]:
            del self.entries[key]
        self.revision += 1
        self._tell()

    def read(self, prefix: str) -> Snapshot:
        self._expire()
        found = {
            key.removeprefix(prefix): entry for key, entry in self.entries.items() if key.startswith(prefix)
        }
        return Snapshot(self.revision, found)

    def write(self, prefix: str, conditions: Mapping[str, int], changes: Sequence[Put]) -> int | None:
        """Make changes if the conditions hold: the new revision, else None. Raises LeaseLost."""
        self._expire()
        for change in changes:
            if change.lease:
                self._check(change.lease)
        for key, revision in conditions.items():
            entry = self.entries.get(prefix + key)
            if revision != (entry.revision if entry is not None else 0):
                return None
        self.revision += 1
        for change in changes:
            self.entries[prefix + change.key] = Entry(change.value, self.revision, change.lease)
        self._tell()
        return self.revision

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after changes, until cancelled."""
        while True:
            changed()
            event = self._changed
            with trio.move_on_at(min((until_s for _, until_s in self._leases.values()), default=inf)):
                await event.wait()
            self._expire()

    def _check(self, lease: int) -> None:
        self._expire()
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} is over")

    def _expire(self) -> None:
        now_s = trio.current_time()
        for lease in [each for each, (_, until_s) in self._leases.items() if until_s <= now_s]:
            self.revoke(lease)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class MemoryCoordinator(Coordinator):
    """One member's view of a ledger.

    is_cut       whether the ledger is not reached: calls fail after a second
    is_unheard   whether answers are lost: calls are carried out, and fail after a second
    """

    def __init__(self, ledger: MemoryLedger, prefix: str) -> None:
        self.is_cut = False
        self.is_unheard = False
        self._ledger = ledger
        self._prefix = prefix

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_cut:
            await self._fail()

    async def _answer(self) -> None:
        if self.is_cut or self.is_unheard:
            await self._fail()

    async def _fail(self) -> None:
        await trio.sleep(TIMEOUT_S)
        raise CoordinatorError("the ledger is not reached")

    async def grant(self, time_s: int) -> int:
        await self._reach()
        lease = self._ledger.grant(time_s)
        await self._answer()
        return lease

    async def renew(self, lease: int) -> None:
        await self._reach()
        self._ledger.renew(lease)
        await self._answer()

    async def revoke(self, lease: int) -> None:
        await self._reach()
        self._ledger.revoke(lease)
        await self._answer()

    async def read(self) -> Snapshot:
        await self._reach()
        found = self._ledger.read(self._prefix)
        await self._answer()
        return found

    async def write(self, conditions: Mapping[str, int], changes: Sequence[Put]) -> int | None:
        await self._reach()
        found = self._ledger.write(self._prefix, conditions, changes)
        await self._answer()
        return found

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Snapshot]]:
        return snapshots(self.read, partial(self._ledger.follow))


#: The ledgers of `memory://NAME`, for the brokers of one process.
_ledgers: dict[str, MemoryLedger] = {}


def shared_ledger(name: str) -> MemoryLedger:
    """The ledger of a name, made by the first call."""
    return _ledgers.setdefault(name, MemoryLedger())
