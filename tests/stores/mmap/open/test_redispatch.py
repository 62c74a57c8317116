"""The contract of dispatchers over what the mmap store builds of its log: consume queues and index, as an
opening store gives records to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher
from rmqkit.plugin.store import KeyLookup, KeyMatches, QueueLookup, QueueUnit
from rmqkit.protocol.tags import extend_hash
from rmqkit.testing.dispatch import KeyLookupContract, QueueLookupContract
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.scan import Found
from rmqkit_store_mmap.open.checkpoint import Checkpoint, Mark
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import UNIT

FILE_BYTES = 100
SLOTS, ENTRIES = 5, 40


class BuiltIn(Dispatcher, QueueLookup, KeyLookup):
    """Queues, index and their marks without a log: what Recovery and MmapStore do around them, done here
    by hand."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk()
        self._queues = QueueTable(directory / "consumequeue", FILE_BYTES, self._disk)
        self._index = KeyIndex(directory / "index", SLOTS, ENTRIES, self._disk)
        self._redispatch = Redispatch(directory, self._queues, self._index, {})
        self._times: dict[int, int] = {}
        self._end = 0
        self._progress = 0

    @property
    def progress_offset(self) -> int:
        return self._progress

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        checkpoint = Checkpoint.load(self._directory / "checkpoint")
        mark = checkpoint.mark
        self._queues.load(True, mark.queues.offset if mark else 0)
        self._index.load(True, checkpoint.index_time_ms, mark.index if mark else None)
        self._queues.make_directory()
        if self._index.ends_behind(log_end):
            self._index.forget_all()
        for queue in self._queues.by_key.values():
            queue.truncate_physical(log_end)
            queue.clear_behind()
            queue.correct_min(log_start)
        self._redispatch.log_start = log_start
        self._redispatch.queues_from = min(mark.queues.offset, log_end) if mark else 0
        self._redispatch.index_from = self._index.next_offset or 0
        self._progress = self._end = min(self._redispatch.queues_from, self._redispatch.index_from)
        if mark and mark.queues.offset > log_end:
            await self._save()

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        for message, at in entries:
            place = (at.queue_offset, at.physical_offset, at.size_bytes)
            self._redispatch.dispatch(
                Found(
                    message.topic,
                    message.queue_id,
                    *place,
                    message.flag,
                    message.sys_flag,
                    at.store_timestamp_ms,
                    message.properties,
                )
            )
            self._end = max(self._end, at.physical_offset + at.size_bytes)
            self._redispatch.index_from = max(self._redispatch.index_from, self._end)
            self._times[at.physical_offset] = at.store_timestamp_ms

    def forget_before(self, log_start: int) -> None:
        for queue in self._queues.by_key.values():
            queue.correct_min(log_start)

    async def forget_from(self, log_end: int) -> int:
        with self._disk.blocking_reads():
            for queue in list(self._queues.by_key.values()):
                queue.truncate_physical(log_end)
                if queue.next_offset == 0:
                    self._queues.forget(queue.topic, queue.queue_id)
        files = self._index.cut(log_end)
        self._index.free(files, log_end, lambda offset: self._times.get(offset, 0))
        self._end = min(self._end, log_end)
        self._redispatch.queues_from = self._redispatch.index_from = self._end
        await self._save()
        return self._end

    async def close(self) -> None:
        await self._save()
        self._queues.unmap()
        self._index.close()

    async def _save(self) -> None:
        await self._queues.flush(everything=True)
        self._index.drain(len(self._index.backlog))
        self._index.flush_all(self._end)
        checkpoint = Checkpoint.load(self._directory / "checkpoint")
        checkpoint.mark = Mark(self._end, self._queues.new_mark(self._end), self._index.mark)
        checkpoint.write(self._disk)
        self._progress = self._end

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return []
        units = (unit for data in queue.data(offset, count) for unit in UNIT.iter_unpack(data))
        return [QueueUnit(at, *unit) for at, unit in enumerate(units, offset)]

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self._queues.forget(topic, queue_id)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """The index knows times to the second; what a store looks up in the record stands in `_times`, for
        records that were given to this object."""
        self._index.drain(len(self._index.backlog))
        found = self._index.find(extend_hash(0, f"{topic}#"), key, begin_ms, end_ms)
        offsets = [offset for offset in found if begin_ms <= self._times.get(offset, begin_ms) <= end_ms]
        return KeyMatches(offsets[:max_results], *self._index.last)


class TestConsumeQueues(QueueLookupContract):
    def make_dispatcher(self, directory: Path) -> Any:
        return BuiltIn(directory)


class TestIndex(KeyLookupContract):
    def make_dispatcher(self, directory: Path) -> Any:
        return BuiltIn(directory)
