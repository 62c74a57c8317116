"""Which parts of the log are in memory, and bringing in those that are not.

A consumer far behind reads what the page cache has dropped long ago. A slice of such a part costs nothing to make, but whoever touches it waits for the
device, and that would be the loop, with every sender behind it. `mincore` says beforehand, for a whole stretch by one call and on every file system
(preadv with RWF_NOWAIT needs a descriptor of each old file, and tmpfs, NFS and FUSE do not know it).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.abc import NotInMemory
from rmqkit_store_mmap.cold import FileRange, bring_in
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.mincore import PAGES
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


class Residency:
    """One log's. `hot_from` (physical offset) moves with the end of the log, but never before what this process wrote."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._trusted: dict[int, float] = {}
        self._readers = trio.CapacityLimiter(_READERS)

    @property
    def hot_from(self) -> int:
        log = self._log
        return max(log.written_from, log.position - HOT_BYTES)

    def is_resident(self, segment: Segment, start: int, stop: int) -> bool:
        """Whether all pages of [start, stop) (physical offsets of one segment) are in memory. True when the system does not say."""
        return PAGES.are_resident(segment.address, start - segment.base, stop - segment.base)

    def look_ahead(self, offset: int, size: int) -> int:
        """Up to which offset the log is in memory from a record on that is about to be touched. Raises NotInMemory, naming some of what follows too."""
        segment = self._log.segment_at(offset)
        if segment is None or offset >= self.hot_from:
            return offset + size
        stop = min(max(offset + size, offset + SPAN_BYTES), segment.stop, self._log.written)
        if not self.is_resident(segment, offset, stop):
            raise NotInMemory(FileRange(segment.path, offset - segment.base, stop - segment.base, _AHEAD_BYTES))
        return stop

    def require(self, offset: int, size: int, likely_bytes: int = 0) -> int:
        """Up to which offset the log is in memory from `offset` on: at least `size` bytes, or as many as the segment has. Raises NotInMemory; if more than
        that will be asked for next, it names `likely_bytes` from `offset` on."""
        if offset >= self.hot_from:
            return self._log.position
        segment = self._log.segment_at(offset)
        if segment is None:
            return offset
        end = min(segment.stop, self._log.written)
        stop = min(offset + size, end)
        if not self.is_resident(segment, offset, stop):
            raise NotInMemory(FileRange(segment.path, offset - segment.base, max(stop, min(offset + likely_bytes, end)) - segment.base))
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
                if not self.is_resident(segment, at, min(at + BLOCK_BYTES, segment.stop, self._log.written)):
                    return False
                if len(trusted) >= _MAX_BLOCKS:
                    trusted.clear()
                trusted[at] = now + TRUST_S
            at += BLOCK_BYTES
        return True

    def _look(self, segment: Segment | None, start: int, stop: int, ranges: list[FileRange]) -> None:
        if segment is not None and not self.is_resident(segment, start, stop):
            ranges.append(FileRange(segment.path, start - segment.base, stop - segment.base, _AHEAD_BYTES))

    async def fetch(self, pieces: Sequence[object]) -> None:
        """Bring in pieces in worker threads of their own limit. Cancelled: the thread finishes by itself."""
        await trio.to_thread.run_sync(bring_in, pieces, limiter=self._readers, abandon_on_cancel=True)
