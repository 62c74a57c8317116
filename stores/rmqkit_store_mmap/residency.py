"""Which parts of the log are in memory, and bringing in those that are not.

A consumer far behind reads what the page cache has dropped long ago. A slice of such a part costs nothing to make, but whoever touches it waits for the
device, and that would be the loop, with every sender behind it. `mincore` says beforehand, for a whole stretch by one call and on every file system
(preadv with RWF_NOWAIT needs a descriptor of each old file, and tmpfs, NFS and FUSE do not know it).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence

import trio

from rmqkit.abc import FileRange
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.consume_queue import NotInMemory
from rmqkit_store_mmap.segment import Segment

#: Records that this process wrote and that lie no further behind the end of the log are taken to be in memory without asking.
HOT_BYTES = 256 * 1024 * 1024
#: Slices of one read that lie no further apart are looked at, and brought in, as one stretch.
SPAN_BYTES = 1024 * 1024
#: A whole block of this size that was found in memory is taken to be there for so long: a reader comes back to it many times in that.
BLOCK_BYTES = 1024 * 1024
TRUST_S = 0.1
_MAX_BLOCKS = 4096
#: Read ahead of what was asked for: whoever is far behind wants what follows too.
_AHEAD_BYTES = 2 * 1024 * 1024
#: Threads that may wait for the device on behalf of readers.
_READERS = 4
_CHUNK_BYTES = 256 * 1024
_PAGE_BYTES = mmap.PAGESIZE


def _find_mincore() -> ctypes._NamedFuncPointer | None:
    """The system call, None where there is none. It holds the GIL: it takes some microseconds, and giving the GIL away may cost milliseconds."""
    try:
        function = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function


class Residency:
    """One log's. `hot_from` (physical offset) moves with the end of the log, but never before what this process wrote."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._mincore = _find_mincore()
        self._pages = bytearray()
        self._pages_at = 0
        self._trusted: dict[int, float] = {}
        self._readers = trio.CapacityLimiter(_READERS)

    @property
    def hot_from(self) -> int:
        log = self._log
        return max(log.written_from, log.position - HOT_BYTES)

    def is_resident(self, segment: Segment, start: int, stop: int) -> bool:
        """Whether all pages of [start, stop) (physical offsets of one segment) are in memory. True when the system does not say."""
        if self._mincore is None:
            return True
        first = (start - segment.base) & -_PAGE_BYTES
        count = (stop - segment.base - first + _PAGE_BYTES - 1) // _PAGE_BYTES
        if count > len(self._pages):  # never resized, so that its address stays
            self._pages = bytearray(max(count, 1024))
            self._pages_at = ctypes.addressof((ctypes.c_char * len(self._pages)).from_buffer(self._pages))
        return self._mincore(segment.address + first, count * _PAGE_BYTES, self._pages_at) != 0 or self._pages.find(0, 0, count) < 0

    def look_ahead(self, offset: int, size: int) -> int:
        """Up to which offset the log is in memory from a record on that is about to be touched. Raises NotInMemory, naming some of what follows too."""
        segment = self._log.segment_at(offset)
        if segment is None or offset >= self.hot_from:
            return offset + size
        stop = min(max(offset + size, offset + SPAN_BYTES), segment.stop, self._log.position)
        if not self.is_resident(segment, offset, stop):
            raise NotInMemory(FileRange(segment.path, offset - segment.base, stop - segment.base))
        return stop

    def cold(self, found: Sequence[tuple[int, int]]) -> list[FileRange]:
        """What is not in memory of records given as (physical offset, size), in ascending order; at least one."""
        ranges: list[FileRange] = []
        last, last_size = found[-1]
        if self._is_trusted(found[0][0], last + last_size):
            return ranges
        start = stop = -1
        segment: Segment | None = None
        for offset, size in found:
            if segment is None or offset >= segment.stop or offset + size - start > SPAN_BYTES:
                self._look(segment, start, stop, ranges)
                segment, start = self._log.segment_at(offset), offset
            stop = offset + size
        self._look(segment, start, stop, ranges)
        return ranges

    def _is_trusted(self, start: int, stop: int) -> bool:
        """Whether the blocks around a stretch are in memory, or were a moment ago."""
        segment = self._log.segment_at(start)
        if segment is None or stop > segment.stop or stop - start > 4 * BLOCK_BYTES:
            return False
        now, trusted = trio.current_time(), self._trusted
        at = start - (start - segment.base) % BLOCK_BYTES
        while at < stop:
            if trusted.get(at, now) <= now:
                if not self.is_resident(segment, at, min(at + BLOCK_BYTES, segment.stop, self._log.position)):
                    return False
                if len(trusted) >= _MAX_BLOCKS:
                    trusted.clear()
                trusted[at] = now + TRUST_S
            at += BLOCK_BYTES
        return True

    def _look(self, segment: Segment | None, start: int, stop: int, ranges: list[FileRange]) -> None:
        if segment is not None and not self.is_resident(segment, start, stop):
            ranges.append(FileRange(segment.path, start - segment.base, stop - segment.base))

    async def fetch(self, ranges: Sequence[FileRange]) -> None:
        """Read ranges in worker threads of their own limit. Cancelled: the thread finishes by itself."""
        await trio.to_thread.run_sync(_fetch, ranges, limiter=self._readers, abandon_on_cancel=True)


def _fetch(ranges: Sequence[FileRange]) -> None:
    """Errors are left to who touches the data: a file that is gone, a device that fails."""
    buffer = bytearray(_CHUNK_BYTES)
    for path, start, stop in ranges:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, start, stop - start + _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
                for at in range(start, stop, _CHUNK_BYTES):
                    os.preadv(fd, [memoryview(buffer)[: min(_CHUNK_BYTES, stop - at)]], at)
            finally:
                os.close(fd)
