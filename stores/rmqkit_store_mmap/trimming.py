"""Removing the front of the log, and what of queues and index is about it alone (store-format sheet, sections 9.2 and 9.5).

Java: MappedFileQueue.deleteExpiredFileByTime, CleanConsumeQueueService. The newest segment stays, and so does what the device does not have yet, or
whose units it does not have: the log is never trimmed behind the mark of the checkpoint.
A deleted file stays readable through the slices that were made of it: its name goes at once, its blocks when the last slice has gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.abc import LogPart, Trimmed
from rmqkit.errors import StoreError
from rmqkit_store_mmap.background import Rounds
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.disk import delete_file
from rmqkit_store_mmap.index_file import IndexFile
from rmqkit_store_mmap.key_index import KeyIndex
from rmqkit_store_mmap.queue_table import QueueTable
from rmqkit_store_mmap.segment import Segment


class Trimmer:
    """What was left over from one call is tried first at the next: segments whose file could not be deleted, and those somebody holds a slice of."""

    def __init__(self, log: CommitLog, queues: QueueTable, index: KeyIndex, rounds: Rounds) -> None:
        self._log = log
        self._rounds = rounds
        self._queues = queues
        self._index = index
        self._undeleted: list[Segment] = []
        self._held: list[Segment] = []
        self._followed = -1
        self._working = trio.Lock()

    async def parts(self) -> list[LogPart]:
        """MessageStore.log_parts; looks at the files in a worker thread. A file that somebody deleted counts as very old."""
        return await trio.to_thread.run_sync(_parts, self._log.removable())

    async def trim(self, before_offset: int) -> Trimmed:
        """MessageStore.trim. First the device gets to know the queues as they are, then readers are told that the front is gone, then it goes."""
        async with self._working:
            end = self._log.removable_end(before_offset)
            if end > self._log.min_offset:
                self._undeleted += self._log.detach(min(end, await self._rounds.cover(end)))
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
                raise StoreError(f"cannot delete {error.filename or 'files of the store'}: {error.strerror or error}") from error
            return Trimmed(start, taken, files)

    def _delete_segments(self) -> int:
        """In order, so that what an error leaves has no gap. Raises OSError."""
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
