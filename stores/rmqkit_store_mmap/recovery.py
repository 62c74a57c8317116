"""What opening a store works out and repairs (store-format sheet, sections 2.9, 5.5 to 5.7; Java: CommitLog.recoverNormally, recoverAbnormally).

Nothing but records says where the log ends. After a clean stop the scan begins behind the last record the queues know; after a crash in the last
segment that the checkpoint says was safely on the device before, or earlier where the index needs it. Every record must prove itself by magic,
lengths, body CRC and by naming its own position; at the first that does not the log is cut, and what follows becomes zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from rmqkit.errors import StoreCorrupt
from rmqkit.model import properties as props
from rmqkit.model.delay import deliver_time_ms
from rmqkit.model.names import SCHEDULE_TOPIC, topic_fault
from rmqkit.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import BLANK, CRC_MASK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, peek_store_timestamp
from rmqkit.protocol.tags import java_hash
from rmqkit_store_mmap.checkpoint import Checkpoint
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.key_index import KeyIndex
from rmqkit_store_mmap.queue_table import MAX_QUEUE_ID, QueueTable
from rmqkit_store_mmap.segment import Segment

_log = logging.getLogger(__name__)

_HEAD = Struct(">iIiiiqqi")
_I32 = Struct(">i")
_I16 = Struct(">h")
_BODY_LENGTH_AT = 84


class Found(NamedTuple):
    """What recovery needs of a record."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    sys_flag: int
    store_timestamp_ms: int
    properties: dict[str, str]


def check_record(data: memoryview, at: int, physical_offset: int) -> int:
    """Size of the good record at `at`, 0 for the blank record that ends a segment, -1 for anything else."""
    room = len(data) - at
    if room < BLANK.size:
        return -1
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK:
        return 0 if size == room else -1
    if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD_BYTES <= size <= room:
        return -1
    _, _, crc, _, _, _, claimed, sys_flag = _HEAD.unpack_from(data, at)
    body_at = _body_at(at, sys_flag)
    topic_at = body_at + _I32.unpack_from(data, body_at - 4)[0]
    width = 1 if magic == MAGIC_V1 else 2
    if claimed != physical_offset or topic_at < body_at or topic_at + width > at + size:
        return -1
    topic_length = data[topic_at] if width == 1 else _I16.unpack_from(data, topic_at)[0]
    properties_at = topic_at + width + topic_length + 2
    if topic_length < 0 or properties_at > at + size:
        return -1
    if properties_at + _I16.unpack_from(data, properties_at - 2)[0] != at + size:
        return -1
    return size if body_at == topic_at or crc32(data[body_at:topic_at]) & CRC_MASK == crc else -1


def _body_at(at: int, sys_flag: int) -> int:
    return at + _BODY_LENGTH_AT + 4 + (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)


def _texts(data: memoryview, at: int) -> tuple[memoryview, memoryview]:
    """Topic and properties of a record that `check_record` found good."""
    size, magic, _, _, _, _, _, sys_flag = _HEAD.unpack_from(data, at)
    body_at = _body_at(at, sys_flag)
    topic_at = body_at + _I32.unpack_from(data, body_at - 4)[0]
    if magic == MAGIC_V1:
        name_at, length = topic_at + 1, data[topic_at]
    else:
        name_at, length = topic_at + 2, _I16.unpack_from(data, topic_at)[0]
    return data[name_at : name_at + length], data[name_at + length + 2 : at + size]


def may_be_torn(data: memoryview, at: int) -> bool:
    """Whether a record that `check_record` found good may yet lack its end: no checksum covers topic and properties, but a torn write leaves zeros."""
    topic, properties = _texts(data, at)
    last = properties or topic
    return len(last) > 0 and last[-1] == 0


def parse_record(data: memoryview, at: int) -> Found:
    """A record that `check_record` found good. Text that is no UTF-8 is taken with replacement characters."""
    size, _, _, queue_id, _, queue_offset, physical_offset, sys_flag = _HEAD.unpack_from(data, at)
    topic, properties = (bytes(text).decode(errors="replace") for text in _texts(data, at))
    time_ms = peek_store_timestamp(data, at)
    return Found(topic, queue_id, queue_offset, physical_offset, size, sys_flag, time_ms, props.decode(properties))


