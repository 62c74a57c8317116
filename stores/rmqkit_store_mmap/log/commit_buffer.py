"""A log whose appends wait in memory until they are written together (store-format sheet, section 6.2; Java:
TransientStorePool, CommitRealTimeService).

    append -> [ waiting ] -- commit, in a worker thread --> files, page cache -- flush --> device
              position                                      written               flushed

Waiting records are lost with the process, so they are neither readable nor acknowledged. The records of one
commit are contiguous, so it turns many small writes into a few large ones, while the event loop continues.

A failed commit reverts nothing: waiting records keep their offsets and are written by a later attempt, until
which appends are refused. So queues and log always agree, a full disk requires no restart, and a refused
message may still be stored.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.errors import StoreBusy, StoreNotWritable
from rmqkit_store_mmap.log.commit_log import Chunk, CommitLog
from rmqkit_store_mmap.log.disk import Disk, not_writable
from rmqkit_store_mmap.log.segment import Segment

_logger = logging.getLogger(__name__)


@define
class _Stretch:
    """Contiguous bytes in one segment from log offset `start` on."""

    segment: Segment
    start: int
    parts: list[bytes] = field(factory=list)


class BufferedLog(CommitLog):
    """`written` follows `position` by commits, with a distance of about `limit_bytes` at most, beyond which
    appends raise StoreBusy."""

    def __init__(self, directory: Path, segment_bytes: int, disk: Disk, limit_bytes: int) -> None:
        super().__init__(directory, segment_bytes, disk)
        self._limit_bytes = limit_bytes
        self._waiting: list[_Stretch] = []
        self._waiting_time_ms = 0
        self._committing = trio.Lock()
        self._failure: str | None = None

    def load(self) -> None:
        """Read the log (`CommitLog.load`). Drops data that a previous close could not write; it was never
        acknowledged."""
        self._waiting = []
        if self._failure is not None:
            self._failure = self.refusal = None
        super().load()

    def write(self, chunks: Sequence[Chunk], position: int, time_ms: int) -> None:
        """Keep the records of one append for the next commit, and advance the position. Raises nothing."""
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

    def cut(self, position: int) -> list[Segment]:
        waiting, self._waiting = self._waiting, []
        for stretch in waiting:
            data = b"".join(stretch.parts)[: max(0, position - stretch.start)]
            if data:
                self._waiting.append(_Stretch(stretch.segment, stretch.start, [data]))
        return super().cut(position)

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._committing, super().exclusive():
            yield

    def _look_for_room(self) -> None:
        """Set `refusal` according to the amount of waiting data."""
        waits = self.position - self.written
        full = f"the commit buffer is full: {waits} bytes wait to be written to {self.directory}"
        self.refusal = (StoreBusy, full) if waits >= self._limit_bytes else None

    async def commit(self) -> int:
        """Write all data waiting now (Flushable.commit). Raises StoreNotWritable, after which the data waits
        for the next commit."""
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
