"""Adds records found by a recovery to queues and index (store-format sheet, section 7; Java:
CommitLogDispatcher)."""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path

from rmqkit.errors import StoreCorrupt
from rmqkit.model import properties as props
from rmqkit.model.names import queue_fault
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.plugin.queue_code import QueueCodes, queue_code
from rmqkit.protocol.damage import FILLER_TOPIC
from rmqkit.protocol.record import MIN_RECORD_BYTES
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.scan import Found, parse_record
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.deletions import Deletions
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import UNIT, UNIT_BYTES
from rmqkit_store_mmap.received import NOT_INDEXED, plain_units

_log = logging.getLogger(__name__)


class Redispatch:
    """Adds to the queues the records from log offset `queues_from` on that they lack, and to the index (if
    any) all records from `index_from` on.

    `log_start`: the start of the log. A queue whose units all refer to earlier records is restarted with the
    first record that is added to it. `rebuild`: queues are rebuilt from the whole log; a queue whose first
    file begins after a record of the queue has lost its first files.
    """

    def __init__(
        self,
        directory: Path,
        queues: QueueTable,
        index: KeyIndex | None,
        queue_codes: QueueCodes,
        deletions: Deletions | None = None,
    ) -> None:
        self.log_start = 0
        self.queues_from = 0
        self.index_from = 0
        self.rebuild = False
        #: Offset of the first record that replaces damage; the last one, and the size of all of them.
        self.damaged_from: int | None = None
        self._damage: Found | None = None
        self._damaged_bytes = 0
        self._directory = directory
        self._queues = queues
        self._index = index
        self._queue_codes = queue_codes
        self._deletions = deletions

    def dispatch_all(self, data: memoryview, at: int, stop: int, offset: int) -> None:
        """Add the sound records in `data[at:stop]` to their queues and the index; `offset` is the log offset
        of `at`. Raises as `dispatch`."""
        while at < stop:
            run_stop = stop
            for edge in (self.queues_from, self.index_from):
                if offset < edge:
                    run_stop = min(run_stop, at + edge - offset)
            end, queues, notes = plain_units(data, at, run_stop, offset, self._begin)
            for topic, queue_id, units in queues if offset >= self.queues_from else ():
                self._put(self._queues.make(topic, queue_id), units, data, at - offset)
            if self._index is not None:
                self._index.note_all(notes)
            at, offset = end, offset + end - at
            if at < stop:
                found = parse_record(data, at)
                self.dispatch(found)
                at, offset = at + found.size_bytes, found.end

    def _begin(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> int | None:
        """The hash of `topic#` or NOT_INDEXED if a record is not dead, and unless its unit exists, the next
        one of a queue whose codes are those of tags (received.Begin)."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or (
            self._deletions is not None and self._deletions.is_dead(topic, queue_id, physical_offset)
        ):
            return None
        if (
            physical_offset >= self.queues_from
            and queue.max_physical <= physical_offset
            and (queue.is_extended or queue.next_offset != queue_offset or topic in self._queue_codes)
        ):
            return None
        index = self._index
        if index is None or physical_offset < self.index_from or topic in index.unindexed:
            return NOT_INDEXED
        return queue.head.key_code

    def _put(self, queue: ConsumeQueue, units: bytes, data: memoryview, shift: int) -> None:
        """Append those of a run's packed units that a queue lacks. `shift` plus a log offset is a place in
        `data`."""
        known = queue.max_physical
        existing = bisect_right(
            range(len(units) // UNIT_BYTES), known, key=lambda number: _end(units, number * UNIT_BYTES)
        )
        if not existing:
            queue.put_all(units)
            return
        for offset, _, _ in UNIT.iter_unpack(units[existing * UNIT_BYTES :]):
            self._place(queue, parse_record(data, offset + shift))

    def dispatch(self, found: Found) -> None:
        """Add a record to its queue and the index. Raises StoreCorrupt when its queue offset is impossible,
        StoreNotWritable, OSError."""
        if found.is_damage:
            if self.damaged_from is None or found.physical_offset < self.damaged_from:
                self.damaged_from = found.physical_offset
            self._damage = found
            self._damaged_bytes += found.size_bytes
            self._keep_offset(found)
            return
        if queue_fault(found.topic, found.queue_id) is not None:
            _log.warning(
                "the record at %d has the topic %r and queue id %d and is left out",
                found.physical_offset,
                found.topic,
                found.queue_id,
            )
            return
        kind = found.sys_flag & TRANSACTION_MASK
        dead = self._deletions is not None and self._deletions.is_dead(
            found.topic, found.queue_id, found.physical_offset
        )
        if found.physical_offset >= self.queues_from and not found.sys_flag & UNQUEUED and not dead:
            queue = self._queues.make(found.topic, found.queue_id)
            if self.rebuild and 0 <= found.queue_offset < queue.first:
                queue.destroy()  # its first files were lost
            if found.end > queue.max_physical:
                self._place(queue, found)
        if (
            found.physical_offset >= self.index_from
            and self._index is not None
            and kind != TRANSACTION_ROLLBACK
        ):
            self._note_keys(self._index, found)

    def _note_keys(self, index: KeyIndex, found: Found) -> None:
        """Note the keys of a record, also of a deleted message: deletion of a topic leaves the keys in the
        index until retention removes the records."""
        if found.topic in index.unindexed:
            return
        queue = self._queues.get(found.topic, found.queue_id)
        code = extend_hash(0, f"{found.topic}#") if queue is None else queue.head.key_code
        properties = found.properties
        index.note(
            code,
            properties.get(props.UNIQ_KEY),
            properties.get(props.KEYS),
            found.physical_offset,
            found.store_timestamp_ms,
        )

    def may_follow(self, found: Found) -> bool:
        """Whether a record found after damage can be the next one of its queue."""
        if found.is_damage or found.sys_flag & UNQUEUED:
            return True
        if queue_fault(found.topic, found.queue_id) is not None or found.queue_offset < 0:
            return False
        queue = self._queues.get(found.topic, found.queue_id)
        if (
            queue is None
            or found.physical_offset < self.queues_from
            or found.end <= queue.max_physical
            or self._is_new(queue)
        ):
            return True
        return queue.next_offset <= found.queue_offset or (self.rebuild and found.queue_offset < queue.first)

    def _is_new(self, queue: ConsumeQueue) -> bool:
        """Whether a queue has no readable units."""
        return queue.max_physical <= self.log_start

    def _keep_offset(self, damage: Found) -> None:
        """Do not assign the queue offset of a damaged record again, if the record still contains it."""
        offset = damage.queue_offset
        if queue_fault(damage.topic, damage.queue_id) is not None or damage.topic == FILLER_TOPIC:
            return
        if damage.physical_offset < self.queues_from:
            return
        if self._deletions is not None and self._deletions.is_dead(
            damage.topic, damage.queue_id, damage.physical_offset
        ):
            return
        queue = self._queues.make(damage.topic, damage.queue_id)
        if damage.end <= queue.max_physical or offset < queue.next_offset:
            return
        if self._is_new(queue) and offset > queue.next_offset:
            queue.begin_at(offset)
        if not self._is_far(queue, offset):
            self._fill_up_to(queue, offset + 1)

    def _is_far(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether a queue offset is too large to be valid: the gap before it exceeds both one file of units
        and the number of records that the damage can have contained."""
        return offset - queue.next_offset > max(queue.file_units, self._damaged_bytes // MIN_RECORD_BYTES)

    def _fill_up_to(self, queue: ConsumeQueue, offset: int) -> None:
        """Append units without a message up to `offset`. Units of damaged records refer to the record that
        replaces the damage, because filler in the middle of a queue hides the following units from a Java
        broker."""
        damage = self._damage
        while queue.next_offset < offset:
            if damage is not None and damage.end >= queue.max_physical:
                queue.put(damage.physical_offset, damage.size_bytes, 0)
            else:
                queue.put_filler()

    def _place(self, queue: ConsumeQueue, found: Found) -> None:
        """Write the unit of a record at its queue offset."""
        offset = found.queue_offset
        if offset < 0 or (not self._is_new(queue) and self._is_far(queue, offset)):
            raise StoreCorrupt(
                f"the record at {found.physical_offset} of {self._directory} says queue offset {offset} in"
                f" {found.topic} queue {found.queue_id}, which is at {queue.next_offset}"
            )
        if offset < queue.next_offset:
            queue.truncate(offset)  # the topic was deleted and created again
        elif offset > queue.next_offset:
            if self._is_new(queue):
                queue.begin_at(offset)
            self._fill_up_to(queue, offset)
        code = queue_code(self._queue_codes, found.topic, found.properties, found.store_timestamp_ms)
        queue.put_message(found.physical_offset, found.size_bytes, code, found.store_timestamp_ms)


def _end(units: bytes, at: int) -> int:
    """The end of the record of a packed unit, as a log offset."""
    offset, size_bytes, _ = UNIT.unpack_from(units, at)
    return int(offset + size_bytes)
