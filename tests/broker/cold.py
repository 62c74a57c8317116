"""A store whose data is cold when told, for what is to wait for the device without holding up others."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from rmqkit import hookimpl
from rmqkit.abc import Boundary, Buffer, KeyMatches, MessageStore, NotInMemory, QueueUnit, ReadLimits, ReadResult, StoreFactory
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_store_memory.store import MemoryStore
from tests.broker.desk import Desk


class ColdStore(MemoryStore):
    """The next `cold` reads that must not wait raise NotInMemory, each with its number; `cold_queues` counts the same for the units of single queues.
    `warm` waits for `device`. `waits` has `wait` of every read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cold = 0
        self.cold_queues: dict[tuple[str, int], int] = {}
        self.warmed: list[tuple[object, ...]] = []
        self.waits: list[bool] = []
        self.device = trio.Event()

    def _look(self, wait: bool) -> None:
        self.waits.append(wait)
        if self.cold and not wait:
            self.cold -= 1
            raise NotInMemory(len(self.waits))

    def read(self, topic: str, queue_id: int, offset: int, limits: ReadLimits, *filters: Any) -> ReadResult:
        self._look(limits.wait)
        return super().read(topic, queue_id, offset, limits, *filters)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int, wait: bool = True) -> list[QueueUnit]:
        self._look(wait)
        if not wait and self.cold_queues.get((topic, queue_id)):
            self.cold_queues[topic, queue_id] -= 1
            raise NotInMemory(len(self.waits))
        return super().read_units(topic, queue_id, offset, count, wait)

    def read_record(self, physical_offset: int, wait: bool = True) -> Buffer | None:
        self._look(wait)
        return super().read_record(physical_offset, wait)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int, wait: bool = True) -> KeyMatches:
        self._look(wait)
        return super().query_by_key(topic, key, begin_ms, end_ms, max_results, wait)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary, wait: bool = True) -> int:
        self._look(wait)
        return super().offset_by_time(topic, queue_id, timestamp_ms, boundary, wait)

    def store_time(self, topic: str, queue_id: int, offset: int, wait: bool = True) -> int:
        self._look(wait)
        units = super().read_units(topic, queue_id, offset, 1)
        return self._time(units[0]) if units else -1

    async def warm(self, missed: NotInMemory) -> None:
        await self.device.wait()
        self.warmed.append(missed.cold)


class ColdPlugin:
    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        register("cold", ColdStore)


def cold_desk(opened: Any, **keys: Any) -> AbstractAsyncContextManager[Desk]:
    """A desk over such a store; `opened` opens one."""
    desk: AbstractAsyncContextManager[Desk] = opened(extra=[("cold", ColdPlugin())], store="cold", **keys)
    return desk


def store_of(desk: Desk) -> ColdStore:
    store: MessageStore = desk.broker.store
    assert isinstance(store, ColdStore)
    return store
