"""Hands out the messages of the assigned queues, or of leases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.source import Source

S = TypeVar("S", bound=Source)


class Distributor(Generic[S]):
    """Gives out the next message of the queue that has the fewest in hand; among equal ones, of the queue
    whose turn was longest ago. So a queue with slow handlers, or with many messages, gets its share of the
    handlers and no more while other queues have messages. Any number of tasks may take. `on_wanted` is
    called when one begins to wait."""

    def __init__(self, on_wanted: Callable[[], None] = lambda: None) -> None:
        self._on_wanted = on_wanted
        #: Queues with a message to give out, by the number of their messages in hand, in order of their
        #: turns. No value is empty.
        self._ready: dict[int, OrderedDict[S, None]] = {}
        #: The key of each queue in `_ready`.
        self._keys: dict[S, int] = {}
        #: Tasks that wait for a message, the first one first.
        self._waiting: OrderedDict[anyio.Event, None] = OrderedDict()
        #: Whether nothing more is given out.
        self.closed = False
        self._failure: Exception | None = None
        self._told = False

    @property
    def wanted(self) -> int:
        """The number of tasks that wait for a message."""
        return len(self._waiting)

    def offer(self, source: S) -> None:
        """Note that the queue may have a message to give out, or fewer in hand."""
        if self._list(source):
            self._wake_one()

    def close(self, failure: Exception | None = None) -> None:
        """Give out nothing more; `failure` is the reason if it is an error."""
        self._failure = self._failure or failure
        self.closed = True
        for waiter in self._waiting:
            waiter.set()

    def check(self) -> None:
        """Raise the error that ended the consumer, if there is one."""
        if self._failure is not None:
            self._told = True
            raise self._failure

    def check_told(self) -> None:
        """Raise that error unless it has been raised before."""
        if not self._told:
            self.check()

    async def take(self, limit: int = 1) -> list[tuple[S, ReceivedMessage]]:
        """Up to `limit` messages, in hand from now on, as soon as there is one; none after `close`. When
        cancelled, no message is taken."""
        await anyio.lowlevel.checkpoint()
        while True:
            taken = self.take_now(limit)
            if taken or self.closed:
                return taken
            waiter = anyio.Event()
            self._waiting[waiter] = None
            self._on_wanted()
            try:
                await waiter.wait()
            except BaseException:
                if waiter.is_set():
                    self._wake_one()
                raise
            finally:
                self._waiting.pop(waiter, None)

    def take_now(self, limit: int) -> list[tuple[S, ReceivedMessage]]:
        """Up to `limit` messages, in hand from now on; none if there is none, and after `close`."""
        taken: list[tuple[S, ReceivedMessage]] = []
        if self.closed:
            return taken
        while self._ready and len(taken) < limit:
            source = next(iter(self._ready[min(self._ready)]))
            message = source.take() if source.has_more else None
            if message is not None:
                taken.append((source, message))
            self._list(source)
        if self._ready:
            self._wake_one()
        return taken

    def _list(self, source: S) -> bool:
        """Enter the queue as it is now; returns whether it has a message to give out and had none."""
        wanted = source.in_hand if source.has_more else None
        entered = self._keys.get(source)
        if wanted == entered:
            return False
        if entered is not None:
            peers = self._ready[entered]
            del peers[source], self._keys[source]
            if not peers:
                del self._ready[entered]
        if wanted is not None:
            self._keys[source] = wanted
            self._ready.setdefault(wanted, OrderedDict())[source] = None
        return wanted is not None and entered is None

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popitem(last=False)[0].set()
