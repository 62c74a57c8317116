"""New entries of an index file: from what appends noted to the bytes of slots and entries.

The functions and classes of this module are the reference of the compiled ones in `_entries`, which run in
their place where the compiled part is in use. Key hashes: store-format sheet, section 4.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from mmap import mmap
from operator import itemgetter
from struct import Struct, pack_into
from typing import Protocol, Self

from rmqkit.protocol.key_hash import KeyHasher
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit.speedups import IN_USE

HEADER_BYTES = 40
ENTRY = Struct(">iqii")
ENTRY_BYTES = 20
SLOT = Struct(">i")
SLOT_BYTES = 4
#: Disk space for slots and entries is allocated in pieces of this size, when they are first written.
PIECE_SHIFT = 16

_unpack_slot = SLOT.unpack_from
_MAX_I32 = 0x7FFFFFFF
_hasher = KeyHasher()

#: What to index of one message: hash of `topic#`, UNIQ_KEY, KEYS, physical offset, store time in ms.
Note = tuple[int, str | None, str | None, int, int]
#: Hash of `topic#key`, physical offset and store time in ms of a record.
NewEntry = tuple[int, int, int]


class Entries(Protocol):
    """Entries in the order of the log."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> NewEntry: ...

    def add_notes(self, notes: Iterable[Note]) -> None:
        """Add an entry for each key of these messages."""

    def before(self, end: int) -> int:
        """The number of entries of records before log offset `end`."""

    def keep(self, start: int, stop: int) -> None:
        """Remove the others than those from `start` up to `stop`."""


class Slots(Protocol):
    """Slots whose values stay in memory until their entries are on the device: slot -> number of its newest
    entry."""

    def __len__(self) -> int: ...
    def __setitem__(self, slot: int, number: int, /) -> None: ...
    def get(self, slot: int, /) -> int | None: ...
    def update(self, other: Self, /) -> None: ...

    def write(self, view: mmap | memoryview) -> None:
        """Write the slots into the mapping of an index file, which has disk space for them. May run in a
        worker thread while other slots change; these must not."""


class NewEntries(Protocol):
    def __call__(self, rows: Iterable[NewEntry] = (), /) -> Entries: ...


class ListedEntries(list[NewEntry]):
    """Entries as values."""

    def __init__(self, rows: Iterable[NewEntry] = (), /) -> None:
        super().__init__(rows)

    def add_notes(self, notes: Iterable[Note]) -> None:
        unique = _hasher.unique
        for key_code, unique_key, keys, physical_offset, time_ms in notes:
            if unique_key:
                self.append((unique(key_code, unique_key), physical_offset, time_ms))
            if keys:
                for key in keys.split(" "):
                    if key:
                        self.append((absolute_hash(extend_hash(key_code, key)), physical_offset, time_ms))

    def before(self, end: int) -> int:
        return bisect_left(self, end, key=itemgetter(1))

    def keep(self, start: int, stop: int) -> None:
        self[:] = self[start:stop]


class DictSlots(dict[int, int]):
    """Slots as values."""

    def write(self, view: mmap | memoryview) -> None:
        for slot, number in self.items():
            SLOT.pack_into(view, HEADER_BYTES + slot * SLOT_BYTES, number)


def enter_listed(
    view: mmap | memoryview,
    entries: Entries,
    start: int,
    stop: int,
    number: int,
    begin_time_ms: int,
    slots: int,
    fresh: Slots,
    held: Slots,
    allocated: bytearray,
) -> tuple[int, int]:
    """Write `entries[start:stop]` into the mapping of an index file, as the entries from `number` on, and
    note their slots in `fresh`.

    Ends before an entry whose slot is in memory neither in `fresh` nor in `held`, and in the file where no
    disk space is allocated. `begin_time_ms` is the time of the file's first entry. Returns how many entries
    were written, and how many of these are the first of their slot.
    """
    known, previous_of, first, firsts = held.get, fresh.get, number, 0
    last_ms, seconds = -1, 0
    fields: list[int] = []
    for at in range(start, stop):
        key_hash, physical_offset, time_ms = entries[at]
        slot = key_hash % slots
        previous = previous_of(slot) or known(slot)
        if previous is None:
            slot_at = HEADER_BYTES + slot * SLOT_BYTES
            if not allocated[slot_at >> PIECE_SHIFT]:
                break
            (previous,) = _unpack_slot(view, slot_at)
        if previous <= 0 or previous >= number:
            previous = 0
            firsts += 1
        if time_ms != last_ms:
            last_ms = time_ms
            seconds = min((time_ms - begin_time_ms) // 1000, _MAX_I32) if 0 < begin_time_ms < time_ms else 0
        fields += (key_hash, physical_offset, seconds, previous)
        fresh[slot] = number
        number += 1
    count = number - first
    if count:
        entries_at = HEADER_BYTES + slots * SLOT_BYTES
        pack_into(">" + "iqii" * count, view, entries_at + first * ENTRY_BYTES, *fields)
    return count, firsts


if IN_USE:
    from rmqkit_store_mmap.index import _entries

new_entries: NewEntries = _entries.Entries if IN_USE else ListedEntries
new_slots: Callable[[], Slots] = _entries.Slots if IN_USE else DictSlots
enter = _entries.enter if IN_USE else enter_listed
