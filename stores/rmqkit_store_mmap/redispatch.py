"""Giving queues and index what a recovery found in the log (store-format sheet, section 7; Java: CommitLogDispatcher)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rmqkit.errors import StoreCorrupt
from rmqkit.model import properties as props
from rmqkit.model.delay import deliver_time_ms
from rmqkit.model.names import SCHEDULE_TOPIC, topic_fault
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.tags import java_hash
from rmqkit_store_mmap.consume_queue import ConsumeQueue
from rmqkit_store_mmap.key_index import KeyIndex
from rmqkit_store_mmap.queue_table import MAX_QUEUE_ID, QueueTable
from rmqkit_store_mmap.scan import Found

_log = logging.getLogger(__name__)


class Redispatch:
    """Queues get the records from log offset `queues_from` on that they do not have, the index (if any) all from `index_from` on.

    `log_start`: where the log begins; a queue that knows nothing behind it begins anew with the first record it gets.
    `rebuild`: queues are made again from the whole log, and one that begins behind a record of its own lost its first files.
    """

    def __init__(self, directory: Path, queues: QueueTable, index: KeyIndex | None, levels_ms: Sequence[int]) -> None:
        self.log_start = 0
        self.queues_from = 0
        self.index_from = 0
        self.rebuild = False
        self._directory = directory
        self._queues = queues
        self._index = index
        self._levels_ms = levels_ms

    def dispatch(self, found: Found) -> None:
        """Raises StoreCorrupt when the record names an impossible place, StoreNotWritable, OSError."""
        if topic_fault(found.topic) is not None or not 0 <= found.queue_id <= MAX_QUEUE_ID:
            _log.warning(
                "the record at %d has the topic %r and queue id %d and is left out", found.physical_offset, found.topic, found.queue_id
            )
            return
        queue = self._queues.make(found.topic, found.queue_id)
        kind = found.sys_flag & TRANSACTION_MASK
        if found.physical_offset >= self.queues_from and kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            if self.rebuild and 0 <= found.queue_offset < queue.files().first:
                queue.destroy()  # its first files were lost
            if found.physical_offset + found.size_bytes > queue.max_physical:
                self._place(queue, found)
        if found.physical_offset >= self.index_from and self._index is not None and kind != TRANSACTION_ROLLBACK:
            properties = found.properties
            self._index.note(
                queue.key_code, properties.get(props.UNIQ_KEY), properties.get(props.KEYS), found.physical_offset, found.store_timestamp_ms
            )

    def _place(self, queue: ConsumeQueue, found: Found) -> None:
        """Put a unit where its record says it belongs."""
        offset = found.queue_offset
        anew = queue.max_physical <= self.log_start  # nothing in it that can be read
        if offset < 0 or (not anew and offset - queue.next_offset > queue.file_units):
            raise StoreCorrupt(
                f"the record at {found.physical_offset} of {self._directory} says queue offset {offset} in {found.topic} queue {found.queue_id}, "
                f"which is at {queue.next_offset}"
            )
        if offset < queue.next_offset:
            queue.truncate(offset)  # the topic was deleted and made anew
        elif offset > queue.next_offset:
            if anew:
                queue.begin_at(offset)
            while queue.next_offset < offset:
                queue.put_filler()
        queue.put(found.physical_offset, found.size_bytes, self._tags_code(found))

    def _tags_code(self, found: Found) -> int:
        """Section 3.2: the hash of the tags, in the schedule topic the time of delivery."""
        if found.topic == SCHEDULE_TOPIC:
            due_ms = deliver_time_ms(found.properties, found.store_timestamp_ms, self._levels_ms)
            if due_ms is not None:
                return due_ms
        tags = found.properties.get(props.TAGS)
        return java_hash(tags) if tags else 0
