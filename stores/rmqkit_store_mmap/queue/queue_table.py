"""All consume queues of a store directory (Java: ConsumeQueueStore)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from rmqkit.errors import MessageIllegal
from rmqkit.model.names import queue_fault, stored_fault
from rmqkit_store_mmap.log.commit_log import FileMissing
from rmqkit_store_mmap.log.disk import Disk, delete_file
from rmqkit_store_mmap.open.checkpoint import Mark, QueueMark
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue, MappedFiles
from rmqkit_store_mmap.queue.extension import Extensions, last_address
from rmqkit_store_mmap.queue.queue_trim import QueueFiles, dead_files, first_kept, unit_bytes
from rmqkit_store_mmap.queue.units import UNIT_BYTES
from rmqkit_store_mmap.readonly.data_files import queue_directories

#: Minimum number of unflushed bytes for which an ordinary round flushes a queue (Java:
#: flushConsumeQueueLeastPages, 2 pages).
_LEAST_BYTES = 2 * 4096
#: Number of queues examined per call of a worker thread.
_TRIM_BATCH = 256


class QueueTable:
    """`by_key` maps (topic, queue id) to the queue. Files are `consumequeue/TOPIC/QUEUEID/`.

    `doubtful` is set permanently after a failed flush of units: the next start must verify them. `mark`
    describes what is known to be on the device. `lost` is set by `load` if the directory is missing or the
    queues in `broken` lack a file. Setting `flush_soon` requests a flush of everything.
    """

    def __init__(
        self, directory: Path, file_bytes: int, disk: Disk, extensions: Extensions | None = None
    ) -> None:
        self.directory = directory
        self._extensions = extensions
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.doubtful = False
        self.mark: QueueMark | None = None
        self.lost = False
        self.broken: list[ConsumeQueue] = []
        self.flush_soon = trio.Event()
        #: Whether only the numbers of the queues are kept.
        self.by_numbers = False
        self._file_bytes = -(-file_bytes // UNIT_BYTES) * UNIT_BYTES
        self._disk = disk
        self._mapped = MappedFiles()

    def load(self, crashed: bool, flushed_to: int | None = None) -> None:
        """Find all queues and their ends (ConsumeQueue.load). Raises StoreCorrupt, OSError."""
        self.by_key, self.broken = {}, []
        self.lost = not self.directory.is_dir()
        if self.lost:
            return
        for topic, queue_ids in queue_directories(self.directory):
            for queue_id in queue_ids:
                queue = self.add(topic, queue_id)
                try:
                    queue.load(crashed, flushed_to)
                except FileMissing:
                    self.broken.append(queue)
                    self.lost = True

    def known(self, mark: Mark | None) -> Mark | None:
        """The part of the checkpoint's mark that is valid for the loaded queues."""
        return mark

    def make_directory(self) -> None:
        """Create the directory. Raises OSError."""
        self.directory.mkdir(exist_ok=True)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.by_key.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which is created if it does not exist. Raises MessageIllegal for an invalid topic or
        queue id. Nothing is written yet."""
        queue = self.by_key.get((topic, queue_id))
        if queue is not None:
            return queue
        fault = queue_fault(topic, queue_id)
        if fault is not None:
            raise MessageIllegal(fault)
        return self.add(topic, queue_id)

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Create a queue and add it to the table."""
        queue = self.by_key[topic, queue_id] = self.new(topic, queue_id)
        return queue

    def new(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Create a queue without adding it to the table."""
        place = f"{self.directory}/{topic}/{queue_id}"
        extensions = self._extensions
        extension = None if extensions is None else extensions.of(topic, queue_id, self._disk)
        return ConsumeQueue(topic, queue_id, place, self._file_bytes, self._disk, self._mapped, extension)

    def forget(self, topic: str, queue_id: int) -> None:
        """Delete a queue if it exists. Raises OSError."""
        queue = self.by_key.pop((topic, queue_id), None)
        if queue is not None:
            queue.destroy()
            with suppress(OSError):
                # The other queues of the topic are in there, too, if it has others.
                queue.directory.parent.rmdir()
            self.flush_soon.set()

    def forget_topic(self, topic: str) -> None:
        """Delete all queues of a topic. Raises OSError."""
        for key in [key for key in self.by_key if key[0] == topic]:
            self.by_key.pop(key).destroy()
            self.flush_soon.set()
        if stored_fault(topic) is None and (self.directory / topic).is_dir():
            shutil.rmtree(self.directory / topic)
            if self._extensions is not None:
                self._extensions.forget_topic(topic)

    def forget_dead(self, is_dead: Callable[[str, int, int], bool]) -> None:
        """Delete queues whose last record is dead: a crash occurred after their deletion was recorded and
        before it was carried out. Raises OSError."""
        for (topic, queue_id), queue in list(self.by_key.items()):
            if queue.max_physical > 0 and is_dead(topic, queue_id, queue.max_physical - 1):
                self.forget(topic, queue_id)

    def forget_all(self) -> None:
        """Delete all queues, because there is no log (section 5.6). Raises OSError."""
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
        """End log offset of the last record that has a unit in any queue, -1 without units (Java:
        dispatchFromPhyOffset)."""
        return max((queue.max_physical for queue in self.by_key.values()), default=0) or -1

    def new_mark(self, log_offset: int) -> QueueMark:
        """The value for `mark` once all present units, those of the records before `log_offset`, are on the
        device."""
        used = [queue for queue in self.by_key.values() if queue.next_offset > 0]
        return QueueMark(
            log_offset,
            len(used),
            sum(queue.next_offset for queue in used),
            sum(queue.first for queue in used),
        )

    def was_cut(self) -> None:
        """Called after the log and the queues were cut. Raises OSError."""

    async def before_trim(self, log_start: int) -> None:
        """Called before the log is trimmed up to `log_start`; a thorough flush round follows. Raises OSError,
        StoreNotWritable."""
        await trio.lowlevel.checkpoint()

    async def trim(self, log_start: int) -> tuple[int, int]:
        """Correct the minimum offsets after the front of the log was removed, and delete the files without
        remaining units. Returns the numbers of deleted files and bytes. Raises OSError."""
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
                    taken += await trio.to_thread.run_sync(
                        _delete, dead, os.open(queue.directory, os.O_RDONLY | os.O_CLOEXEC)
                    )
                    queue.files_deleted(len(dead))
                    files += len(dead)
                more_files, more_bytes = await _trim_extension(queue, seen, start)
                files, taken = files + more_files, taken + more_bytes
        return files, taken

    async def flush(self, everything: bool) -> None:
        """Flush units in a worker thread: of all queues if `everything`, else of queues with at least two
        pages of unflushed units. Raises OSError, after which it is unknown what was flushed."""
        due: list[tuple[ConsumeQueue, int]] = []
        paths: dict[Path, None] = {}
        for queue in self.by_key.values():
            waiting = queue.next_offset - queue.flushed_offset
            if waiting > 0 and (everything or waiting * UNIT_BYTES >= _LEAST_BYTES):
                due.append((queue, queue.next_offset))
                paths.update(dict.fromkeys(queue.unflushed_files()))
        if due:
            try:
                await trio.to_thread.run_sync(self._disk.sync_paths, list(paths))
            except OSError:
                self.doubtful = True
                raise
            for queue, offset in due:
                queue.flushed_offset = max(queue.flushed_offset, min(offset, queue.next_offset))

    def unmap(self) -> None:
        for queue in self.by_key.values():
            queue.unmap()


def _first_kept_of(queues: Sequence[QueueFiles], log_start: int) -> list[int | None]:
    """`first_kept` of each queue; None for a queue that was deleted meanwhile."""
    found: list[int | None] = []
    for queue in queues:
        try:
            found.append(first_kept(queue, log_start))
        except FileNotFoundError:
            found.append(None)
    return found


async def _trim_extension(queue: ConsumeQueue, seen: QueueFiles, start: int) -> tuple[int, int]:
    """Delete the files of a queue's extension that only units before `start` refer to; returns the numbers of
    files and bytes. Raises OSError."""
    extension = queue.extension
    if extension is None or not extension.directory.is_dir():
        return 0, 0
    # A descriptor for the reason that `_delete` has.
    directory_fd = os.open(extension.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def trim() -> tuple[int, int]:
        try:
            address = last_address(unit_bytes(seen, start))
            return (0, 0) if address is None else extension.trim(address, directory_fd)
        except FileNotFoundError:
            return 0, 0
        finally:
            os.close(directory_fd)

    return await trio.to_thread.run_sync(trim)


def _delete(paths: Sequence[Path], directory_fd: int) -> int:
    """Delete files of the directory given by a descriptor, which is closed afterwards. A path would not do:
    the queue may be deleted and created again meanwhile. Raises OSError."""
    try:
        return sum(delete_file(path, directory_fd) for path in paths)
    finally:
        os.close(directory_fd)
