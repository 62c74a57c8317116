"""One file of the commit log (Java: MappedFile)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from rmqkit_store_mmap.disk import Disk, create_file
from rmqkit_store_mmap.mincore import address_of


def offset_name(offset: int) -> str:
    """File name of the log or a queue: the start offset in bytes, 20 digits."""
    return f"{offset:020d}"


class Segment:
    """`size_bytes` of the log from `base` on. Written through a descriptor, read through a map made when first needed.

    Bytes up to `allocated_bytes` (counted inside the file) have been given blocks during this run.
    """

    __slots__ = ("_address", "_fd", "_map", "_view", "allocated_bytes", "base", "path", "size_bytes")

    def __init__(self, directory: Path, base: int, size_bytes: int) -> None:
        self.base = base
        self.path = directory / offset_name(base)
        self.size_bytes = size_bytes
        self.allocated_bytes = 0
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._address = 0

    @property
    def stop(self) -> int:
        return self.base + self.size_bytes

    def open(self) -> int:
        """The descriptor; makes the file when there is none. Raises OSError."""
        if self._fd < 0:
            self._fd = create_file(self.path, self.size_bytes)
        return self._fd

    def allocate(self, disk: Disk, start: int, step_bytes: int) -> None:
        """Give blocks to the next step behind `start` (inside the file). Raises OSError, and then nothing has changed."""
        length = min(step_bytes, self.size_bytes - start)
        disk.allocate(self.open(), start, length)
        self.allocated_bytes = max(self.allocated_bytes, start + length)

    def view(self) -> memoryview:
        """The whole file, read-only. Slices of it stay valid when the segment is closed. Raises OSError."""
        if self._view is None:
            if self._fd >= 0:
                mapped = mmap.mmap(self._fd, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            else:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    mapped = mmap.mmap(fd, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
                finally:
                    os.close(fd)
            self._map = mapped
            self._view = memoryview(mapped)
        return self._view

    @property
    def address(self) -> int:
        """Where `view` lies in memory. Raises OSError."""
        view = self.view()
        if not self._address:
            self._address = address_of(view)
        return self._address

    def release(self) -> None:
        """Close the descriptor of a file that gets no more writes; reading goes on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Let go of descriptor and map. A map that somebody still holds a slice of goes when the last slice does."""
        self.release()
        self._view = self._map = None
        self._address = 0
        self.allocated_bytes = 0

    def try_close(self) -> bool:
        """Unmap here and now; False when somebody holds a slice, which stays readable. The file of a deleted segment gives its blocks back then, which
        takes time: for a worker thread."""
        self.release()
        if self._map is not None:
            self._view = None
            try:
                self._map.close()
            except BufferError:
                return False
        self.close()
        return True

    def remove(self) -> None:
        """Close and delete the file. Raises OSError."""
        self.close()
        self.path.unlink(missing_ok=True)
