"""What feeds one dispatcher: right behind the append while it keeps up, from the log when it does not."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import trio

from rmqkit.abc import MessageStore, NotInMemory
from rmqkit.broker.dispatch_log import read_entries
from rmqkit.broker.warming import again_when_warm
from rmqkit.dispatch import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.errors import PluginError
from rmqkit.limits import MAX_DISPATCH_QUEUE_BYTES

_log = logging.getLogger(__name__)
#: What is read of the log at a time; other tasks run in between.
READ_BYTES = 256 * 1024
#: A dispatcher that raised is tried again after this, doubled from one time to the next.
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
D = TypeVar("D", bound=LogFollower)


class Batch(NamedTuple):
    """Entries that follow each other; the log goes on at physical offset `end`."""

    entries: Sequence[DispatchEntry]
    end: int
    size_bytes: int


class Feed(ABC, Generic[D]):
    """One dispatcher's place in the log: everything before physical offset `cursor` it has taken, or missed for good. It may know of the log up to `end`;
    what lies behind that is appended, but not written yet. `title` is for the log.
    """

    def __init__(self, title: str, dispatcher: D, store: MessageStore, levels_ms: Sequence[int]) -> None:
        self.title = title
        self.dispatcher = dispatcher
        self.cursor = 0
        self.end = 0
        self.failures = 0
        self._store = store
        self._levels_ms = levels_ms
        self._durable = False
        self._opened = False
        self._pause_s = 0.0
        self._wanted = trio.Event()

    @abstractmethod
    def offer(self, entries: Sequence[DispatchEntry], start: int, end: int) -> None:
        """Take entries that reach from log offset `start` to `end`, if they are the next; otherwise they are read again later. Raises nothing."""

    @abstractmethod
    async def _step(self) -> None:
        """Give the dispatcher the next entries; it is known to be behind. Raises what it raises, if the same are to be given again."""

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises PluginError when the dispatcher cannot open, or claims a progress it cannot have."""
        start, end = self._store.start_offset, self._store.end_offset
        try:
            await self.dispatcher.open(start, end)
        except Exception as error:
            raise PluginError(f"dispatcher {self.title} cannot start: {type(error).__name__}: {error}") from error
        self._opened = True
        progress = self.dispatcher.progress_offset
        self._durable = progress is not None
        self.end = end
        self.cursor = end if progress is None else progress
        if self.cursor > end:
            raise PluginError(
                f"dispatcher {self.title} says it has come to {self.cursor}, but the log ends at {end}; its own files must be deleted"
            )
        self._skip_removed()

    async def replay(self) -> None:
        """Catch up, as far as it goes without a failure, before the broker serves."""
        begun, begun_at = self.cursor, trio.current_time()
        if self.is_behind:
            _log.info("dispatcher %s is given the log from %s to %s again", self.title, begun, self.end)
        try:
            while self.is_behind:
                await self._step()
                await trio.lowlevel.checkpoint()
        except Exception:  # noqa: BLE001 - the broker starts without it; `work` tries again
            self._failed_and_pauses()
        if self.cursor > begun:
            _log.info("dispatcher %s has come to %s after %.1f s", self.title, self.cursor, trio.current_time() - begun_at)

    async def run(self) -> None:
        """The dispatcher's own background work."""
        try:
            await self.dispatcher.run()
        except Exception:  # noqa: BLE001 - one plugin's trouble must not end the broker
            self._failed()

    async def work(self) -> None:
        """Give it again what it could not take, or what waits, until cancelled."""
        while True:
            while not self.is_behind:
                self._wanted = trio.Event()
                await self._wanted.wait()
            await trio.sleep(self._pause_s)
            try:
                await self._step()
            except Exception:  # noqa: BLE001 - it stays behind, and that can be seen
                self._failed_and_pauses()
            else:
                self._pause_s = 0.0

    async def close(self) -> None:
        """Once, if it was opened. Raises nothing."""
        if self._opened:
            self._opened = False
            try:
                await self.dispatcher.close()
            except Exception:  # noqa: BLE001 - the others and the store are still to be closed
                self._failed()

    def forget_before(self, log_start: int) -> None:
        """Raises nothing."""
        try:
            self.dispatcher.forget_before(log_start)
        except Exception:  # noqa: BLE001 - the log has been trimmed all the same
            self._failed()

    # --- within ------------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        return self.cursor < self.end

    async def _read(self) -> Batch:
        """The next batch, from the log. Raises StoreError."""
        self._skip_removed()
        read = partial(read_entries, self._store, self.cursor, READ_BYTES, self._levels_ms)
        try:
            entries, end = read(False)
        except NotInMemory as missed:
            entries, end = await again_when_warm(self._store, read, missed)
        return Batch(entries, end, end - self.cursor)

    def _skip_removed(self) -> None:
        start = self._store.start_offset
        if 0 < self.cursor < start:
            _log.warning("dispatcher %s has missed the log from %s to %s: it was removed", self.title, self.cursor, start)
        self.cursor = max(self.cursor, start)

    def _failed(self) -> None:
        """Note the exception that is being handled."""
        self.failures += 1
        _log.exception("dispatcher %s failed at log offset %s", self.title, self.cursor)

    def _failed_and_pauses(self) -> None:
        self._failed()
        self._pause_s = min(max(_FIRST_RETRY_S, 2 * self._pause_s), _LAST_RETRY_S)


class DirectFeed(Feed[Dispatcher]):
    """A dispatcher that is called with the append. While it fails it is not called, but tried again from the log."""

    def offer(self, entries: Sequence[DispatchEntry], start: int, end: int) -> None:
        self.end = end
        if self.cursor != start:
            self._wanted.set()
            return
        try:
            self.dispatcher.dispatch(entries)
        except Exception:  # noqa: BLE001 - one plugin's dispatcher must not take the messages from the others
            if self._durable:
                self._failed_and_pauses()
                self._wanted.set()
                return
            self._failed()
        self.cursor = end

    async def _step(self) -> None:
        batch = await self._read()
        try:
            self.dispatcher.dispatch(batch.entries)
        except Exception:
            if self._durable:
                raise
            self._failed()
        self.cursor = batch.end


class QueuedFeed(Feed[QueuedDispatcher]):
    """A dispatcher that takes its time. Batches wait in a bounded queue; what does not fit is read from the log when its turn comes."""

    def __init__(self, title: str, dispatcher: QueuedDispatcher, store: MessageStore, levels_ms: Sequence[int]) -> None:
        super().__init__(title, dispatcher, store, levels_ms)
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        #: Where the last waiting batch ends, or the one that is being dispatched.
        self._tail = 0

    def offer(self, entries: Sequence[DispatchEntry], start: int, end: int) -> None:
        self.end = end
        if self._tail == start and self._waiting_bytes + end - start <= MAX_DISPATCH_QUEUE_BYTES:
            self._waiting.append(Batch(entries, end, end - start))
            self._waiting_bytes += end - start
            self._tail = end
        self._wanted.set()

    async def open(self) -> None:
        await super().open()
        self._tail = self.cursor

    async def replay(self) -> None:
        """Nothing: `work` does it, and the broker does not wait."""
        await trio.lowlevel.checkpoint()

    async def _step(self) -> None:
        if self._waiting:
            batch = self._waiting.popleft()
            self._waiting_bytes -= batch.size_bytes
        else:
            batch = await self._read()
            self._tail = batch.end
        try:
            await self.dispatcher.dispatch(batch.entries)
        except Exception:
            if self._durable:
                self._waiting.clear()
                self._waiting_bytes = 0
                self._tail = self.cursor
                raise
            self._failed()
        self.cursor = batch.end
