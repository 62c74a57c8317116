"""The file `checkpoint` (store-format sheet, section 5.1; Java: StoreCheckpoint).

at   size  field
  0     8  time of the last record known to be on the device, ms
  8     8  time of the last consume-queue unit known to be on the device, ms
 16     8  end time of the newest full index file, ms
 24     8  offset a master has flushed (replication; kept as found)
 32     8  confirmed log offset; here: everything before it has been dispatched
 40     8  `rmqkit01`: the mark follows; Java has zeros from here on, and neither reads nor changes them
 48     8  log offset: the log before it is on the device
 56     8  log offset: the units of all records before it are on the device
 64     8  queues that had units then
 72     8  sum of the offsets at which they ended
 80     8  sum of the offsets at which their files began
 88     8  log offset: the keys of all records before it are in the index files on the device, -1 = not known
 96     8  name of the newest index file, as a number, 0 = no file
104    40  header of that file as of then
144     8  index files there were then
152     4  CRC-32 of bytes 0 to 151
156     8  log offset: the log begins there, or has been removed up to there
164     4  CRC-32 of bytes 0 to 163
168        zeros up to 4096

The CRCs cover Java's fields too: once Java has written the file, the mark and the start of the log are
invalid. Without a mark bytes 40 to 155 are zeros. Everything lies in one sector of 512 bytes, so a torn write
leaves the old content or the new.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from attrs import define, frozen

from rmqkit_store_mmap.log.disk import Disk

CHECKPOINT_BYTES = 4096
_LAYOUT = Struct(">qqqqq")
_MARK = Struct(">8sqqqqqqq40sq")
_CRC = Struct(">I")
_MAGIC = b"rmqkit01"
_CRC_AT = _LAYOUT.size + _MARK.size
_LOG_START = Struct(">q")
_LOG_START_AT = _CRC_AT + _CRC.size
_LOG_START_CRC_AT = _LOG_START_AT + _LOG_START.size
#: Java's margin: recorded times precede the flush that they describe a little.
_MARGIN_MS = 3_000


class QueueMark(NamedTuple):
    """All units of records before log `offset` are on the device; `next_sum` is the sum of the queues' end
    offsets, and `first_sum` the sum of the offsets at which their first files began. Queues without units are
    not counted."""

    offset: int
    queues: int
    next_sum: int
    first_sum: int


class IndexMark(NamedTuple):
    """All keys of records before log `offset` are on the device, in `files` index files. The newest file is
    called `name` (0 = no file) and had this `header`."""

    offset: int
    name: int
    header: bytes
    files: int

    @property
    def entries(self) -> int:
        """Number of the next entry of the newest file; 0 or 1 when it has no entries."""
        return int.from_bytes(self.header[-4:], "big")


@frozen
class Mark:
    """What is known to be on the device: the records before log offset `log_flushed`, and what the marks of
    queues and index say, whose offsets may be smaller or larger."""

    log_flushed: int
    queues: QueueMark
    index: IndexMark | None


@define
class Checkpoint:
    """The parts of log, queues and index that are on the device. A missing or short file is read as zeros,
    which causes a full scan.

    `mark` is for the next `write`; `on_device` is the mark that was written last. `log_start` is the
    log offset up to which the front of the log may be missing; None when nothing is known of it.
    """

    path: Path
    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    mark: Mark | None = None
    on_device: Mark | None = None
    log_start: int | None = None

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        loaded = cls(path, *_LAYOUT.unpack_from(data.ljust(_LAYOUT.size, b"\0")))
        loaded.mark = loaded.on_device = _unpack_mark(data)
        loaded.log_start = _unpack_log_start(data)
        return loaded

    def write(self, disk: Disk) -> None:
        """Write and flush the file. Raises OSError; the file may then contain a mixture of old and new
        content, with which a recovery can still scan the log."""
        content = _LAYOUT.pack(
            self.log_time_ms,
            self.queue_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        mark = self.mark
        if mark is not None:
            content += _pack_mark(mark)
            content += _CRC.pack(crc32(content))
        if self.log_start is not None:
            content = content.ljust(_LOG_START_AT, b"\0") + _LOG_START.pack(self.log_start)
            content += _CRC.pack(crc32(content))
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            disk.write(fd, (content.ljust(CHECKPOINT_BYTES, b"\0"),), 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        self.on_device = mark

    @property
    def safe_time_ms(self) -> int:
        """Records stored up to this time, in ms, are on the device, and so are their units."""
        return max(0, min(self.log_time_ms, self.queue_time_ms) - _MARGIN_MS)


def _pack_mark(mark: Mark) -> bytes:
    index = mark.index or IndexMark(-1, 0, b"", 0)
    return _MARK.pack(_MAGIC, mark.log_flushed, *mark.queues, *index)


def _unpack_mark(data: bytes) -> Mark | None:
    if len(data) < _CRC_AT + _CRC.size:
        return None
    magic, log_flushed, offset, queues, next_sum, first_sum, *index = _MARK.unpack_from(data, _LAYOUT.size)
    if magic != _MAGIC or _CRC.unpack_from(data, _CRC_AT)[0] != crc32(data[:_CRC_AT]):
        return None
    return Mark(
        log_flushed,
        QueueMark(offset, queues, next_sum, first_sum),
        IndexMark(*index) if index[0] >= 0 else None,
    )


def _unpack_log_start(data: bytes) -> int | None:
    if len(data) < _LOG_START_CRC_AT + _CRC.size:
        return None
    if _CRC.unpack_from(data, _LOG_START_CRC_AT)[0] != crc32(data[:_LOG_START_CRC_AT]):
        return None
    start: int = _LOG_START.unpack_from(data, _LOG_START_AT)[0]
    return start
