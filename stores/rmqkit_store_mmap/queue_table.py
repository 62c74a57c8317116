"""All consume queues of a store directory (Java: ConsumeQueueStore)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from rmqkit.errors import MessageIllegal
from rmqkit.model.names import topic_fault
from rmqkit_store_mmap.checkpoint import Mark, QueueMark
from rmqkit_store_mmap.commit_log import FileMissing
from rmqkit_store_mmap.consume_queue import ConsumeQueue, MappedFiles
from rmqkit_store_mmap.disk import Disk, delete_file
from rmqkit_store_mmap.queue_trim import QueueFiles, dead_files, first_kept
from rmqkit_store_mmap.units import UNIT_BYTES

#: A queue is flushed in passing once it has this many bytes to flush (Java: flushConsumeQueueLeastPages, 2 pages).
_LEAST_BYTES = 2 * 4096
MAX_QUEUE_ID = 0x7FFFFFFF
#: Queues that are trimmed with one visit to a worker thread.
_TRIM_BATCH = 256


class QueueTable:
    """`by_key` maps (topic, queue id) to the queue. Files are `consumequeue/TOPIC/QUEUEID/`.

    `doubtful` is set for good once the device failed to flush units: the next start then has to make sure of them. `mark` says what is surely on
    the device. `lost` is set by `load`: the directory was not there, or the queues in `broken` lack a file. `flush_soon` asks for a flush of everything.
    """

    def __init__(self, directory: Path, file_bytes: int, disk: Disk) -> None:
        self.directory = directory
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.doubtful = False
        self.mark: QueueMark | None = None
        self.lost = False
        self.broken: list[ConsumeQueue] = []
        self.flush_soon = trio.Event()
        self._file_bytes = -(-file_bytes // UNIT_BYTES) * UNIT_BYTES
        self._disk = disk
        self._mapped = MappedFiles()

    def load(self, crashed: bool, flushed_to: int | None = None) -> None:
        """Find all queues and their ends (ConsumeQueue.load). Names that are no queue number are passed over, as Java does. Raises StoreCorrupt, OSError."""
        self.by_key, self.broken = {}, []
        self.lost = not self.directory.is_dir()
        if self.lost:
            return
        for topic in _directories(self.directory):
            for name in _directories(self.directory / topic):
                if name.isascii() and name.isdigit():
                    queue = self._new(topic, int(name))
                    try:
                        queue.load(crashed, flushed_to)
                    except FileMissing:
                        self.broken.append(queue)
                        self.lost = True

    def known(self, mark: Mark | None) -> Mark | None:
        """The checkpoint's mark, as far as it holds for what was loaded."""
        return mark

    def make_directory(self) -> None:
        """Raises OSError."""
        self.directory.mkdir(exist_ok=True)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.by_key.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when there is none. Raises MessageIllegal for a name or number that cannot be one; nothing is written yet."""
        queue = self.by_key.get((topic, queue_id))
        if queue is not None:
            return queue
        fault = topic_fault(topic)
        if fault is None and not 0 <= queue_id <= MAX_QUEUE_ID:
            fault = f"the queue id {queue_id} is out of range"
        if fault is not None:
            raise MessageIllegal(fault)
        return self._new(topic, queue_id)

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self.directory / topic / str(queue_id)
        queue = ConsumeQueue(topic, queue_id, directory, self._file_bytes, self._disk, self._mapped)
        self.by_key[topic, queue_id] = queue
        return queue

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """Delete a queue that a failed append made. Raises OSError."""
        del self.by_key[queue.topic, queue.queue_id]
        queue.destroy()

    def forget(self, topic: str, queue_id: int) -> None:
        """Delete a queue if it is there. Raises OSError."""
        queue = self.by_key.pop((topic, queue_id), None)
        if queue is not None:
            queue.destroy()
            self.flush_soon.set()

    def forget_topic(self, topic: str) -> None:
        """Delete all queues of a topic. Raises OSError."""
        for key in [key for key in self.by_key if key[0] == topic]:
            self.by_key.pop(key).destroy()
            self.flush_soon.set()
        if topic_fault(topic) is None and (self.directory / topic).is_dir():
            shutil.rmtree(self.directory / topic)

    def forget_all(self) -> None:
        """Delete all queues: there is no log (section 5.6). Raises OSError."""
        for queue in self.by_key.values():
            queue.destroy()
        self.by_key = {}

    def topics(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.by_key):
            found.setdefault(topic, []).append(queue_id)
        return found

    @property
    def max_physical(self) -> int:
        """Log offset behind the last record any queue knows, -1 when none does (Java: dispatchFromPhyOffset)."""
        return max((queue.max_physical for queue in self.by_key.values()), default=0) or -1

    def new_mark(self, log_offset: int) -> QueueMark:
        """What to set `mark` to once all units there are now, of the records before `log_offset`, are on the device."""
        used = [queue.files() for queue in self.by_key.values() if queue.next_offset > 0]
        return QueueMark(log_offset, len(used), sum(files.next_offset for files in used), sum(files.first for files in used))

    async def before_trim(self, log_start: int) -> None:
        """The log is about to be trimmed up to `log_start`; a thorough round of flushing follows. Raises OSError, StoreNotWritable."""
        await trio.lowlevel.checkpoint()

    async def trim(self, log_start: int) -> tuple[int, int]:
        """Correct the minimum offsets after the log's front is gone, and delete the files nobody needs then; returns files and bytes. Raises OSError."""
        files = taken = 0
        queues = list(self.by_key.values())
        for at in range(0, len(queues), _TRIM_BATCH):
            batch = [(queue, queue.files()) for queue in queues[at : at + _TRIM_BATCH]]
            starts = await trio.to_thread.run_sync(_first_kept_of, [seen for _, seen in batch], log_start)
            for (queue, seen), start in zip(batch, starts, strict=True):
                if start is None or self.by_key.get((queue.topic, queue.queue_id)) is not queue:
                    continue
                queue.min_offset = start
                dead = dead_files(seen, start)
                if dead:
                    taken += await trio.to_thread.run_sync(_delete, dead, os.open(queue.directory, os.O_RDONLY | os.O_CLOEXEC))
                    queue.files_deleted(len(dead))
                    files += len(dead)
        return files, taken

    async def flush(self, everything: bool) -> None:
        """Bring units to the device in a worker thread: all, or of the queues with two pages of them. Raises OSError, then what was flushed is not known."""
        due: list[tuple[ConsumeQueue, int]] = []
        paths: dict[Path, None] = {}
        for queue in self.by_key.values():
            waiting = queue.next_offset - queue.flushed_offset
            if waiting > 0 and (everything or waiting * UNIT_BYTES >= _LEAST_BYTES):
                due.append((queue, queue.next_offset))
                paths.update(dict.fromkeys(queue.unflushed_files()))
        if due:
            try:
                await trio.to_thread.run_sync(self._sync, list(paths))
            except OSError:
                self.doubtful = True
                raise
            for queue, offset in due:
                queue.flushed_offset = max(queue.flushed_offset, min(offset, queue.next_offset))

    def _sync(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._disk.sync_path(path)

    def unmap(self) -> None:
        for queue in self.by_key.values():
            queue.unmap()


def _directories(path: Path) -> list[str]:
    """Names of the directories in a directory."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def _first_kept_of(queues: Sequence[QueueFiles], log_start: int) -> list[int | None]:
    """`first_kept` of each; None for one that was deleted meanwhile."""
    found: list[int | None] = []
    for queue in queues:
        try:
            found.append(first_kept(queue, log_start))
        except FileNotFoundError:
            found.append(None)
    return found


def _delete(paths: Sequence[Path], directory_fd: int) -> int:
    """Delete files of one directory, for which the descriptor stands: the queue may be deleted and made anew while this runs. Closes it. Raises OSError."""
    try:
        return sum(delete_file(path, directory_fd) for path in paths)
    finally:
        os.close(directory_fd)
