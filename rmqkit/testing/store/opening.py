"""Contract of a store: directories that are opened again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqkit.errors import StoreInUse
from rmqkit.plugin.flush import Level
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import SMALL, SMALL_INDEX, bodies, contents, message, put, running


class Opening(StoreFixtures):
    """What a persistent store keeps."""

    @pytest.fixture
    def persists(self) -> None:
        """Skips the tests of persistence for stores without it."""
        if not self.persistent:
            pytest.skip("this store keeps nothing")

    @pytest.mark.usefixtures("persists")
    async def test_opening_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A closed store opens with its whole content and appends after it; a deleted topic stays deleted."""
        settings = SMALL | SMALL_INDEX
        async with running(self.make_store(tmp_path / "store", clock, **settings)) as store:
            for number in range(40):
                batch = [
                    message(f"T{n % 3}", n % 2, b"x" * (n * 20), keys=f"k{n}")
                    for n in range(number, number + 5)
                ]
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
    async def test_a_deleted_topic_stays_deleted(self, tmp_path: Path, clock: FakeClock) -> None:
        """After a kill, and when everything is built again from the log: a deleted topic has no queue, one
        that was sent to again begins at queue offset 0 with the later messages, and the same holds for a
        queue."""
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            for topic in ("Gone", "Back", "Kept"):
                await put(store, [message(topic, number % 2, b"old") for number in range(6)])
            store.delete_topic("Gone")
            store.delete_topic("Back")
            store.delete_queue("Kept", 1)
            assert (await put(store, [message("Back", 1, b"new")]))[0].queue_offset == 0
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
        self.lose_derived(tmp_path / "killed")
        for _ in range(2):
            async with running(self.make_store(tmp_path / "killed", clock)) as store:
                assert store.queues() == {"Back": [1], "Kept": [0]}
                assert bodies(store, "Back", 1) == [b"new"]
                assert bodies(store, "Kept", 0) == [b"old"] * 3
        async with running(self.make_store(tmp_path / "killed", clock)) as store:
            for topic, queue_id in (("Gone", 0), ("Back", 0), ("Kept", 1)):
                assert (await put(store, [message(topic, queue_id, b"new")]))[0].queue_offset == 0
                assert bodies(store, topic, queue_id) == [b"new"]

    @pytest.mark.usefixtures("persists")
    async def test_opening_an_empty_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A store without messages opens again."""
        for _ in range(2):
            async with running(self.make_store(tmp_path / "store", clock)) as store:
                assert store.queues() == {}
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert (await put(store, [message()]))[0].physical_offset == 0

    @pytest.mark.usefixtures("persists")
    async def test_opening_a_trimmed_store_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """Trimmed records stay removed, and the ends of queues are unchanged."""
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
        """A second store is refused with the name of the directory, and the first one is not affected; after
        a close the directory can be opened."""
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            await put(store, [message()])
            second = self.make_store(tmp_path / "store", clock)
            with pytest.raises(StoreInUse, match=str(tmp_path / "store")):
                await second.open()
            await second.close()
            await put(store, [message()])
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            assert store.max_offset("Orders", 0) == 2
