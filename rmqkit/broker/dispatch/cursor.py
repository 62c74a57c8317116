"""Cursors of the followers of the log. A cursor gives each entry to its follower after the append while the
follower keeps up. Entries that it missed, and those that were not appended here (on a replica), are read from
the log."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import trio

from rmqkit.broker.dispatch.replay import read_entries
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.errors import PluginError
from rmqkit.limits import MAX_DISPATCH_QUEUE_BYTES
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.plugin.store import MessageStore, Pin
from rmqkit.toolkit.cold_reads import read_when_cached

_log = logging.getLogger(__name__)
#: Bytes of the log per read, between which other tasks run.
READ_BYTES = 256 * 1024
#: Pause after an error of a dispatcher; it doubles up to the maximum.
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
D = TypeVar("D", bound=LogFollower)


class Batch(NamedTuple):
    """Consecutive entries; the next one begins at physical offset `end`. Empty for a blank record."""

    entries: Sequence[DispatchEntry]
    end: int
    size_bytes: int


class DispatchCursor(ABC, Generic[D]):
    """The position of one dispatcher: it has processed, or finally missed, everything before physical offset
    `cursor`. It may be given the log up to `end`; later entries are not written yet. `title` is used in log
    lines."""

    def __init__(self, title: str, dispatcher: D, store: MessageStore) -> None:
        self.title = title
        self.dispatcher = dispatcher
        self.cursor = 0
        self.end = 0
        self.failures = 0
        self._store = store
        self._durable = False
        self._opened = False
        self._pause_s = 0.0
        self._wanted = trio.Event()
        #: Held while entries read from the log, or queued, are given to the dispatcher.
        self._giving = trio.Lock()
        self._step_scope = trio.CancelScope()
        self._going_back = False
        self._pin: Pin | None = None

    @abstractmethod
    def offer(self, entries: Sequence[DispatchEntry] | None, start: int, end: int) -> None:
        """Accept the entries between the log offsets `start` and `end` if they are the next ones; otherwise,
        and when `entries` is None, they are read from the log later. Raises nothing."""

    @abstractmethod
    async def _step(self) -> None:
        """Give the next entries to the dispatcher, which is behind. Raises its exception if it has to get the
        same entries again. Cancelled: they do not count as given."""

    async def forget_from(self, end: int) -> None:
        """The log was truncated: it ends at `end`, and other records will follow. Work that is under way is
        cancelled. Raises the dispatcher's exception."""
        if not self._opened:
            return
        self._going_back = True
        self._step_scope.cancel()
        async with self._giving:
            self.end = min(self.end, end)
            self.cursor = min(self.cursor, end, await self.dispatcher.forget_from(end))
            self._check_progress()
            self._move_pin()
            self._empty()
            self._going_back = False
            self._wanted.set()

    def _empty(self) -> None:
        """Drop queued entries."""

    def _check_progress(self) -> None:
        """Refuse an impossible progress. Raises PluginError when the dispatcher reports a progress beyond the
        end of the log."""
        progress, end = self.dispatcher.progress_offset, self._store.end_offset
        if progress is not None and progress > end:
            raise PluginError(
                f"dispatcher {self.title} says it has come to {progress}, but the log ends at {end}; its own"
                " files must be deleted"
            )
        self._skip_removed()

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the dispatcher. Raises PluginError when it cannot open, or when its progress is impossible."""
        start, end = self._store.start_offset, self._store.end_offset
        try:
            await self.dispatcher.open(start, end)
        except Exception as error:
            raise PluginError(
                f"dispatcher {self.title} cannot start: {type(error).__name__}: {error}"
            ) from error
        self._opened = True
        progress = self.dispatcher.progress_offset
        self._durable = progress is not None
        self.end = self._store.positions.confirmed.offset
        self.cursor = self.end if progress is None else progress
        self._check_progress()
        if self.is_behind:
            self._hold_log()

    async def replay(self) -> None:
        """Catch up before the broker serves, until the first failure."""
        begun, begun_at = self.cursor, trio.current_time()
        if self.is_behind:
            _log.info("dispatcher %s is given the log from %s to %s again", self.title, begun, self.end)
        try:
            while self.is_behind:
                await self._give()
                await trio.lowlevel.checkpoint()
        except Exception:  # noqa: BLE001 - the broker starts without it; `work` tries again
            self._failed_and_pauses()
        if self.cursor > begun:
            _log.info(
                "dispatcher %s has come to %s after %.1f s",
                self.title,
                self.cursor,
                trio.current_time() - begun_at,
            )

    async def run(self) -> None:
        """The dispatcher's own background work."""
        try:
            await self.dispatcher.run()
        except Exception:  # noqa: BLE001 - an error of a plugin must not end the broker
            self._failed()

    async def work(self) -> None:
        """Give missed and queued entries to the dispatcher, until cancelled."""
        while True:
            while not self.is_behind:
                self._wanted = trio.Event()
                await self._wanted.wait()
            await trio.sleep(self._pause_s)
            try:
                await self._give()
            except Exception:  # noqa: BLE001 - the dispatcher stays behind, and statistics show that
                self._failed_and_pauses()
            else:
                self._pause_s = 0.0

    async def _give(self) -> None:
        """One step, unless the log is truncated meanwhile. Raises the dispatcher's exception."""
        async with self._giving:
            with trio.CancelScope() as self._step_scope:
                if self.is_behind and not self._going_back:
                    await self._step()
                    self._move_pin()

    async def close(self) -> None:
        """Close the dispatcher if it is open. Raises nothing."""
        if self._opened:
            self._opened = False
            if self._pin is not None:
                self._pin.release()
            try:
                await self.dispatcher.close()
            except Exception:  # noqa: BLE001 - other dispatchers and the store must still be closed
                self._failed()

    def forget_before(self, log_start: int) -> None:
        """Tell the dispatcher that the log begins here. Its errors are logged."""
        try:
            self.dispatcher.forget_before(log_start)
        except Exception:  # noqa: BLE001 - the log is already trimmed
            self._failed()

    # --- within ---------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        return self.cursor < self.end

    def _hold_log(self) -> None:
        """Keep the entries that the dispatcher will be given from the log. A pin that was ended, because the
        disk was full, is not renewed before the dispatcher has caught up."""
        if self._pin is None:
            self._pin = self._store.pin(self.cursor, f"dispatcher {self.title}")

    def _move_pin(self) -> None:
        if self._pin is not None:
            self._pin.offset = self.cursor
            if not self.is_behind:
                self._pin.release()
                self._pin = None

    async def _read(self) -> Batch:
        """The next batch from the log. Raises StoreError."""
        self._skip_removed()
        self._hold_log()
        read = partial(read_entries, self._store, self.cursor, min(READ_BYTES, self.end - self.cursor))
        entries, end = await read_when_cached(self._store, read)
        return Batch(entries, end, end - self.cursor)

    def _skip_removed(self) -> None:
        start = self._store.start_offset
        if 0 < self.cursor < start:
            _log.warning(
                "dispatcher %s has missed the log from %s to %s: it was removed",
                self.title,
                self.cursor,
                start,
            )
        self.cursor = max(self.cursor, start)

    def _failed(self) -> None:
        """Record the exception that is being handled."""
        self.failures += 1
        _log.exception("dispatcher %s failed at log offset %s", self.title, self.cursor)

    def _failed_and_pauses(self) -> None:
        self._failed()
        self._hold_log()
        self._pause_s = min(max(_FIRST_RETRY_S, 2 * self._pause_s), _LAST_RETRY_S)


