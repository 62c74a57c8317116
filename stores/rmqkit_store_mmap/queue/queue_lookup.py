"""The interface of a queue for reads, and an adapter to it for queues that a plugin keeps
(rmqkit.plugin.dispatcher.QueueLookup)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rmqkit.plugin.store import QueueLookup, QueueUnit
from rmqkit_store_mmap.queue.extension import QueueExtension
from rmqkit_store_mmap.queue.units import UNIT

_READ_UNITS = 1024


class ReadableQueue(Protocol):
    """The part of ConsumeQueue that reads use. `next_offset` is exclusive."""

    topic: str
    queue_id: int
    min_offset: int
    next_offset: int
    extension: QueueExtension | None

    def data(self, offset: int, count: int) -> Iterator[bytes | bytearray]: ...
    def unit(self, offset: int) -> QueueUnit: ...


class ExternalQueue:
    """One queue of a look-up, with its offsets at the time of creation."""

    extension: QueueExtension | None = None

    def __init__(self, lookup: QueueLookup, topic: str, queue_id: int) -> None:
        self.min_offset = lookup.min_offset(topic, queue_id)
        self.next_offset = lookup.max_offset(topic, queue_id)
        self._lookup = lookup
        self.topic = topic
        self.queue_id = queue_id

    def data(self, offset: int, count: int) -> Iterator[bytes | bytearray]:
        """Units of the queue from an offset on, in blocks. Never raises NotInMemory: a look-up has its units
        in memory."""
        stop = min(offset + count, self.next_offset)
        while offset < stop:
            units = self._lookup.units(self.topic, self.queue_id, offset, min(stop - offset, _READ_UNITS))
            if not units:
                return
            yield b"".join(UNIT.pack(*unit[1:]) for unit in units)
            offset += len(units)

    def unit(self, offset: int) -> QueueUnit:
        """The unit at `offset`, which must exist."""
        return self._lookup.units(self.topic, self.queue_id, offset, 1)[0]
