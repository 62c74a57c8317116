"""Dispatchers, and look-ups that replace a store's own queues and index (store-format sheet, section 7).

A store builds its consume queues and its key index within the append. Further dispatchers are plugins and are
called after it, in the order of the setting `dispatchers`. `rmqkit.testing.dispatch` has their contract as
tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import trio

from rmqkit.model.message import PutMessage
from rmqkit.plugin.store import Appended


class DispatchEntry(NamedTuple):
    """A message and where it was appended. An entry that is read from the log is equal except for
    `PutMessage.wait`, which is not stored."""

    message: PutMessage
    at: Appended


class LogFollower:
    """The progress and the life cycle of both kinds of dispatcher. Offsets are physical, in bytes.

    Life cycle: `open`, then entries while `run` runs, then `close`. Entries come in log order and without
    gaps from the progress on. After a restart, a failure, a crash or a truncation some come a second time:
    from the progress on, or from the beginning of a batch that was not finished.
    """

    @property
    def progress_offset(self) -> int | None:
        """All work for the log before this offset survives a restart. It is the end of a record that was
        given, or the start of the log.

        None: nothing is kept and nothing has to be given again. Must not change between None and an offset. 0
        at every start: nothing is kept, and everything has to be given again.
        """
        return None

    async def open(self, log_start: int, log_end: int) -> None:
        """Load what was kept; the log extends from `log_start` to `log_end` now. The entries between the
        progress and the end will be given again.

        A progress before `log_start`: the records between have been removed and will not be given. A progress
        beyond `log_end`: a power failure has taken the end of the log, and other records will follow; act
        as in `forget_from`. An exception stops the start.
        """
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Background work, such as saving now and then, until cancelled. An exception is logged and counted,
        and ends this work for good."""
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Save; no entries follow. Runs shielded from cancellation, for a few seconds at most."""
        await trio.lowlevel.checkpoint()

    def forget_before(self, log_start: int) -> None:
        """Records before `log_start` were removed from the log while the broker runs. Must not block."""
        return

    async def forget_from(self, log_end: int) -> int:
        """The log was truncated while the broker runs: it ends at `log_end`, and other records will follow.
        Undo the work from there on, or forget everything. Durable on return: a crash may come when the log is
        longer again. Returns the log offset of the next entry to be given: `log_end`, or an earlier one.

        Called while no entries are given and nothing is appended; a running `dispatch` of a queued dispatcher
        was cancelled. A dispatcher that keeps nothing need not override it. An exception ends the truncation,
        and the store accepts no appends until the next start.
        """
        if self.progress_offset is not None:
            raise NotImplementedError(f"{type(self).__name__} has a progress, but no forget_from")
        await trio.lowlevel.checkpoint()
        return log_end


class Dispatcher(LogFollower, ABC):
    """Is called with every message that was written, in log order, before the sender is answered (Java:
    CommitLogDispatcher).

    An exception is logged and counted; the sender and other dispatchers do not see it. A dispatcher with a
    progress is then given the same entries again from the log, after a growing pause, and no later ones
    before; a dispatcher without a progress continues with the next entries.
    """

    @abstractmethod
    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        """Process the next entries. Must not block: it runs before their senders are answered."""


class QueuedDispatcher(LogFollower, ABC):
    """A dispatcher for work that takes time: it has a queue of its own and a task, and does not delay
    answers.

    The queue is bounded (`limits.MAX_DISPATCH_QUEUE_BYTES`); a dispatcher that falls further behind is given
    the entries from the log. It does not delay the start of the broker.
    """

    @abstractmethod
    async def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        """Process the next entries; the following ones wait until this returns. Cancelled: the broker
        stops, or the log is truncated and the batch does not count as processed."""
