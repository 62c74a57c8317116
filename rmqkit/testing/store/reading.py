"""Contract of a store: reads of queues, records and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqkit.abc import Boundary, MessageStore, NotInMemory, QueueUnit, ReadLimits, ReadStatus
from rmqkit.model.sysflag import TRANSACTION_PREPARED
from rmqkit.protocol.record import unpack, unpack_all
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, message, put, records


class Reading(StoreFixtures):
    """What reads find."""

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
    async def test_read_statuses(self, store: MessageStore, offset: int, status: ReadStatus, next_offset: int) -> None:
        """Status and next offset by where the asked offset lies (store-format sheet, 8.1)."""
        await put(store, [message(body=b"%d" % number) for number in range(3)])
        result = store.read("Orders", 0, offset, ALL, None, None)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 0, 3)
        assert [found.queue_offset for found in records(result)] == list(range(max(offset, 0), 3) if status is ReadStatus.FOUND else [])

    async def test_reading_what_is_not_there(self, store: MessageStore) -> None:
        """An unknown queue and one without messages say so; nothing is made by asking."""
        result = store.read("Orders", 0, 5, ALL, None, None)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, [])
        await put(store, [message(sys_flag=TRANSACTION_PREPARED)])
        result = store.read("Orders", 0, 5, ALL, None, None)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert (store.min_offset("No", 0), store.max_offset("No", 0), store.store_time("No", 0, 0)) == (0, 0, -1)
        assert store.offset_by_time("No", 0, 0, Boundary.LOWER) == 0
        assert store.read_units("No", 0, 0, 1) == []
        assert "No" not in store.queues()

    async def test_limits_of_a_read(self, store: MessageStore) -> None:
        """A read stops at its count or byte limit, and gives the first message whatever its size (8.2)."""
        size = (await put(store, [message(body=b"%03d" % number) for number in range(100)]))[0].size_bytes

        def taken(**limits: Any) -> tuple[int, int]:
            result = store.read("Orders", 0, 10, ALL._replace(**limits), None, None)
            return len(records(result)), result.next_offset

        assert taken(max_messages=7) == (7, 17)
        assert taken(max_bytes=3 * size) == (3, 13)
        assert taken(max_bytes=3 * size - 1) == (2, 12)
        assert taken(max_bytes=1) == (1, 11)
        assert taken(max_messages=0) == (1, 11)
        assert taken(max_messages=20, max_scanned_units=5) == (20, 30)
        assert taken() == (90, 100)

    async def test_limits_of_a_read_from_disk(self, store: MessageStore) -> None:
        """Records further from the end of the log than fits into memory have caps of their own; the first is always given (8.2)."""
        size = (await put(store, [message(body=b"%03d" % number) for number in range(100)]))[0].size_bytes

        def taken(offset: int, **limits: int) -> int:
            settings: dict[str, Any] = {"max_disk_messages": 8, "max_disk_bytes": 10 * size, "memory_bytes": 50 * size} | limits
            return len(records(store.read("Orders", 0, offset, ALL._replace(**settings), None, None)))

        assert taken(0) == taken(41) == 8
        assert taken(0, max_disk_messages=99) == 10
        assert taken(0, max_disk_messages=99, max_disk_bytes=10 * size - 1) == 9
        assert taken(0, max_disk_messages=0, max_disk_bytes=0) == 1
        # The record at 50 is the first in memory; a read that comes to it before its caps are used up goes on.
        assert taken(42) == 58
        assert taken(43, max_messages=20) == 20
        assert taken(50) == 50
        assert taken(0, memory_bytes=1 << 40) == 100

    async def test_filters(self, store: MessageStore) -> None:
        """The unit filter sees tags codes, the record filter whole records; what they refuse is passed over."""
        await put(store, [message(body=b"%d" % number, tags_code=number % 3) for number in range(9)])
        result = store.read("Orders", 0, 0, ALL, lambda code: code == 1, None)
        assert ([found.body for found in records(result)], result.next_offset) == ([b"1", b"4", b"7"], 9)
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=2), None, lambda record: unpack(record).body > b"4")
        assert ([found.body for found in records(result)], result.next_offset) == ([b"5", b"6"], 7)
        result = store.read("Orders", 0, 0, ALL, lambda code: code == 1, lambda record: unpack(record).body == b"4")
        assert [found.body for found in records(result)] == [b"4"]

    async def test_nothing_matched_moves_on_by_what_was_scanned(self, store: MessageStore) -> None:
        """A scan without a match ends at its limit, and says where to go on."""
        await put(store, [message() for _ in range(50)])
        result = store.read("Orders", 0, 5, ReadLimits(max_messages=4, max_scanned_units=20), lambda code: False, None)
        assert (result.status, result.next_offset, result.slices) == (ReadStatus.NO_MATCHED_MESSAGE, 25, [])
        result = store.read("Orders", 0, 5, ALL, None, lambda record: False)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 50)

    async def test_a_slice_stays_as_it_is_while_more_is_appended(self, store: MessageStore) -> None:
        """What a read gave may be sent later: appending does not touch it."""
        await put(store, [message(body=b"old")])
        result = store.read("Orders", 0, 0, ALL, None, None)
        await put(store, [message(body=b"new") for _ in range(1000)])
        assert [found.body for found in records(result)] == [b"old"]

    async def test_units_of_a_queue(self, store: MessageStore) -> None:
        """A unit says where a record is, how long it is, and its tags code."""
        results = await put(store, [message(tags_code=number - 1, queue_id=number % 2) for number in range(6)])
        units = [QueueUnit(at.queue_offset, at.physical_offset, at.size_bytes, number - 1) for number, at in enumerate(results)][::2]
        assert store.read_units("Orders", 0, 0, 99) == units
        assert store.read_units("Orders", 0, 1, 1) == units[1:2]
        assert store.read_units("Orders", 0, 3, 1) == []
        assert store.read_units("Orders", 0, -1, 2) == []
        assert store.read_units("Orders", 0, 0, 0) == []

    async def test_records_by_physical_offset(self, store: MessageStore) -> None:
        """Only where a record begins is one found."""
        first, second = await put(store, [message(body=b"A" * 200), message(body=b"B")])
        assert unpack(store.read_record(second.physical_offset) or b"").body == b"B"
        end = second.physical_offset + second.size_bytes
        for offset in (-1, 1, first.size_bytes - 1, second.physical_offset + 1, end, end + 1_000_000, 1 << 60):
            assert store.read_record(offset) is None

    async def test_reading_the_log(self, store: MessageStore) -> None:
        """Raw log bytes end at a record boundary, with one record at least; nothing at the end or off a boundary."""
        results = await put(store, [message(body=b"x" * number) for number in range(5)])
        whole = bytes(store.read_log(0, 1 << 20))
        assert [found.physical_offset for found in unpack_all(whole)] == [at.physical_offset for at in results]
        assert bytes(store.read_log(0, results[0].size_bytes + results[1].size_bytes)) == whole[: results[2].physical_offset]
        assert bytes(store.read_log(results[1].physical_offset, 1)) == whole[results[1].physical_offset : results[2].physical_offset]
        assert bytes(store.read_log(0, results[2].physical_offset - 1)) == whole[: results[1].physical_offset]
        for offset in (len(whole), len(whole) + 1, 3, -1):
            assert bytes(store.read_log(offset, 1 << 20)) == b""

    async def test_reads_that_must_not_wait(self, store: MessageStore, clock: FakeClock) -> None:
        """They give of what was just written what the others give; to warm what the store never named does no harm."""
        for number in range(5):
            await put(store, [message(body=b"%d" % number, keys="k")])
            clock.advance(10)
        now = clock.now_ms()
        first, second = (store.read("Orders", 0, 1, ALL._replace(wait=wait), None, lambda record: True) for wait in (False, True))
        assert first == second
        assert [found.body for found in records(first)] == [b"1", b"2", b"3", b"4"]
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
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
            assert read(*arguments, wait=False) == read(*arguments, wait=True)
        await store.warm(NotInMemory("of another store"))
