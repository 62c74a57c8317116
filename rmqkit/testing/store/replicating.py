"""Contract of a store: raw appends of another broker's log, cutting the log, and pins."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio

from rmqkit.errors import StoreError, StoreNotWritable
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import KeyMatches, MessageStore, QueueUnit
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.base import StoreFixtures
from rmqkit.testing.store.kit import SMALL, SMALL_INDEX, bodies, contents, message, put, running

SETTINGS = SMALL | SMALL_INDEX
KEYS = [f"k{number}" for number in range(12)]


async def fill(store: MessageStore, clock: FakeClock, count: int, seed: int) -> list[int]:
    """Append `count` runs of messages of all kinds, which fill several files; returns the offsets where
    records begin."""
    rng = random.Random(seed)
    places: list[int] = []
    for _ in range(count):
        batch = [
            message(
                f"T{rng.randrange(3)}",
                rng.randrange(2),
                rng.randbytes(rng.randrange(900)),
                keys=rng.choice(KEYS),
                sys_flag=rng.choice((0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)),
                tag=rng.choice("AB"),
            )
            for _ in range(rng.randrange(1, 9))
        ]
        places += [at.physical_offset for at in await put(store, batch)]
        clock.advance(rng.randrange(900))
    return places


def found_keys(store: MessageStore) -> list[KeyMatches]:
    """Every key of every topic."""
    return [store.query_by_key(f"T{n}", key, 0, 1 << 60, 999) for n in range(3) for key in KEYS]


def queues_of(
    store: MessageStore,
) -> dict[tuple[str, int], tuple[int, int, list[StoredMessage], list[QueueUnit]]]:
    """The content of all queues with messages."""
    return {key: found for key, found in contents(store).items() if found[1]}


def whole_log(store: MessageStore, piece_bytes: int = 1 << 20) -> bytes:
    """The log from its start to its end, read in pieces."""
    found, at = [], store.start_offset
    while at < store.end_offset:
        found.append(bytes(store.read_log(at, piece_bytes)))
        assert found[-1], f"the log cannot be read at {at}"
        at += len(found[-1])
    return b"".join(found)


def copy(source: MessageStore, target: MessageStore, rng: random.Random) -> None:
    """Append the rest of one log to another one, in pieces of any size."""
    while target.end_offset < source.end_offset:
        at = target.end_offset if target.end_offset > target.start_offset else source.start_offset
        target.append_log(at, source.read_log(at, rng.randrange(1, 20_000)))


class Replicating(StoreFixtures):
    """Raw appends, cutting and pinning, as replicas need them."""

    async def test_a_copied_log_is_the_same(self, tmp_path: Path, clock: FakeClock) -> None:
        """A log copied in pieces of any size has the same bytes, queues, records and keys, also after the
        copy opens again; both assign the same offsets afterwards."""
        async with running(self.make_store(tmp_path / "source", clock, **SETTINGS)) as source:
            async with running(self.make_store(tmp_path / "copy", clock, **SETTINGS)) as target:
                for seed in range(3):
                    await fill(source, clock, 40, seed)
                    copy(source, target, random.Random(seed))
                    await target.settled(target.end_offset, Level.FLUSHED)
                    assert whole_log(target) == whole_log(source, 5_000)
                    assert (queues_of(target), found_keys(target)) == (queues_of(source), found_keys(source))
            if self.persistent:
                target = self.make_store(tmp_path / "copy", clock, **SETTINGS)
                async with running(target):
                    assert whole_log(target) == whole_log(source)
                    assert (queues_of(target), found_keys(target)) == (queues_of(source), found_keys(source))
                    batch = [message("T1", body=b"next", keys="k1"), message("New")]
                    assert await put(target, batch) == await put(source, batch)

    async def test_the_queues_that_a_copy_begins(self, tmp_path: Path, clock: FakeClock) -> None:
        """An append of copied bytes returns the queues that it has begun, each of them once."""
        begun: list[tuple[str, int]] = []
        async with (
            running(self.make_store(tmp_path / "source", clock, **SETTINGS)) as source,
            running(self.make_store(tmp_path / "copy", clock, **SETTINGS)) as target,
        ):
            for seed in range(3):
                await fill(source, clock, 40, seed)
                while target.end_offset < source.end_offset:
                    at, known = target.end_offset, {*contents(target)}
                    made = target.append_log(at, source.read_log(at, 2_000))
                    assert {*made} == contents(target).keys() - known
                    begun += made
            assert sorted(begun) == sorted(contents(source))
            assert target.append_log(target.end_offset, b"") in ([], ())

    async def test_a_copy_that_ends_with_a_blank_record(self, tmp_path: Path, clock: FakeClock) -> None:
        """A blank record at the end of a copy can be waited for. After a kill and after a close the copy ends
        behind it or before it, and continues from there."""
        async with running(self.make_store(tmp_path / "source", clock, **SETTINGS)) as source:
            await fill(source, clock, 40, 3)
            blanks: list[tuple[int, int]] = []
            at = source.start_offset
            while at < source.end_offset:
                data = source.read_log(at, 1)
                size, magic = peek_size_and_magic(data)
                if magic == MAGIC_BLANK:
                    blanks.append((at, size))
                at += size
            for number, (at, size) in enumerate(blanks):
                for begin in {source.start_offset, at}:  # the blank record may be all that the copy has
                    directory = tmp_path / f"{number} {begin}"
                    async with running(self.make_store(directory, clock, **SETTINGS)) as target:
                        while begin < at + size:
                            data = source.read_log(begin, at + size - begin)
                            target.append_log(begin, data)
                            begin += len(data)
                        await target.settled(at + size, Level.FLUSHED)
                        if self.persistent:
                            shutil.copytree(directory, directory.with_name(f"{directory.name} killed"))
                    for name in (directory.name, f"{directory.name} killed") if self.persistent else ():
                        async with running(self.make_store(tmp_path / name, clock, **SETTINGS)) as target:
                            assert target.end_offset in (at, at + size)
                            while target.end_offset < source.end_offset:
                                data = source.read_log(target.end_offset, 20_000)
                                target.append_log(target.end_offset, data)

    async def test_a_copy_begins_anywhere(self, tmp_path: Path, clock: FakeClock) -> None:
        """An empty log begins at the offset of the first bytes copied; its queues begin with the queue
        offsets of their first records."""
        async with running(self.make_store(tmp_path / "source", clock, **SETTINGS)) as source:
            places = await fill(source, clock, 80, 7)
            start = places[len(places) // 2]
            async with running(self.make_store(tmp_path / "copy", clock, **SETTINGS)) as target:
                at = start
                while at < source.end_offset:
                    target.append_log(at, source.read_log(at, 3_000))
                    at = target.end_offset
                await target.settled(at, Level.WRITTEN)
                self._check_later_half(source, target, start)
                assert target.start_offset <= start
            if self.persistent:
                async with running(self.make_store(tmp_path / "copy", clock, **SETTINGS)) as target:
                    assert target.end_offset == source.end_offset
                    self._check_later_half(source, target, start)

    def _check_later_half(self, source: MessageStore, target: MessageStore, start: int) -> None:
        found = queues_of(target)
        for key, (_, high, messages, units) in queues_of(source).items():
            kept = [unit for unit in units if unit.physical_offset >= start]
            assert found[key] == (kept[0].queue_offset, high, messages[-len(kept) :], kept)

    async def test_a_topic_that_was_deleted_and_created_again(self, tmp_path: Path, clock: FakeClock) -> None:
        """A copied record with a lower queue offset starts its queue again."""
        async with running(self.make_store(tmp_path / "source", clock)) as source:
            await put(source, [message(body=b"old") for _ in range(4)])
            source.delete_topic("Orders")
            await put(source, [message(body=b"new"), message(body=b"newer")])
            async with running(self.make_store(tmp_path / "copy", clock)) as target:
                target.append_log(0, source.read_log(0, 1 << 20))
                await target.settled(target.end_offset, Level.WRITTEN)
                assert bodies(target) == bodies(source) == [b"new", b"newer"]
            if self.persistent:
                async with running(self.make_store(tmp_path / "copy", clock)) as target:
                    assert bodies(target) == [b"new", b"newer"]

    async def test_wrong_bytes_are_refused_whole(self, tmp_path: Path, clock: FakeClock) -> None:
        """Bytes for another place, a truncated record, and bytes that are not a record are refused, and
        nothing of them is stored; so is every append to a store that accepts no writes."""
        async with running(self.make_store(tmp_path / "source", clock)) as source:
            results = await put(source, [message(body=b"x" * 100, keys="k") for _ in range(3)])
            data = bytes(source.read_log(0, 1 << 20))
        second = results[1].physical_offset
        async with running(self.make_store(tmp_path / "copy", clock)) as target:
            target.append_log(0, data[:second])
            await target.settled(second, Level.WRITTEN)
            before = queues_of(target), whole_log(target)
            for offset, wrong in (
                (second + 1, data[second:]),
                (0, data),
                (second, data[second:-1]),
                (second, data[second : second + 5]),
                (second, data[:second]),
                (second, data[second : results[2].physical_offset] + b"\xff" * 200),
                (second, bytes(200)),
            ):
                with pytest.raises(StoreError):
                    target.append_log(offset, wrong)
                assert (queues_of(target), whole_log(target)) == before
            target.refuse_writes("full")
            with pytest.raises(StoreNotWritable, match="full"):
                target.append_log(second, data[second:])
            target.refuse_writes(None)
            target.append_log(second, data[second:])
            target.append_log(len(data), b"")
            await target.settled(len(data), Level.WRITTEN)
            assert whole_log(target) == data
        with pytest.raises(StoreNotWritable):
            target.append_log(len(data), data)

    async def test_a_cut_log(self, tmp_path: Path, clock: FakeClock) -> None:
        """After `truncate` log, queues and keys are those of the time when the log ended there, wherever in a
        file that is; appends continue from there, also after the store opens again."""
        for cuts in (1, 40, 119):
            directory = tmp_path / str(cuts)
            store = self.make_store(directory, clock, **SETTINGS)
            async with running(store):
                await fill(store, clock, cuts, 1)
                end, before = store.end_offset, (whole_log(store), queues_of(store), found_keys(store))
                await fill(store, clock, 120 - cuts, 2)
                await store.truncate(end)
                assert store.settled_offset(Level.FLUSHED) == store.end_offset == end
                assert (whole_log(store), queues_of(store), found_keys(store)) == before
                if self.persistent:
                    shutil.copytree(directory, directory.with_name(f"{cuts} killed"))
                await fill(store, clock, 30, 3)
                after = whole_log(store), queues_of(store), found_keys(store)
                assert after[0][: len(before[0])] == before[0]
            if self.persistent:
                async with running(self.make_store(directory, clock, **SETTINGS)) as store:
                    assert (whole_log(store), queues_of(store), found_keys(store)) == after
                killed = self.make_store(directory.with_name(f"{cuts} killed"), clock, **SETTINGS)
                async with running(killed):
                    assert (whole_log(killed), queues_of(killed), found_keys(killed)) == before

    async def test_a_log_that_is_cut_often(self, tmp_path: Path, clock: FakeClock) -> None:
        """After alternate cuts and appends, across the ends of files, the content is the same as a copy of
        the log has."""
        rng = random.Random(11)
        async with running(self.make_store(tmp_path / "store", clock, **SETTINGS)) as store:
            places: list[int] = []
            for _ in range(8):
                places += await fill(store, clock, rng.randrange(5, 40), rng.randrange(99))
                cut = rng.randrange(len(places) // 2, len(places))
                await store.truncate(places[cut])
                del places[cut:]
            async with running(self.make_store(tmp_path / "copy", clock, **SETTINGS)) as target:
                copy(store, target, rng)
                await target.settled(target.end_offset, Level.WRITTEN)
                assert whole_log(target) == whole_log(store)
                assert (queues_of(target), found_keys(target)) == (queues_of(store), found_keys(store))

    async def test_where_a_log_cannot_be_cut(self, store: MessageStore) -> None:
        """An offset where no record begins is refused and nothing is cut; a cut at the end does nothing, a
        cut at the start leaves an empty log."""
        results = await put(store, [message(body=b"x" * 300) for _ in range(3)])
        for offset in (-1, 1, results[1].physical_offset + 1, store.end_offset + 1, 1 << 40):
            with pytest.raises(StoreError):
                await store.truncate(offset)
        await store.truncate(store.end_offset)
        assert len(bodies(store)) == 3
        await store.truncate(0)
        assert (store.start_offset, store.end_offset, store.queues()) == (0, 0, {})
        assert (await put(store, [message()]))[0][:2] == (0, 0)

    async def test_followers_of_the_log_see_it_all(self, tmp_path: Path, clock: FakeClock) -> None:
        """Raw appends and cuts move the positions of the log, forwards and back."""
        async with running(self.make_store(tmp_path / "source", clock)) as source:
            results = await put(source, [message(), message(body=b"second")])
            data = bytes(source.read_log(0, 1 << 20))
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            moves: list[int] = []
            store.positions.written.follow(lambda: moves.append(store.end_offset))
            store.append_log(0, data)
            await store.settled(len(data), Level.WRITTEN)
            assert (moves[-1], store.max_offset("Orders", 0)) == (len(data), 2)
            await store.truncate(results[1].physical_offset)
            assert (moves[-1], store.max_offset("Orders", 0)) == (results[1].physical_offset, 1)

    async def test_followers_go_back_before_anything_is_appended(self, store: MessageStore) -> None:
        """A cut calls the followers of truncations with the new end, while nothing can be appended."""
        results = await put(store, [message(), message(), message()])
        end = results[1].physical_offset
        seen: list[tuple[int, int]] = []

        async def follow(new_end: int) -> None:
            await trio.lowlevel.checkpoint()
            with pytest.raises(StoreNotWritable):
                store.append([message()])
            seen.append((new_end, store.end_offset))

        store.positions.follow_truncation(follow)
        store.positions.follow_truncation(follow)
        await store.truncate(end)
        assert seen == [(end, end)] * 2
        store.positions.unfollow_truncation(follow)
        (at,) = await put(store, [message()])
        await store.truncate(at.physical_offset)
        assert len(seen) == 2
        await put(store, [message()])

    async def test_a_follower_that_cannot_go_back(self, tmp_path: Path, clock: FakeClock) -> None:
        """The cut fails, and until it opens again the store accepts no appends."""

        async def follow(new_end: int) -> None:
            await trio.lowlevel.checkpoint()
            raise ValueError("broken")

        store = self.make_store(tmp_path / "store", clock)
        async with running(store):
            results = await put(store, [message(body=b"kept"), message()])
            end = results[1].physical_offset
            store.positions.follow_truncation(follow)
            with pytest.raises(StoreError, match="broken"):
                await store.truncate(end)
            store.refuse_writes(None)
            for append in (lambda: store.append([message()]), lambda: store.append_log(end, b"")):
                with pytest.raises(StoreNotWritable):
                    append()
        if self.persistent:
            async with running(self.make_store(tmp_path / "store", clock)) as store:
                assert (store.end_offset, bodies(store)) == (end, [b"kept"])
                await put(store, [message()])

    async def test_waiting_for_what_was_cut_fails(self, store: MessageStore) -> None:
        """Waiting for an offset beyond the end of a cut log raises an error instead of waiting for ever."""
        results = await put(store, [message(), message()])
        await store.truncate(results[1].physical_offset)
        with pytest.raises(StoreError):
            await store.settled(results[1].physical_offset + 1, Level.FLUSHED)

    async def test_a_pin_holds_the_log(self, tmp_path: Path, clock: FakeClock) -> None:
        """A trim stops before the part with the pin's offset; later trims remove more when the pin has moved
        or is released."""
        async with running(self.make_store(tmp_path / "store", clock, **SMALL)) as store:
            parts = await self._filled(store)
            assert len(parts) > 3
            with store.pin(parts[1].start + 1) as pin, store.pin(parts[2].start):
                assert (await store.trim(parts[3].end)).log_start == parts[0].end
                pin.offset = parts[-1].end
                assert (await store.trim(parts[3].end)).log_start == parts[1].end
                pin.release()
            assert (await store.trim(parts[3].end)).log_start == parts[3].end == store.start_offset
