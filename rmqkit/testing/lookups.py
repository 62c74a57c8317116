"""Queue and key look-ups as lists in memory, rebuilt from the whole log at every start: the simplest
dispatchers that fulfil their contracts (rmqkit.testing.dispatch).

A store that supports external queues and an external index (`MessageStore.use_external_consume_queue`,
`use_external_index`) must fulfil its contract with these:

    class MineWithLookups(WithLookups, MyStore): ...

    class TestMineWithLookups(StoreContract):
        def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
            return MineWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from rmqkit.broker.dispatch.replay import read_entries
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin.dispatcher import DispatchEntry, Dispatcher
from rmqkit.plugin.store import Appended, KeyLookup, KeyMatches, MessageStore, QueueLookup, QueueUnit, Trimmed
from rmqkit.protocol.tags import index_hash

_UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


class QueueLists(Dispatcher, QueueLookup):
    """Replaces the consume queues of a store."""

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

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        for key, units in list(self._queues.items()):
            del units[sum(unit.physical_offset < log_end for unit in units) :]
            if not units:
                self.delete_queue(*key)
        return log_end

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
    """Replaces the index of a store; like the index it compares hashes only."""

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
        for message, at in entries:
            if message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                keys = [
                    message.properties.get(props.UNIQ_KEY, ""),
                    *message.properties.get(props.KEYS, "").split(" "),
                ]
                for key in filter(None, keys):
                    self._places.setdefault(index_hash(message.topic, key), {})[at.physical_offset] = (
                        at.store_timestamp_ms
                    )
                    self._last = (at.store_timestamp_ms, at.physical_offset)

    def forget_before(self, log_start: int) -> None:
        for places in self._places.values():
            for offset in [offset for offset in places if offset < log_start]:
                del places[offset]

    async def forget_from(self, log_end: int) -> int:
        await trio.lowlevel.checkpoint()
        kept: dict[int, int] = {}
        for places in self._places.values():
            for offset in [offset for offset in places if offset >= log_end]:
                del places[offset]
            kept |= places
        self._last = max(((time_ms, offset) for offset, time_ms in kept.items()), default=(0, 0))
        return log_end

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        places = self._places.get(index_hash(topic, key), {})
        found = sorted(
            (offset for offset, time_ms in places.items() if begin_ms <= time_ms <= end_ms), reverse=True
        )
        return KeyMatches(found[: max(0, max_results)], *self._last)


class WithLookups(MessageStore):
    """Mixin before a store class, whose methods it calls: feeds `queue_lists` and `key_lists` as a broker
    feeds dispatchers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue_lists, self.key_lists = QueueLists(), KeyLists()
        self.use_external_consume_queue(self.queue_lists)
        self.use_external_index(self.key_lists)
        self._given = 0
        #: What was appended and not dispatched yet, with tags codes that the records do not carry.
        self._brought: list[PutMessage] = []
        self.positions.written.follow(self._dispatch)
        self.positions.follow_truncation(self._go_back)

    async def open(self) -> None:
        await super().open()  # type: ignore[safe-super]
        start, end = self.start_offset, self.end_offset
        for lookup in (self.queue_lists, self.key_lists):
            await lookup.open(start, end)
        self._given = start
        self._dispatch()

    def append(self, messages: Sequence[PutMessage]) -> Sequence[Appended]:
        brought = self._brought
        kept = len(brought)
        brought += messages
        try:
            results = super().append(messages)  # type: ignore[safe-super]
        except BaseException:
            del brought[kept:]
            raise
        self._dispatch()
        return results

    async def _go_back(self, end: int) -> None:
        self._given = min(self._given, end)
        for lookup in (self.queue_lists, self.key_lists):
            await lookup.forget_from(end)

    async def trim(self, before_offset: int) -> Trimmed:
        trimmed = await super().trim(before_offset)  # type: ignore[safe-super]
        for lookup in (self.queue_lists, self.key_lists):
            lookup.forget_before(trimmed.log_start)
        return trimmed

    def _dispatch(self) -> None:
        self._given = max(self._given, self.start_offset)
        while self._given < self.positions.written.offset:
            entries, self._given = read_entries(self, self._given, 1 << 20)
            brought, self._brought = self._brought[: len(entries)], self._brought[len(entries) :]
            entries[: len(brought)] = map(DispatchEntry, brought, (entry.at for entry in entries))
            self.queue_lists.dispatch(entries)
            self.key_lists.dispatch(entries)
