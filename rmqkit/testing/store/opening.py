"""Contract of a store: directories that are opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.abc import Level
from rmqkit.errors import StoreInUse
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import SMALL, SMALL_INDEX, bodies, contents, message, put, running


class Opening(StoreFixtures):
    """What a store that persists keeps."""

    @pytest.fixture
    def persists(self) -> None:
        """Skips the tests of what a store keeps that keeps nothing."""
        if not self.persistent:
            pytest.skip("this store keeps nothing")

    @pytest.mark.usefixtures("persists")
    async def test_opening_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A closed store opens with everything it had, and goes on behind it; a deleted topic stays deleted."""
        settings = SMALL | SMALL_INDEX
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            for number in range(40):
                batch = [message(f"T{n % 3}", n % 2, b"x" * (n * 20), keys=f"k{n}") for n in range(number, number + 5)]
                await put(store, batch)
                clock.advance(3)
            await put(store, [message("Gone")])
            store.delete_topic("Gone")
            before, end = contents(store), store.statistics().max_physical_offset
            keys = [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9) for n in range(44)]
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
                assert contents(store) == before
                assert [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9) for n in range(44)] == keys
                assert store.end_offset == store.statistics().max_physical_offset == end
                assert store.is_settled(end, Level.FLUSHED)
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            (at,) = await put(store, [message("T0", 0, b"more")])
            assert (at.queue_offset, at.physical_offset) == (before["T0", 0][1], end)
            assert bodies(store, "T0")[-1] == b"more"

    @pytest.mark.usefixtures("persists")
    async def test_opening_an_empty_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A store that never got a message opens again."""
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock)) as store:
                assert store.queues() == {}
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert (await put(store, [message()]))[0].physical_offset == 0

    @pytest.mark.usefixtures("persists")
    async def test_opening_a_trimmed_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """What was trimmed stays away, ends of queues stay where they were."""
        settings = SMALL | SMALL_INDEX
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            await put(store, [message("Old")])
            await self._filled(store)
            await store.trim((await store.log_parts())[2].end)
            before, start = contents(store), store.statistics().min_physical_offset
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
                assert contents(store) == before
                assert store.statistics().min_physical_offset == start > 0
                assert (await put(store, [message("Gone")]))[0].queue_offset == 0
                store.delete_topic("Gone")

    @pytest.mark.usefixtures("persists")
    async def test_one_store_per_directory(self, tmp_path: Path, clock: FakeClock) -> None:
        """A second store is refused, naming the directory, and leaves the first one alone; after close the directory is free."""
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            await put(store, [message()])
            second = self.make_store(tmp_path / "store", clock)
            with pytest.raises(StoreInUse, match=str(tmp_path / "store")):
                await second.open()
            await second.close()
            await put(store, [message()])
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert store.max_offset("Orders", 0) == 2
