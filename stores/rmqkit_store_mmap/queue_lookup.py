"""What reads ask of a queue, and a queue that a plugin keeps (rmqkit.dispatch.QueueLookup) in that shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rmqkit.abc import QueueUnit
from rmqkit.dispatch import QueueLookup
from rmqkit_store_mmap.units import UNIT

_READ_UNITS = 1024


class ReadableQueue(Protocol):
    """ConsumeQueue as its readers see it. `next_offset` is exclusive."""

    min_offset: int
    next_offset: int

    def data(self, offset: int, count: int, wait: bool = True) -> Iterator[bytes | bytearray]: ...
    def unit(self, offset: int, wait: bool = True) -> QueueUnit: ...


class LookedUpQueue:
    """One queue of a look-up, as it is when this is made."""

    def __init__(self, lookup: QueueLookup, topic: str, queue_id: int) -> None:
        self.min_offset = lookup.min_offset(topic, queue_id)
        self.next_offset = lookup.max_offset(topic, queue_id)
        self._lookup = lookup
        self._topic = topic
        self._queue_id = queue_id

    def data(self, offset: int, count: int, wait: bool = True) -> Iterator[bytes | bytearray]:
        """As ConsumeQueue.data, but for `wait`: a look-up has what it says in memory."""
        stop = min(offset + count, self.next_offset)
        while offset < stop:
            units = self._lookup.units(self._topic, self._queue_id, offset, min(stop - offset, _READ_UNITS))
            if not units:
                return
            yield b"".join(UNIT.pack(*unit[1:]) for unit in units)
            offset += len(units)

    def unit(self, offset: int, wait: bool = True) -> QueueUnit:
        """The unit at `offset`, which must be there; as for `wait`, see `data`."""
        return self._lookup.units(self._topic, self._queue_id, offset, 1)[0]
