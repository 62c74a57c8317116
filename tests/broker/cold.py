"""A store whose data is cold on request, for tests of reads that wait for the device without delaying
others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import trio

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import (
    Boundary,
    KeyMatches,
    MessageStore,
    NotInMemory,
    QueueUnit,
    ReadLimits,
    ReadResult,
    StoreFactory,
)
from rmqkit_store_memory.store import MemoryStore
from tests.broker.desk import BrokerHarness


class ColdStore(MemoryStore):
    """The next `cold` reads raise NotInMemory, each with its number, unless reads block; `cold_queues` counts
    the same for the units of single queues. `fetch` waits for `device`. `waits` tells of every read whether
    it would have waited."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cold = 0
        self.cold_queues: dict[tuple[str, int], int] = {}
        self.warmed: list[tuple[object, ...]] = []
        self.waits: list[bool] = []
        self.device = trio.Event()
        self.blocks = False

    @contextmanager
    def blocking_reads(self) -> Iterator[None]:
        self.blocks = True
        yield
        self.blocks = False

    def _look(self) -> None:
        self.waits.append(self.blocks)
        if self.cold and not self.blocks:
            self.cold -= 1
            raise NotInMemory(len(self.waits))

    def read(self, topic: str, queue_id: int, offset: int, limits: ReadLimits, *filters: Any) -> ReadResult:
        self._look()
        return super().read(topic, queue_id, offset, limits, *filters)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        self._look()
        if not self.blocks and self.cold_queues.get((topic, queue_id)):
            self.cold_queues[topic, queue_id] -= 1
            raise NotInMemory(len(self.waits))
        return super().read_units(topic, queue_id, offset, count)

    def read_record(self, physical_offset: int) -> Buffer | None:
        self._look()
        return super().read_record(physical_offset)

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        self._look()
        return super().query_by_key(topic, key, begin_ms, end_ms, max_results)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        self._look()
        return super().offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        self._look()
        units = super().read_units(topic, queue_id, offset, 1)
        return self._time(units[0]) if units else -1

    async def fetch(self, missed: NotInMemory) -> None:
        await self.device.wait()
        self.warmed.append(missed.cold)


class ColdPlugin:
    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        register("cold", ColdStore)


def cold_desk(opened: Any, **keys: Any) -> AbstractAsyncContextManager[BrokerHarness]:
    """A harness over such a store; `opened` opens one."""
    desk: AbstractAsyncContextManager[BrokerHarness] = opened(
        extra=[("cold", ColdPlugin())], store="cold", **keys
    )
    return desk


def store_of(desk: BrokerHarness) -> ColdStore:
    store: MessageStore = desk.broker.store
    assert isinstance(store, ColdStore)
    return store
