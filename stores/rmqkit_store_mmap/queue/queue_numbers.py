"""Queue offsets without consume queues, for a store whose consume queues are kept externally
(MessageStore.use_external_consume_queue).

The store still assigns queue offsets, so it keeps the next offset of every queue. The log alone does not
contain it: the last message of a queue may have been removed long ago. The file `queueOffset.json` has these
numbers as of a log offset up to which the log was on the device; a recovery continues counting from there.
The existence of the file also shows that the store has no consume queues:

    dispatchers without consume-queue, no file    the ends of the queues are taken over, then their directory
                                                  is deleted
    dispatchers without consume-queue, a file     the numbers are read
    dispatchers with consume-queue, a file        the queues are rebuilt from the whole log; queues without a
                                                  message in the log begin at their number
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio
from attrs import evolve

from rmqkit.model.names import queue_fault
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.open.checkpoint import Mark
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.extension import Extensions
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.queue_trim import QueueFiles
from rmqkit_store_mmap.queue.units import UNIT_BYTES

_log = logging.getLogger(__name__)

FILE_NAME = "queueOffset.json"
#: Appends write their units into this buffer, which is never read.
_SCRATCH_UNITS = 256
_SCRATCH = bytearray(_SCRATCH_UNITS * UNIT_BYTES)


class Numbers(msgspec.Struct, frozen=True, rename="camel"):
    """Content of the file: topic -> queue id -> next queue offset, after all records before a log offset."""

    log_offset: int
    next_offsets: dict[str, dict[int, int]]

    @classmethod
    def load(cls, path: Path) -> Numbers | None:
        """None if the file does not exist or is not valid. Raises OSError."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            _log.error("%s is damaged, queue offsets are counted from the whole log: %s", path, error)
            return None
        for topic, queues in found.next_offsets.items():
            if any(queue_fault(topic, number) or offset < 0 for number, offset in queues.items()):
                _log.error(
                    "%s names impossible queues of %r, queue offsets are counted from the whole log",
                    path,
                    topic,
                )
                return None
        return found

    def save(self, path: Path, disk: Disk) -> None:
        """Replace the file and flush it. Raises OSError; a failed write leaves the old file in place."""
        young = path.with_suffix(".tmp")
        fd = os.open(young, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            disk.write(fd, (msgspec.json.encode(self),), 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        young.replace(path)
        disk.sync_path(path.parent)


class NumberedQueue(ConsumeQueue):
    """A queue without units; only `next_offset` is kept."""

    def reserve(self, stop: int) -> None:
        return

    def put_all(self, units: bytes) -> None:
        self.next_offset += len(units) // UNIT_BYTES

    def begin_at(self, offset: int) -> None:
        self.next_offset = offset

    def truncate(self, offset: int) -> bool:
        self.next_offset = offset
        return False

    def truncate_physical(self, end: int) -> None:
        return

    def redirect(self, stretches: Sequence[tuple[int, int, int]]) -> list[Path]:
        return []

    def correct_min(self, log_min: int) -> None:
        return

    @property
    def first(self) -> int:
        """The end: there are no files."""
        return self.next_offset

    def files(self) -> QueueFiles:
        """A state without units: the first offset is the end."""
        return QueueFiles(
            self.directory, self.file_units, self.next_offset, self.next_offset, self.next_offset
        )

    def unflushed_files(self) -> list[Path]:
        return []

    def destroy(self) -> None:
        self.next_offset = 0


class NumberTable(QueueTable):
    """All queues of a store without consume queues. Appends write units as into any other queue, without
    effect; reads must use the external queues."""

    def __init__(self, directory: Path, file_bytes: int, disk: Disk, log: CommitLog) -> None:
        super().__init__(directory, file_bytes, disk)
        self.by_numbers = True
        self._path = directory.parent / FILE_NAME
        self._log = log
        self._kept: Numbers | None = None
        self._waiting: Numbers | None = None
        self._saving = trio.Lock()

    def take_over(self, table: QueueTable) -> None:
        """Take over the numbers of a recovered table, and delete its queues. Raises OSError."""
        for (topic, queue_id), queue in table.by_key.items():
            self.add(topic, queue_id).next_offset = queue.next_offset
        self._keep(self._numbers())
        self.mark = self.new_mark(self._log.position)
        table.unmap()
        shutil.rmtree(self.directory, ignore_errors=True)
        _log.info(
            "consume queues are left out: %s was deleted, the queue offsets are in %s",
            self.directory,
            self._path,
        )

    def load(self, crashed: bool, flushed_to: int | None = None) -> None:
        """Read the numbers, and delete the directory of consume queues. Raises OSError."""
        self.by_key, self.broken = {}, []
        self._kept = Numbers.load(self._path)
        self.lost = self._kept is None
        for topic, queues in self._kept.next_offsets.items() if self._kept is not None else ():
            for queue_id, offset in queues.items():
                self.add(topic, queue_id).next_offset = offset
        shutil.rmtree(self.directory, ignore_errors=True)

    def recovered(self) -> None:
        """Write the file if it is missing, invalid or covers more log than was recovered. Raises OSError."""
        if self._kept is None or self._kept.log_offset > self._log.position:
            self._keep(self._numbers())

    def was_cut(self) -> None:
        self._keep(self._numbers())

    def known(self, mark: Mark | None) -> Mark | None:
        if self._kept is None:
            return mark
        queues = self.new_mark(self._kept.log_offset)
        return Mark(queues.offset, queues, None) if mark is None else evolve(mark, queues=queues)

    def make_directory(self) -> None:
        return

    def new(self, topic: str, queue_id: int) -> ConsumeQueue:
        return NumberedQueue(
            topic,
            queue_id,
            f"{self.directory}/{topic}/{queue_id}",
            self._file_bytes,
            self._disk,
            self._mapped,
        )

    def forget_topic(self, topic: str) -> None:
        for queue_id in self.topics().get(topic, ()):
            self.forget(topic, queue_id)

    async def before_trim(self, log_start: int) -> None:
        """Save the numbers if needed: they cannot be derived from records once these are removed."""
        numbers = self._numbers()
        if self._kept is None or self._kept.log_offset < log_start:
            await self._log.commit()
            await self._log.flush()
            await self._save(numbers)

    async def trim(self, log_start: int) -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        return 0, 0

    async def flush(self, everything: bool) -> None:
        """Save the numbers in a worker thread: the present ones if the log is flushed that far, else those of
        the previous call. Raises OSError."""
        if not everything:
            return
        now, before = self._numbers(), self._waiting
        self._waiting = now
        for numbers in (now, before):
            if numbers is not None and numbers.log_offset <= self._log.flushed:
                await self._save(numbers)
                break

    async def _save(self, numbers: Numbers) -> None:
        """Save numbers in a worker thread, one call at a time, never replacing newer ones. Raises OSError."""
        async with self._saving:
            if self._kept is None or (numbers.log_offset >= self._kept.log_offset and numbers != self._kept):
                await trio.to_thread.run_sync(self._keep, numbers)

    def _numbers(self) -> Numbers:
        found: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self.by_key.items():
            found.setdefault(topic, {})[queue_id] = queue.next_offset
        return Numbers(self._log.position, found)

    def _keep(self, numbers: Numbers) -> None:
        numbers.save(self._path, self._disk)
        self._kept = numbers


def table_to_load(
    directory: Path, file_bytes: int, disk: Disk, log: CommitLog, left_out: bool, extensions: Extensions
) -> QueueTable:
    """The table that a start loads and recovers. Raises OSError."""
    there = (directory.parent / FILE_NAME).exists()
    if there and left_out:
        return NumberTable(directory, file_bytes, disk, log)
    if there:
        shutil.rmtree(directory, ignore_errors=True)
    return QueueTable(directory, file_bytes, disk, extensions)


def table_to_use(
    table: QueueTable, file_bytes: int, disk: Disk, log: CommitLog, left_out: bool
) -> QueueTable:
    """The table that the store uses, after the loaded table is recovered. Raises OSError,
    StoreNotWritable."""
    path = table.directory.parent / FILE_NAME
    if isinstance(table, NumberTable):
        table.recovered()
        return table
    if left_out:
        numbers = NumberTable(table.directory, file_bytes, disk, log)
        numbers.take_over(table)
        return numbers
    if path.exists():
        _begin_at_numbers(table, Numbers.load(path))
        for queue in table.by_key.values():
            for unflushed in queue.unflushed_files():
                disk.sync_path(unflushed)
            queue.flushed_offset = queue.next_offset
        table.mark = table.new_mark(log.position)
        path.unlink()
        disk.sync_path(path.parent)
        _log.info("the consume queues in %s were made from the log again", table.directory)
    return table


def _begin_at_numbers(table: QueueTable, numbers: Numbers | None) -> None:
    """Let queues without a message in the log begin at their number. A filler unit before it records the
    position in a file."""
    for topic, queues in numbers.next_offsets.items() if numbers is not None else ():
        for queue_id, offset in queues.items():
            queue = table.make(topic, queue_id)
            if queue.next_offset == 0 < offset:
                queue.begin_at(offset - 1)
                queue.put_filler()
                queue.min_offset = offset
