"""One file of the commit log (Java: MappedFile)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from rmqkit_store_mmap.log.disk import Disk, create_file
from rmqkit_store_mmap.log.mincore import address_of


def offset_name(offset: int) -> str:
    """File name of the log or a queue: the start offset in bytes, 20 digits."""
    return f"{offset:020d}"


class Segment:
    """`size_bytes` of the log from `base` on. Written through a descriptor, read through a mapping that
    is created on first use.

    Blocks for the bytes up to `allocated_bytes` of the file were allocated by this process.
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
        """The descriptor; the file is created if it does not exist. Raises OSError."""
        if self._fd < 0:
            self._fd = create_file(self.path, self.size_bytes)
        return self._fd

    def allocate(self, disk: Disk, start: int, step_bytes: int) -> None:
        """Allocate blocks for the next step after byte `start` of the file. Raises OSError, after which
        nothing has changed."""
        length = min(step_bytes, self.size_bytes - start)
        disk.allocate(self.open(), start, length)
        self.allocated_bytes = max(self.allocated_bytes, start + length)

    def view(self) -> memoryview:
        """The whole file, read-only. Slices remain valid after the segment is closed. Raises OSError."""
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
        """The address of `view`. Raises OSError."""
        view = self.view()
        if not self._address:
            self._address = address_of(view)
        return self._address

    def cut(self, disk: Disk, at: int) -> None:
        """Turn everything from byte `at` on into a hole. Raises OSError."""
        disk.punch(self.open(), at, self.size_bytes)
        self.allocated_bytes = min(self.allocated_bytes, at)

    def release(self) -> None:
        """Close the descriptor of a file that will not be written any more; it can still be read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Release descriptor and mapping. A mapping with existing slices is unmapped with the last slice."""
        self.release()
        self._view = self._map = None
        self._address = 0
        self.allocated_bytes = 0

    def try_close(self) -> bool:
        """Unmap immediately; returns False if there are slices, which remain readable. This frees the blocks
        of a deleted file, which takes time, so it is for a worker thread."""
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
