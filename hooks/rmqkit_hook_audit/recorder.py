"""The queues between the hooks, which must not wait, and the writers, which do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import trio

from rmqkit_hook_audit.events import Event


class Queue:
    """What one target has not been given yet. Bounded: what does not fit is dropped and counted.

    limit    events that may wait; each is counted by its weight (messages of a send)
    dropped  weight of all that was dropped since the start
    """

    def __init__(self, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._waiting: deque[Event] = deque()
        self._weights: deque[int] = deque()
        self._weight = 0
        self._wake = trio.Event()
        self._filled = trio.Event()

    def __len__(self) -> int:
        """Weight of what waits."""
        return self._weight

    def put(self, event: Event, weight: int) -> None:
        total = self._weight + weight
        if total > self._limit:
            self.dropped += weight
            return
        if not self._weight:
            self._wake.set()
        self._waiting.append(event)
        self._weights.append(weight)
        self._weight = total
        if total * 4 > self._limit:
            self._filled.set()

    async def wait(self, linger_ms: int) -> None:
        """Until something waits to be taken, and then for what comes soon after: until the time has passed or a quarter of the room is taken."""
        while not self._waiting:
            self._wake = trio.Event()
            await self._wake.wait()
        if self._weight * 4 <= self._limit:
            self._filled = trio.Event()
            with trio.move_on_after(linger_ms / 1000):
                await self._filled.wait()

    def look(self, count: int) -> list[Event]:
        """The oldest events, up to so many; they stay until `done`."""
        return list(islice(self._waiting, count))

    def done(self, count: int) -> None:
        """The oldest so many are written."""
        for _ in range(count):
            self._waiting.popleft()
            self._weight -= self._weights.popleft()

    def drop(self, count: int) -> None:
        """Give up the oldest so many, and count them."""
        before = self._weight
        self.done(count)
        self.dropped += before - self._weight

    def drop_all(self) -> None:
        """Give up what waits, and count it."""
        self.drop(len(self._waiting))


class Recorder:
    """What hooks see of the audit: the broker's name and a place for events. Without queues nobody wants any."""

    def __init__(self, broker: str, queues: Sequence[Queue]) -> None:
        self.broker = broker
        self.on = bool(queues)
        self._puts = tuple(queue.put for queue in queues)

    def record(self, event: Event, weight: int = 1) -> None:
        """Keep an event for the writers. Never blocks."""
        for put in self._puts:
            put(event, weight)


#: For as long as no broker runs.
NOWHERE = Recorder("", ())