class Recovery:
    """One recovery; `run` does it. Raises OSError, StoreCorrupt, StoreNotWritable."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: KeyIndex | None, checkpoint: Checkpoint, levels_ms: Sequence[int]
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._levels_ms = levels_ms

    def run(self, crashed: bool, queues_lost: bool, index_lost: bool) -> None:
        """Find the end of the log, dispatch what queues and index lack, cut what is torn."""
        log, queues, index = self._log, self._queues, self._index
        if not log.segments:
            queues.forget_all()
            if index is not None:
                index.forget_all()
            return
        known = -1 if queues_lost else queues.max_physical
        if index_lost:
            start = queues_from = index_from = log.min_offset
        elif crashed:
            queues_from = log.min_offset if queues_lost else self._safe_segment().base
            index_from = queues_from if index is None else max(index.next_offset, log.min_offset)
            segment = log.segment_at(index_from)
            start = queues_from if segment is None else min(queues_from, segment.base)
        else:
            start = self._start_after_stop(known)
            confirmed = self._checkpoint.confirmed_offset
            queues_from = index_from = known if queues_lost else max(known, confirmed)
        end = self._scan(start, queues_from, index_from)
        for queue in queues.by_key.values():
            queue.truncate_physical(end)
            if crashed:
                queue.truncate(queue.next_offset)
            queue.correct_min(log.min_offset)
        log.start_at(end)
        if crashed:
            log.sync_range(start, end)
        if index is not None:
            index.drain(len(index.backlog))

    def _first_time(self, segment: Segment) -> int:
        """Store time of a segment's first record, 0 when it does not begin with a good one."""
        view = segment.view()
        return peek_store_timestamp(view) if check_record(view, 0, segment.base) > 0 else 0

    def _safe_segment(self) -> Segment:
        safe_ms = self._checkpoint.safe_time_ms
        segments = list(self._log.segments.values())
        for segment in reversed(segments):
            if 0 < self._first_time(segment) <= safe_ms:
                return segment
        return segments[0]

    def _start_after_stop(self, known: int) -> int:
        """Behind the last record the queues know, if it is a good one; else the start of a segment before it."""
        for queue in self._queues.by_key.values():
            if known > 0 and queue.max_physical == known:
                unit = queue.unit(queue.next_offset - 1)
                segment = self._log.segment_at(unit.physical_offset)
                if segment is None or unit.physical_offset < self._log.min_offset:
                    continue
                if check_record(segment.view(), unit.physical_offset - segment.base, unit.physical_offset) == unit.size_bytes:
                    return known
        segments = list(self._log.segments.values())
        for segment in reversed(segments):
            if segment.base <= known and self._first_time(segment) > 0:
                return segment.base
        return segments[0].base

    def _scan(self, start: int, queues_from: int, index_from: int) -> int:
        at = start
        segment = self._log.segment_at(at)
        while segment is not None:
            view = segment.view()
            size = check_record(view, at - segment.base, at)
            if size > 0:
                if may_be_torn(view, at - segment.base) and check_record(view, at + size - segment.base, at + size) < 0:
                    break
                if at >= min(queues_from, index_from):
                    self._dispatch(parse_record(view, at - segment.base), at >= queues_from, at >= index_from)
                at += size
            elif size == 0 and segment.stop in self._log.segments:
                at = segment.stop
                segment = self._log.segment_at(at)
            else:
                break
        return at

    def _dispatch(self, found: Found, to_queue: bool, to_index: bool) -> None:
        if topic_fault(found.topic) is not None or not 0 <= found.queue_id <= MAX_QUEUE_ID:
            _log.warning(
                "the record at %d has the topic %r and queue id %d and is left out", found.physical_offset, found.topic, found.queue_id
            )
            return
        queue = self._queues.make(found.topic, found.queue_id)
        kind = found.sys_flag & TRANSACTION_MASK
        if to_queue and kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            end = found.physical_offset + found.size_bytes
            if end > queue.max_physical:
                self._place(found)
        if to_index and self._index is not None and kind != TRANSACTION_ROLLBACK:
            properties = found.properties
            self._index.note(
                queue.key_code, properties.get(props.UNIQ_KEY), properties.get(props.KEYS), found.physical_offset, found.store_timestamp_ms
            )

    def _place(self, found: Found) -> None:
        """Put a unit where its record says it belongs."""
        queue = self._queues.make(found.topic, found.queue_id)
        offset = found.queue_offset
        if offset < 0 or (queue.next_offset > 0 and offset - queue.next_offset > queue.file_units):
            raise StoreCorrupt(
                f"the record at {found.physical_offset} of {self._log.directory} says queue offset {offset} in {found.topic} queue {found.queue_id}, "
                f"which is at {queue.next_offset}"
            )
        if offset < queue.next_offset:
            queue.truncate(offset)  # the topic was deleted and made anew
        elif offset > queue.next_offset:
            if queue.next_offset == 0:
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
