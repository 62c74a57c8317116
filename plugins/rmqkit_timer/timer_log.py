"""The timer log: the units of all messages that wait, in the order in which they were entered (store-format
sheet, section 10.4; Java: TimerLog).

Units are appended in memory; `take_unwritten` and `write` bring them into files. The newest part stays in
memory after that, so that short timers never wait for the device. Without a directory everything stays in
memory until it is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from rmqkit.toolkit.json_file import sync_directory
from rmqkit_timer.units import (
    NOWHERE,
    UNIT_BYTES,
    Unit,
    blank,
    has_room,
    is_blank,
    last_unit_at,
    pack,
    unpack,
)

#: The part of the log, from its end, that stays in memory: some 80 000 messages.
KEPT_BYTES: Final = 4 << 20
#: What waits to be written at most; while the device takes nothing, no more messages are entered.
MAX_UNWRITTEN_BYTES: Final = 64 << 20
_READ_BYTES: Final = 64 << 10


class Files:
    """The files of a timer log, each named by the position of its first byte. All methods block."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self._open: dict[int, int] = {}

    def positions(self) -> list[int]:
        """The first position of each file, ascending."""
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir() if path.is_file())
        return sorted(int(name) for name in names if len(name) == 20 and name.isdigit())

    def write(self, position: int, data: bytes) -> None:
        """Write through to the device; files are made as they are needed. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        written: set[int] = set()
        at = 0
        while at < len(data):
            start = (position + at) - (position + at) % self.file_bytes
            part = data[at : at + start + self.file_bytes - (position + at)]
            descriptor = self._descriptor(start, make=True)
            if os.pwrite(descriptor, part, position + at - start) != len(part):
                raise OSError(f"the timer log in {self.directory} was written in part")
            written.add(descriptor)
            at += len(part)
        for descriptor in written:
            os.fdatasync(descriptor)

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to so many bytes of one file; empty where there is no file. Raises OSError."""
        start = position - position % self.file_bytes
        try:
            descriptor = self._descriptor(start, make=False)
        except FileNotFoundError:
            return b""
        return os.pread(descriptor, min(size_bytes, start + self.file_bytes - position), position - start)

    def cut(self, end: int) -> None:
        """Remove everything from a position on: what a file has there becomes zero. Raises OSError."""
        start = end - end % self.file_bytes
        for first in self.positions():
            if first >= end:
                self.remove(first)
            elif first == start:
                descriptor = self._descriptor(first, make=False)
                os.ftruncate(descriptor, end - first)
                os.ftruncate(descriptor, self.file_bytes)
                os.fsync(descriptor)

    def remove(self, first: int) -> None:
        """Delete the file that begins at a position. Raises OSError."""
        descriptor = self._open.pop(first, None)
        if descriptor is not None:
            os.close(descriptor)
        (self.directory / f"{first:020}").unlink(missing_ok=True)
        sync_directory(self.directory)

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, start: int, make: bool) -> int:
        descriptor = self._open.get(start)
        if descriptor is None:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
            descriptor = os.open(self.directory / f"{start:020}", flags, 0o666)
            self._open[start] = descriptor
            if os.fstat(descriptor).st_size < self.file_bytes:
                os.ftruncate(descriptor, self.file_bytes)
                sync_directory(self.directory)
        return descriptor


