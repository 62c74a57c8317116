"""Cutting the front off a consume queue once its records are gone (store-format sheet, section 9.5; Java: ConsumeQueue.deleteExpiredFile, correctMinOffset).

Runs in a worker thread while the loop goes on appending to the queue, so it knows the files alone: units that were there when it was told are there.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmqkit_store_mmap.segment import offset_name
from rmqkit_store_mmap.units import FILLER_SIZE, UNIT, UNIT_BYTES

_READ_UNITS = 1024


class QueueFiles(NamedTuple):
    """A queue as it was at one moment; offsets count units, `first` is that of its first file."""

    directory: Path
    file_units: int
    first: int
    min_offset: int
    next_offset: int


def first_kept(files: QueueFiles, log_start: int) -> int:
    """The first offset from `min_offset` on whose record is still in the log, `next_offset` when there is none. Raises OSError.

    Filler has no record; it counts as what follows it.
    """
    if files.min_offset >= files.next_offset or _is_kept(files, files.min_offset, log_start) == files.min_offset:
        return files.min_offset
    found = bisect_left(range(files.next_offset), True, files.min_offset, key=lambda offset: _is_kept(files, offset, log_start) is not None)
    return found if found >= files.next_offset else _is_kept(files, found, log_start) or found


def _is_kept(files: QueueFiles, offset: int, log_start: int) -> int | None:
    """The offset of the first unit from `offset` on that is no filler, if its record is there."""
    for at, (physical_offset, size_bytes, _) in enumerate(_units(files, offset), offset):
        if size_bytes != FILLER_SIZE:
            return at if physical_offset >= log_start else None
    return None


def _units(files: QueueFiles, offset: int) -> Iterator[tuple[int, int, int]]:
    """Units from `offset` on: one, then many at a time, for there is seldom need of a second."""
    count = 1
    while offset < files.next_offset:
        base = offset - offset % files.file_units
        stop = min(files.next_offset, base + files.file_units, offset + count)
        fd = os.open(files.directory / offset_name(base * UNIT_BYTES), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, (stop - offset) * UNIT_BYTES, (offset - base) * UNIT_BYTES)
        finally:
            os.close(fd)
        yield from UNIT.iter_unpack(data)
        offset, count = stop, _READ_UNITS


def dead_files(files: QueueFiles, min_offset: int) -> list[Path]:
    """The files whose units all lie before `min_offset`, oldest first; never the last one."""
    last = max(files.next_offset - 1, 0)
    stop = min(min_offset - files.file_units + 1, last - last % files.file_units)
    return [files.directory / offset_name(base * UNIT_BYTES) for base in range(files.first, stop, files.file_units)]
