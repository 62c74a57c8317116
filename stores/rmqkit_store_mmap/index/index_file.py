"""One hash index file (store-format sheet, section 4; Java: IndexFile).

    at  size  header field                      at  size  entry field
     0     8  store time of the first entry      0     4  hash of `topic#key`
     8     8  store time of the last entry       4     8  physical offset of the record
    16     8  offset of the first entry         12     4  store time less the header's first, seconds
    24     8  offset of the last entry          16     4  previous entry of the same slot, 0 = none
    32     4  slots in use
    36     4  number of the next entry

The header is followed by the slots (4 bytes each: the newest entry of the slot's chain, 0 = none) and the
entries; entry 0 is never used.

Crash safety: overwriting a slot drops its reference to the previous entry, which is then reachable only
through the new one. If the device had the slot but not the entry, the chain would be lost. So new slot values
stay in memory (`_fresh`, `_held`) until the entries are on the device (`flush_held`), and the invariant is: a
slot on the device never refers to a missing entry. If the file is known to have been complete up to entry N
(`checkpoint.IndexMark`), `restore` returns to that state: every slot changed since belongs to an entry from N
on, and the chain from its present value leads to entries below N.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

from attrs import define

from rmqkit.errors import StoreCorrupt
from rmqkit.plugin.store import NotInMemory
from rmqkit_store_mmap.cold import Cold
from rmqkit_store_mmap.index.entries import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    PIECE_SHIFT,
    SLOT,
    SLOT_BYTES,
    Entries,
    enter,
    new_slots,
)
from rmqkit_store_mmap.log.disk import Disk, create_file

HEADER = Struct(">qqqqii")
_PIECE_BYTES = 1 << PIECE_SHIFT

#: Entries are read a page at a time, because entries of a frequent key are often neighbours.
_PAGE_BYTES = 4096


@define(eq=False)
class Chain(Cold):
    """The entries of a slot, newest first, down to `begin_ms`. The first is number `newest`, or the entry in
    the slot if `newest` is 0; all numbers are below `stop`. These entries do not change any more, so a worker
    thread may read them while entries are added."""

    path: Path
    slot_at: int
    newest: int
    stop: int
    entries_at: int
    begin_time_ms: int
    begin_ms: int

    def entries(self, read: Callable[[int, int], bytes | bytearray]) -> Iterator[tuple[int, int, int]]:
        """Hash, physical offset and time in ms of each entry. `read` returns the bytes between two positions
        in the file."""
        number = self.newest or int.from_bytes(
            read(self.slot_at, self.slot_at + SLOT_BYTES), "big", signed=True
        )
        data: bytes | bytearray = b""
        stop, start = self.stop, self.entries_at + self.stop * ENTRY_BYTES
        while 0 < number < stop:
            at = self.entries_at + number * ENTRY_BYTES
            if at < start:
                start = max(self.entries_at, at - at % _PAGE_BYTES)
                data = read(start, at + ENTRY_BYTES)
            code, physical_offset, seconds, previous = ENTRY.unpack_from(data, at - start)
            time_ms = self.begin_time_ms + seconds * 1000
            if seconds < 0 or time_ms + 999 < self.begin_ms:
                return
            yield code, physical_offset, time_ms
            stop, number = number, previous

    def advise(self, fd: int) -> None:
        at = self.entries_at + self.newest * ENTRY_BYTES if self.newest else self.slot_at
        os.posix_fadvise(fd, at, ENTRY_BYTES, os.POSIX_FADV_WILLNEED)

    def read(self, fd: int) -> None:
        for _ in self.entries(lambda start, stop: os.pread(fd, stop - start, start)):
            pass


class IndexFile:
    """Maps the whole file. The header is kept in attributes until `write_header`. Times are in ms, offsets
    are physical."""

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk) -> None:
        """Open the file, which is created if it does not exist. Raises StoreCorrupt when its size does not
        match the settings, OSError."""
        self.path = path
        self.size_bytes = HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._disk = disk
        self._allocated = bytearray((self.size_bytes >> PIECE_SHIFT) + 1)
        self._fresh = new_slots()
        self._held = new_slots()
        if path.exists() and path.stat().st_size not in (0, self.size_bytes):
            raise StoreCorrupt(
                f"{path} has {path.stat().st_size} bytes; maxHashSlotNum and maxIndexNum of the settings make"
                f" {self.size_bytes}"
            )
        self._fd = create_file(path, self.size_bytes)
        try:
            self._map = mmap.mmap(self._fd, self.size_bytes)
        except OSError:
            os.close(self._fd)
            raise
        self._take_header(self._map[:HEADER_BYTES])

    def _take_header(self, data: bytes) -> None:
        header: tuple[int, ...] = HEADER.unpack(data)
        self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, count = (
            header
        )
        self.next_entry = max(count, 1)

    @property
    def header(self) -> bytes:
        return HEADER.pack(
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_entry,
        )

    @property
    def full(self) -> bool:
        return self.next_entry >= self._entries

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self._entries - self.next_entry

    @property
    def waiting(self) -> int:
        """Number of slots kept in memory because their entries are not on the device yet."""
        return len(self._fresh) + len(self._held)

    # --- writing --------------------------------------------------------------------------------------------

    def put(self, entries: Entries, start: int = 0, stop: int | None = None) -> None:
        """Add the entries from `start` up to `stop`, as many as there is room for. Raises OSError when the
        disk is full; `next_entry` then shows how many were added."""
        stop = min(len(entries) if stop is None else stop, start + self.room)
        if start == stop:
            return
        if self.next_entry == 1:
            _, self.begin_offset, self.begin_time_ms = entries[start]
        self._allocate(self._entries_at + self.next_entry * ENTRY_BYTES, (stop - start) * ENTRY_BYTES)
        while True:
            count, firsts = enter(
                self._map,
                entries,
                start,
                stop,
                self.next_entry,
                self.begin_time_ms,
                self._slots,
                self._fresh,
                self._held,
                self._allocated,
            )
            if count:
                start += count
                self.next_entry += count
                self.used_slots += firsts
                _, self.end_offset, self.end_time_ms = entries[start - 1]
            if start == stop:
                return
            self._allocate(HEADER_BYTES + entries[start][0] % self._slots * SLOT_BYTES, SLOT_BYTES)

    def _allocate(self, at: int, length: int) -> None:
        for piece in range(at >> PIECE_SHIFT, (at + length - 1 >> PIECE_SHIFT) + 1):
            if not self._allocated[piece]:
                start = piece << PIECE_SHIFT
                self._disk.allocate(self._fd, start, min(_PIECE_BYTES, self.size_bytes - start))
                self._allocated[piece] = 1

    def write_header(self) -> None:
        """Write the header into the mapping. Raises OSError when the disk is full."""
        self._allocate(0, HEADER_BYTES)
        self._map[:HEADER_BYTES] = self.header

    # --- flushing -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Set aside the slots of the present entries, and write the header, for `flush_held`. Raises
        OSError."""
        self.write_header()
        self._held.update(self._fresh)
        self._fresh = new_slots()

    def flush_held(self) -> None:
        """Flush header and entries, then the slots set aside by `hold`. May run in a worker thread while
        entries are added, but not twice at a time. Raises OSError, and can then be called again."""
        self._disk.sync(self._fd)
        self._held.write(self._map)
        self._disk.sync(self._fd)
        self._held = new_slots()

    # --- recovery -------------------------------------------------------------------------------------------

    def restore(self, header: bytes) -> bool:
        """Restore the state that the file had on the device with this header, dropping later entries.

        Returns False, without changes, if the file is not a later state of that one. After a crash it can be
        repeated: slots are flushed before the entries that they referred to are erased. Raises OSError.
        """
        begin_time_ms, _, begin_offset, end_offset, _, count = HEADER.unpack(header)
        if (begin_time_ms, begin_offset) != (
            self.begin_time_ms,
            self.begin_offset,
        ) or not 1 < count <= self.next_entry:
            return False
        number = count
        while number < self._entries:
            entry = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)
            code, physical_offset, seconds, previous = entry
            if (
                not any(entry)
                or code < 0
                or physical_offset < end_offset
                or seconds < 0
                or not 0 <= previous < number
            ):
                break
            self._lower(code % self._slots, count)
            end_offset = physical_offset
            number += 1
        if number > count or self.header != header:
            self._take_header(header)
            self.write_header()
            self._disk.sync(self._fd)
            start, stop = (self._entries_at + at * ENTRY_BYTES for at in (count, number))
            self._map[start:stop] = bytes(stop - start)
        return True

    def cut(self, end: int, time_at: Callable[[int], int]) -> None:
        """Remove the entries of records from log offset `end` on. The first entry must be of an earlier
        record. `time_at` gives the store time of a record by its offset. Raises OSError."""
        self.hold()
        self.flush_held()

        def offset_at(number: int) -> int:
            return int(ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)[1])

        count = bisect_left(range(self.next_entry), end, 1, key=offset_at)
        firsts = sum(
            ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)[3] == 0
            for number in range(count, self.next_entry)
        )
        last = offset_at(count - 1)
        times = self.begin_time_ms, time_at(last) or self.end_time_ms
        self.restore(HEADER.pack(*times, self.begin_offset, last, self.used_slots - firsts, count))

    def _lower(self, slot: int, count: int) -> None:
        """Let a slot refer to the newest entry of its chain whose number is below `count`."""
        (found,) = SLOT.unpack_from(self._map, HEADER_BYTES + slot * SLOT_BYTES)
        number = found
        while number >= count:
            previous = (
                ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)[3]
                if number < self._entries
                else 0
            )
            number = previous if previous < number else 0
        if number != found:
            SLOT.pack_into(self._map, HEADER_BYTES + slot * SLOT_BYTES, number)

    # --- reading --------------------------------------------------------------------------------------------

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of the entries of a hash, newest first. Entry times have a precision of a second:
        all entries that may lie within the times are included.

        Reads through the descriptor: a slot may be in a hole, and on tmpfs a read of a hole through a mapping
        allocates memory; if there is none left, the process is killed. Raises NotInMemory.
        """
        slot = key_hash % self._slots
        newest = self._fresh.get(slot) or self._held.get(slot) or 0
        chain = Chain(
            self.path,
            HEADER_BYTES + slot * SLOT_BYTES,
            newest,
            self.next_entry,
            self._entries_at,
            self.begin_time_ms,
            begin_ms,
        )

        def read(start: int, stop: int) -> bytes | bytearray:
            data = self._disk.read(self._fd, start, stop)
            if data is None:
                raise NotInMemory(chain)
            return data

        for code, physical_offset, time_ms in chain.entries(read):
            if code == key_hash and time_ms <= end_ms:
                yield physical_offset

    def close(self) -> None:
        """Close the file. Slots kept in memory are lost, as after a crash."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1
