"""One consume queue of a directory, read without opening the store (see readonly)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from rmqkit.plugin.store import QueueUnit
from rmqkit_store_mmap.queue.units import FILLER_SIZE, UNIT, UNIT_BYTES
from rmqkit_store_mmap.readonly.data_files import FileRow, data_end, read_at

_READ_UNITS = 1024


class QueueReader:
    """One consume queue. Queue offsets count units; `end_offset` is exclusive and is determined on creation.
    The last units may be in the file before their records: see StoreReader.readable_end."""

    def __init__(self, topic: str, queue_id: int, row: FileRow, file_bytes: int) -> None:
        """`file_bytes` is the length of the files of all queues. Raises OSError."""
        self.topic = topic
        self.queue_id = queue_id
        self.row = row
        self.file_bytes = file_bytes
        self.first_offset = row.files[0].base // UNIT_BYTES if row.files else 0
        self.end_offset = self.first_offset
        for file in reversed(row.files):
            try:
                end = -(-data_end(file.path) // UNIT_BYTES)
            except FileNotFoundError:
                continue
            if end:
                self.end_offset = file.base // UNIT_BYTES + end
                break

    def place(self, offset: int) -> tuple[Path, int]:
        """The file in which the unit at a queue offset is or would be, and the byte at which it begins."""
        if not self.file_bytes:
            return self.row.directory, 0
        at = offset * UNIT_BYTES
        base = at - at % self.file_bytes
        return self.row.directory / f"{base:020d}", at - base

    def data(self, start: int, stop: int) -> bytes:
        """The bytes of the units from `start` on, up to `stop` or the end of the file. Raises OSError;
        FileNotFoundError when retention has deleted the file."""
        path, at = self.place(start)
        return read_at(path, at, min(stop - start, (self.file_bytes - at) // UNIT_BYTES) * UNIT_BYTES)

    def units(self, start: int, stop: int) -> Iterator[QueueUnit]:
        """The existing units of [start, stop). Raises OSError."""
        at, stop = max(start, self.first_offset), min(stop, self.end_offset)
        while at < stop:
            try:
                data = self.data(at, min(stop, at + _READ_UNITS))
            except FileNotFoundError:
                data = b""
            whole = len(data) // UNIT_BYTES
            for number, unit in enumerate(UNIT.iter_unpack(data[: whole * UNIT_BYTES])):
                yield QueueUnit(at + number, *unit)
            file_units = self.file_bytes // UNIT_BYTES
            at = at + whole if whole else at - at % file_units + file_units

    def min_offset(self, log_min: int) -> int:
        """The first offset whose record is in a log that begins at `log_min`; `end_offset` when there is no
        such record."""
        if self._is_kept(self.first_offset, log_min):
            return self.first_offset
        return bisect_left(
            range(self.end_offset), True, self.first_offset, key=lambda offset: self._is_kept(offset, log_min)
        )

    def _is_kept(self, offset: int, log_min: int) -> bool:
        for unit in self.units(offset, offset + 1):
            return unit.size_bytes != FILLER_SIZE and unit.physical_offset >= log_min
        return False

    @property
    def known_end(self) -> int:
        """End log offset of the record of the last unit, 0 without units."""
        for unit in self.units(self.end_offset - 1, self.end_offset):
            return 0 if unit.size_bytes == FILLER_SIZE else unit.physical_offset + unit.size_bytes
        return 0
