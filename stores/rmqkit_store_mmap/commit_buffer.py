"""A log whose appends wait in memory until they are written together (store-format sheet, section 6.2; Java: TransientStorePool, CommitRealTimeService).

    append -> [ waiting ] -- commit, in a worker thread --> files, page cache -- flush --> device
              position                                      written               flushed

Nobody may read or be promised what waits: the death of the process takes it. The records of one commit lie side by side, so it makes a few
large writes of many small ones, and the loop goes on meanwhile.

A commit that fails takes nothing back: what waits keeps its offsets and is tried again, whole, and until that succeeds no append is taken. So queues
and log never disagree, a disk that was full needs no restart, and a sender who was refused may find the message stored after all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.errors import StoreBusy, StoreNotWritable
from rmqkit_store_mmap.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.disk import Disk, not_writable
from rmqkit_store_mmap.segment import Segment

_logger = logging.getLogger(__name__)


@define
class _Stretch:
    """Bytes that lie side by side in one segment from log offset `start` on."""

    segment: Segment
    start: int
    parts: list[bytes] = field(factory=list)


class BufferedLog(CommitLog):
    """`written` follows `position` by commits, at most some more than `limit_bytes` behind: who appends then is told StoreBusy.

    `on_written` is called with each new `written`, before those that wait for it go on.
    """

    def __init__(self, directory: Path, segment_bytes: int, disk: Disk, limit_bytes: int, on_written: Callable[[int], None]) -> None:
        super().__init__(directory, segment_bytes, disk)
        self._limit_bytes = limit_bytes
        self._on_written = on_written
        self._waiting: list[_Stretch] = []
        self._waiting_time_ms = 0
        self._committing = trio.Lock()
        self._failure: str | None = None

    def load(self) -> None:
        """As CommitLog.load; what a close could not write is forgotten, for nobody was promised it."""
        self._waiting = []
        if self._failure is not None:
            self._failure = self.refusal = None
        super().load()

    def write(self, chunks: Iterable[Chunk], position: int, time_ms: int) -> None:
        """Keep what one append packed for the next commit, and move the position. Raises nothing."""
        waiting = self._waiting
        for segment, start, parts in chunks:
            if not waiting or waiting[-1].segment is not segment:
                waiting.append(_Stretch(segment, start))
            waiting[-1].parts.append(b"".join(parts))
        self.position = position
        self._waiting_time_ms = time_ms
        if position - self.written >= self._limit_bytes:
            self._look_for_room()
        if position >= self._prepare_at:
            self._want_next()

    def _look_for_room(self) -> None:
        """Set `refusal` by how much waits."""
        waits = self.position - self.written
        full = f"the commit buffer is full: {waits} bytes wait to be written to {self.directory}"
        self.refusal = (StoreBusy, full) if waits >= self._limit_bytes else None

    async def commit(self) -> int:
        """Write everything that waits now (Flushable.commit). Raises StoreNotWritable; it waits on then, for the next commit."""
        async with self._committing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if self._waiting:
                waiting, self._waiting = self._waiting, []
                target, time_ms = self.position, self._waiting_time_ms
                try:
                    opened = [(stretch.segment.open(), stretch) for stretch in waiting]
                    await trio.to_thread.run_sync(self._write_out, opened)
                except BaseException as error:
                    self._waiting[:0] = waiting
                    if isinstance(error, OSError):
                        raise self._failed(error) from error
                    raise
                self._succeeded(target, time_ms)
            return self.written

    def _write_out(self, opened: Sequence[tuple[int, _Stretch]]) -> None:
        for fd, stretch in opened:
            self._disk.write_many(fd, stretch.parts, stretch.start - stretch.segment.base)

    def _succeeded(self, target: int, time_ms: int) -> None:
        if self._failure is not None:
            _logger.warning("the log %s can be written again", self.directory)
            self._failure = None
        self.written, self.last_time_ms = target, time_ms
        if self.fault is None:
            self._look_for_room()
        self._on_written(target)
        self._wake()

    def _failed(self, error: OSError) -> StoreNotWritable:
        refusal = not_writable(f"cannot write the log {self.directory}", error)
        if self._failure is None:
            _logger.error("%s; no message is taken until that succeeds", refusal)
        self._failure = str(refusal)
        if self.fault is None:
            self.refusal = StoreNotWritable, self._failure
        self._wake()
        return refusal

    async def _wait(self, offset: int) -> None:
        if self._failure is not None and offset > self.written:
            raise StoreNotWritable(self._failure)
        await super()._wait(offset)
