"""Copies a log in RocketMQ's format to another store, and another store's log to this format.

Opening the new store builds its queues and index from the log. This format does not allow gaps in the middle
of a file; a gap in the other store's log is filled with rolled-back transactions, which are added to neither
queues nor index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError, DecodeError, StoreCorrupt, StoreError
from rmqkit.plugin.flush import Flushable, FlushPolicy
from rmqkit.plugin.store_tools import LogSource, PutRecords
from rmqkit.protocol.damage import LEAST_FILLER_BYTES, filler
from rmqkit.protocol.record import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    peek_size_and_magic,
    peek_store_timestamp,
    unpack,
)
from rmqkit_store_mmap.log.disk import create_file
from rmqkit_store_mmap.log.segment import offset_name
from rmqkit_store_mmap.open.abort_file import AbortMark
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore

_PIECE_BYTES = 1024 * 1024


@contextmanager
def read_log(root: Path, log_directory: Path | None) -> Iterator[LogSource]:
    """StoreTools.read_log."""
    if AbortMark(root).present():
        raise StoreError(
            f"{root} was not closed cleanly; start a broker on it and stop it, so that it is repaired, then"
            " copy it"
        )
    with StoreReader(root, log_directory) as store:
        log = store.log
        queues = {}
        for topic, queue_ids in store.topics().items():
            for queue_id in queue_ids:
                queue = store.queue(topic, queue_id)
                queues[topic, queue_id] = (queue.min_offset(log.min_offset), queue.end_offset)
        yield LogSource(log.min_offset, log.end_offset(log.min_offset), queues, _pieces(store))


def _pieces(store: StoreReader) -> Iterator[tuple[int, bytes]]:
    end = store.log.end_offset(store.log.min_offset)
    for file in store.log.files:
        view = store.log.view(file)
        if view is None or file.base >= end:
            return
        start = at = 0
        while file.base + at < end and at + BLANK_BYTES <= len(view):
            size, magic = peek_size_and_magic(view, at)
            if magic == MAGIC_BLANK:
                break
            _check(view, at, file.path)
            at += size
            if at - start >= _PIECE_BYTES:
                yield file.base + start, bytes(view[start:at])
                start = at
        if at > start:
            yield file.base + start, bytes(view[start:at])


def _check(view: memoryview, at: int, path: Path) -> None:
    try:
        unpack(view, at)
    except DecodeError as error:
        raise StoreCorrupt(f"{path}: {error}") from error


class _NeverFlush(FlushPolicy):
    """Never flushes: the store is only opened and closed, and closing it flushes everything."""

    async def run(self, log: Flushable, wanted: object, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()


class _Clock:
    def now_ms(self) -> int:
        return 0


@contextmanager
def write_log(config: Config, source: LogSource) -> Iterator[PutRecords]:
    """StoreTools.write_log."""
    store = MmapStore(config, _Clock(), _NeverFlush())
    writer = _LogWriter(config, source.start)
    try:
        yield writer.put
        writer.finish(source.end)
    finally:
        writer.close()
    trio.run(_open_and_close, store)


async def _open_and_close(store: MmapStore) -> None:
    await store.open()
    await store.close()


class _LogWriter:
    """Writes files of the log. The log from the start of the first file up to `_at` has been written."""

    def __init__(self, config: Config, start: int) -> None:
        self._directory = config.commit_log_path
        self._file_bytes = config.mapped_file_size_commit_log
        self._at = start - start % self._file_bytes
        self._base = -1
        self._fd = -1
        self._time_ms = 0
        self._directory.mkdir(parents=True, exist_ok=True)

    def put(self, offset: int, records: bytes) -> None:
        """Write records at a log offset. Raises ConfigError when a record would span two files."""
        at = 0
        run = 0
        while at < len(records):
            size, _ = peek_size_and_magic(records, at)
            place = offset + at
            room = self._file_bytes - place % self._file_bytes
            if size + BLANK_BYTES > room:
                raise ConfigError(
                    f"the record at log offset {place} lies across the end of a file of {self._file_bytes}"
                    " bytes: set mappedFileSizeCommitLog to what the store was made with"
                )
            if place != self._at or place % self._file_bytes == 0:
                self._write(offset + run, records[run:at])
                run = at
                self._fill(place)
            at += size
            self._at = place + size
            self._time_ms = peek_store_timestamp(records, at - size)
        self._write(offset + run, records[run:])

    def _write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        base = offset - offset % self._file_bytes
        if base != self._base:
            self.close()
            self._fd = create_file(self._directory / offset_name(base), self._file_bytes)
            self._base = base
        os.pwrite(self._fd, data, offset - base)

    def _fill(self, until: int) -> None:
        """Fill the gap up to an offset: ends of files with blank records, the rest with rolled-back
        records."""
        while self._at < until:
            file_end = self._at - self._at % self._file_bytes + self._file_bytes
            if until >= file_end:
                self._write(self._at, BLANK.pack(file_end - self._at, MAGIC_BLANK))
                self._at = file_end
            else:
                size = min(until - self._at, _PIECE_BYTES)
                if 0 < until - self._at - size < LEAST_FILLER_BYTES:
                    size -= LEAST_FILLER_BYTES
                self._write(self._at, self._filler(size))
                self._at += size

    def _filler(self, size_bytes: int) -> bytes:
        body_bytes = size_bytes - LEAST_FILLER_BYTES
        if body_bytes < 0:
            raise StoreError(
                f"a gap of {size_bytes} bytes before log offset {self._at + size_bytes} cannot be filled"
            )
        return filler(bytes(body_bytes), self._at, self._time_ms)

    def finish(self, end: int) -> None:
        """Let the log end at `end`. Raises OSError."""
        self._fill(end)

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
        self._fd = self._base = -1
