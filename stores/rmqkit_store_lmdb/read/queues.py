"""The state of the queues in memory: numbers, ends, the newest units, and the part of each queue that was
written recently."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from rmqkit.model.buffer import Buffer
from rmqkit.protocol.packed import TopicHead
from rmqkit_store_lmdb.database.layout import ROW, UNIT, UNIT_KEY, Unit, queue_key

#: Log written by this process within this distance from the end is assumed to be in memory.
HOT_BYTES = 256 * 1024 * 1024
_MARK_BYTES = 16 * 1024 * 1024

_UNIT_BYTES = UNIT.size


@define(eq=False)
class Queue:
    """Queue offsets: units lie in [first, next_offset), those before `stored` in LMDB, the others in `tail`,
    packed. `head` contains the fields that all records of the queue share."""

    topic: str
    queue_id: int
    number: int
    head: TopicHead
    first: int = 0
    next_offset: int = 0
    stored: int = 0
    tail: bytearray = field(factory=bytearray)
    key: bytes = b""
    #: No space needs to be reserved for units.
    reserved_until: int = 1 << 63
    #: Unit offsets that reads may access without waiting, in addition to hot ones.
    warm_from: int = 0
    warm_to: int = 0
    _marks: deque[tuple[int, int]] = field(factory=deque)

    @classmethod
    def of(cls, topic: str, queue_id: int, number: int, first: int = 0, end: int = 0) -> Queue:
        key = queue_key(topic, queue_id)
        return cls(topic, queue_id, number, TopicHead.of(topic), first, end, end, key=key)

    def reserve(self, stop: int) -> None:
        """Does nothing: see `reserved_until`."""

    def add(self, units: Buffer | bytearray) -> None:
        """Add packed units (layout.UNIT)."""
        self.tail += units
        self.next_offset += len(units) // _UNIT_BYTES

    @property
    def tail_count(self) -> int:
        """The number of units in `tail`."""
        return len(self.tail) // _UNIT_BYTES

    def tail_units(self, start: int, stop: int) -> bytes:
        """The packed units of the tail from one queue offset to another one."""
        at = self.stored
        return bytes(self.tail[max(0, start - at) * _UNIT_BYTES : max(0, stop - at) * _UNIT_BYTES])

    def tail_unit(self, offset: int) -> Unit:
        """The unit of the tail at a queue offset."""
        unit: Unit = UNIT.unpack_from(self.tail, (offset - self.stored) * _UNIT_BYTES)
        return unit

    def cut(self, end: int) -> None:
        """End before a queue offset; LMDB has all units before it."""
        self.next_offset = self.stored = end
        self.first = min(self.first, end)
        self.tail, self.warm_from, self.warm_to = bytearray(), 0, 0
        self._marks.clear()

    def row(self, end: int) -> bytes:
        return ROW.pack(self.number, self.first, end)

    def group(self, count: int) -> tuple[bytes, bytes]:
        """The first `count` units of the tail as LMDB keeps them."""
        return UNIT_KEY.pack(self.number, self.stored), bytes(self.tail[: count * _UNIT_BYTES])

    def were_stored(self, count: int) -> None:
        """The first `count` units of the tail are in LMDB now."""
        mark = UNIT.unpack_from(self.tail)[0] // _MARK_BYTES
        if not self._marks or self._marks[-1][0] != mark:
            self._marks.append((mark, self.stored))
        del self.tail[: count * _UNIT_BYTES]
        self.stored += count

    def hot_from(self, log_end: int) -> int:
        """The unit offset from which units and records are assumed to be in memory."""
        oldest = (log_end - HOT_BYTES) // _MARK_BYTES
        marks = self._marks
        while marks and marks[0][0] < oldest:
            marks.popleft()
        return marks[0][1] if marks else self.stored

    def may_read(self, offset: int, log_end: int) -> int:
        """The end of the units readable from `offset` on without waiting; `offset` itself when it is cold."""
        if offset >= self.hot_from(log_end):
            return self.next_offset
        return self.warm_to if self.warm_from <= offset < self.warm_to else offset
