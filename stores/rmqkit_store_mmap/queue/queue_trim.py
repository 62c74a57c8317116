"""Determines the front part of a consume queue whose records were removed (store-format sheet, section 9.5;
Java: ConsumeQueue.deleteExpiredFile, correctMinOffset).

Runs in a worker thread while the event loop appends to the queue, so it reads the files only, and only the
units that existed when the QueueFiles were created.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmqkit_store_mmap.log.segment import offset_name
from rmqkit_store_mmap.queue.units import FILLER_SIZE, UNIT, UNIT_BYTES

_READ_UNITS = 1024


class QueueFiles(NamedTuple):
    """The state of a queue at one moment. Offsets count units; `first` is where its first file begins."""

    directory: Path
    file_units: int
    first: int
    min_offset: int
    next_offset: int


def first_kept(files: QueueFiles, log_start: int) -> int:
    """The first offset from `min_offset` on whose record is still in the log, `next_offset` if there is none.
    Raises OSError.

    Filler has no record; it is treated like the unit that follows it.
    """
    if (
        files.min_offset >= files.next_offset
        or _is_kept(files, files.min_offset, log_start) == files.min_offset
    ):
        return files.min_offset
    found = bisect_left(
        range(files.next_offset),
        True,
        files.min_offset,
        key=lambda offset: _is_kept(files, offset, log_start) is not None,
    )
    return found if found >= files.next_offset else _is_kept(files, found, log_start) or found


def _is_kept(files: QueueFiles, offset: int, log_start: int) -> int | None:
    """The offset of the first unit from `offset` on that is not filler; None if its record was removed or
    there is no such unit."""
    for at, (physical_offset, size_bytes, _) in enumerate(_units(files, offset), offset):
        if size_bytes != FILLER_SIZE:
            return at if physical_offset >= log_start else None
    return None


def _units(files: QueueFiles, offset: int) -> Iterator[tuple[int, int, int]]:
    """Units from `offset` on. Reads one unit first, then many at a time: a second one is seldom needed."""
    count = 1
    while offset < files.next_offset:
        data = unit_bytes(files, offset, count)
        yield from UNIT.iter_unpack(data)
        offset, count = offset + len(data) // UNIT_BYTES, _READ_UNITS


def unit_bytes(files: QueueFiles, offset: int, count: int = 1) -> bytes:
    """The units from `offset` on, at most `count`, those of one file. Raises OSError."""
    base = offset - offset % files.file_units
    stop = min(files.next_offset, base + files.file_units, offset + count)
    if stop <= offset:
        return b""
    fd = os.open(files.directory / offset_name(base * UNIT_BYTES), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, (stop - offset) * UNIT_BYTES, (offset - base) * UNIT_BYTES)
    finally:
        os.close(fd)


def dead_files(files: QueueFiles, min_offset: int) -> list[Path]:
    """The files with no units at or after `min_offset`, oldest first, except the last file."""
    last = max(files.next_offset - 1, 0)
    stop = min(min_offset - files.file_units + 1, last - last % files.file_units)
    return [
        files.directory / offset_name(base * UNIT_BYTES)
        for base in range(files.first, stop, files.file_units)
    ]
