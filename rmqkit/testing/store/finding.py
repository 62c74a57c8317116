"""Contract of a store: by key, by time, by topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqkit.config import STORE_DISPATCHERS
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import Boundary, MessageStore, ReadStatus
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, SMALL, SMALL_INDEX, bodies, message, put, running


def check_indexed(store: MessageStore, of_bills: int) -> None:
    """A message of Bills is found by its keys, and none of Orders."""
    for key in ("k", "U1", "U3"):
        assert store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets == []
    for key in ("k", "U2"):
        assert store.query_by_key("Bills", key, 0, 1 << 60, 9).physical_offsets == [of_bills]


class Finding(StoreFixtures):
    """Look-ups by key and time, and deletions."""

    async def test_queries_by_key(self, store: MessageStore) -> None:
        """UNIQ_KEY and every word of KEYS find a message, newest first, within its topic only."""
        unique = "7F00000100002A9A18B4AAC20000%04X"
        results = await put(
            store,
            [message(unique_key=unique % number, keys=f"all  k{number} k{number}") for number in range(4)],
        )
        await put(store, [message(topic="Other", keys="all"), message()])
        offsets = [at.physical_offset for at in results]

        def found(key: str, most: int = 64) -> Sequence[int]:
            return store.query_by_key("Orders", key, 0, 1 << 60, most).physical_offsets

        assert found("all") == offsets[::-1]
        assert found("all", 2) == offsets[:1:-1]
        assert found("all", 0) == []
        assert found(unique % 2) == found("k2") == [offsets[2]]
        assert found("none") == found("") == []

    async def test_equal_hashes_are_the_callers_to_sort_out(self, store: MessageStore) -> None:
        """`Aa` and `BB` have the same hash in Java; a query for either returns both messages."""
        results = await put(store, [message(keys="Aa"), message(keys="BB")])
        assert store.query_by_key("Orders", "Aa", 0, 1 << 60, 9).physical_offsets == [
            at.physical_offset for at in reversed(results)
        ]

    async def test_queries_within_a_time_range(self, store: MessageStore, clock: FakeClock) -> None:
        """Begin and end are inclusive; the answer has the index's progress."""
        start = clock.now_ms()
        offsets = []
        for _ in range(4):
            offsets.append((await put(store, [message(keys="k")]))[0].physical_offset)
            clock.advance(1500)

        def found(begin_ms: int, end_ms: int) -> Sequence[int]:
            return store.query_by_key("Orders", "k", start + begin_ms, start + end_ms, 9).physical_offsets

        assert found(0, 0) == offsets[:1]
        assert found(1500, 3000) == offsets[2:0:-1]
        assert found(4500, 99999) == offsets[3:]
        assert found(4501, 99999) == found(-5, -1) == found(1, 1499) == []
        matches = store.query_by_key("Orders", "k", 0, 1, 9)
        assert (matches.last_update_timestamp_ms, matches.last_update_physical_offset) == (
            start + 4500,
            offsets[3],
        )

    async def test_an_index_of_many_files(self, tmp_path: Path, clock: FakeClock) -> None:
        """Full index files and long slot chains lose no entry, neither while they are written nor
        afterwards."""
        offsets: dict[str, int] = {}

        def check(store: MessageStore) -> None:
            for key, offset in offsets.items():
                assert store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets == [offset]
            assert store.query_by_key("Orders", "all", 0, 1 << 60, 64).physical_offsets == sorted(
                offsets.values(), reverse=True
            )
            assert (
                store.query_by_key("Orders", "all", 0, 1 << 60, 3).physical_offsets
                == sorted(offsets.values(), reverse=True)[:3]
            )

        async with running(self.make_store(tmp_path / "store", clock, **SMALL_INDEX)) as store:
            for number in range(20):
                offsets[f"k{number}"] = (await put(store, [message(keys=f"k{number} all")]))[
                    0
                ].physical_offset
                clock.advance(1)
                check(store)
        if self.persistent:
            async with running(self.make_store(tmp_path / "store", clock, **SMALL_INDEX)) as store:
                check(store)
                offsets["more"] = (await put(store, [message(keys="more all")]))[0].physical_offset
                check(store)

    async def test_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """With `messageIndexEnable=false` no key finds a message."""
        async with running(self.make_store(tmp_path / "store", clock, message_index_enable=False)) as store:
            await put(store, [message(keys="k")])
            assert store.query_by_key("Orders", "k", 0, 1 << 60, 9) == ([], 0, 0)

    async def test_a_topic_without_an_index(self, tmp_path: Path, clock: FakeClock) -> None:
        """With `unindexedTopics` no key finds a message of these topics, neither one that was sent here nor
        one that came from another broker's log; others are found as before."""
        places = tmp_path / "store", tmp_path / "replica"
        unindexed = ("Orders", "Absent")
        async with running(self.make_store(places[0], clock, unindexed_topics=unindexed)) as store:
            results = await put(
                store, [message(keys="k", unique_key="U1"), message(topic="Bills", keys="k", unique_key="U2")]
            )
            await put(store, [message(keys="k", unique_key="U3")])
            records = [store.read_record(at.physical_offset) for at in results]
            check_indexed(store, results[1].physical_offset)
            clock.advance(1)
            async with running(self.make_store(places[1], clock, unindexed_topics=unindexed)) as replica:
                data = b"".join(bytes(record) for record in records if record is not None)
                replica.append_log(0, data)
                await replica.settled(replica.end_offset, Level.WRITTEN)
                check_indexed(replica, results[1].physical_offset)
        if self.persistent:
            async with running(self.make_store(places[0], clock, unindexed_topics=unindexed)) as store:
                check_indexed(store, results[1].physical_offset)

    @pytest.mark.parametrize(
        ("time_ms", "lower", "upper"),
        [(-9, 0, 0), (0, 0, 1), (5, 2, 1), (10, 2, 3), (11, 4, 3), (20, 4, 4), (21, 5, 4), (1 << 50, 5, 4)],
    )
    async def test_offsets_by_time(
        self, store: MessageStore, clock: FakeClock, time_ms: int, lower: int, upper: int
    ) -> None:
        """LOWER is the first message at or after a time, UPPER the last at or before it."""
        start = clock.now_ms()
        await put(store, [message(), message()])
        clock.advance(10)
        await put(store, [message(), message()])
        clock.advance(10)
        await put(store, [message()])
        assert store.offset_by_time("Orders", 0, start + time_ms, Boundary.LOWER) == lower
        assert store.offset_by_time("Orders", 0, start + time_ms, Boundary.UPPER) == upper
        assert [store.store_time("Orders", 0, offset) - start for offset in (0, 2, 4)] == [0, 10, 20]
        assert store.store_time("Orders", 0, 5) == store.store_time("Orders", 0, -1) == -1

    async def test_deleting_a_topic(self, store: MessageStore) -> None:
        """Its queues are removed and begin at 0 when it is created again; the log and other topics stay."""
        kept = (await put(store, [message(queue_id=3), message(topic="Other")]))[0].physical_offset
        await put(store, [message(queue_id=1), message(queue_id=3)])
        assert store.queues() == {"Orders": [1, 3], "Other": [0]}
        store.delete_topic("Orders")
        store.delete_topic("unknown")
        assert store.queues() == {"Other": [0]}
        assert store.read("Orders", 3, 0, ALL, None).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
        assert store.read_record(kept) is not None
        assert (await put(store, [message(queue_id=3, body=b"again")]))[0].queue_offset == 0
        assert bodies(store, queue_id=3) == [b"again"]

    async def test_many_queues_interleaved_over_many_segments(self, tmp_path: Path, clock: FakeClock) -> None:
        """Each queue returns its messages in order, wherever the records are in the log."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            expected: dict[tuple[str, int], list[bytes]] = {}
            for number in range(0, 700, 7):
                batch = [
                    message(f"T{n % 3}", n % 5, b"%d." % n * (n % 200 + 1)) for n in range(number, number + 7)
                ]
                for given, at in zip(batch, await put(store, batch), strict=True):
                    queue = expected.setdefault((given.topic, given.queue_id), [])
                    assert at.queue_offset == len(queue)
                    queue.append(given.body)
            assert {key: bodies(store, *key) for key in expected} == expected
            assert store.statistics().queue_count == len(expected) == 15

    async def test_deleting_a_queue(self, store: MessageStore) -> None:
        """Other queues of its topic stay; it begins at 0 when messages are sent to it again."""
        await put(store, [message(queue_id=0), message(queue_id=1, body=b"kept")])
        store.delete_queue("Orders", 0)
        store.delete_queue("Orders", 7)
        store.delete_queue("unknown", 0)
        assert store.queues() == {"Orders": [1]}
        assert bodies(store, queue_id=1) == [b"kept"]
        assert (await put(store, [message(body=b"again")]))[0].queue_offset == 0
        assert bodies(store) == [b"again"]

    async def test_what_the_store_builds(self, store: MessageStore) -> None:
        """Queues before the index, under these names, as far as the store builds them itself; no lag exceeds
        the length of the log."""
        assert store.start_offset == 0
        await put(store, [message(keys="k") for _ in range(3)])
        behind = store.dispatch_behind()
        assert list(behind) == [name for name in STORE_DISPATCHERS if name in behind]
        assert all(0 <= missing <= store.end_offset for missing in behind.values())
