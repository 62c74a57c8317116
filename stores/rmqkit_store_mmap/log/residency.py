"""Which parts of the log are in memory, and fetching of other parts.

A backlog reader reads parts that are no longer in the page cache. A slice of such a part is free, but
touching it waits for the device, which would block the event loop and every sender. `mincore` tells
beforehand, for a whole range with one call and on every file system (preadv with RWF_NOWAIT needs a
descriptor for each old file, and tmpfs, NFS and FUSE do not support it).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.plugin.store import NotInMemory
from rmqkit_store_mmap.cold import FileRange, bring_in
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.mincore import PAGES
from rmqkit_store_mmap.log.segment import Segment

#: Records that this process wrote within this distance from the end of the log are assumed to be in memory.
HOT_BYTES = 256 * 1024 * 1024
#: Slices of one read that are closer than this are checked and fetched as one range.
SPAN_BYTES = 1024 * 1024
#: A block of this size found in memory is assumed to stay there for some time, in which a reader returns to
#: it often.
BLOCK_BYTES = 1024 * 1024
TRUST_S = 0.1
_MAX_BLOCKS = 4096
#: Amount read ahead, because a backlog reader needs the following data as well.
_AHEAD_BYTES = 2 * 1024 * 1024
#: The same for reads of the log from end to end, as a slave that catches up needs them.
_LOG_AHEAD_BYTES = 8 * 1024 * 1024
#: Maximum number of threads that wait for the device on behalf of readers.
_READERS = 4


class Residency:
    """The residency of one log. `hot_from` (physical offset) is at a fixed distance from the end of the log,
    but never before the data written by this process."""

    def __init__(self, log: CommitLog, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._trusted: dict[int, float] = {}
        self._readers = trio.CapacityLimiter(_READERS)

    @property
    def hot_from(self) -> int:
        log = self._log
        return max(log.written_from, log.position - HOT_BYTES)

    def is_resident(self, segment: Segment, start: int, stop: int) -> bool:
        """Whether all pages of [start, stop) (physical offsets of one segment) are in memory. True when
        the system does not report it, and while reads may block."""
        if self._disk.reads_block:
            return True
        return PAGES.are_resident(segment.address, start - segment.base, stop - segment.base)

    def require(self, offset: int, size: int, likely_bytes: int = 0, *, goes_on: bool = False) -> int:
        """The offset up to which the log is in memory from `offset` on: at least `size` bytes, or up to the
        end of the segment. Raises NotInMemory with a range of at least `likely_bytes`, for callers that will
        need more than `size` next. `goes_on`: the caller reads the log from end to end, and the device is
        asked for what follows as well."""
        if offset >= self.hot_from:
            return self._log.position
        segment = self._log.segment_at(offset)
        if segment is None:
            return offset
        end = min(segment.stop, self._log.written)
        stop = min(offset + size, end)
        if not self.is_resident(segment, offset, stop):
            raise NotInMemory(
                FileRange(
                    segment.path,
                    offset - segment.base,
                    max(stop, min(offset + likely_bytes, end)) - segment.base,
                    _LOG_AHEAD_BYTES if goes_on else 0,
                )
            )
        return stop

    def cold(self, found: Sequence[tuple[int, int]]) -> list[FileRange]:
        """The ranges that are not in memory, of at least one record. Records are given as (physical offset,
        size) in ascending order."""
        ranges: list[FileRange] = []
        last, last_size = found[-1]
        if self._disk.reads_block or self._is_trusted(found[0][0], last + last_size):
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
        """Whether the blocks around a range are in memory, or were recently."""
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
        """Fetch pieces in worker threads with a separate limit. When cancelled, the thread continues to its
        end."""
        await trio.to_thread.run_sync(bring_in, pieces, limiter=self._readers, abandon_on_cancel=True)
