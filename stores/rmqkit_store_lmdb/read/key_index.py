"""Key look-ups: the newest keys are in memory, the others in the database, in runs sorted by hash.

Hashes of keys are in random order, so writing keys one by one would rewrite a page for each. They are
collected until there are some thousand, and written as one run with the commit of their records. After a
process failure, collected keys are read from the log again. A look-up searches each run with messages of the
requested time, newest first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from attrs import define, field

from rmqkit.model.message import StoredMessage
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.protocol.record_packer import KeyNote
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import OFFSET, TIMES

#: Number of keys in a run, or amount of log covered by one, which is what has to be read again after a
#: process failure.
KEPT_BACK = 16384
KEPT_BACK_LOG_BYTES = 64 * 1024 * 1024
#: Offsets in a run are counted from its first one, and are smaller.
_RUN_LOG_BYTES = 1 << 32
#: The unique keys of a client differ in their last four digits for a while, so the hashes of the
#: preceding digits are cached, and those of such digits: hash(a + b) = hash(a) * 31^len(b) + hash(b).
_DIGITS = 4
_POWER = 31 * 31 * 31 * 31
_MAX_HEADS = 4096
_MAX_LASTS = 1 << 16
Entry = tuple[int, int, int]


@define
class KeyIndex:
    """Entries are (physical offset, hash, store time in ms), in the order of the log. `indexed_to`: the
    offset before which all are in the database. `newest` is the time and the offset of the last one there."""

    indexed_to: int = 0
    newest: tuple[int, int] = (0, 0)
    _kept: list[Entry] = field(factory=list)
    _heads: dict[tuple[int, str], int] = field(factory=dict)
    _lasts: dict[str, int] = field(factory=dict)

    def load(self, indexed_to: int, newest: tuple[int, int]) -> None:
        """Start with the content of the database."""
        self.indexed_to, self.newest = indexed_to, newest
        self._kept = []

    def wants_writing(self, end: int) -> bool:
        """Whether the entries should go into the database with a log that ends at `end`."""
        return not self._kept or len(self._kept) >= KEPT_BACK or end - self.indexed_to >= KEPT_BACK_LOG_BYTES

    def note(
        self, topic_code: int, unique_key: str | None, keys: str | None, offset: int, time_ms: int
    ) -> None:
        if unique_key:
            self._kept.append((offset, self._unique_hash(topic_code, unique_key), time_ms))
        if keys:
            for key in keys.split(" "):
                if key:
                    self._kept.append((offset, absolute_hash(extend_hash(topic_code, key)), time_ms))

    def note_all(self, notes: Iterable[KeyNote]) -> None:
        """Note the keys of packed records."""
        for note in notes:
            self.note(*note)

    def _unique_hash(self, topic_code: int, key: str) -> int:
        head, digits = (topic_code, key[:-_DIGITS]), key[-_DIGITS:]
        code, last = self._heads.get(head), self._lasts.get(digits)
        if code is None:
            code = self._learn_head(head)
        if last is None:
            if len(digits) != _DIGITS or not digits.isascii():
                return absolute_hash(extend_hash(extend_hash(*head), digits))
            last = self._learn_last(digits)
        code = code + last & 0xFFFFFFFF
        return code if code < 0x80000000 else absolute_hash(code)

    def _learn_head(self, head: tuple[int, str]) -> int:
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        code = self._heads[head] = extend_hash(*head) * _POWER & 0xFFFFFFFF
        return code

    def _learn_last(self, digits: str) -> int:
        if len(self._lasts) >= _MAX_LASTS:
            self._lasts.clear()
        code = self._lasts[digits] = extend_hash(0, digits)
        return code

    def note_record(self, topic_code: int, record: StoredMessage) -> None:
        """Note the keys of a stored record."""
        self.note(
            topic_code,
            record.properties.get(UNIQ_KEY),
            record.properties.get(KEYS),
            record.physical_offset,
            record.store_timestamp_ms,
        )

    def newest_noted(self) -> tuple[int, int]:
        """Time and offset of the last entry."""
        return (self._kept[-1][2], self._kept[-1][0]) if self._kept else self.newest

    def newest_before(self, end: int) -> tuple[int, int]:
        """The value of `newest` once the log up to `end` is in the database."""
        for offset, _, time_ms in reversed(self._kept):
            if offset < end:
                return time_ms, offset
        return self.newest

    def before(self, end: int) -> list[tuple[bytes, bytes]]:
        """The kept entries of records before `end` as runs."""
        found: list[tuple[bytes, bytes]] = []
        left = [entry for entry in self._kept if entry[0] < end]
        while left:
            base = left[0][0]
            count = bisect_left(left, base + _RUN_LOG_BYTES, key=lambda entry: entry[0])
            found.append(_run(base, left[:count]))
            left = left[count:]
        return found

    def in_database(self, end: int) -> None:
        """Called when the runs of `before(end)` are in the database."""
        self._kept = [entry for entry in self._kept if entry[0] >= end]
        self.indexed_to = end

    def kept(self, code: int) -> list[tuple[int, int]]:
        """(offset, time) of entries that are in memory, newest first."""
        return [(offset, time_ms) for offset, found, time_ms in reversed(self._kept) if found == code]


def _run(base: int, entries: list[Entry]) -> tuple[bytes, bytes]:
    times = [time_ms for _, _, time_ms in entries]
    numbers = array("Q", sorted([code << 32 | offset - base for offset, code, _ in entries]))
    return OFFSET.pack(base), TIMES.pack(min(times), max(times)) + numbers.tobytes()


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
            base, earliest_ms, latest_ms, numbers = read_run(bytes(key), value)
            if latest_ms < begin_ms or earliest_ms > end_ms or base >= indexed_to:
                continue
            last = bisect_left(numbers, code + 1 << 32)
            for at in range(last - 1, -1, -1):
                offset = base + (numbers[at] & 0xFFFFFFFF)
                if numbers[at] >> 32 != code or offset < start:
                    break
                if offset < indexed_to:
                    yield offset
