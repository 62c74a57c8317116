"""One hash index file (store-format sheet, section 4; Java: IndexFile).

    at  size  header field                      at  size  entry field
     0     8  store time of the first entry      0     4  hash of `topic#key`
     8     8  store time of the last entry       4     8  physical offset of the record
    16     8  offset of the first entry         12     4  store time less the header's first, seconds
    24     8  offset of the last entry          16     4  previous entry of the same slot, 0 = none
    32     4  slots in use
    36     4  number of the next entry

Behind the header stand the slots (4 bytes each: the newest entry of the slot's chain, 0 = none), behind them the entries; entry 0 is never used.

How a file survives a crash. Overwriting a slot forgets the entry it named before, and that one can then be reached through the new entry alone. If
the device got the slot but not the entry, the chain would be lost. So a new slot value stays in memory (`_fresh`, `_held`) until the entries are on
the device (`flush_held`). Hence the rule everything rests on: a slot on the device never names an entry that is not there. Whoever knows
that the file was complete up to entry N (`checkpoint.IndexMark`) can go back to that state: every slot that was changed since belongs to
one of the entries from N on, and from what it names now the previous entries lead below N. That is `restore`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from rmqkit.errors import StoreCorrupt
from rmqkit_store_mmap.disk import Disk, create_file

HEADER = Struct(">qqqqii")
HEADER_BYTES = 40
ENTRY = Struct(">iqii")
ENTRY_BYTES = 20
_SLOT = Struct(">i")
_SLOT_BYTES = 4
_MAX_I32 = 0x7FFFFFFF
#: Disk under slots and entries is taken in pieces of this size, when they are first written.
_PIECE_SHIFT = 16
_PIECE_BYTES = 1 << _PIECE_SHIFT


class IndexFile:
    """Maps the whole file; the header lives in the attributes until `write_header`. Times in ms, offsets physical."""

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk) -> None:
        """Open the file, made when there is none. Raises StoreCorrupt when it has another size than the settings give it, OSError."""
        self.path = path
        self.size_bytes = HEADER_BYTES + slots * _SLOT_BYTES + entries * ENTRY_BYTES
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_BYTES + slots * _SLOT_BYTES
        self._disk = disk
        self._allocated = bytearray((self.size_bytes >> _PIECE_SHIFT) + 1)
        self._fresh: dict[int, int] = {}
        self._held: dict[int, int] = {}
        if path.exists() and path.stat().st_size not in (0, self.size_bytes):
            raise StoreCorrupt(
                f"{path} has {path.stat().st_size} bytes; maxHashSlotNum and maxIndexNum of the settings make {self.size_bytes}"
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
        self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, count = header
        self.next_entry = max(count, 1)

    @property
    def header(self) -> bytes:
        return HEADER.pack(self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, self.next_entry)

    @property
    def full(self) -> bool:
        return self.next_entry >= self._entries

    @property
    def waiting(self) -> int:
        """Slots that are kept in memory because what they name is not on the device yet."""
        return len(self._fresh) + len(self._held)

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, key_hash: int, physical_offset: int, time_ms: int) -> None:
        """Add one entry; the file must not be full. Raises OSError when the disk is; then nothing was added."""
        number = self.next_entry
        slot = key_hash % self._slots
        slot_at = HEADER_BYTES + slot * _SLOT_BYTES
        entry_at = self._entries_at + number * ENTRY_BYTES
        allocated = self._allocated
        if not (allocated[slot_at >> _PIECE_SHIFT] and allocated[entry_at >> _PIECE_SHIFT] and allocated[entry_at + 19 >> _PIECE_SHIFT]):
            self._allocate(slot_at, _SLOT_BYTES)
            self._allocate(entry_at, ENTRY_BYTES)
        previous = self._fresh.get(slot) or self._held.get(slot)
        if previous is None:
            (previous,) = _SLOT.unpack_from(self._map, slot_at)
        if previous <= 0 or previous >= number:
            previous = 0
            self.used_slots += 1
        begin = self.begin_time_ms
        seconds = min((time_ms - begin) // 1000, _MAX_I32) if 0 < begin < time_ms else 0
        if number == 1:
            self.begin_time_ms = time_ms
            self.begin_offset = physical_offset
            seconds = 0
        ENTRY.pack_into(self._map, entry_at, key_hash, physical_offset, seconds, previous)
        self._fresh[slot] = number
        self.next_entry = number + 1
        self.end_time_ms = time_ms
        self.end_offset = physical_offset

    def _newest(self, slot: int) -> int:
        number = self._fresh.get(slot) or self._held.get(slot)
        if number is not None:
            return number
        at = HEADER_BYTES + slot * _SLOT_BYTES
        # It may lie in a hole. On a tmpfs a hole takes disk when it is read through a map, and when there is none the process dies of it.
        data = self._map[at : at + _SLOT_BYTES] if self._allocated[at >> _PIECE_SHIFT] else os.pread(self._fd, _SLOT_BYTES, at)
        return int.from_bytes(data, "big", signed=True)

    def _allocate(self, at: int, length: int) -> None:
        for piece in (at >> _PIECE_SHIFT, at + length - 1 >> _PIECE_SHIFT):
            if not self._allocated[piece]:
                start = piece << _PIECE_SHIFT
                self._disk.allocate(self._fd, start, min(_PIECE_BYTES, self.size_bytes - start))
                self._allocated[piece] = 1

    def write_header(self) -> None:
        """Put the header into the map. Raises OSError when the disk is full."""
        self._allocate(0, HEADER_BYTES)
        self._map[:HEADER_BYTES] = self.header

    # --- flushing ----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Set apart the slots of the entries there are now, and write the header: what `flush_held` will bring to the device. Raises OSError."""
        self.write_header()
        self._held |= self._fresh
        self._fresh = {}

    def flush_held(self) -> None:
        """Bring header and entries to the device, then the slots that `hold` set apart. May run in a worker thread while entries are put,
        but not twice at a time. Raises OSError, and then can be called again."""
        self._disk.sync(self._fd)
        for slot, number in self._held.items():
            _SLOT.pack_into(self._map, HEADER_BYTES + slot * _SLOT_BYTES, number)
        self._disk.sync(self._fd)
        self._held = {}

    # --- recovery ----------------------------------------------------------------------------------------------------

    def restore(self, header: bytes) -> bool:
        """Go back to the state in which the file was on the device with this header; what came later is forgotten.

        Returns False when the file is no later state of that one, and then changes nothing. Cut short by a crash it can be run again: slots
        are on the device before the entries they named are erased. Raises OSError.
        """
        begin_time_ms, _, begin_offset, end_offset, _, count = HEADER.unpack(header)
        if (begin_time_ms, begin_offset) != (self.begin_time_ms, self.begin_offset) or not 1 < count <= self.next_entry:
            return False
        number = count
        while number < self._entries:
            entry = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)
            code, physical_offset, seconds, previous = entry
            if not any(entry) or code < 0 or physical_offset < end_offset or seconds < 0 or not 0 <= previous < number:
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

    def _lower(self, slot: int, count: int) -> None:
        """Have a slot name the newest entry of its chain that is below `count`."""
        (found,) = _SLOT.unpack_from(self._map, HEADER_BYTES + slot * _SLOT_BYTES)
        number = found
        while number >= count:
            previous = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)[3] if number < self._entries else 0
            number = previous if previous < number else 0
        if number != found:
            _SLOT.pack_into(self._map, HEADER_BYTES + slot * _SLOT_BYTES, number)

    # --- reading -----------------------------------------------------------------------------------------------------

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of the entries of a hash, newest first. Entry times are known to the second: all that may lie within are given."""
        number = self._newest(key_hash % self._slots)
        stop = self.next_entry
        while 0 < number < stop:
            code, physical_offset, seconds, previous = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_BYTES)
            if seconds < 0:
                return
            time_ms = self.begin_time_ms + seconds * 1000
            if time_ms + 999 < begin_ms:
                return
            if code == key_hash and time_ms <= end_ms:
                yield physical_offset
            stop = number
            number = previous

    def close(self) -> None:
        """Let go of the file. Slots that were not applied are gone, as after a crash."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1
