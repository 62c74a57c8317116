"""The queues between the hooks, which must not block, and the writers, which may."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import trio

from rmqkit_hook_audit.events import Event, line


class Queue:
    """The events that one target has not written yet, as lines. Bounded: further events are dropped and
    counted.

    limit    maximum weight of the queue; an event's weight is the number of messages of a send
    dropped  weight of all events dropped since the start
    """

    def __init__(self, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._weights: deque[int] = deque()
        self._weight = 0
        self._wake = trio.Event()
        self._filled = trio.Event()

    def __len__(self) -> int:
        """Weight of the queued events."""
        return self._weight

    def put(self, lines: Sequence[bytes], weights: Sequence[int]) -> None:
        total = self._weight + sum(weights)
        if total > self._limit:
            lines, weights = self._fitting(lines, weights)
            total = self._weight + sum(weights)
        if not self._weight:
            self._wake.set()
        self._waiting += lines
        self._weights += weights
        self._weight = total
        if total * 4 > self._limit:
            self._filled.set()

    def _fitting(self, lines: Sequence[bytes], weights: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """The events that the queue has room for; the others are counted as dropped."""
        fitting: list[bytes] = []
        kept: list[int] = []
        room = self._limit - self._weight
        for each, weight in zip(lines, weights, strict=True):
            if weight > room:
                self.dropped += weight
            else:
                room -= weight
                fitting.append(each)
                kept.append(weight)
        return fitting, kept

    async def wait(self, linger_ms: int) -> None:
        """Wait until there is an event, and then for further events: until the time has passed or a quarter
        of the capacity is used."""
        while not self._waiting:
            self._wake = trio.Event()
            await self._wake.wait()
        if self._weight * 4 <= self._limit:
            self._filled = trio.Event()
            with trio.move_on_after(linger_ms / 1000):
                await self._filled.wait()

    def look(self, count: int) -> list[bytes]:
        """The oldest events, up to `count`; they stay until `done`."""
        return list(islice(self._waiting, count))

    def done(self, count: int) -> None:
        """Remove the oldest `count` events, which have been written."""
        take, weigh = self._waiting.popleft, self._weights.popleft
        for _ in range(count):
            take()
            self._weight -= weigh()

    def drop(self, count: int) -> None:
        """Drop the oldest `count` events, and count them."""
        before = self._weight
        self.done(count)
        self.dropped += before - self._weight

    def drop_all(self) -> None:
        """Drop all events, and count them."""
        self.drop(len(self._waiting))


class Recorder:
    """The hooks' view of the audit: the broker's name and the queues for events. Without queues, events are
    discarded."""

    def __init__(self, broker: str, queues: Sequence[Queue]) -> None:
        self.broker = broker
        self.on = bool(queues)
        self._puts = tuple(queue.put for queue in queues)

    def record(self, event: Event, weight: int = 1) -> None:
        """Keep an event for the writers. Never blocks."""
        if self.on:
            self.record_lines((line(event),), (weight,))

    def record_lines(self, lines: Sequence[bytes], weights: Sequence[int]) -> None:
        """Keep events that are encoded already, with the weight of each. Never blocks."""
        for put in self._puts:
            put(lines, weights)


#: The recorder while no broker is running.
NOWHERE = Recorder("", ())
