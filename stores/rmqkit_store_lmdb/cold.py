"""Reads that may have to wait for the device: noticing them, and doing them in a worker thread first.

What is in memory LMDB does not say. What this process wrote within the last 256 MiB of log is taken to be; the rest counts as cold. For a read of a
queue its units and records are gone through in a thread, some MiB ahead of the reader, which finds them in the page cache then. Other reads are made
in the thread, and what they return is kept for a moment for the one who asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field, frozen

from rmqkit.abc import NotInMemory
from rmqkit_store_lmdb.queues import Queue

WARM_UNITS = 2048
WARM_BYTES = 4 * 1024 * 1024
_KEEP_S = 2.0
_MAX_KEPT = 256
_MAX_THREADS = 4


@frozen
class ColdUnits:
    """A place in a queue from which on to read."""

    queue: Queue
    offset: int


@frozen
class ColdCall:
    """A read by its name and arguments; `state` is what its answer depends on besides."""

    name: str
    arguments: tuple[Any, ...]
    state: tuple[int, ...] = ()


@define
class Warmer:
    """`go_through` reads units and records of a queue and says how far it came, `call` makes a ColdCall; both in a worker thread."""

    go_through: Callable[[Queue, int], int]
    call: Callable[[ColdCall], Any]
    _kept: dict[ColdCall, tuple[float, Any]] = field(factory=dict)
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(_MAX_THREADS))

    def answer(self, call: ColdCall) -> Any:
        """What a cold read returned a moment ago. Raises NotInMemory when it was not made."""
        found = self._kept.get(call)
        if found is None or found[0] < trio.current_time():
            raise NotInMemory(call)
        return found[1]

    async def fetch(self, cold: Sequence[object]) -> None:
        """MessageStore.warm. What fails is left to the read."""
        async with trio.open_nursery() as nursery:
            for piece in cold:
                if isinstance(piece, ColdUnits):
                    nursery.start_soon(self._fetch_units, piece)
                elif isinstance(piece, ColdCall):
                    nursery.start_soon(self._fetch_call, piece)
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def nobody_reading(self) -> AsyncIterator[None]:
        """No thread reads as long as this lasts."""
        holders = [object() for _ in range(_MAX_THREADS)]
        held: list[object] = []
        try:
            for holder in holders:
                await self._threads.acquire_on_behalf_of(holder)
                held.append(holder)
            yield
        finally:
            for holder in held:
                self._threads.release_on_behalf_of(holder)

    async def _fetch_units(self, piece: ColdUnits) -> None:
        queue = piece.queue
        warm_to = await trio.to_thread.run_sync(self.go_through, queue, piece.offset, limiter=self._threads)
        queue.warm_from, queue.warm_to = piece.offset, max(warm_to, piece.offset + 1)

    async def _fetch_call(self, piece: ColdCall) -> None:
        found = await trio.to_thread.run_sync(self.call, piece, limiter=self._threads)
        now = trio.current_time()
        while len(self._kept) >= _MAX_KEPT or (self._kept and next(iter(self._kept.values()))[0] < now):
            del self._kept[next(iter(self._kept))]
        self._kept.pop(piece, None)
        self._kept[piece] = (now + _KEEP_S, found)
