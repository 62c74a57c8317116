"""Key look-ups: the newest keys are in memory, the others in the database, in runs sorted by hash.

Hashes of keys are in random order, so writing keys one by one would rewrite a page for each. They are
collected until there are some thousand, and written as one run with the commit of their records. After a
process failure, collected keys are read from the log again. A look-up searches each run with messages of the
requested time, newest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter

from attrs import define, field

from rmqkit.model.message import StoredMessage
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.protocol.packed import KeyNote
from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import OFFSET, TIMES
from rmqkit_store_lmdb.read.columns import key_numbers, offsets_of

#: Number of messages with keys in a run, or amount of log covered by one, which is what has to be read again
#: after a process failure.
KEPT_BACK = 16384
KEPT_BACK_LOG_BYTES = 64 * 1024 * 1024
#: Offsets in a run are counted from its first one, and are smaller.
_RUN_LOG_BYTES = 1 << 32
#: Physical offset, hash, store time in ms.
Entry = tuple[int, int, int]
_offset_of = itemgetter(3)


@define
class KeyIndex:
    """Keys are kept as they were noted, in the order of the log, and hashed when they are written or looked
    up. `indexed_to`: the offset before which all are in the database. `newest` is the time and the offset of
    the last one there."""

    indexed_to: int = 0
    newest: tuple[int, int] = (0, 0)
    #: Topics whose keys are not noted. Packed records bring none of these.
    unindexed: frozenset[str] = frozenset()
    _kept: list[KeyNote] = field(factory=list)
    #: The entries of the first `_hashed` kept notes.
    _entries: list[Entry] = field(factory=list)
    _hashed: int = 0

    def load(self, indexed_to: int, newest: tuple[int, int]) -> None:
        """Start with the content of the database."""
        self.indexed_to, self.newest = indexed_to, newest
        self._kept, self._entries, self._hashed = [], [], 0

    def wants_writing(self, end: int) -> bool:
        """Whether the keys should go into the database with a log that ends at `end`."""
        return not self._kept or len(self._kept) >= KEPT_BACK or end - self.indexed_to >= KEPT_BACK_LOG_BYTES

    def note_all(self, notes: Iterable[KeyNote]) -> None:
        """Note the keys of packed records."""
        self._kept += notes

    def note_record(self, topic_code: int, record: StoredMessage) -> None:
        """Note the keys of a stored record, unless its topic is not indexed."""
        if record.topic in self.unindexed:
            return
        unique_key, keys = record.properties.get(UNIQ_KEY), record.properties.get(KEYS)
        if unique_key or keys:
            self._kept.append(
                (topic_code, unique_key, keys, record.physical_offset, record.store_timestamp_ms)
            )

    def newest_noted(self) -> tuple[int, int]:
        """Time and offset of the last message with keys."""
        return (self._kept[-1][4], self._kept[-1][3]) if self._kept else self.newest

    def newest_before(self, end: int) -> tuple[int, int]:
        """The value of `newest` once the log up to `end` is in the database."""
        for _, _, _, offset, time_ms in reversed(self._kept):
            if offset < end:
                return time_ms, offset
        return self.newest

    def before(self, end: int) -> list[tuple[bytes, bytes]]:
        """The keys of records before `end` as runs. May run in a worker thread while further ones are
        noted."""
        found: list[tuple[bytes, bytes]] = []
        left = self._kept[: bisect_left(self._kept, end, key=_offset_of)]
        while left:
            base = left[0][3]
            count = bisect_left(left, base + _RUN_LOG_BYTES, key=_offset_of)
            found.append(_run(base, left[:count]))
            left = left[count:]
        return found

    def in_database(self, end: int) -> None:
        """Called when the runs of `before(end)` are in the database."""
        count = bisect_left(self._kept, end, key=_offset_of)
        del self._kept[:count]
        self._hashed = max(0, self._hashed - count)
        self._entries = [entry for entry in self._entries if entry[0] >= end]
        self.indexed_to = end

    def kept(self, code: int) -> list[tuple[int, int]]:
        """(offset, time) of keys that are in memory, newest first."""
        for note in self._kept[self._hashed :]:
            offset, time_ms = note[3:]
            numbers = memoryview(key_numbers([note], offset)).cast("Q")
            self._entries += [(offset, number >> 32, time_ms) for number in numbers]
        self._hashed = len(self._kept)
        return [(offset, time_ms) for offset, found, time_ms in reversed(self._entries) if found == code]


def _run(base: int, notes: list[KeyNote]) -> tuple[bytes, bytes]:
    times = [note[4] for note in notes]
    return OFFSET.pack(base), TIMES.pack(min(times), max(times)) + key_numbers(notes, base)


def read_run(key: bytes, value: memoryview) -> tuple[int, int, int, memoryview]:
    """Decode a row of the database: the run's first offset, earliest and latest time, and its numbers."""
    return OFFSET.unpack(key)[0], *TIMES.unpack_from(value), value[TIMES.size :].cast("Q")


def stored(
    env: Environment,
    txn: Transaction[memoryview],
    code: int,
    start: int,
    indexed_to: int,
    begin_ms: int,
    end_ms: int,
) -> Iterator[int]:
    """Offsets of entries of records in [start, indexed_to), newest first; not all are of records stored
    within [begin, end]."""
    with txn.cursor(env.db("keys")) as cursor:
        for key, value in cursor.iterprev() if cursor.last() else ():
            (base,) = OFFSET.unpack(key)
            earliest_ms, latest_ms = TIMES.unpack_from(value)
            if latest_ms < begin_ms or earliest_ms > end_ms or base >= indexed_to:
                continue
            for distance in offsets_of(value, TIMES.size, code):
                if base + distance < start:
                    break
                if base + distance < indexed_to:
                    yield base + distance
