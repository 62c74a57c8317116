"""Reads that may have to wait for the device are first made in a worker thread.

LMDB cannot tell what is in memory. The last 256 MiB of log count as in memory if this process wrote them; the
rest counts as cold. For a read of a queue, a thread touches the units and records, some MiB ahead of the
reader, which then finds them in the page cache. Other reads run in the thread, and their results are kept
briefly for the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field, frozen

from rmqkit.plugin.store import NotInMemory
from rmqkit_store_lmdb.read.queues import Queue

WARM_UNITS = 2048
WARM_BYTES = 4 * 1024 * 1024
_KEEP_S = 2.0
_MAX_KEPT = 256
_MAX_THREADS = 4


@frozen
class ColdUnits:
    """A position in a queue from which to read."""

    queue: Queue
    offset: int


@frozen
class ColdCall:
    """A read with its arguments; `state` is other state on which its answer depends."""

    read: Callable[..., Any]
    arguments: tuple[Any, ...]
    state: tuple[int, ...] = ()


@define
class Warmer:
    """`go_through` reads units and records of a queue in a worker thread and returns how far it came."""

    go_through: Callable[[Queue, int], int]
    _kept: dict[ColdCall, tuple[float, Any]] = field(factory=dict)
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(_MAX_THREADS))

    def answer(self, call: ColdCall) -> Any:
        """The result of a cold read made a moment ago. Raises NotInMemory when there is none."""
        found = self._kept.get(call)
        if found is None or found[0] < trio.current_time():
            raise NotInMemory(call)
        return found[1]

    async def fetch(self, cold: Sequence[object]) -> None:
        """Reads.fetch. Errors are left to the read itself."""
        async with trio.open_nursery() as nursery:
            for piece in cold:
                if isinstance(piece, ColdUnits):
                    nursery.start_soon(self._fetch_units, piece)
                elif isinstance(piece, ColdCall):
                    nursery.start_soon(self._fetch_call, piece)
        await trio.lowlevel.checkpoint()

    def forget(self) -> None:
        """Drop the kept results, because the store has changed."""
        self._kept.clear()

    @asynccontextmanager
    async def without_readers(self) -> AsyncIterator[None]:
        """Prevents reading threads while it is held."""
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
        found = await trio.to_thread.run_sync(piece.read, *piece.arguments, limiter=self._threads)
        now = trio.current_time()
        while len(self._kept) >= _MAX_KEPT or (self._kept and next(iter(self._kept.values()))[0] < now):
            del self._kept[next(iter(self._kept))]
        self._kept.pop(piece, None)
        self._kept[piece] = (now + _KEEP_S, found)
