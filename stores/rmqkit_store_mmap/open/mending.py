"""Damage in the middle of the log: finds the next good record, and repairs the damaged range before it so
that readers can skip it.

A bad record is the torn end of the log only when no good record follows it. A record contains its own log
offset, so a record found after damage with correct magic, lengths and body CRC belongs at that place.

The damaged range is overwritten as little as possible, so that every reader of the log (this store, a Java
broker, `rmqkit store verify`) skips it:

    lengths correct, body CRC wrong           the record remains, with flag `DAMG`, rolled back, and the CRC
    of                                           the present body (12 bytes change)
    anything else, good records follow        rolled-back records without a queue (topic `%`, flag `DAMG`):
                                              the first 88 and last 4 bytes of each change
    anything else, up to the end of the file  the same, and a blank record of 8 bytes; or a blank record alone
                                              where both do not fit

A rolled-back record is added to neither queues nor index (store-format sheet, section 5.7; Java:
DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from zlib import crc32

from attrs import define

from rmqkit.model.sysflag import TRANSACTION_ROLLBACK
from rmqkit.protocol.damage import DAMAGE_FLAG, LEAST_FILLER_BYTES, filler
from rmqkit.protocol.record import BLANK, BLANK_BYTES, CRC_MASK, MAGIC_BLANK
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.scan import body_of, check_record, may_be_torn
from rmqkit_store_mmap.log.segment import Segment

_log = logging.getLogger(__name__)

#: Longer ranges are filled with several records.
FILLER_BYTES = 1024 * 1024
#: Maximum number of damaged ranges that are logged separately; the rest are summarised.
MAX_LINES = 20

_HEAD_BYTES = 88
_TAIL_BYTES = LEAST_FILLER_BYTES - _HEAD_BYTES
_MAGIC = b"\xda\xa3\x20"
_MAGIC_AT = 4
_READ_BYTES = 1024 * 1024
_CRC_AND_QUEUE_AT, _FLAG_AT, _SYS_FLAG_AT = 8, 16, 36
_I32 = Struct(">i")


@define
class DamagedRange:
    """A repaired range of the log. `good_before` and `good_behind` count the good records of the scan before
    and after it."""

    start: int
    stop: int
    good_before: int
    good_behind: int = 0


def good_record(view: memoryview, base: int, at: int, check_body: bool = True) -> int:
    """The size of a sound record at byte `at` of a segment that begins at `base`, else what `check_record`
    gives. With `check_body`, a record that may be torn is bad unless another record follows it."""
    size = check_record(view, at, base + at, check_body)
    if (
        size > 0
        and check_body
        and may_be_torn(view, at)
        and check_record(view, at + size, base + at + size) < 0
    ):
        return -1
    return size


def damage_end(log: CommitLog, at: int, limit: int, belongs: Callable[[memoryview, int], bool]) -> int | None:
    """Log offset at which the damage at `at` ends: the first good record before `limit` that `belongs`
    accepts, or an earlier record with correct lengths only, which is treated as separate damage. None when no
    good record follows.

    Reads the allocated blocks of the rest of the log once. Raises OSError.
    """
    segment = log.segment_at(at)
    size = 0 if segment is None else check_record(segment.view(), at - segment.base, at, check_body=False)
    start = at + (size if size > 0 else LEAST_FILLER_BYTES)
    measured: list[tuple[int, int]] = []
    while segment is not None and segment.base < limit:
        view = segment.view()
        for place in _places(segment, max(start - segment.base, 0)):
            offset = segment.base + place
            if offset >= limit:
                return None
            size = check_record(view, place, offset, check_body=False)
            if size <= 0 or not belongs(view, place):
                continue
            if good_record(view, segment.base, place) > 0:
                return next((begin for begin, end in measured if end <= offset), offset)
            measured.append((offset, offset + size))
        segment = log.segments.get(segment.stop)
    return None


def _places(segment: Segment, start: int) -> Iterator[int]:
    """The positions in a segment, from byte `start` on, where the magic of a record is. Skips holes."""
    fd, at = segment.open(), start
    while at < segment.size_bytes:
        try:
            at = max(at, os.lseek(fd, at, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        stop = os.lseek(fd, at, os.SEEK_HOLE)
        while at < stop:
            data = os.pread(fd, min(_READ_BYTES + _MAGIC_AT + len(_MAGIC), segment.size_bytes - at), at)
            found = data.find(_MAGIC, _MAGIC_AT)
            while 0 <= found < _READ_BYTES + _MAGIC_AT:
                yield at + found - _MAGIC_AT
                found = data.find(_MAGIC, found + 1)
            at += _READ_BYTES


def mend(log: CommitLog, start: int, good: int, time_ms: int, disk: Disk) -> int:
    """Repair the damage at `start`, within its segment and before the record at `good`. Returns the log
    offset up to which the log is repaired. Raises OSError.

    `time_ms` is the store time of inserted records.
    """
    segment = log.segment_at(start)
    assert segment is not None
    view, at = segment.view(), start - segment.base
    size = check_record(view, at, start, check_body=False)
    if 0 < size <= good - start and not may_be_torn(view, at):
        _roll_back(segment, view, at, disk)
        return start + size
    stop = good
    if good >= segment.stop:
        stop = segment.stop - BLANK_BYTES
        if stop - start < LEAST_FILLER_BYTES:
            stop = start
        disk.write(segment.open(), (BLANK.pack(segment.stop - stop, MAGIC_BLANK),), stop - segment.base)
    fill(segment, start, stop, time_ms, disk, DAMAGE_FLAG)
    return min(good, segment.stop)


def fill(segment: Segment, start: int, stop: int, time_ms: int, disk: Disk, flag: int = 0) -> None:
    """Fill the log offsets [start, stop) of a segment with rolled-back records. Raises OSError."""
    for at, size in _pieces(start, stop):
        _fill(segment, at, size, time_ms, disk, flag)


def _roll_back(segment: Segment, view: memoryview, at: int, disk: Disk) -> None:
    crc = crc32(body_of(view, at)) & CRC_MASK
    sys_flag = _I32.unpack_from(view, at + _SYS_FLAG_AT)[0] | TRANSACTION_ROLLBACK
    queue_id = bytes(view[at + _CRC_AND_QUEUE_AT + 4 : at + _FLAG_AT])
    disk.write(segment.open(), (_I32.pack(crc), queue_id, _I32.pack(DAMAGE_FLAG)), at + _CRC_AND_QUEUE_AT)
    disk.write(segment.open(), (_I32.pack(sys_flag),), at + _SYS_FLAG_AT)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        size = min(stop - start, FILLER_BYTES)
        if 0 < stop - start - size < LEAST_FILLER_BYTES:
            size -= LEAST_FILLER_BYTES
        yield start, size
        start += size


def _fill(segment: Segment, start: int, size: int, time_ms: int, disk: Disk, flag: int) -> None:
    """Write head and tail of a record whose body is the existing bytes, so that holes remain holes."""
    at = start - segment.base
    body = bytes(segment.view()[at + _HEAD_BYTES : at + size - _TAIL_BYTES])
    record = filler(body, start, time_ms, flag)
    disk.write(segment.open(), (record[:_HEAD_BYTES],), at)
    disk.write(segment.open(), (record[-_TAIL_BYTES:],), at + size - _TAIL_BYTES)


def report(log: CommitLog, damages: Sequence[DamagedRange], proven: int) -> None:
    """Log the damaged ranges and what is kept, one line each for the first ranges."""
    for damage in damages[:MAX_LINES]:
        had = ", which had been flushed," if damage.start < proven else ""
        _log.error(
            "the log %s is damaged from offset %d up to %d: %d bytes%s are passed over, the %d records behind"
            " them are kept",
            log.directory,
            damage.start,
            damage.stop,
            damage.stop - damage.start,
            had,
            damage.good_behind,
        )
    rest = damages[MAX_LINES:]
    if rest:
        _log.error(
            "the log %s is damaged at %d more places, %d bytes in all, the last one at offset %d",
            log.directory,
            len(rest),
            sum(damage.stop - damage.start for damage in rest),
            rest[-1].start,
        )
