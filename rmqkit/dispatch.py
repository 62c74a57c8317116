"""What follows the log: dispatchers, and look-ups that take the place of a store's own queues and index (store-format sheet, section 7).

A store builds its consume queues and its key index with the append itself. Further dispatchers are plugins and come behind it, in the order of the
setting `dispatchers`. `rmqkit.testing.dispatch` has their contract as tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import trio

from rmqkit.abc import Appended, KeyMatches, QueueUnit
from rmqkit.model.message import PutMessage


class DispatchEntry(NamedTuple):
    """A message together with where it landed. Read again from the log it is equal, but for `PutMessage.wait`, which is not stored."""

    message: PutMessage
    at: Appended


class LogFollower:
    """What both kinds of dispatcher share: their progress and their life. Offsets are physical, in bytes.

    The life: `open`, then entries, `run` beside them, `close`. Entries come in log order and without gaps from the progress on. They may come a second
    time after a restart, after a failure and after a crash: from the progress on, or from the beginning of a batch that was not finished.
    """

    @property
    def progress_offset(self) -> int | None:
        """The log offset before which all that was done survives a restart: the end of a record that was given, or where the log began.

        None: nothing is kept and nothing is wanted again. It is None always or never. 0 at every start: nothing is kept, all is wanted again.
        """
        return None

    async def open(self, log_start: int, log_end: int) -> None:
        """Read what was kept; the log reaches from `log_start` to `log_end` now. What is between the progress and the end will be given again.

        A progress before `log_start`: the records between have been removed unseen. One behind `log_end`: a power failure took the log's end, and
        other records will come in its place; what was done from `log_end` on is to be undone, or everything forgotten. What this raises stops the start.
        """
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Work besides dispatching (saving now and then), until cancelled. What it raises is logged and counted, and it is not run again."""
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Save; no entries come any more. Runs shielded from cancellation, for a few seconds at most."""
        await trio.lowlevel.checkpoint()

    def forget_before(self, log_start: int) -> None:
        """Records before `log_start` were removed from the log while the broker runs. Must not block."""
        return


class Dispatcher(LogFollower, ABC):
    """Sees every appended message, in log order, right behind the append and before the sender is answered (Java: CommitLogDispatcher).

    What it raises is logged and counted, harms neither the sender nor other dispatchers, and: one with a progress gets the same entries again, read from
    the log, after a while that grows, and no later ones before; one without goes on with the next.
    """

    @abstractmethod
    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        """Take the next entries. Must not block: it runs before the answers to all their senders."""


class QueuedDispatcher(LogFollower, ABC):
    """The same for work that takes time: it has a queue of its own and a task that works it off, behind the answers.

    The queue is bounded (`limits.MAX_DISPATCH_QUEUE_BYTES`); one that falls further behind is given the entries from the log once it has come that far,
    so it may be as slow as it likes. Its start does not hold up the broker's.
    """

    @abstractmethod
    async def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        """Take the next entries; the following ones wait until this returns. Cancelled: the broker stops."""


class QueueLookup(ABC):
    """Serves reads of queues in place of the store's consume queues. Implemented by a `Dispatcher` (not a queued one: what was appended can be read
    at once); used when `dispatchers` names it and not `consume-queue`.

    The store still assigns the queue offsets. An entry whose queue offset is lower than one before it belongs to a queue that was deleted and made
    anew. Prepared and rolled-back messages (`sys_flag`) have no place in a queue.
    """

    @abstractmethod
    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        """Up to `count` units without a gap, the first with queue offset `offset`; empty when that is outside [min_offset, max_offset)."""

    @abstractmethod
    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset whose record is in the log; `max_offset` when none is, 0 for an unknown queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last unit; 0 for an unknown queue."""

    @abstractmethod
    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Forget a queue; unknown ones are ignored."""


class KeyLookup(ABC):
    """Answers key queries in place of the store's index; used when `dispatchers` names it and not `index`."""

    @abstractmethod
    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """As `MessageStore.query_by_key`; offsets whose record is not in the log any more do no harm."""


class NoQueues(QueueLookup):
    """For a store that is to keep no consume queues and has no replacement: every queue has nothing."""

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        return ()

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def delete_queue(self, topic: str, queue_id: int) -> None:
        return


class NoKeys(KeyLookup):
    """For a store that is to keep no index and has no replacement: nothing is found."""

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        return KeyMatches([], 0, 0)
