"""Gives written messages to dispatchers, in order, and then to held pulls (Java:
DefaultMessageStore.doDispatch, ReputMessageService; store-format sheet, section 7)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import frozen

from rmqkit.broker.dispatch.cursor import DirectCursor, DispatchCursor, PullCursor, QueuedCursor
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.config import ALL_DISPATCHERS, STORE_DISPATCHERS, Config
from rmqkit.errors import ConfigError, PluginError, did_you_mean
from rmqkit.limits import MAX_DISPATCH_QUEUE_BYTES
from rmqkit.model.message import PutMessage
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.store import Appended, MessageStore

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0
T = TypeVar("T")


@frozen
class DispatchProgress:
    """The progress of one dispatcher, in bytes of the log.

    behind_bytes   bytes that it has not processed yet
    unsaved_bytes  bytes that it would get again after a restart now; None when it keeps nothing, or is part
                   of the store
    failures       number of its errors since the start
    """

    name: str
    behind_bytes: int
    unsaved_bytes: int | None = None
    failures: int = 0


def choose(config: Config, registry: Registry) -> dict[str, LogFollower]:
    """The plugins' dispatchers selected by the setting `dispatchers`, in its order. Raises ConfigError for an
    unknown name, PluginError."""
    there = registry.dispatchers
    for name in (*STORE_DISPATCHERS, ALL_DISPATCHERS):
        if name in there:
            raise PluginError(
                f"plugin {registry.brought_by('dispatcher', name)!r} registers a dispatcher {name!r}, but"
                " that name is taken"
            )
    known = [*STORE_DISPATCHERS, *there]
    chosen: dict[str, LogFollower] = {}
    for name in config.dispatchers:
        if name == ALL_DISPATCHERS:
            chosen |= {other: there[other] for other in there if other not in config.dispatchers}
        elif name in there:
            chosen[name] = there[name]
        elif name not in STORE_DISPATCHERS:
            hint = did_you_mean(name, known, ".")
            source = config.sources.get("dispatchers", "default")
            raise ConfigError(
                f"setting dispatchers ({source}): there is no dispatcher {name!r}{hint} There are:"
                f" {', '.join(known)}"
            )
    return chosen


def first_of(kind: type[T], dispatchers: Iterable[LogFollower]) -> T | None:
    """The first dispatcher that also implements another interface (a look-up). Raises PluginError for one
    with its own queue, which would answer with a delay."""
    for dispatcher in dispatchers:
        if isinstance(dispatcher, kind):
            if isinstance(dispatcher, QueuedDispatcher):
                raise PluginError(
                    f"{type(dispatcher).__name__} cannot serve as {kind.__name__}: it is a QueuedDispatcher"
                    " and would answer late"
                )
            return dispatcher
    return None


#: What one append stored between two log offsets.
_Run = tuple[int, int, Sequence[PutMessage], Sequence[Appended]]


_entries = partial(map, partial(tuple.__new__, DispatchEntry))


class Dispatching:
    """Follows the log on behalf of the dispatchers and held pulls of one broker, and gives them messages as
    soon as these are written. `plugins` names the plugin of each dispatcher, for log lines.

    Without dispatchers it follows the log only while there are held pulls. Messages given to `stored` are
    passed from memory; others are read from the log.
    """

    def __init__(
        self,
        store: MessageStore,
        dispatchers: Mapping[str, LogFollower],
        plugins: Mapping[str, str],
        held_pulls: HeldPulls,
    ) -> None:
        self.cursors = tuple(
            _cursor(f"{name!r} of plugin {plugins[name]!r}", dispatcher, store)
            for name, dispatcher in dispatchers.items()
        )
        self._names = tuple(dispatchers)
        self._store = store
        self._positions = store.positions
        self._confirmed = store.positions.confirmed
        #: What is not confirmed yet must be known when the first pull is held.
        self._always = bool(self.cursors) or not store.written_by_append or store.positions.is_gated
        self._held = held_pulls
        self._pulls = PullCursor(held_pulls, store)
        self._runs: deque[_Run] = deque()
        self._end = 0
        self._handing_on = self._following = self._closed = False
        held_pulls.on_first = self._follow
        if self._always or held_pulls.count:
            self._follow()
        self._positions.follow_truncation(self._go_back)

    async def open(self) -> None:
        """Open all dispatchers of the opened store. Those without a queue get what they missed. Raises
        PluginError when one cannot open.

        After an exception or a cancellation, `close` closes the opened ones.
        """
        self._end = self._confirmed.offset
        for cursor in (*self.cursors, self._pulls):
            await cursor.open()
        for cursor in self.cursors:
            await cursor.replay()

    def _follow(self) -> None:
        """Follow the log from here on."""
        if not self._following and not self._closed:
            self._following = True
            self._end = self._confirmed.offset
            self._confirmed.follow(self._hand_on)

    def stored(self, start: int, messages: Sequence[PutMessage], results: Sequence[Appended]) -> None:
        """Keep messages until they are confirmed, where somebody waits for them now; whoever comes later gets
        them from the log. They were appended to a log that ended at `start`. The caller then calls
        `positions.moved()`."""
        if self._following and results and (self.cursors or self._held.count):
            end = results[-1].physical_offset + results[-1].size_bytes
            if end - self._end <= MAX_DISPATCH_QUEUE_BYTES:
                self._runs.append((start, end, tuple(messages), results))

    def _hand_on(self) -> None:
        """Give everything confirmed to the followers. Messages appended by a follower meanwhile come
        afterwards."""
        if not (self._always or self._held.count):
            self._following = False
            self._runs.clear()
            self._confirmed.unfollow(self._hand_on)
            return
        confirmed = self._confirmed.offset
        if self._end >= confirmed or self._handing_on or self._closed:
            return
        self._handing_on = True
        runs = self._runs
        try:
            while self._end < confirmed:
                if runs and runs[0][0] <= self._end:
                    if runs[0][1] > confirmed:
                        break
                    start, end, messages, results = runs.popleft()
                    self._offer([*_entries(zip(messages, results, strict=True))], start, end)
                else:
                    end = min(runs[0][0], confirmed) if runs else confirmed
                    self._offer(None, self._end, end)
                self._end = end
                if end == confirmed:
                    confirmed = self._confirmed.offset
        finally:
            self._handing_on = False

    async def _go_back(self, end: int) -> None:
        """The log was truncated and ends at `end`. Raises the error of a dispatcher."""
        self._end = min(self._end, end)
        while self._runs and self._runs[-1][1] > end:
            self._runs.pop()
        for cursor in (*self.cursors, self._pulls):
            await cursor.forget_from(end)

    def _offer(self, entries: Sequence[DispatchEntry] | None, start: int, end: int) -> None:
        for cursor in self.cursors:
            cursor.offer(entries, start, end)
        if self._held.count:
            self._pulls.offer(entries, start, end)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Run the followers' tasks, until cancelled."""
        async with trio.open_nursery() as nursery:
            for cursor in (*self.cursors, self._pulls):
                nursery.start_soon(cursor.run)
                nursery.start_soon(cursor.work)
            task_status.started()

    async def close(self) -> None:
        """Close all open dispatchers, even if some of them raise; afterwards nothing is passed on. Shielded
        from cancellation; each has a few seconds."""
        self._closed = True
        self._confirmed.unfollow(self._hand_on)
        self._positions.unfollow_truncation(self._go_back)
        with trio.CancelScope(shield=True):
            for cursor in self.cursors:
                with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
                    await cursor.close()
                if scope.cancelled_caught:
                    _log.warning("dispatcher %s did not close within %s s", cursor.title, _CLOSE_TIMEOUT_S)

    def trimmed(self, log_start: int) -> None:
        """Called after trimming the store: the log now begins at `log_start`."""
        for cursor in self.cursors:
            cursor.forget_before(log_start)

    def progress(self) -> list[DispatchProgress]:
        """The progress of all dispatchers: first those of the store (queues and index), then the plugins', in
        order."""
        end = self._store.end_offset
        own = [DispatchProgress(name, behind) for name, behind in self._store.dispatch_behind().items()]
        further = []
        for name, cursor in zip(self._names, self.cursors, strict=True):
            saved = cursor.dispatcher.progress_offset
            unsaved = None if saved is None else max(0, end - saved)
            further.append(DispatchProgress(name, max(0, end - cursor.cursor), unsaved, cursor.failures))
        return own + further


def _cursor(title: str, dispatcher: LogFollower, store: MessageStore) -> DispatchCursor[Any]:
    """The cursor for a dispatcher. Raises PluginError for an object of neither kind."""
    if isinstance(dispatcher, QueuedDispatcher):
        return QueuedCursor(title, dispatcher, store)
    if isinstance(dispatcher, Dispatcher):
        return DirectCursor(title, dispatcher, store)
    raise PluginError(
        f"dispatcher {title} is neither a Dispatcher nor a QueuedDispatcher, but {type(dispatcher).__name__}"
    )
