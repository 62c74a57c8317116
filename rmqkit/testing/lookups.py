"""Look-ups as lists in memory, made from the whole log at every start: the plainest dispatchers that pass their contracts (rmqkit.testing.dispatch).

A store that can leave out its queues and its index (`MessageStore.read_queues_from`, `look_keys_up_in`) passes its contract with these in their place:

    class MineWithLookups(WithLookups, MyStore): ...

    class TestMineWithLookups(StoreContract):
        def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
            return MineWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from rmqkit.abc import Appended, KeyMatches, MessageStore, QueueUnit, Trimmed
from rmqkit.broker.dispatch_log import read_entries
from rmqkit.config import DELAY_LEVELS
from rmqkit.dispatch import DispatchEntry, Dispatcher, KeyLookup, QueueLookup
from rmqkit.model import properties as props
from rmqkit.model.delay import parse_levels
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.tags import index_hash

_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


class QueueLists(Dispatcher, QueueLookup):
    """Takes the place of the consume queues."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], list[QueueUnit]] = {}
        self._firsts: dict[tuple[str, int], int] = {}

    @property
    def progress_offset(self) -> int:
        return 0

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        self._queues, self._firsts = {}, {}

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        for entry in entries:
            if entry.message.sys_flag & TRANSACTION_MASK not in _UNQUEUED:
                offset, physical_offset, size_bytes, _ = entry.at
                key = (entry.message.topic, entry.message.queue_id)
                units = self._queues.setdefault(key, [])
                first = self._firsts.setdefault(key, offset)
                if offset < first:
                    self._firsts[key] = first = offset
                del units[offset - first :]
                units.append(QueueUnit(offset, physical_offset, size_bytes, entry.message.tags_code))

    def forget_before(self, log_start: int) -> None:
        for key, units in self._queues.items():
            gone = sum(unit.physical_offset < log_start for unit in units)
            self._firsts[key] += gone
            del units[:gone]

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[QueueUnit]:
        at = offset - self.min_offset(topic, queue_id)
        return self._queues.get((topic, queue_id), [])[at : at + count] if at >= 0 and count > 0 else []

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._firsts.get((topic, queue_id), 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.min_offset(topic, queue_id) + len(self._queues.get((topic, queue_id), []))

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self._queues.pop((topic, queue_id), None)
        self._firsts.pop((topic, queue_id), None)


class KeyLists(Dispatcher, KeyLookup):
    """Takes the place of the index, and like it compares hashes only."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, int]] = {}
        self._last = (0, 0)

    @property
    def progress_offset(self) -> int:
        return 0

    async def open(self, log_start: int, log_end: int) -> None:
        await trio.lowlevel.checkpoint()
        self._places, self._last = {}, (0, 0)

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        for landed, at in entries:
            if landed.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                keys = [landed.properties.get(props.UNIQ_KEY, ""), *landed.properties.get(props.KEYS, "").split(" ")]
                for key in filter(None, keys):
                    self._places.setdefault(index_hash(landed.topic, key), {})[at.physical_offset] = at.store_timestamp_ms
                    self._last = (at.store_timestamp_ms, at.physical_offset)

    def forget_before(self, log_start: int) -> None:
        for places in self._places.values():
            for offset in [offset for offset in places if offset < log_start]:
                del places[offset]

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        places = self._places.get(index_hash(topic, key), {})
        found = sorted((offset for offset, time_ms in places.items() if begin_ms <= time_ms <= end_ms), reverse=True)
        return KeyMatches(found[: max(0, max_results)], *self._last)


class WithLookups(MessageStore):
    """Stands before the class of a store, whose methods it calls: does for it what a broker does for plugins. `queue_lists` and `key_lists` are these."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue_lists, self.key_lists = QueueLists(), KeyLists()
        self.read_queues_from(self.queue_lists)
        self.look_keys_up_in(self.key_lists)

    async def open(self) -> None:
        await super().open()  # type: ignore[safe-super]
        start, end = self.start_offset, self.end_offset
        for lookup in (self.queue_lists, self.key_lists):
            await lookup.open(start, end)
        while start < end:
            entries, start = read_entries(self, start, 1 << 20, parse_levels(DELAY_LEVELS))
            self._dispatch(entries)

    def append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        landed = super().append(messages)  # type: ignore[safe-super]
        self._dispatch([DispatchEntry(message, at) for message, at in zip(messages, landed, strict=True)])
        return landed

    async def trim(self, before_offset: int) -> Trimmed:
        trimmed = await super().trim(before_offset)  # type: ignore[safe-super]
        for lookup in (self.queue_lists, self.key_lists):
            lookup.forget_before(trimmed.log_start)
        return trimmed

    def _dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        self.queue_lists.dispatch(entries)
        self.key_lists.dispatch(entries)
