"""One hash index file (store-format sheet, section 4; Java: IndexFile).

    at  size  header field                      at  size  entry field
     0     8  store time of the first entry      0     4  hash of `topic#key`
     8     8  store time of the last entry       4     8  physical offset of the record
    16     8  offset of the first entry         12     4  store time less the header's first, seconds
    24     8  offset of the last entry          16     4  previous entry of the same slot, 0 = none
    32     4  slots in use
    36     4  number of the next entry

Behind the header stand the slots (4 bytes each: the newest entry of the slot's chain, 0 = none), behind them the entries; entry 0 is never used.
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
        header: tuple[int, ...] = HEADER.unpack_from(self._map)
        self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, count = header
        self.next_entry = max(count, 1)

    @property
    def full(self) -> bool:
        return self.next_entry >= self._entries

    def put(self, key_hash: int, physical_offset: int, time_ms: int) -> None:
        """Add one entry; the file must not be full. Raises OSError when the disk is; then nothing was added."""
        number = self.next_entry
        slot_at = HEADER_BYTES + key_hash % self._slots * _SLOT_BYTES
        entry_at = self._entries_at + number * ENTRY_BYTES
        allocated = self._allocated
        if not (allocated[slot_at >> _PIECE_SHIFT] and allocated[entry_at >> _PIECE_SHIFT] and allocated[entry_at + 19 >> _PIECE_SHIFT]):
            self._allocate(slot_at, _SLOT_BYTES)
            self._allocate(entry_at, ENTRY_BYTES)
        (previous,) = _SLOT.unpack_from(self._map, slot_at)
        if previous <= 0 or previous > number:
            previous = 0
            self.used_slots += 1
        begin = self.begin_time_ms
        seconds = min((time_ms - begin) // 1000, _MAX_I32) if 0 < begin < time_ms else 0
        if number == 1:
            self.begin_time_ms = time_ms
            self.begin_offset = physical_offset
            seconds = 0
        ENTRY.pack_into(self._map, entry_at, key_hash, physical_offset, seconds, previous)
        _SLOT.pack_into(self._map, slot_at, number)
        self.next_entry = number + 1
        self.end_time_ms = time_ms
        self.end_offset = physical_offset

    def _allocate(self, at: int, length: int) -> None:
        for piece in (at >> _PIECE_SHIFT, at + length - 1 >> _PIECE_SHIFT):
            if not self._allocated[piece]:
                start = piece << _PIECE_SHIFT
                self._disk.allocate(self._fd, start, min(_PIECE_BYTES, self.size_bytes - start))
                self._allocated[piece] = 1

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of the entries of a hash, newest first. Entry times are known to the second: all that may lie within are given."""
        slot_at = HEADER_BYTES + key_hash % self._slots * _SLOT_BYTES
        (number,) = _SLOT.unpack_from(self._map, slot_at)
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

    def write_header(self) -> None:
        """Put the header into the map. Raises OSError when the disk is full."""
        self._allocate(0, HEADER_BYTES)
        HEADER.pack_into(
            self._map, 0, self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset, self.used_slots, self.next_entry
        )

    def sync(self) -> None:
        """Bring the file to the device. Raises OSError."""
        self._disk.sync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1
