"""Reading old data without keeping anybody waiting: what is not in memory is brought in first, off the loop (`MessageStore`, reads with `wait`).

What a processor does with a request is begun again from the beginning each time, so it reads before it changes anything:

    def process(self, request, peer):
        return when_warm(self._broker.store, partial(self._search, request))

    def _search(self, request, wait):
        ... self._broker.store.offset_by_time(..., wait) ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rmqkit.abc import Answer, MessageStore, NotInMemory, Outcome

T = TypeVar("T")
#: How often data is brought in for one read before that takes it from wherever it is. A search by time takes two looks for each halving of a queue.
MAX_ROUNDS = 64


def when_warm(store: MessageStore, handle: Callable[[bool], Outcome]) -> Outcome:
    """What `handle(False)` returns; when that raises NotInMemory, an awaitable that tries again once the data is there.

    `handle` is given `wait` for its reads: True only when data does not stay in memory however often it is brought in.
    """
    try:
        return handle(False)
    except NotInMemory as missed:
        return _outcome_when_warm(store, handle, missed)


async def _outcome_when_warm(store: MessageStore, handle: Callable[[bool], Outcome], missed: NotInMemory) -> Answer | None:
    outcome = await again_when_warm(store, handle, missed)
    return await outcome if isinstance(outcome, Awaitable) else outcome


async def again_when_warm(store: MessageStore, read: Callable[[bool], T], missed: NotInMemory) -> T:
    """What `read` returns after it has raised `missed`. Cancelled: `read` is not run any more."""
    for _ in range(MAX_ROUNDS):
        await store.warm(missed)
        try:
            return read(False)
        except NotInMemory as another:
            missed = another
    return read(True)


def all_of(reads: Iterable[Callable[[], T]]) -> list[T]:
    """What each of several reads returns. Raises one NotInMemory for all that do, so that the device is waited for once."""
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
