"""The file `checkpoint` (store-format sheet, section 5.1; Java: StoreCheckpoint).

at  size  field
 0     8  time of the last record known to be on the device, ms
 8     8  time of the last consume-queue unit known to be on the device, ms
16     8  end time of the newest full index file, ms
24     8  offset a master has flushed (replication; kept as found)
32     8  confirmed log offset; here: everything before it has been dispatched
40        zeros up to 4096
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from attrs import define

from rmqkit_store_mmap.disk import Disk

CHECKPOINT_BYTES = 4096
_LAYOUT = Struct(">qqqqq")
#: Java's margin: times are taken a little before the flush they describe.
_MARGIN_MS = 3_000


@define
class Checkpoint:
    """How far log, queues and index have come onto the device. A missing or short file reads as zeros, which means a full scan."""

    path: Path
    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        return cls(path, *_LAYOUT.unpack_from(data.ljust(_LAYOUT.size, b"\0")))

    def write(self, disk: Disk) -> None:
        """Write and flush the file. Raises OSError; the old content may then be half replaced, which a scan after a crash survives."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            content = _LAYOUT.pack(
                self.log_time_ms, self.queue_time_ms, self.index_time_ms, self.master_flushed_offset, self.confirmed_offset
            )
            disk.write(fd, (content.ljust(CHECKPOINT_BYTES, b"\0"),), 0)
            disk.sync(fd)
        finally:
            os.close(fd)

    @property
    def safe_time_ms(self) -> int:
        """Records stored up to then are surely on the device, in log and queues."""
        return max(0, min(self.log_time_ms, self.queue_time_ms) - _MARGIN_MS)
