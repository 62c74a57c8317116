"""The store contract over stores without queues and index of their own, with plugins' look-ups in their
place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import INDEX
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.lookups import WithLookups
from rmqkit.testing.store import (
    SMALL,
    FlushWhenWanted,
    StoreContract,
    contents,
    message,
    running,
    store_config,
)
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore


class MmapWithLookups(WithLookups, MmapStore):
    pass


class MemoryWithLookups(WithLookups, MemoryStore):
    pass


class LookupContract(StoreContract):
    """The differences: look-ups have no file in the store, so they are not lost with its index, and they do
    not know records removed before they started."""

    async def test_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """`messageIndexEnable` concerns the store's index; keys are looked up in the plugin."""
        async with running(self.make_store(tmp_path / "store", clock, message_index_enable=False)) as store:
            store.append([message(keys="k")])
            assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == [0]
            assert INDEX not in store.dispatch_behind()

    async def test_a_topic_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """`unindexedTopics` as well."""
        async with running(self.make_store(tmp_path / "store", clock, unindexed_topics=("Orders",))) as store:
            store.append([message(keys="k")])
            assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == [0]

    @pytest.mark.usefixtures("persists")
    async def test_opening_a_trimmed_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """Trimmed records stay removed, and queue offsets are never used again, although the look-up has
        forgotten queues without messages."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            store.append([message("Old"), message("Old")])
            await self._filled(store)
            await store.trim((await store.log_parts())[2].end)
            before, start = contents(store), store.start_offset
        assert before.pop(("Old", 0)) == (2, 2, [], [])
        for number in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
                found = contents(store)
                assert (found.pop(("Old", 0))[:2], found) == (
                    (2 * (number > 0), 2 + number if number else 0),
                    before,
                )
                assert store.start_offset == start
                assert store.append([message("Old")])[0].queue_offset == 2 + number


class TestMmapWithLookups(LookupContract):
    persistent = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MmapWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())


class TestMemoryWithLookups(LookupContract):
    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MemoryWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())