class DirectCursor(DispatchCursor[Dispatcher]):
    """Calls a dispatcher within the append. After a failure it gives entries from the log until the
    dispatcher has caught up."""

    def offer(self, entries: Sequence[DispatchEntry] | None, start: int, end: int) -> None:
        self.end = end
        if self.cursor != start or entries is None:
            self._hold_log()
            self._wanted.set()
            return
        try:
            self.dispatcher.dispatch(entries)
        except Exception:  # noqa: BLE001 - an error must not affect other dispatchers
            if self._durable:
                self._failed_and_pauses()
                self._wanted.set()
                return
            self._failed()
        self.cursor = end

    async def _step(self) -> None:
        batch = await self._read()
        try:
            if batch.entries:
                self.dispatcher.dispatch(batch.entries)
        except Exception:
            if self._durable:
                raise
            self._failed()
        self.cursor = batch.end


class _PullWaker(Dispatcher):
    def __init__(self, held: HeldPulls) -> None:
        self._held = held

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        grown: dict[tuple[str, int], tuple[int, set[int]]] = {}
        holds = self._held.holds
        for message, at in entries:
            key = message.topic, message.queue_id
            if not holds(key):
                continue
            end, codes = grown.get(key) or (0, set())
            codes.add(message.tags_code)
            grown[key] = max(end, at.queue_offset + 1), codes
        for key, (end, codes) in grown.items():
            self._held.arrived(*key, end, *codes)


class PullCursor(DirectCursor):
    """Wakes held pulls; follows the log only while there are any (Java: NotifyMessageArrivingListener)."""

    def __init__(self, held: HeldPulls, store: MessageStore) -> None:
        super().__init__("of held pulls", _PullWaker(held), store)

    def offer(self, entries: Sequence[DispatchEntry] | None, start: int, end: int) -> None:
        if self.cursor >= self.end:
            self.cursor = start  # entries from times without held pulls are not needed
            if entries is not None:
                self.cursor = self.end = end
                self.dispatcher.dispatch(entries)
                return
        self.end = end
        self._wanted.set()


class QueuedCursor(DispatchCursor[QueuedDispatcher]):
    """Gives batches to a dispatcher from a bounded queue, in a separate task. Batches beyond its capacity are
    read from the log later."""

    def __init__(self, title: str, dispatcher: QueuedDispatcher, store: MessageStore) -> None:
        super().__init__(title, dispatcher, store)
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        #: End of the last queued batch, or of the batch being dispatched.
        self._tail = 0

    def offer(self, entries: Sequence[DispatchEntry] | None, start: int, end: int) -> None:
        self.end = end
        size_bytes = end - start
        has_room = self._waiting_bytes + size_bytes <= MAX_DISPATCH_QUEUE_BYTES
        if entries is not None and self._tail == start and has_room:
            self._waiting.append(Batch(entries, end, size_bytes))
            self._waiting_bytes += size_bytes
            self._tail = end
        else:
            self._hold_log()
        self._wanted.set()

    async def open(self) -> None:
        await super().open()
        self._tail = self.cursor

    async def replay(self) -> None:
        """Does nothing: `work` catches up, and the broker does not wait for it."""
        await trio.lowlevel.checkpoint()

    def _empty(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._tail = self.cursor

    async def _step(self) -> None:
        if self._waiting:
            batch = self._waiting.popleft()
            self._waiting_bytes -= batch.size_bytes
        else:
            batch = await self._read()
            self._tail = batch.end
        try:
            if batch.entries:
                await self.dispatcher.dispatch(batch.entries)
        except Exception:
            if self._durable:
                self._empty()
                raise
            self._failed()
        self.cursor = batch.end
