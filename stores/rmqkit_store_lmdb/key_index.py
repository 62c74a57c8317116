"""Finding records by their keys: the newest keys are in memory, the others in the database, in stripes of the log.

Keys come in any order of their hashes, so each one written by itself would rewrite a page of its own. They are kept back until there are some
thousand, and go into the database in order, with the commit of the records that made them so many. What was kept back when a process dies is read
out of the log again.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from rmqkit.model.message import StoredMessage
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit_store_lmdb.environment import Environment, Transaction
from rmqkit_store_lmdb.layout import KEY, STRIPE_BYTES, TIME

#: So many keys go into the database together; or those of so much log, which is what has to be read again after the death of a process.
KEPT_BACK = 8192
KEPT_BACK_LOG_BYTES = 64 * 1024 * 1024
Entry = tuple[int, int, int]


@define
class KeyIndex:
    """Entries are (physical offset, hash, store time in ms), in the order of the log. `indexed_to`: the offset before which all are in the database.
    `newest` is the time and the offset of the last one."""

    indexed_to: int = 0
    newest: tuple[int, int] = (0, 0)
    _kept: list[Entry] = field(factory=list)
    _by_hash: dict[int, list[tuple[int, int]]] = field(factory=dict)

    def load(self, indexed_to: int, newest: tuple[int, int]) -> None:
        """Begin with what the database holds."""
        self.indexed_to, self.newest = indexed_to, newest
        self._kept, self._by_hash = [], {}

    def wants_writing(self, end: int) -> bool:
        """Whether the entries should go into the database with a log that ends at `end`."""
        return not self._kept or len(self._kept) >= KEPT_BACK or end - self.indexed_to >= KEPT_BACK_LOG_BYTES

    def note(self, topic_code: int, unique_key: str | None, keys: str | None, offset: int, time_ms: int) -> None:
        for key in ([unique_key] if unique_key else []) + ([word for word in keys.split(" ") if word] if keys else []):
            code = absolute_hash(extend_hash(topic_code, key))
            self._kept.append((offset, code, time_ms))
            self._by_hash.setdefault(code, []).append((offset, time_ms))

    def note_record(self, topic_code: int, record: StoredMessage) -> None:
        """The same from a record that was read."""
        self.note(
            topic_code, record.properties.get(UNIQ_KEY), record.properties.get(KEYS), record.physical_offset, record.store_timestamp_ms
        )

    def newest_before(self, end: int) -> tuple[int, int]:
        """What `newest` is once the log is written up to `end`."""
        for offset, _, time_ms in reversed(self._kept):
            if offset < end:
                return time_ms, offset
        return self.newest

    def before(self, end: int) -> list[tuple[bytes, bytes]]:
        """Rows of the kept entries of records before `end`, in the order of the database."""
        return sorted(
            (KEY.pack(offset // STRIPE_BYTES, code, offset), TIME.pack(time_ms)) for offset, code, time_ms in self._kept if offset < end
        )

    def in_database(self, end: int) -> None:
        """What `before(end)` gave is there now."""
        gone = [entry for entry in self._kept if entry[0] < end]
        self._kept = self._kept[len(gone) :]
        for _, code, _ in gone:
            left = [place for place in self._by_hash[code] if place[0] >= end] if code in self._by_hash else []
            if left:
                self._by_hash[code] = left
            else:
                self._by_hash.pop(code, None)
        self.indexed_to = end

    def kept(self, code: int, end: int) -> list[tuple[int, int]]:
        """(offset, time) of entries of records before `end` that are in memory, newest first."""
        return [place for place in reversed(self._by_hash.get(code, [])) if place[0] < end]


def stored(env: Environment, txn: Transaction[memoryview], code: int, start: int, indexed_to: int) -> Iterator[tuple[int, int]]:
    """(offset, time) of entries of records in [start, indexed_to), newest first."""
    with txn.cursor(env.db("keys")) as cursor:
        for stripe in range(max(indexed_to - 1, 0) // STRIPE_BYTES, start // STRIPE_BYTES - 1, -1):
            there = cursor.set_range(KEY.pack(stripe, code + 1, 0))
            there = cursor.prev() if there else cursor.last()
            while there:
                found_stripe, found_code, offset = KEY.unpack(cursor.key())
                if (found_stripe, found_code) != (stripe, code) or offset < start:
                    break
                if offset < indexed_to:
                    yield offset, TIME.unpack(cursor.value())[0]
                there = cursor.prev()
