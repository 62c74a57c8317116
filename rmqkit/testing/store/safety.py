"""Contract of a store: WRITTEN, FLUSHED and full disks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import Appended, Boundary, MessageStore
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import ALL, SMALL, bodies, contents, message, put, records, running

#: A flush takes less; the interval of a policy may be longer.
_PATIENCE_S = 60


class Safety(StoreFixtures):
    """WRITTEN and FLUSHED positions."""

    async def test_written_is_settled_at_the_latest_when_waited_for(self, store: MessageStore) -> None:
        """After `settled(offset, WRITTEN)` the offset is written; an offset beyond the end of the log is an
        error instead of a wait for ever."""
        (at,) = store.append([message()])
        end = at.physical_offset + at.size_bytes
        assert store.is_settled(end, Level.WRITTEN) or not store.written_by_append
        await store.settled(end, Level.WRITTEN)
        assert store.is_settled(end, Level.WRITTEN)
        assert not store.is_settled(end + 1, Level.WRITTEN)
        assert store.settled_offset(Level.WRITTEN) == end
        for level in Level:
            with pytest.raises(StoreError):
                await store.settled(end + 1, level)

    async def test_what_is_written_can_be_read_and_nothing_else(self, store: MessageStore) -> None:
        """An append is visible once it is WRITTEN, as a whole, to every kind of read; before that no read
        finds any part of it, nor an end beyond it."""

        def check() -> None:
            written = [
                at for at in results if store.is_settled(at.physical_offset + at.size_bytes, Level.WRITTEN)
            ]
            ends = {
                queue_id: sum(queues[at.physical_offset] == queue_id for at in written) for queue_id in (0, 1)
            }
            for queue_id, end in ends.items():
                assert store.max_offset("Orders", queue_id) == end
                assert len(store.read_units("Orders", queue_id, 0, 99)) == end
                result = store.read("Orders", queue_id, 0, ALL, None)
                assert (len(records(result)), result.next_offset, result.max_offset) == (end, end, end)
                assert store.offset_by_time("Orders", queue_id, 1 << 50, Boundary.LOWER) == end
                assert store.store_time("Orders", queue_id, end) == -1
            assert len(list(unpack_all(store.read_log(0, 1 << 20)))) == len(written)
            for at in results:
                assert (store.read_record(at.physical_offset) is not None) == (at in written)
            found = store.query_by_key("Orders", "k", 0, 1 << 60, 99).physical_offsets
            assert found == [at.physical_offset for at in reversed(written)]

        results: list[Appended] = []
        queues: dict[int, int] = {}
        for _ in range(3):
            for queue_ids in ([0, 1], [1], [1, 0, 0]):
                more = store.append([message(queue_id=queue_id, keys="k") for queue_id in queue_ids])
                queues.update(
                    (at.physical_offset, queue_id) for at, queue_id in zip(more, queue_ids, strict=True)
                )
                results += more
                check()
            await store.settled(store.end_offset, Level.WRITTEN)
            check()
            assert store.max_offset("Orders", 0) == sum(queue_id == 0 for queue_id in queues.values())

    async def test_followers_learn_of_every_move(self, store: MessageStore) -> None:
        """The followers of a position are called after each of its moves, when the written data can be read.
        A commit and a flush are announced by the store, an append by its caller."""
        positions = store.positions
        appended: list[int] = []
        written: list[tuple[int, int]] = []
        flushed: list[int] = []
        positions.appended.follow(lambda: appended.append(positions.appended.offset))
        positions.written.follow(
            lambda: written.append((positions.written.offset, store.max_offset("Orders", 0)))
        )
        positions.flushed.follow(lambda: flushed.append(positions.flushed.offset))
        ends = []
        for _ in range(3):
            store.append([message(), message()])
            store.positions.moved()
            ends.append(store.end_offset)
            await store.settled(ends[-1], Level.WRITTEN)
        await store.settled(ends[-1], Level.FLUSHED)
        assert appended == ends
        assert written == [(end, 2 * number) for number, end in enumerate(ends, 1)]
        assert flushed == sorted(set(flushed))
        assert flushed[-1] == ends[-1] == store.settled_offset(Level.FLUSHED)

    async def test_flushed_is_settled_when_waited_for(self, store: MessageStore) -> None:
        """All that wait for FLUSHED are woken."""
        (first,) = store.append([message()])
        second = store.append([message()])[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.settled, first.physical_offset + first.size_bytes, Level.FLUSHED)
            nursery.start_soon(store.settled, second.physical_offset + second.size_bytes, Level.FLUSHED)
        assert store.is_settled(second.physical_offset + second.size_bytes, Level.FLUSHED)
        assert (
            store.settled_offset(Level.FLUSHED)
            == store.statistics().flushed_physical_offset
            >= second.physical_offset + second.size_bytes
        )

    async def test_a_flush_does_not_wait_for_the_policy(self, store: MessageStore) -> None:
        """Everything that was appended is on the device when it returns."""
        for _ in range(2):
            store.append([message(), message()])
            end = store.end_offset
            with trio.fail_after(_PATIENCE_S):
                await store.flush()
            assert store.is_settled(end, Level.FLUSHED)
        await store.flush()

    @pytest.fixture
    def has_a_disk(self) -> None:
        """Skips the tests of a full disk."""
        if not self.can_fill_disk:
            pytest.skip("this store does not depend on a disk")

    @pytest.mark.usefixtures("has_a_disk")
    async def test_a_full_disk_refuses_and_recovers(self, tmp_path: Path, clock: FakeClock) -> None:
        """A full disk refuses appends as a whole; reads continue. Once there is space, appends continue where
        they stopped."""
        store = self.make_store(tmp_path / "store", clock, **SMALL)
        async with running(store):
            stored = []
            self.fill_disk(store, True)
            with pytest.raises(StoreNotWritable):
                store.append([message(body=b"none", keys="k")])
            self.fill_disk(store, False)
            stored += [
                at.queue_offset for at in await put(store, [message(body=b"%d" % n * 100) for n in range(5)])
            ]
            self.fill_disk(store, True)
            with pytest.raises(StoreNotWritable):  # more than one segment holds
                store.append([message(body=b"x" * 1000) for _ in range(100)])
            before = contents(store)
            assert len(bodies(store)) == 5
            self.fill_disk(store, False)
            stored += [
                at.queue_offset for at in await put(store, [message(body=b"x" * 1000) for _ in range(100)])
            ]
            assert stored == list(range(105))
            assert contents(store)["Orders", 0][2][:5] == before["Orders", 0][2]
            assert bodies(store)[5:] == [b"x" * 1000] * 100
