"""The commit log of a directory, read without opening the store (see readonly)."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path

from rmqkit.protocol.record import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from rmqkit_store_mmap.readonly.data_files import DataFile, FileRow, file_row, usual_size

_MAPPED_SEGMENTS = 8


class LogReader:
    """The commit log as of the last `refresh`. Offsets are physical; `min_offset` is the start of the first
    file, 0 without files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._views: OrderedDict[int, memoryview] = OrderedDict()
        self._by_base: dict[int, DataFile] = {}
        self.refresh()

    def refresh(self) -> None:
        """Update the list of files, and release the mappings of replaced files. Raises OSError."""
        known = self._by_base
        self.row: FileRow = file_row(self._directory)
        self.segment_bytes = usual_size([self.row.files])
        self._by_base = {file.base: file for file in self.row.files}
        for base in list(self._views):
            if base in self._by_base and (
                base not in known or known[base].inode != self._by_base[base].inode
            ):
                del self._views[base]
        self.min_offset = next(iter(self._by_base), 0)
        self._end = max((file.base + file.size_bytes for file in self.row.files), default=0)

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(self._by_base.values())

    def view(self, file: DataFile) -> memoryview | None:
        """All bytes of a file; None when it has been deleted meanwhile. Slices remain valid as long as
        they are referenced. Raises OSError."""
        view = self._views.get(file.base)
        if view is None:
            try:
                fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._by_base.pop(file.base, None)
                self.min_offset = next(iter(self._by_base), 0)
                return None
            try:
                view = memoryview(mmap.mmap(fd, file.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
            finally:
                os.close(fd)
            self._views[file.base] = view
            while len(self._views) > _MAPPED_SEGMENTS:
                self._views.popitem(last=False)
        return view

    def let_go(self, file: DataFile, start: int, stop: int) -> None:
        """Release the memory of a range of a mapped file; it is read again on access."""
        view = self._views.get(file.base)
        start -= start % mmap.PAGESIZE
        if view is not None and isinstance(view.obj, mmap.mmap) and start < stop:
            view.obj.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def record(self, offset: int, size_bytes: int) -> memoryview | None:
        """A range of one file; None when it does not exist any more, or has not been written. Raises
        OSError."""
        if offset >= self._end:
            self.refresh()
        if not self.segment_bytes or size_bytes < BLANK.size:
            return None
        file = self._by_base.get(offset - (offset - self.min_offset) % self.segment_bytes)
        if file is None or offset + size_bytes > file.base + file.size_bytes:
            return None
        view = self.view(file)
        if view is None:
            return None
        found = view[offset - file.base : offset - file.base + size_bytes]
        return found if any(found[: BLANK.size]) else None

    def end_offset(self, known: int) -> int:
        """The end of the log, found by reading records from `known` on, which must be the start of a record
        or the end of the log. Raises OSError."""
        at = max(known, self.min_offset)
        for file in self.files:
            if file.base + file.size_bytes <= at:
                continue
            if file.base > at:
                return at
            view = self.view(file)
            while view is not None and at + BLANK.size <= file.base + len(view):
                size, magic = BLANK.unpack_from(view, at - file.base)
                room = file.base + len(view) - at
                if magic == MAGIC_BLANK and size == room:
                    following = self._by_base.get(at + size)
                    first = self.view(following) if following is not None else None
                    if first is None or BLANK.unpack_from(first)[1] not in (MAGIC_V1, MAGIC_V2):
                        return at
                elif magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= room:
                    return at
                at += size
        return at

    def close(self) -> None:
        """Release the mappings; existing slices remain valid."""
        self._views.clear()
