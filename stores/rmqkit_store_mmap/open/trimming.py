"""Removes the front of the log with the files of queues and index that refer only to it (store-format sheet,
sections 9.2 and 9.5).

Java: MappedFileQueue.deleteExpiredFileByTime, CleanConsumeQueueService. The newest segment is kept, and so
are records that are not flushed, or whose units are not flushed: the log is never trimmed beyond the mark of
the checkpoint. A deleted file remains readable through existing slices: its name is removed at once, its
blocks are freed with the last slice.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.errors import StoreError
from rmqkit.plugin.store import LogPart, Pins, Trimmed
from rmqkit_store_mmap.index.index_file import IndexFile
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import delete_file
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.open.background import Rounds
from rmqkit_store_mmap.queue.queue_table import QueueTable


class Trimmer:
    """Each call first retries what previous calls left over: segments whose file could not be deleted, and
    segments with existing slices."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: KeyIndex, rounds: Rounds, pins: Pins
    ) -> None:
        self._log = log
        self._rounds = rounds
        self._pins = pins
        self._queues = queues
        self._index = index
        self._undeleted: list[Segment] = []
        self._held: list[Segment] = []
        self._followed = -1
        self._working = trio.Lock()

    def exclusive(self) -> trio.Lock:
        """Prevents trims while it is held."""
        return self._working

    async def parts(self) -> list[LogPart]:
        """MessageStore.log_parts; examines the files in a worker thread. A missing file counts as very
        old."""
        return await trio.to_thread.run_sync(_parts, self._log.removable())

    async def trim(self, before_offset: int) -> Trimmed:
        """MessageStore.trim. Flushes the queues and writes the new start down first, then moves the start of
        the log for readers, then deletes the files."""
        async with self._working:
            end = self._log.removable_end(self._pins.limit(before_offset))
            if end > self._log.min_offset:
                self._undeleted += self._log.detach(await self._rounds.before_removal(end))
            start = self._log.min_offset
            try:
                files = len(self._undeleted)
                taken = await trio.to_thread.run_sync(self._delete_segments)
                if start != self._followed:
                    more_files, more_bytes = await self._queues.trim(start)
                    dead = self._index.detach(start)
                    taken += more_bytes + await trio.to_thread.run_sync(_delete_index, dead)
                    files += more_files + len(dead)
                    self._followed = start
            except OSError as error:
                raise StoreError(
                    f"cannot delete {error.filename or 'files of the store'}: {error.strerror or error}"
                ) from error
            return Trimmed(start, taken, files)

    def _delete_segments(self) -> int:
        """Delete segments in order, so that an error leaves no gap; returns bytes. Raises OSError."""
        taken = 0
        while self._undeleted:
            taken += delete_file(self._undeleted[0].path)
            self._held.append(self._undeleted.pop(0))
        self._held = [segment for segment in self._held if not segment.try_close()]
        return taken


def _parts(segments: Sequence[Segment]) -> list[LogPart]:
    found = []
    for segment in segments:
        try:
            modified_ms = segment.path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            modified_ms = 0
        found.append(LogPart(segment.base, segment.stop, modified_ms))
    return found


def _delete_index(files: Sequence[IndexFile]) -> int:
    taken = 0
    for file in files:
        file.close()
        taken += delete_file(file.path)
    return taken
