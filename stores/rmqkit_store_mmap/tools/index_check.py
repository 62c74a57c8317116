"""Compares the index files with the records of the log, which are passed in the order of the log (layout in
rmqkit_store_mmap.index.index_file).

Entries are in the order of the log too, so one cursor over all files is sufficient. The chains are checked by
tracking the newest entry of each slot in the file at the cursor; at the end of a correct file these are the
contents of its slots.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from rmqkit.errors import ConfigError
from rmqkit_store_mmap.index.entries import ENTRY, ENTRY_BYTES, HEADER_BYTES
from rmqkit_store_mmap.index.index_file import HEADER
from rmqkit_store_mmap.readonly.data_files import read_at
from rmqkit_store_mmap.tools.damage import Damage

_SLOT_BYTES = 4
_READ_ENTRIES = 4096
_MAX_I32 = 0x7FFFFFFF
#: Larger than every log offset.
_NOWHERE = 1 << 63


@frozen
class IndexHeader:
    """The header of an index file; `count` is the number of the next entry, 0 in a new file."""

    path: Path
    size_bytes: int
    allocated_bytes: int
    begin_time_ms: int
    end_time_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int

    @property
    def next_entry(self) -> int:
        return max(self.count, 1)


def index_headers(directory: Path) -> list[IndexHeader]:
    """The headers of all index files, oldest first. Raises Damage for a file that is too short for a header;
    OSError."""
    headers = []
    for name in sorted(os.listdir(directory)) if directory.is_dir() else []:
        path = directory / name
        if not (name.isascii() and name.isdigit() and path.is_file()):
            continue
        try:
            status = path.stat()
            data = read_at(path, 0, HEADER_BYTES)
        except FileNotFoundError:
            continue
        if status.st_size == 0:
            continue
        if len(data) < HEADER_BYTES:
            raise Damage(
                path, len(data), f"the file has {len(data)} bytes, its header alone takes {HEADER_BYTES}"
            )
        headers.append(IndexHeader(path, status.st_size, status.st_blocks * 512, *HEADER.unpack(data)))
    return headers


class IndexCheck:
    """`next_offset` is the log offset that the entry at the cursor points to; `checked` counts the verified
    entries. `unindexed` maps a file to the log offset of the first, and the number, of the records with keys
    before it that neither it nor an earlier file contains."""

    def __init__(self, headers: Sequence[IndexHeader], slots: int, log_min: int, is_open: bool) -> None:
        """`is_open`: a broker is running or was killed, so that headers and slots may lag behind the entries.

        Raises ConfigError when the length of the files does not fit `slots` slots, Damage when the files have
        different lengths or a header has an impossible number of entries."""
        self.checked = 0
        self.next_offset = _NOWHERE
        self._headers = [header for header in headers if header.next_entry > 1]
        self._slots = slots
        self._log_min = log_min
        self._is_open = is_open
        self._place = (Path(), 0)
        self._entry = (0, 0, 0, 0)
        self._begin_time_ms = 0
        self._number = 0
        sizes = {header.size_bytes for header in headers}
        entries, rest = divmod(max(sizes, default=0) - HEADER_BYTES - slots * _SLOT_BYTES, ENTRY_BYTES)
        for header in headers:
            if header.size_bytes != max(sizes):
                raise Damage(
                    header.path,
                    header.size_bytes,
                    f"the file has {header.size_bytes} bytes, others have {max(sizes)}",
                )
            if rest or entries < 2:
                raise ConfigError(
                    f"{header.path} has {header.size_bytes} bytes, which {slots} slots do not make; "
                    "say --set maxHashSlotNum=... or --config FILE with the settings of its broker"
                )
            if header.next_entry > entries:
                raise Damage(
                    header.path,
                    HEADER_BYTES - 4,
                    f"the header says {header.next_entry - 1} entries, at most {entries - 1} fit",
                )
        self._cursor = self._entries()
        self._covered = list(self._headers)
        self.unindexed: dict[Path, tuple[int, int]] = {}
        self._advance()

    @property
    def known_end(self) -> int:
        """Log offset of the last indexed record, -1 without entries."""
        return max((header.end_offset for header in self._headers), default=-1)

    def wants(self, physical_offset: int) -> bool:
        """Whether the index must contain the keys of the record at an offset. Successive calls must pass
        increasing offsets."""
        covered = self._covered
        while covered and covered[0].end_offset < physical_offset:
            covered.pop(0)
        if not covered:
            return False
        if physical_offset < covered[0].begin_offset:
            self._miss(covered[0], physical_offset)
            return False
        if physical_offset == covered[0].begin_offset and covered[0].path in self.unindexed:
            return False  # its other keys may have been in the previous file, which is lost
        return physical_offset < covered[-1].end_offset or not self._is_open

    def _miss(self, behind: IndexHeader, physical_offset: int) -> None:
        first, count = self.unindexed.get(behind.path, (physical_offset, 0))
        self.unindexed[behind.path] = first, count + 1

    def take(
        self,
        physical_offset: int,
        time_ms: int,
        keys: Sequence[tuple[int, str]],
        wanted: bool,
        tags_hash: int | None = None,
    ) -> None:
        """Check the next record that has keys, or that an entry points to. `keys` are the hash and text of
        each key; `tags_hash` is that of an entry for the tags, which Java writes since 5.5. Raises Damage,
        OSError."""
        if self.next_offset < physical_offset:
            raise self._stray()
        left = list(keys)
        while self.next_offset == physical_offset:
            code, _, seconds, _ = self._entry
            fitting = next((key for key in left if key[0] == code), None)
            if fitting is None and code != tags_hash:
                # The last record before a crash may have its entries a second time, after the complete first
                # ones.
                if left or all(key[0] != code for key in keys):
                    raise Damage(
                        *self._place,
                        f"the entry's hash {code} is of no key of the record at log offset {physical_offset}",
                    )
                left = [key for key in keys if key[0] != code]
            elif fitting is not None:
                left.remove(fitting)
            self._check_time(time_ms, seconds)
            self.checked += 1
            self._advance()
        if left and wanted:
            current, *later = self._covered
            if not later or physical_offset < current.end_offset or physical_offset == later[0].begin_offset:
                raise Damage(
                    *self._place,
                    f"there is no entry for the key {left[0][1]!r} of the record at log offset"
                    f" {physical_offset}",
                )
            self._miss(later[0], physical_offset)

    def pass_over(self, physical_offset: int) -> None:
        """Skip the entries that point to a record that replaces damage. Raises Damage, OSError."""
        while self.next_offset == physical_offset:
            self._advance()

    def finish(self) -> None:
        """Called after the last record. Raises Damage when there is an entry left."""
        if self.next_offset != _NOWHERE:
            raise self._stray()

    def _stray(self) -> Damage:
        return Damage(
            *self._place,
            f"the entry points to log offset {self.next_offset}, where no record with a key begins",
        )

    def _check_time(self, time_ms: int, seconds: int) -> None:
        """Check the time of an entry, except of the first in a file: in Java it is relative to the previous
        file. Raises Damage."""
        begin = self._begin_time_ms
        right = min((time_ms - begin) // 1000, _MAX_I32) if 0 < begin < time_ms else 0
        if seconds != right and self._number > 1:
            raise Damage(
                *self._place,
                f"the entry says {seconds} s behind the file's first, its record was stored {right} s"
                " behind it",
            )

    def _advance(self) -> None:
        self.next_offset = -1
        while self.next_offset < self._log_min:
            entry = next(self._cursor, None)
            if entry is None:
                self.next_offset = _NOWHERE
                return
            self._entry = entry
            self.next_offset = entry[1]

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        for header in self._headers:
            newest = array("i", bytes(_SLOT_BYTES * self._slots))
            entries_at = HEADER_BYTES + self._slots * _SLOT_BYTES
            self._begin_time_ms = header.begin_time_ms
            for start in range(1, header.next_entry, _READ_ENTRIES):
                count = min(_READ_ENTRIES, header.next_entry - start)
                data = read_at(header.path, entries_at + start * ENTRY_BYTES, count * ENTRY_BYTES)
                for number, entry in enumerate(ENTRY.iter_unpack(data), start):
                    self._number = number
                    self._place = (header.path, entries_at + number * ENTRY_BYTES)
                    self._link(entry, number, newest)
                    yield entry
            self._place = (header.path, entries_at + header.next_entry * ENTRY_BYTES)
            self._check_slots(header, newest)

    def _link(self, entry: tuple[int, ...], number: int, newest: array[int]) -> None:
        code, _, _, previous = entry
        if code < 0:
            raise Damage(*self._place, f"the entry's hash {code} is negative")
        slot = code % self._slots
        if previous != newest[slot]:
            raise Damage(
                *self._place,
                f"entry {number} of slot {slot} is linked to entry {previous}, the one before it is"
                f" {newest[slot]}",
            )
        newest[slot] = number

    def _check_slots(self, header: IndexHeader, newest: array[int]) -> None:
        """Check the slots of a file against the newest entries of their chains. Raises Damage, OSError."""
        stored = array("i", read_at(header.path, HEADER_BYTES, self._slots * _SLOT_BYTES))
        if sys.byteorder == "little":
            stored.byteswap()
        if stored == newest:
            return
        for slot, (found, right) in enumerate(zip(stored, newest, strict=True)):
            if found != right and not (self._is_open and self._may_lag(header, slot, found, right)):
                byte = HEADER_BYTES + slot * _SLOT_BYTES
                raise Damage(
                    header.path, byte, f"slot {slot} names entry {found}, the newest of its chain is {right}"
                )

    def _may_lag(self, header: IndexHeader, slot: int, found: int, right: int) -> bool:
        """Whether a slot may have its value in a file that is being written: no entry, an entry newer than
        the header, or an older entry of the same chain."""
        if found == 0 or found >= header.next_entry:
            return True
        data = read_at(
            header.path, HEADER_BYTES + self._slots * _SLOT_BYTES + found * ENTRY_BYTES, ENTRY_BYTES
        )
        return 0 < found < right and int(ENTRY.unpack(data)[0]) % self._slots == slot
