"""Rows of a fixed size in files of a fixed size, each named by the offset of its first byte (store-format
sheet, section 1.3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rmqkit.toolkit.json_file import sync_directory

#: Rows that are read together.
_READ_ROWS = 4_096


class RowFiles:
    """The rows `first` to `end`, by their numbers. Rows behind the end are zeros: a file has its whole size
    from the beginning, without occupying it.

    Methods raise OSError. They write to the memory of the system; `sync` writes through to the device, and
    may run in another thread."""

    def __init__(self, directory: Path, row_bytes: int, rows_per_file: int) -> None:
        self._directory = directory
        self._row_bytes = row_bytes
        self._rows_per_file = rows_per_file
        self._files: dict[int, int] = {}
        self._changed: set[int] = set()
        self.first = self.end = 0

    def open(self) -> None:
        """Open the files there are. Of files that do not follow each other the last ones count, and those
        before the gap are removed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        names = (path.name for path in self._directory.iterdir())
        bases = sorted(int(name) // self._row_bytes for name in names if len(name) == 20 and name.isdigit())
        first = bases[-1] if bases else 0
        while first - self._rows_per_file in bases:
            first -= self._rows_per_file
        for base in bases:
            if base < first:
                self._path(base).unlink()
            else:
                self._open(base)
        self.first, self.end = first, bases[-1] + self._rows_per_file if bases else 0

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _path(self, base: int) -> Path:
        return self._directory / f"{base * self._row_bytes:020d}"

    def _open(self, base: int) -> int:
        descriptor = os.open(self._path(base), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = self._rows_per_file * self._row_bytes
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
        self._files[base] = descriptor
        return descriptor

    def _place(self, number: int) -> tuple[int, int]:
        """The first row of the file that has a row, and the position of the row in it."""
        at = number % self._rows_per_file
        return number - at, at * self._row_bytes

    def append(self, row: bytes) -> int:
        """Write a row at the end; returns its number."""
        base, position = self._place(self.end)
        descriptor = self._files.get(base)
        if descriptor is None:
            descriptor = self._open(base)
        os.pwrite(descriptor, row, position)
        self._changed.add(base)
        self.end += 1
        return self.end - 1

    def read(self, number: int) -> bytes:
        """One row; empty for one that is not there."""
        base, position = self._place(number)
        descriptor = self._files.get(base)
        return b"" if descriptor is None else os.pread(descriptor, self._row_bytes, position)

    def change(self, number: int, at: int, data: bytes) -> None:
        """Change a part of a row, from its byte `at` on."""
        base, position = self._place(number)
        os.pwrite(self._files[base], data, position + at)
        self._changed.add(base)

    def blocks(self, first: int) -> Iterator[tuple[int, bytes]]:
        """The rows from a number on, many together, each time with the number of the first of them. Rows
        behind the end are among them after `open`."""
        number = max(first, self.first)
        while number < self.end:
            base, position = self._place(number)
            count = min(_READ_ROWS, base + self._rows_per_file - number, self.end - number)
            data = os.pread(self._files[base], count * self._row_bytes, position)
            yield number, data
            number += count

    def truncate(self, end: int) -> None:
        """Let the rows end before a number: those behind it become zeros."""
        for base in [each for each in self._files if each >= end]:
            self._remove(base)
        base, position = self._place(end)
        descriptor = self._files.get(base)
        if descriptor is not None:
            os.ftruncate(descriptor, position)
            os.ftruncate(descriptor, self._rows_per_file * self._row_bytes)
            self._changed.add(base)
        self.first, self.end = min(self.first, end), end

    def remove_before(self, number: int) -> None:
        """Remove the files all of whose rows are before a number."""
        for base in [each for each in self._files if each + self._rows_per_file <= number]:
            self._remove(base)
        self.first = min(self._files, default=self.end)

    def last_rows(self) -> list[tuple[int, bytes]]:
        """For each file the number behind its last row, and that row."""
        ends = [min(base + self._rows_per_file, self.end) for base in sorted(self._files)]
        return [(end, self.read(end - 1)) for end in ends if end > self.first]

    def _remove(self, base: int) -> None:
        os.close(self._files.pop(base))
        self._path(base).unlink()
        self._changed.discard(base)

    def sync(self) -> None:
        """Write everything written so far through to the device."""
        changed, self._changed = self._changed, set()
        for base in changed:
            descriptor = self._files.get(base)
            if descriptor is not None:
                os.fsync(descriptor)
        sync_directory(self._directory)
