"""Hands what is appended to the dispatchers, in their order, and what one of them missed a second time (Java: DefaultMessageStore.doDispatch,
ReputMessageService; store-format sheet, section 7)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import trio
from attrs import frozen

from rmqkit.abc import Appended, MessageStore
from rmqkit.broker.dispatch_feed import DirectFeed, Feed, QueuedFeed
from rmqkit.config import ALL_DISPATCHERS, STORE_DISPATCHERS, Config
from rmqkit.dispatch import DispatchEntry, Dispatcher, LogFollower, QueuedDispatcher
from rmqkit.errors import ConfigError, PluginError
from rmqkit.model.message import PutMessage
from rmqkit.plugins import Registry

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0
T = TypeVar("T")


@frozen
class DispatchProgress:
    """How far one dispatcher has come. Bytes are of the log.

    behind_bytes   what it has not taken yet
    unsaved_bytes  what it would be given again after a restart now; None when it keeps nothing, or when the store sees to that
    failures       how often it raised since the start
    """

    name: str
    behind_bytes: int
    unsaved_bytes: int | None = None
    failures: int = 0


def choose(config: Config, registry: Registry) -> dict[str, LogFollower]:
    """The plugins' dispatchers that the setting `dispatchers` names, in its order. Raises ConfigError for a name that nobody brings, PluginError."""
    there = registry.dispatchers
    for name in (*STORE_DISPATCHERS, ALL_DISPATCHERS):
        if name in there:
            raise PluginError(f"plugin {registry.brought_by('dispatcher', name)!r} registers a dispatcher {name!r}, but that name is taken")
    known = [*STORE_DISPATCHERS, *there]
    chosen: dict[str, LogFollower] = {}
    for name in config.dispatchers:
        if name == ALL_DISPATCHERS:
            chosen |= {other: there[other] for other in there if other not in config.dispatchers}
        elif name in there:
            chosen[name] = there[name]
        elif name not in STORE_DISPATCHERS:
            nearest = get_close_matches(name, known, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
            source = config.sources.get("dispatchers", "default")
            raise ConfigError(f"setting dispatchers ({source}): there is no dispatcher {name!r}{hint} There are: {', '.join(known)}")
    return chosen


def first_of(kind: type[T], dispatchers: Iterable[LogFollower]) -> T | None:
    """The first dispatcher that is of a kind besides (a look-up). Raises PluginError for one with a queue of its own: it would answer late."""
    for dispatcher in dispatchers:
        if isinstance(dispatcher, kind):
            if isinstance(dispatcher, QueuedDispatcher):
                raise PluginError(
                    f"{type(dispatcher).__name__} cannot serve as {kind.__name__}: it is a QueuedDispatcher and would answer late"
                )
            return dispatcher
    return None


class Dispatching:
    """The dispatchers of one broker. All appends must come through `appended`. `plugins` names the plugin of each, for the log."""

    def __init__(
        self, store: MessageStore, dispatchers: Mapping[str, LogFollower], plugins: Mapping[str, str], delay_levels: Sequence[int]
    ) -> None:
        self.feeds = tuple(
            _feed(f"{name!r} of plugin {plugins[name]!r}", dispatcher, store, delay_levels) for name, dispatcher in dispatchers.items()
        )
        self._names = tuple(dispatchers)
        self._store = store
        self._end = 0
        self._closed = False

    async def open(self) -> None:
        """Open all over a store that is open, and give those without a queue of their own what they missed. Raises PluginError when one cannot open.

        Whatever this raises, or when it is cancelled: `close` closes those that were opened.
        """
        self._end = self._store.end_offset
        for feed in self.feeds:
            await feed.open()
        for feed in self.feeds:
            await feed.replay()

    def appended(self, messages: Sequence[PutMessage], landed: Sequence[Appended]) -> None:
        """Hand on what was just appended; once closed nothing any more, for a store that closes may still write. Raises nothing."""
        if self._closed:
            return
        entries = [DispatchEntry(message, at) for message, at in zip(messages, landed, strict=True)]
        last = landed[-1]
        start, self._end = self._end, last.physical_offset + last.size_bytes
        end = self._end
        for feed in self.feeds:
            feed.offer(entries, start, end)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """The dispatchers' own tasks, until cancelled."""
        async with trio.open_nursery() as nursery:
            for feed in self.feeds:
                nursery.start_soon(feed.run)
                nursery.start_soon(feed.work)
            task_status.started()

    async def close(self) -> None:
        """Close those that are open, whatever one of them raises. Shielded from cancellation; each is given a few seconds."""
        self._closed = True
        with trio.CancelScope(shield=True):
            for feed in self.feeds:
                with trio.move_on_after(_CLOSE_TIMEOUT_S) as scope:
                    await feed.close()
                if scope.cancelled_caught:
                    _log.warning("dispatcher %s did not close within %s s", feed.title, _CLOSE_TIMEOUT_S)

    def trimmed(self, log_start: int) -> None:
        """To be told by who trims the store: the log begins at `log_start` now."""
        for feed in self.feeds:
            feed.forget_before(log_start)

    def progress(self) -> list[DispatchProgress]:
        """Of all: first those of the store, which build its queues and its index, then the plugins', in order."""
        end = self._store.end_offset
        own = [DispatchProgress(name, behind) for name, behind in self._store.dispatch_behind().items()]
        further = []
        for name, feed in zip(self._names, self.feeds, strict=True):
            saved = feed.dispatcher.progress_offset
            unsaved = None if saved is None else max(0, end - saved)
            further.append(DispatchProgress(name, max(0, end - feed.cursor), unsaved, feed.failures))
        return own + further


def _feed(title: str, dispatcher: LogFollower, store: MessageStore, delay_levels: Sequence[int]) -> Feed[Any]:
    """Raises PluginError for what is of neither kind."""
    if isinstance(dispatcher, QueuedDispatcher):
        return QueuedFeed(title, dispatcher, store, delay_levels)
    if isinstance(dispatcher, Dispatcher):
        return DirectFeed(title, dispatcher, store, delay_levels)
    raise PluginError(f"dispatcher {title} is no Dispatcher and no QueuedDispatcher, but {type(dispatcher).__name__}")
