"""Reads of data that may be on the device only, without blocking the loop (`rmqkit.plugin.store.Reads`).

A read of a store never waits for the device: it raises NotInMemory. The functions here try a read, have the
store fetch the missing data in a worker thread, and try again:

    def handle(self, request, peer):
        return read_cached(self._broker.store, partial(self._search, request), request, peer)

    def _search(self, request):
        ... self._broker.store.offset_by_time(...) ...

Each try runs the read from the beginning, so it must read before it changes anything. Tools, which have no
loop to block, read with `blocking`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TypeVar

from rmqkit.plugin.request import Outcome, Peer
from rmqkit.plugin.store import NotInMemory, Reads
from rmqkit.protocol.command import Command

T = TypeVar("T")
#: How often data is fetched for one read before that read waits for the device. A search by time takes two
#: fetches for each halving of a queue.
MAX_ROUNDS = 64


def hot_bytes(percent: int) -> int:
    """How much of the log before its end counts as in memory, if that is so many percent of the machine's
    memory: accessMessageInMemoryMaxRatio, accessMessageInMemoryHotRatio."""
    return _machine_bytes() * percent // 100


@cache
def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_cached(store: Reads, handle: Callable[[], Outcome], request: Command, peer: Peer) -> Outcome:
    """The result of `handle`. If it raises NotInMemory, a ticket: a task of the connection fetches the data
    and tries again."""
    try:
        return handle()
    except NotInMemory as missed:
        return peer.answer_async(request, partial(retry_when_cached, store, handle, missed))


async def read_when_cached(store: Reads, read: Callable[[], T]) -> T:
    """The result of `read`; missing data is fetched first. Does not yield to other tasks when the data is in
    memory. Cancelled: `read` does not run again."""
    try:
        return read()
    except NotInMemory as missed:
        return await retry_when_cached(store, read, missed)


async def retry_when_cached(store: Reads, read: Callable[[], T], missed: NotInMemory) -> T:
    """The result of `read` after it has raised `missed`. If data repeatedly leaves memory before it is read,
    the last try waits for the device. Cancelled: `read` does not run again."""
    for _ in range(MAX_ROUNDS):
        await store.fetch(missed)
        try:
            return read()
        except NotInMemory as another:
            missed = another
    return blocking(store, read)


def blocking(store: Reads, read: Callable[[], T]) -> T:
    """The result of `read`, which may block the calling thread until the device has delivered the data."""
    with store.blocking_reads():
        return read()


def all_of(reads: Iterable[Callable[[], T]]) -> list[T]:
    """The results of several reads. Raises one NotInMemory for all missing data, so that it is fetched
    together."""
    found: list[T] = []
    cold: list[object] = []
    for read in reads:
        try:
            found.append(read())
        except NotInMemory as missed:
            cold += missed.cold
    if cold:
        raise NotInMemory(*cold)
    return found
