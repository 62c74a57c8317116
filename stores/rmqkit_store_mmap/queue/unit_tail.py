"""Where the units of a queue file end.

`pure_tail` is the reference of the compiled function in `_unit_tail`, which runs in its place where the
compiled part is in use.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left

from rmqkit.speedups import IN_USE
from rmqkit_store_mmap.queue.units import UNIT, UNIT_BYTES

#: Log offset that no record reaches.
NEVER = (1 << 63) - 1
#: Units that are read together, once bisection has come this close.
_READ_UNITS = 1024

#: Number of the units, the first and the last one (empty without units), and whether only zeros follow them.
Tail = tuple[int, bytes, bytes, bool]


def pure_tail(path: str, file_bytes: int, log_end: int) -> Tail:
    """The units at the beginning of a queue file: those before the first one without a size or with a record
    that begins at `log_end` or behind it. Found by bisection, and without read-ahead: pages of allocated
    blocks that were never written would count as data afterwards. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        low, high = 0, -(-os.lseek(fd, 0, os.SEEK_HOLE) // UNIT_BYTES)
        while high - low > _READ_UNITS:
            middle = (low + high) // 2
            if _is_end(os.pread(fd, UNIT_BYTES, middle * UNIT_BYTES), 0, log_end):
                high = middle
            else:
                low = middle + 1
        start = max(low - 1, 0)
        data = os.pread(fd, min(high * UNIT_BYTES, file_bytes) - start * UNIT_BYTES, start * UNIT_BYTES)
        count = bisect_left(range(len(data) // UNIT_BYTES), True, key=lambda at: _is_end(data, at, log_end))
        behind = data[count * UNIT_BYTES :]
        is_clean = behind == bytes(len(behind)) and not _has_data(fd, start * UNIT_BYTES + len(data))
        count += start
        if not count:
            return 0, b"", b"", is_clean
        first, last = (
            os.pread(fd, UNIT_BYTES, at * UNIT_BYTES)
            if at < start
            else data[(at - start) * UNIT_BYTES : (at - start + 1) * UNIT_BYTES]
            for at in (0, count - 1)
        )
        return count, first, last, is_clean
    finally:
        os.close(fd)


def _is_end(data: bytes, number: int, log_end: int) -> bool:
    physical_offset, size_bytes, _ = UNIT.unpack_from(data, number * UNIT_BYTES)
    return bool(physical_offset < 0 or size_bytes <= 0 or physical_offset >= log_end)


def _has_data(fd: int, start: int) -> bool:
    """Whether a file has data, not only holes, from byte `start` on. Raises OSError."""
    try:
        os.lseek(fd, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


if IN_USE:
    from rmqkit_store_mmap.queue import _unit_tail

tail = _unit_tail.tail if IN_USE else pure_tail
