"""Contract of a store: trimming the log, refusing writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.errors import StoreNotWritable
from rmqkit.plugin.store import Boundary, MessageStore, ReadStatus
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, SMALL, SMALL_INDEX, bodies, contents, message, put, records, running


class Cleaning(StoreFixtures):
    """Removing old data."""

    async def test_parts_of_the_log(self, tmp_path: Path, clock: FakeClock) -> None:
        """The parts are adjacent, from the beginning of the log on; the part being written is not among
        them."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            assert await store.log_parts() == []
            await put(store, [message()])
            assert await store.log_parts() == []
            parts = await self._filled(store)
            assert len(parts) >= 2
            assert parts[0].start == store.statistics().min_physical_offset == 0
            assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
            last = store.read_units("Orders", 0, store.max_offset("Orders", 0) - 1, 1)[0]
            assert parts[-1].end <= last.physical_offset
            assert all(part.modified_ms > 0 for part in parts)

    async def test_trimming(self, tmp_path: Path, clock: FakeClock) -> None:
        """Parts that end before the offset are removed, with their entries in queues and index; the rest is
        found as before, and offsets continue."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL | SMALL_INDEX)) as store:
            parts = await self._filled(store)
            before = contents(store)
            assert (await store.trim(0)).log_start == 0
            assert (await store.trim(parts[0].end - 1)).log_start == 0
            assert contents(store) == before
            trimmed = await store.trim(parts[1].end)
            starts = (trimmed.log_start, store.start_offset, store.statistics().min_physical_offset)
            assert starts == (parts[1].end,) * 3
            assert await store.log_parts() == parts[2:]
            assert store.read_record(0) is None
            assert store.query_by_key("Orders", "k0", 0, 1 << 60, 9).physical_offsets == []
            assert len(store.query_by_key("Orders", "k1199", 0, 1 << 60, 9).physical_offsets) == 1
            for key, (low, high, messages, units) in contents(store).items():
                _, old_high, old_messages, old_units = before[key]
                assert 0 < low < high == old_high
                assert messages == old_messages[low:]
                assert messages[0].physical_offset >= parts[1].end > old_messages[low - 1].physical_offset
                assert units == old_units[low:]
            assert (await put(store, [message()]))[0].queue_offset == 600

    async def test_reading_what_was_trimmed(self, tmp_path: Path, clock: FakeClock) -> None:
        """A removed offset is answered "too small" with the first existing offset; time look-ups begin there
        too."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            parts = await self._filled(store)
            await store.trim(parts[0].end)
            low = store.min_offset("Orders", 0)
            for offset in (0, low - 1):
                result = store.read("Orders", 0, offset, ALL, None)
                assert (result.status, result.next_offset, result.min_offset, result.slices) == (
                    ReadStatus.OFFSET_TOO_SMALL,
                    low,
                    low,
                    [],
                )
                assert store.read_units("Orders", 0, offset, 1) == []
                assert store.store_time("Orders", 0, offset) == -1
            result = store.read("Orders", 0, low, ALL, None)
            assert (result.status, result.message_count, result.next_offset) == (
                ReadStatus.FOUND,
                600 - low,
                600,
            )
            assert store.offset_by_time("Orders", 0, 0, Boundary.LOWER) == low
            assert store.offset_by_time("Orders", 0, 0, Boundary.UPPER) == low

    async def test_a_slice_outlives_its_part(self, tmp_path: Path, clock: FakeClock) -> None:
        """A slice stays readable after its part was trimmed, as for an answer that is still being sent."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            parts = await self._filled(store)
            result = store.read("Orders", 0, 0, ALL._replace(max_messages=20), None)
            await store.trim(parts[-1].end)
            assert [found.body for found in records(result)] == [b"%d" % number * 40 for number in range(20)]

    async def test_the_newest_part_stays(self, tmp_path: Path, clock: FakeClock) -> None:
        """A trim never removes the newest part; a queue without remaining messages keeps its end."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            await put(store, [message("Old", body=b"old")])
            parts = await self._filled(store)
            trimmed = await store.trim(1 << 60)
            assert trimmed.log_start == parts[-1].end
            assert await store.log_parts() == []
            assert len(bodies(store)) == 600 - store.min_offset("Orders", 0) > 0
            assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (1, 1)
            assert store.read("Old", 0, 0, ALL, None).status is ReadStatus.OFFSET_TOO_SMALL
            assert store.read("Old", 0, 1, ALL, None).status is ReadStatus.OFFSET_OVERFLOW_ONE
            assert (await put(store, [message("Old", body=b"new")]))[0].queue_offset == 1
            assert bodies(store, "Old") == [b"new"]

    async def test_a_store_that_refuses_writes(self, store: MessageStore) -> None:
        """Every append gets the reason; reads work; appends succeed again once the refusal is lifted."""
        await put(store, [message(body=b"before")])
        store.refuse_writes("/data is 91 % full")
        with pytest.raises(StoreNotWritable, match="/data is 91 % full"):
            store.append([message()])
        assert bodies(store) == [b"before"]
        store.refuse_writes(None)
        assert (await put(store, [message(body=b"after")]))[0].queue_offset == 1

    async def test_where_the_disk_is(self, store: MessageStore) -> None:
        """The paths that the store fills exist."""
        assert all(path.is_dir() for path in store.disk_paths)
