"""The queues as they are in memory: numbers, ends, and which part of each was written lately."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.layout import ROW, queue_key

#: What was written so much log ago at most, by this process, is taken to be in memory still.
HOT_BYTES = 256 * 1024 * 1024
_MARK_BYTES = 16 * 1024 * 1024


@define(eq=False)
class Queue:
    """Queue offsets: units lie in [first, end), those up to `next_offset` wait to be written."""

    topic: str
    queue_id: int
    number: int
    first: int = 0
    end: int = 0
    next_offset: int = 0
    #: Hash of `topic#`, with which those of keys begin.
    key_code: int = 0
    key: bytes = b""
    #: Unit offsets that reads may go through without waiting, besides what is hot.
    warm_from: int = 0
    warm_to: int = 0
    _marks: deque[tuple[int, int]] = field(factory=deque)

    @classmethod
    def of(cls, topic: str, queue_id: int, number: int, first: int = 0, end: int = 0) -> Queue:
        return cls(topic, queue_id, number, first, end, end, extend_hash(0, f"{topic}#"), queue_key(topic, queue_id))

    def row(self, end: int) -> bytes:
        return ROW.pack(self.number, self.first, end)

    def note(self, physical_offset: int, offset: int) -> None:
        """A unit is made for the record at `physical_offset`."""
        mark = physical_offset // _MARK_BYTES
        if not self._marks or self._marks[-1][0] != mark:
            self._marks.append((mark, offset))

    def hot_from(self, log_end: int) -> int:
        """The unit offset from which on units and records are taken to be in memory."""
        oldest = (log_end - HOT_BYTES) // _MARK_BYTES
        marks = self._marks
        while marks and marks[0][0] < oldest:
            marks.popleft()
        return marks[0][1] if marks else self.next_offset

    def may_read(self, offset: int, log_end: int) -> int:
        """Up to where units may be read from `offset` on without waiting; `offset` itself when it is cold."""
        if offset >= self.hot_from(log_end):
            return self.end
        return self.warm_to if self.warm_from <= offset < self.warm_to else offset
