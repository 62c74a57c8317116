"""The queues as they are in memory: numbers, ends, the newest units, and which part of each was written lately."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from rmqkit.protocol.record import MAGIC_V1, MAGIC_V2, record_size
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.layout import ROW, UNIT, UNIT_KEY, queue_key

#: What was written so much log ago at most, by this process, is taken to be in memory still.
HOT_BYTES = 256 * 1024 * 1024
_MARK_BYTES = 16 * 1024 * 1024

#: A unit and its record: physical offset, size, tags code, store time in ms, record.
Entry = tuple[int, int, int, int, bytes]


@define(eq=False)
class Queue:
    """Queue offsets: units lie in [first, end), those before `stored` in LMDB, the others in `tail`."""

    topic: str
    queue_id: int
    number: int
    first: int = 0
    end: int = 0
    stored: int = 0
    tail: list[Entry] = field(factory=list)
    #: Hash of `topic#`, with which those of keys begin.
    key_code: int = 0
    key: bytes = b""
    #: Of its records: the magic, the topic with its length, and the bytes besides body and properties, IPv4.
    magic: int = MAGIC_V1
    topic_field: bytes = b""
    fixed_bytes: int = 0
    #: Unit offsets that reads may go through without waiting, besides what is hot.
    warm_from: int = 0
    warm_to: int = 0
    _marks: deque[tuple[int, int]] = field(factory=deque)

    @classmethod
    def of(cls, topic: str, queue_id: int, number: int, first: int = 0, end: int = 0) -> Queue:
        name = topic.encode()
        is_long = len(name) > 127
        return cls(
            topic,
            queue_id,
            number,
            first,
            end,
            end,
            key_code=extend_hash(0, f"{topic}#"),
            key=queue_key(topic, queue_id),
            magic=MAGIC_V2 if is_long else MAGIC_V1,
            topic_field=len(name).to_bytes(2 if is_long else 1, "big") + name,
            fixed_bytes=record_size(0, len(name), 0, 0),
        )

    def add(self, entries: list[Entry]) -> None:
        self.tail += entries
        self.end += len(entries)

    def row(self, end: int) -> bytes:
        return ROW.pack(self.number, self.first, end)

    def group(self, count: int) -> tuple[bytes, bytes]:
        """The first `count` units of the tail as LMDB keeps them."""
        return UNIT_KEY.pack(self.number, self.stored), b"".join([UNIT.pack(*entry[:4]) for entry in self.tail[:count]])

    def were_stored(self, count: int) -> None:
        """The first `count` units of the tail are in LMDB now."""
        mark = self.tail[0][0] // _MARK_BYTES
        if not self._marks or self._marks[-1][0] != mark:
            self._marks.append((mark, self.stored))
        del self.tail[:count]
        self.stored += count

    def hot_from(self, log_end: int) -> int:
        """The unit offset from which on units and records are taken to be in memory."""
        oldest = (log_end - HOT_BYTES) // _MARK_BYTES
        marks = self._marks
        while marks and marks[0][0] < oldest:
            marks.popleft()
        return marks[0][1] if marks else self.stored

    def may_read(self, offset: int, log_end: int) -> int:
        """Up to where units may be read from `offset` on without waiting; `offset` itself when it is cold."""
        if offset >= self.hot_from(log_end):
            return self.end
        return self.warm_to if self.warm_from <= offset < self.warm_to else offset
