"""Reads of a store that end where an acknowledgement condition gates them (Java: CommitLog.getConfirmOffset).

Without such a condition a broker uses its store as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import (
    Boundary,
    KeyMatches,
    MessageStore,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    UnitFilter,
)


class ConfirmedReads:
    """A store whose queues, keys and single records end at `positions.confirmed`. Everything else is the
    store's own, also `read_log`, for replicas need what is not confirmed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._confirmed = store.positions.confirmed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queues.max_offset, by bisection over the last units, which are in memory as a rule."""
        store, confirmed = self._store, self._confirmed.offset
        end = store.max_offset(topic, queue_id)
        if confirmed >= store.settled_offset(Level.WRITTEN):
            return end
        low = store.min_offset(topic, queue_id)

        def is_hidden(offset: int) -> bool:
            with store.blocking_reads():
                units = store.read_units(topic, queue_id, offset, 1)
            return not units or units[0].physical_offset + units[0].size_bytes > confirmed

        start, step = end, 1
        while start > low and is_hidden(start - 1):
            end = start - 1
            start = max(low, start - step)
            step *= 2
        return bisect_left(range(end), True, start, key=is_hidden)

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        """Queues.read. Raises NotInMemory."""
        end, low = self.max_offset(topic, queue_id), self._store.min_offset(topic, queue_id)
        if end < self._store.max_offset(topic, queue_id) and offset >= low:
            if end == 0:
                return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
            if offset >= end:
                status = ReadStatus.OFFSET_OVERFLOW_ONE if offset == end else ReadStatus.OFFSET_OVERFLOW_BADLY
                return ReadResult(status, end, low, end, [])
            left = end - offset
            limits = limits._replace(
                max_messages=min(left, limits.max_messages),
                max_scanned_units=min(left, limits.max_scanned_units),
            )
        result = self._store.read(topic, queue_id, offset, limits, unit_filter)
        result.max_offset = end
        return result

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        """Queues.read_units. Raises NotInMemory."""
        count = min(count, self.max_offset(topic, queue_id) - offset)
        return self._store.read_units(topic, queue_id, offset, count) if count > 0 else []

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        """Queues.offset_by_time. Raises NotInMemory."""
        found = self._store.offset_by_time(topic, queue_id, timestamp_ms, boundary)
        last = self.max_offset(topic, queue_id) - (boundary is Boundary.UPPER)
        return max(self._store.min_offset(topic, queue_id), min(found, last))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Queues.store_time. Raises NotInMemory."""
        is_hidden = offset >= self.max_offset(topic, queue_id)
        return -1 if is_hidden else self._store.store_time(topic, queue_id, offset)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        """Keys.query_by_key; hidden records count towards `max_results`. Raises NotInMemory."""
        found = self._store.query_by_key(topic, key, begin_ms, end_ms, max_results)
        confirmed = self._confirmed.offset
        return found._replace(physical_offsets=[at for at in found.physical_offsets if at < confirmed])

    def read_record(self, physical_offset: int) -> Buffer | None:
        """Log.read_record. Raises NotInMemory."""
        return None if physical_offset >= self._confirmed.offset else self._store.read_record(physical_offset)
