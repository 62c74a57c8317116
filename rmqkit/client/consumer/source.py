"""What a message in hand belongs to, until it is settled."""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.model.queue import MessageQueue


class Source(ABC):
    """An assigned queue, or the lease of one message: what gives out messages, and knows their handlers.

    handlers   scopes of the handlers that have one of its messages
    dropped    it was lost; results of handlers are ignored from then on
    consumed_s when its last handler began or ended, on the clock of the event loop; 0 before the first one
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.handlers: set[anyio.CancelScope] = set()
        self.dropped = False
        self.consumed_s = 0.0
        #: Set at the next change; None while nothing waits for it.
        self._moved: anyio.Event | None = None

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """Whether a message may be given out now."""

    @property
    @abstractmethod
    def in_hand(self) -> int:
        """The number of messages given out and not settled."""

    @abstractmethod
    def take(self) -> ReceivedMessage | None:
        """Give out the next message; None when there is none."""

    @abstractmethod
    def finish(self, message: ReceivedMessage) -> None:
        """Count a message in hand as finished."""

    @abstractmethod
    def give_back(self, message: ReceivedMessage) -> None:
        """Take a message in hand back, unfinished, to give it out again."""

    def drop(self) -> None:
        """Count as lost, and cancel the handlers, whose messages stay unfinished."""
        self.dropped = True
        for scope in self.handlers:
            scope.cancel()

    def handled(self, scope: anyio.CancelScope) -> None:
        """A handler has ended, and it is decided what becomes of its message."""
        self.handlers.discard(scope)
        self._signal()

    async def await_idle(self) -> None:
        """Wait until no handler has a message of it."""
        while self.handlers:
            await self._change()

    async def _change(self) -> None:
        """Wait for the next change."""
        if self._moved is None:
            self._moved = anyio.Event()
        await self._moved.wait()

    def _signal(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None
