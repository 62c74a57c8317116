"""Deliveries that the log has already."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqkit.config import Config
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.protocol.record import unpack
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted
from rmqkit_store_memory.store import MemoryStore
from rmqkit_timer.messages import delivered, rolled
from rmqkit_timer.repeats import Repeats
from tests.plugins.timer.kit import parked, timed


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(Config(), FakeClock(), FlushWhenWanted())
    await made.open()
    yield made
    await made.close()


def stored(store: MemoryStore, message: PutMessage) -> StoredMessage:
    (place,) = store.append([message])
    record = store.read_record(place.physical_offset)
    assert record is not None
    return unpack(record)


async def test_a_delivery_is_recognised_once(store: MemoryStore) -> None:
    """Whenever it was entered and delivered; a second one that is alike is another message."""
    waits = stored(store, parked(b"a", 5_000, UNIQ_KEY="K"))
    start = store.end_offset
    store.append([delivered(waits, 1_000, 6_000), delivered(waits, 1_000, 6_000), timed(b"a", {})])
    repeats = Repeats()
    await repeats.load(store, start)
    assert repeats.start == start
    again = delivered(waits, 2_000, 9_000)
    assert [repeats.has(again, waits.body_crc) for _ in range(3)] == [True, True, False]
    await repeats.load(store, store.end_offset)
    assert not repeats.has(again, waits.body_crc)


async def test_another_message_is_not_recognised(store: MemoryStore) -> None:
    """Of another body, key, time, topic, queue or birth, or one that waits on."""
    waits = stored(store, parked(b"a", 5_000, UNIQ_KEY="K"))
    store.append([delivered(waits, 1_000, 6_000)])
    repeats = Repeats()
    await repeats.load(store, 0)
    for other in (
        parked(b"b", 5_000, UNIQ_KEY="K"),
        parked(b"a", 5_000, UNIQ_KEY="L"),
        parked(b"a", 6_000, UNIQ_KEY="K"),
        parked(b"a", 5_000, UNIQ_KEY="K", REAL_TOPIC="U"),
        parked(b"a", 5_000, UNIQ_KEY="K", REAL_QID="1"),
    ):
        found = stored(store, other)
        assert not repeats.has(delivered(found, 1_000, 6_000), found.body_crc)
    born = parked(b"a", 5_000, UNIQ_KEY="K")
    born.born_timestamp_ms = 1
    found = stored(store, born)
    assert not repeats.has(delivered(found, 1_000, 6_000), found.body_crc)
    assert not repeats.has(rolled(waits, 1_000, 6_000), waits.body_crc)
    assert repeats.has(delivered(waits, 1_000, 6_000), waits.body_crc)


async def test_a_message_that_was_stored_anew_is_recognised(store: MemoryStore) -> None:
    """In the timer topic, by the number of times; after `clear` nothing is."""
    waits = stored(store, parked(b"a", 5_000))
    once = stored(store, rolled(waits, 1_000, 2_000))
    assert once.properties["TIMER_ROLL_TIMES"] == "1"
    repeats = Repeats()
    await repeats.load(store, 0)
    assert not repeats.has(rolled(once, 2_000, 3_000), once.body_crc)
    assert repeats.has(rolled(waits, 1_000, 2_000), waits.body_crc)
    await repeats.load(store, 0)
    repeats.clear()
    assert repeats.start is None
    assert not repeats.has(rolled(waits, 1_000, 2_000), waits.body_crc)
