"""What the interface of stores has of its own: pins, results, and stand-ins that keep nothing."""

from __future__ import annotations

import pytest

from rmqkit.errors import DecodeError
from rmqkit.plugin.store import NoKeys, NoQueues, NotInMemory, Pins, ReadResult, Reads, ReadStatus
from rmqkit.protocol import record
from rmqkit.testing.store import message

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def packed(queue_offset: int) -> bytes:
    one = message()
    return record.pack(one, record.message_size(one), queue_offset, 0, 0, HOST)


def test_a_trim_stops_before_the_lowest_pin() -> None:
    """Pins may lie anywhere, move, and be released in any order and twice; each holds only while it is
    there."""
    pins = Pins()
    assert pins.limit(900) == 900
    high, low = pins.add(700, "slave"), pins.add(300, "dispatcher")
    assert (pins.limit(900), pins.limit(200)) == (300, 200)
    assert [pin.reader for pin in pins.before(701)] == ["dispatcher", "slave"]
    assert pins.before(300) == []
    low.offset = 800
    assert pins.limit(900) == 700
    high.release()
    high.release()
    assert (high.holds, low.holds, pins.limit(900)) == (False, True, 800)


def test_a_pin_ends_with_its_block() -> None:
    """Also when the block ends by an error."""
    pins = Pins()
    pin = pins.add(1, "reader")
    with pytest.raises(AssertionError, match="in the block"), pin:
        assert not pin.holds, "in the block"
    assert not pin.holds
    assert pins.before(1 << 60) == []


def test_a_result_knows_the_queue_offsets_of_its_records() -> None:
    """Neighbours share a slice, and a filter leaves gaps; a damaged head is an error, not a wrong number."""
    slices = [packed(3) + packed(4), packed(9)]
    assert ReadResult(ReadStatus.FOUND, 10, 0, 10, slices, 3).queue_offsets == [3, 4, 9]
    assert ReadResult(ReadStatus.NO_MATCHED_MESSAGE, 10, 0, 10, []).queue_offsets == []
    damaged = ReadResult(ReadStatus.FOUND, 10, 0, 10, [packed(3)[:-1]], 1)
    with pytest.raises(DecodeError, match="claims"):
        _ = damaged.queue_offsets


async def test_a_store_that_has_all_in_memory_fetches_nothing() -> None:
    """The defaults serve such a store: a fetch returns, and reads may block."""
    reads = Reads()
    with reads.blocking_reads():
        await reads.fetch(NotInMemory("a", "b"))
    assert NotInMemory("a", "b").cold == ("a", "b")


def test_what_stands_for_nothing() -> None:
    """`NoQueues` and `NoKeys`, for stores without queues or index, report empty queues and find nothing."""
    queues, keys = NoQueues(), NoKeys()
    queues.delete_queue("T", 0)
    assert (queues.min_offset("T", 0), queues.max_offset("T", 0), list(queues.units("T", 0, 0, 10))) == (
        0,
        0,
        [],
    )
    assert keys.query_by_key("T", "k", 0, 1, 10).physical_offsets == []
