"""What coordinators need to watch their keys."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from rmqkit_failover.coordinator import CoordinatorError, Snapshot

_log = logging.getLogger(__name__)
#: The keys are read at least this often: a connection that says nothing may be dead.
READ_S = 2.0
#: Time between two attempts to read.
PAUSE_S = 0.5

Read = Callable[[], Awaitable[Snapshot]]


class _Snapshots(AsyncIterator[Snapshot]):
    """Reads the keys, then again after `changed` was called, until they are others."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._wake = trio.Event()
        self._last = -1
        self._has_failed = False

    def changed(self) -> None:
        self._wake.set()

    async def __anext__(self) -> Snapshot:
        while True:
            if self._last >= 0:
                with trio.move_on_after(READ_S):
                    await self._wake.wait()
            self._wake = trio.Event()
            found = await self._try()
            if found is not None and found.revision != self._last:
                self._last = found.revision
                return found

    async def _try(self) -> Snapshot | None:
        try:
            found = await self._read()
        except CoordinatorError as error:
            _log.log(logging.DEBUG if self._has_failed else logging.WARNING, "failover: %s", error)
            self._has_failed = True
            await trio.sleep(PAUSE_S)
            self._wake.set()
            return None
        self._has_failed = False
        return found


@asynccontextmanager
async def snapshots(
    read: Read, follow: Callable[[Callable[[], None]], Awaitable[None]]
) -> AsyncIterator[AsyncIterator[Snapshot]]:
    """`follow(changed)` runs until cancelled, and calls `changed` after each change of a key."""
    found = _Snapshots(read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, found.changed)
        yield found
        nursery.cancel_scope.cancel()
