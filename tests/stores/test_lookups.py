"""The store contract over stores that leave out their queues and their index, with plugins' look-ups in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.abc import MessageStore
from rmqkit.config import INDEX
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.lookups import WithLookups
from rmqkit.testing.store import SMALL, FlushWhenWanted, StoreContract, contents, message, running, store_config
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore


class MmapWithLookups(WithLookups, MmapStore):
    pass


class MemoryWithLookups(WithLookups, MemoryStore):
    pass


class LookupContract(StoreContract):
    """What differs: look-ups have no file of the store, so they do not go with its index, and know nothing of records that went before they began."""

    async def test_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """`messageIndexEnable` is about the store's index; keys are looked up where they are kept."""
        async with running(self.make_store(tmp_path / "store", clock, message_index_enable=False)) as store:
            store.append([message(keys="k")])
            assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == [0]
            assert INDEX not in store.dispatch_behind()

    @pytest.mark.usefixtures("persists")
    async def test_opening_a_trimmed_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """What was trimmed stays away, and numbers of queues are never used again, though the look-up has forgotten a queue without messages."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            store.append([message("Old"), message("Old")])
            await self._filled(store)
            await store.trim((await store.log_parts())[2].end)
            before, start = contents(store), store.start_offset
        assert before.pop(("Old", 0)) == (2, 2, [], [])
        for number in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
                found = contents(store)
                assert (found.pop(("Old", 0))[:2], found) == ((2 * (number > 0), 2 + number if number else 0), before)
                assert store.start_offset == start
                assert store.append([message("Old")])[0].queue_offset == 2 + number


class TestMmapWithLookups(LookupContract):
    persistent = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MmapWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())


class TestMemoryWithLookups(LookupContract):
    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MemoryWithLookups(store_config(directory, **settings), clock, FlushWhenWanted())
