"""Contract of a store: reads of queues, records and the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.sysflag import TRANSACTION_PREPARED
from rmqkit.plugin.store import Boundary, MessageStore, NotInMemory, QueueUnit, ReadLimits, ReadStatus
from rmqkit.protocol.record import unpack, unpack_all
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, message, put, records, running
from rmqkit.toolkit.cold_reads import blocking


class Reading(StoreFixtures):
    """Reading queues, records and the log."""

    @pytest.mark.parametrize(
        ("offset", "status", "next_offset"),
        [
            (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
            (0, ReadStatus.FOUND, 3),
            (2, ReadStatus.FOUND, 3),
            (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
            (4, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        ],
    )
    async def test_read_statuses(
        self, store: MessageStore, offset: int, status: ReadStatus, next_offset: int
    ) -> None:
        """Status and next offset for each position of the requested offset (store-format sheet, 8.1)."""
        await put(store, [message(body=b"%d" % number) for number in range(3)])
        result = store.read("Orders", 0, offset, ALL, None)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
            status,
            next_offset,
            0,
            3,
        )
        assert [found.queue_offset for found in records(result)] == list(
            range(max(offset, 0), 3) if status is ReadStatus.FOUND else []
        )

    async def test_reading_what_is_not_there(self, store: MessageStore) -> None:
        """An unknown queue and one without messages have statuses of their own; reading creates nothing."""
        result = store.read("Orders", 0, 5, ALL, None)
        assert (result.status, result.next_offset, result.slices) == (
            ReadStatus.NO_MATCHED_LOGIC_QUEUE,
            0,
            [],
        )
        await put(store, [message(sys_flag=TRANSACTION_PREPARED)])
        result = store.read("Orders", 0, 5, ALL, None)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert (store.min_offset("No", 0), store.max_offset("No", 0), store.store_time("No", 0, 0)) == (
            0,
            0,
            -1,
        )
        assert store.offset_by_time("No", 0, 0, Boundary.LOWER) == 0
        assert store.read_units("No", 0, 0, 1) == []
        assert "No" not in store.queues()

    async def test_limits_of_a_read(self, store: MessageStore) -> None:
        """A read stops at its count or byte limit, and returns the first message whatever its size (8.2)."""
        size = (await put(store, [message(body=b"%03d" % number) for number in range(100)]))[0].size_bytes

        def taken(**limits: Any) -> tuple[int, int]:
            result = store.read("Orders", 0, 10, ALL._replace(**limits), None)
            return len(records(result)), result.next_offset

        assert taken(max_messages=7) == (7, 17)
        assert taken(max_bytes=3 * size) == (3, 13)
        assert taken(max_bytes=3 * size - 1) == (2, 12)
        assert taken(max_bytes=1) == (1, 11)
        assert taken(max_messages=0) == (1, 11)
        assert taken(max_messages=20, max_scanned_units=5) == (20, 30)
        assert taken() == (90, 100)

    async def test_limits_of_a_read_from_disk(self, store: MessageStore) -> None:
        """Records further from the end of the log than fits into memory have limits of their own; the first
        is always returned (8.2)."""
        size = (await put(store, [message(body=b"%03d" % number) for number in range(100)]))[0].size_bytes

        def taken(offset: int, **limits: int) -> int:
            settings: dict[str, Any] = {
                "max_disk_messages": 8,
                "max_disk_bytes": 10 * size,
                "memory_bytes": 50 * size,
            } | limits
            return len(records(store.read("Orders", 0, offset, ALL._replace(**settings), None)))

        assert taken(0) == taken(41) == 8
        assert taken(0, max_disk_messages=99) == 10
        assert taken(0, max_disk_messages=99, max_disk_bytes=10 * size - 1) == 9
        assert taken(0, max_disk_messages=0, max_disk_bytes=0) == 1
        # The record at 50 is the first in memory; a read that reaches it before its limits are used up
        # continues.
        assert taken(42) == 58
        assert taken(43, max_messages=20) == 20
        assert taken(50) == 50
        assert taken(0, memory_bytes=1 << 40) == 100

    async def test_filters(self, store: MessageStore) -> None:
        """The unit filter sees tags codes; what it refuses is skipped."""
        await put(store, [message(body=b"%d" % number, tags_code=number % 3) for number in range(9)])
        result = store.read("Orders", 0, 0, ALL, lambda code: code == 1)
        assert ([found.body for found in records(result)], result.next_offset) == ([b"1", b"4", b"7"], 9)
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=2), lambda code: code > 0)
        assert ([found.body for found in records(result)], result.next_offset) == ([b"1", b"2"], 3)

    async def test_each_message_of_a_read_has_its_queue_offset(self, store: MessageStore) -> None:
        """Also behind what a filter refuses, across records of other queues, and for a read that begins
        within the queue; a read without messages has none."""
        for number in range(9):
            await put(store, [message(body=b"%d" % number, tags_code=number % 3), message(queue_id=1)])

        def offsets(offset: int, codes: set[int], limits: ReadLimits = ALL) -> list[int]:
            unit_filter = None if codes == {0, 1, 2} else codes.__contains__
            result = store.read("Orders", 0, offset, limits, unit_filter)
            assert len(result.queue_offsets) == result.message_count
            assert [int(each.body) for each in records(result)] == result.queue_offsets
            return result.queue_offsets

        assert offsets(0, {0, 1, 2}) == list(range(9))
        assert offsets(4, {0, 1, 2}, ALL._replace(max_messages=3)) == [4, 5, 6]
        assert offsets(0, {1}) == [1, 4, 7]
        assert offsets(2, {0, 2}) == [2, 3, 5, 6, 8]
        assert offsets(0, {7}) == offsets(9, {0, 1, 2}) == []

    async def test_nothing_matched_moves_on_by_what_was_scanned(self, store: MessageStore) -> None:
        """A scan without a match ends at its limit, and returns the offset to continue at."""
        await put(store, [message() for _ in range(50)])
        limits = ReadLimits(max_messages=4, max_scanned_units=20)
        result = store.read("Orders", 0, 5, limits, lambda code: False)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_MESSAGE, 25, [])
        result = store.read("Orders", 0, 5, ALL, lambda code: False)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)

    async def test_a_slice_stays_as_it_is_while_more_is_appended(self, store: MessageStore) -> None:
        """The result of a read may be sent later: appends do not change it."""
        await put(store, [message(body=b"old")])
        result = store.read("Orders", 0, 0, ALL, None)
        await put(store, [message(body=b"new") for _ in range(1000)])
        assert [found.body for found in records(result)] == [b"old"]

    async def test_units_of_a_queue(self, store: MessageStore) -> None:
        """A unit has the offset and the size of its record, and its tags code."""
        results = await put(
            store, [message(tags_code=number - 1, queue_id=number % 2) for number in range(6)]
        )
        units = [
            QueueUnit(at.queue_offset, at.physical_offset, at.size_bytes, number - 1)
            for number, at in enumerate(results)
        ][::2]
        assert store.read_units("Orders", 0, 0, 99) == units
        assert store.read_units("Orders", 0, 1, 1) == units[1:2]
        assert store.read_units("Orders", 0, 3, 1) == []
        assert store.read_units("Orders", 0, -1, 2) == []
        assert store.read_units("Orders", 0, 0, 0) == []

    async def test_records_by_physical_offset(self, store: MessageStore) -> None:
        """A record is found only at the offset where it begins."""
        first, second = await put(store, [message(body=b"A" * 200), message(body=b"B")])
        assert unpack(store.read_record(second.physical_offset) or b"").body == b"B"
        end = second.physical_offset + second.size_bytes
        for offset in (
            -1,
            1,
            first.size_bytes - 1,
            second.physical_offset + 1,
            end,
            end + 1_000_000,
            1 << 60,
        ):
            assert store.read_record(offset) is None

    async def test_reading_the_log(self, store: MessageStore) -> None:
        """Raw log bytes end at a record boundary and have at least one record; there are none at the end or
        off a boundary."""
        results = await put(store, [message(body=b"x" * number) for number in range(5)])
        whole = bytes(store.read_log(0, 1 << 20))
        assert [found.physical_offset for found in unpack_all(whole)] == [
            at.physical_offset for at in results
        ]
        assert (
            bytes(store.read_log(0, results[0].size_bytes + results[1].size_bytes))
            == whole[: results[2].physical_offset]
        )
        assert (
            bytes(store.read_log(results[1].physical_offset, 1))
            == whole[results[1].physical_offset : results[2].physical_offset]
        )
        assert bytes(store.read_log(0, results[2].physical_offset - 1)) == whole[: results[1].physical_offset]
        for offset in (len(whole), len(whole) + 1, 3, -1):
            assert bytes(store.read_log(offset, 1 << 20)) == b""

    async def test_reads_of_new_data_do_not_wait(self, tmp_path: Path, clock: FakeClock) -> None:
        """Reads of data just written raise no NotInMemory and return the same as blocking reads; fetching a
        piece that the store never named does nothing."""
        async with running(self.make_store(tmp_path / "store", clock), blocking=False) as store:
            await self._check_reads_of_new_data(store, clock)

    async def _check_reads_of_new_data(self, store: MessageStore, clock: FakeClock) -> None:
        for number in range(5):
            await put(store, [message(body=b"%d" % number, keys="k")])
            clock.advance(10)
        now = clock.now_ms()
        found = store.read("Orders", 0, 1, ALL, None)
        assert [record.body for record in records(found)] == [b"1", b"2", b"3", b"4"]
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (store.read, ("Orders", 0, 1, ALL, lambda code: True)),
            (store.read_units, ("Orders", 0, 1, 3)),
            (store.read_record, (0,)),
            (store.read_record, (1,)),
            (store.query_by_key, ("Orders", "k", 0, now, 3)),
            (store.offset_by_time, ("Orders", 0, now - 25, Boundary.UPPER)),
            (store.store_time, ("Orders", 0, 2)),
            (store.store_time, ("None", 0, 2)),
            (store.read_log, (0, 100)),
        ]
        for read, arguments in calls:
            assert read(*arguments) == blocking(store, partial(read, *arguments))
        await store.fetch(NotInMemory("of another store"))