class TimerLog:
    """Units by their positions. `files` is None for a log in memory. Belongs to the event loop."""

    def __init__(self, files: Files | None, file_bytes: int, start: int = 0, end: int = 0) -> None:
        self._files = files
        self._file_bytes = files.file_bytes if files is not None else file_bytes
        self.start = start
        #: The newest part of the log; what comes before it is in the files.
        self._memory = bytearray()
        self._memory_start = end
        self.written = end

    @property
    def end(self) -> int:
        """The position of the next unit, unless its file has no room for it."""
        return self._memory_start + len(self._memory)

    @property
    def is_full(self) -> bool:
        """Whether no more units can be taken before some are written."""
        return self._files is not None and self.end - self.written > MAX_UNWRITTEN_BYTES

    def append(self, unit: Unit) -> int:
        """Add a unit; returns its position."""
        end = self.end
        if not has_room(end, self._file_bytes):
            self._memory += blank(end, self._file_bytes)
            end = self.end
        self._memory += pack(unit)
        return end

    async def chain(self, position: int, count: int) -> tuple[list[Unit], list[int], int]:
        """Up to `count` units of a chain from a position on, newest first, their positions, and the position
        of the next one, NOWHERE at the end. A chain ends where the log does, and where it does not lead back.
        Raises OSError."""
        units: list[Unit] = []
        positions: list[int] = []
        while position >= self._memory_start and len(units) < count:
            unit = unpack(self._memory, position - self._memory_start) if position < self.end else None
            position = self._next(units, positions, position, unit)
        if self._files is not None and position >= self.start and len(units) < count:
            read = self._read_chain
            older, places, position = await trio.to_thread.run_sync(read, position, count - len(units))
            units += older
            positions += places
        return units, positions, position if position >= self.start else NOWHERE

    def _next(self, units: list[Unit], positions: list[int], position: int, unit: Unit | None) -> int:
        """Note a unit that was found at a position; returns the position of the one before it."""
        if unit is None:
            return NOWHERE
        units.append(unit)
        positions.append(position)
        return unit.previous if unit.previous < position else NOWHERE

    def _read_chain(self, position: int, count: int) -> tuple[list[Unit], list[int], int]:
        """What `chain` gives, of units in files alone; for a thread."""
        assert self._files is not None
        units: list[Unit] = []
        positions: list[int] = []
        data, begin = b"", 0
        while position >= self.start and len(units) < count:
            if not begin <= position <= begin + len(data) - UNIT_BYTES:
                # The unit is at the end of what is read: the chain leads back.
                start = position - position % self._file_bytes
                begin = max(start, position + UNIT_BYTES - _READ_BYTES)
                data = self._files.read(begin, position + UNIT_BYTES - begin)
            there = begin <= position <= begin + len(data) - UNIT_BYTES
            position = self._next(
                units, positions, position, unpack(data, position - begin) if there else None
            )
        return units, positions, position

    def take_unwritten(self) -> tuple[int, bytes]:
        """The position and the bytes of what is not written yet; nothing of a log in memory."""
        if self._files is None:
            return self.end, b""
        return self.written, bytes(memoryview(self._memory)[self.written - self._memory_start :])

    def write(self, position: int, data: bytes) -> None:
        """Write what `take_unwritten` gave; for a thread. Raises OSError."""
        if self._files is not None and data:
            self._files.write(position, data)

    def wrote(self, position: int, data: bytes) -> None:
        """Note that something was written: most of it leaves the memory."""
        self.written = position + len(data)
        if self._files is not None:
            surplus = min(self.written, self.end - KEPT_BYTES) - self._memory_start
            if surplus > KEPT_BYTES:
                del self._memory[:surplus]
                self._memory_start += surplus

    async def remove_before(self, log_start: int) -> None:
        """Remove the files whose messages were all removed with the log, and the same part of a log in
        memory. Raises OSError."""
        while (following := self.start - self.start % self._file_bytes + self._file_bytes) <= self.written:
            last = following - self._file_bytes + last_unit_at(self._file_bytes)
            units, _, _ = await self.chain(last, 1)
            if not units or units[0].physical_offset >= log_start:
                return
            self.start = following
            if (gone := following - self._memory_start) > 0:
                del self._memory[:gone]
                self._memory_start = following
            if self._files is not None:
                await trio.to_thread.run_sync(self._files.remove, following - self._file_bytes)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def units_of(files: Files, position: int) -> Iterator[tuple[int, Unit]]:
    """The units of the files from the beginning of one file on, with their positions, to the first place
    where there is none. Blocks. Raises OSError."""
    while data := files.read(position, _READ_BYTES - _READ_BYTES % UNIT_BYTES):
        for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
            unit = unpack(data, at)
            if unit is None and is_blank(data, at):
                break
            if unit is None:
                return
            yield position + at, unit
        else:
            position += len(data) - len(data) % UNIT_BYTES
            if has_room(position, files.file_bytes):
                continue
        position += files.file_bytes - position % files.file_bytes
