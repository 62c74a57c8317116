"""Behaviour of the LMDB store beyond the contract: cold reads, gaps, retention by topic, the offsets of
RocketMQ's log; and how the store is selected."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.dispatch.replay import read_entries
from rmqkit.config import load
from rmqkit.errors import ConfigError, StoreBusy
from rmqkit.model.message import StoredMessage
from rmqkit.plugin import loader
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import Boundary, NoKeys, NotInMemory, ReadStatus
from rmqkit.protocol.record import MAGIC_BLANK, peek_size_and_magic, unpack_all
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    CommitWhenWanted,
    FlushWhenWanted,
    NeverFlush,
    as_keys,
    bodies,
    contents,
    message,
    put,
    running,
    store_config,
)
from rmqkit.toolkit.cold_reads import blocking, retry_when_cached
from rmqkit_store_lmdb import plugin
from rmqkit_store_lmdb import store as store_module
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_mmap.store import MmapStore

_HOUR_MS = 3_600_000


def make(
    directory: Path, clock: FakeClock | None = None, plugins: dict[str, Any] | None = None, **settings: Any
) -> LmdbStore:
    flags = {"storePathRootDir": str(directory), "plugins": {"lmdb": plugins or {}}}
    config = load(environ={}, flags=flags | as_keys(SMALL | settings))
    return LmdbStore(config, clock or FakeClock(), NeverFlush())


def stored_records(store: LmdbStore) -> list[StoredMessage]:
    """The records in LMDB."""
    with store._env.begin() as txn, txn.cursor(store._env.db("log")) as cursor:
        return [record for chunk in cursor.iternext(keys=False) for record in unpack_all(bytes(chunk))]


# --- cold reads ---------------------------------------------------------------------------------------------


async def test_what_another_process_wrote_is_read_off_the_loop_first(tmp_path: Path) -> None:
    """Each kind of read raises NotInMemory; after the fetch it returns the same as a blocking read."""
    clock = FakeClock()
    async with running(make(tmp_path, clock)) as store:
        for number in range(40):
            await put(store, [message(body=b"%d" % number, keys=f"k{number}")])
            clock.advance(10)
    async with running(make(tmp_path, clock), blocking=False) as store:
        now = clock.now_ms()
        reads: list[Callable[[], Any]] = [
            lambda: store.read("Orders", 0, 3, ALL, lambda code: code != 0),
            lambda: store.read_units("Orders", 0, 30, 5),
            lambda: store.read_record(0),
            lambda: store.read_record(1),
            lambda: store.query_by_key("Orders", "k7", 0, now, 5),
            lambda: store.offset_by_time("Orders", 0, now - 105, Boundary.UPPER),
            lambda: store.store_time("Orders", 0, 2),
            lambda: store.read_log(0, 700),
        ]
        for read in reads:
            with pytest.raises(NotInMemory) as missed:
                read()
            assert await retry_when_cached(store, read, missed.value) == blocking(store, read)
            store._queues["Orders", 0].warm_to = 0
        await put(store, [message(body=b"new", keys="new")])
        found = store.read("Orders", 0, 40, ALL, None)
        assert (found.status, found.message_count) == (ReadStatus.FOUND, 1)
        assert store.read("Orders", 0, 99, ALL, None).status is ReadStatus.OFFSET_OVERFLOW_BADLY
        with pytest.raises(NotInMemory):
            store.query_by_key("Orders", "new", 0, now, 5)
        assert store.query_by_key("Orders", "new", 0, now, 1).physical_offsets == [
            store.read_units("Orders", 0, 40, 1)[0].physical_offset
        ]


async def test_a_reader_of_old_messages_waits_once_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch brings in a stretch ahead of the reader; reads end where the stretch ends, and then the next
    one is fetched."""
    monkeypatch.setattr(store_module, "WARM_UNITS", 16)
    async with running(make(tmp_path)) as store:
        await put(store, [message(body=b"%d" % number) for number in range(40)])
    async with running(make(tmp_path), blocking=False) as store:
        found: list[bytes] = []
        waits = 0
        while len(found) < 40:
            read = partial(_read_from, store, len(found))
            try:
                more = read()
            except NotInMemory as missed:
                waits += 1
                more = await retry_when_cached(store, read, missed)
            found += more
        assert found == [b"%d" % number for number in range(40)]
        assert waits == 3


def _read_from(store: LmdbStore, offset: int) -> list[bytes]:
    result = store.read("Orders", 0, offset, ALL._replace(max_messages=5), None)
    return [found.body for found in unpack_all(b"".join(result.slices))]


# --- the log ------------------------------------------------------------------------------------------------


async def test_offsets_are_those_of_rocketmqs_log(tmp_path: Path) -> None:
    """Records have the offsets that the mmap store gives them, so that replicas agree; the ends of files are
    read as the same blank records."""
    clock = FakeClock()
    mmap_store = MmapStore(store_config(tmp_path / "mmap", **SMALL), clock, FlushWhenWanted())
    async with running(make(tmp_path / "lmdb", clock)) as store, running(mmap_store) as other:
        for number in range(200):
            batch = [message(queue_id=number % 3, body=bytes(number * 7 % 1000)) for _ in range(7)]
            assert store.append(batch) == other.append(batch)
        await store.settled(store.end_offset, Level.WRITTEN)
        at = 0
        while at < store.end_offset:
            ours, theirs = (bytes(each.read_log(at, 1 << 20)) for each in (store, other))
            assert ours == theirs[: len(ours)]
            at += len(ours)
        assert at == store.end_offset == other.end_offset > 5 * 66_560


async def test_deleted_topics_are_freed_and_leave_gaps(tmp_path: Path) -> None:
    """Records of a deleted topic are removed, others stay; readers of the log skip the gaps; a topic created
    again is a new one."""
    async with running(make(tmp_path)) as store:
        for number in range(30):
            await put(store, [message("Gone", body=b"x" * number), message("Kept", body=b"%d" % number)])
        store.delete_topic("Gone")
        await put(store, [message("Gone", body=b"again")])
        await store._trimmer.sweep()
        assert len(stored_records(store)) == 31
        with store._env.begin() as txn:
            assert txn.stat(store._env.db("dead"))["entries"] == 0
            assert txn.stat(store._env.db("units"))["entries"] == 2
        assert store.read_record(0) is None
        size, magic = peek_size_and_magic(store.read_log(0, 1 << 20))
        assert (magic, store.read_record(size) is not None) == (MAGIC_BLANK, True)
        assert peek_size_and_magic(store.read_log(3, 1 << 20)) == (size - 3, MAGIC_BLANK)
        assert store.read_log(size + 3, 100) == b""
        for most in (1, 20, 300, 1 << 20):
            at, found = 0, []
            while at < store.end_offset:
                entries, at = read_entries(store, at, most)
                found += [(entry.message.topic, entry.message.body) for entry in entries]
            assert found == [("Kept", b"%d" % number) for number in range(30)] + [("Gone", b"again")]
        assert bodies(store, "Gone") == [b"again"]
        kept = contents(store)
    async with running(make(tmp_path)) as store:
        assert contents(store) == kept


async def test_topics_with_a_time_of_their_own(tmp_path: Path) -> None:
    """Expired records of such a topic are removed from the middle of the log, and its keys find nothing;
    other topics keep theirs, also after a restart."""
    clock = FakeClock()
    settings = {"topicRetentionHours": ["Short=2", "Other=9"]}
    async with running(make(tmp_path, clock, settings)) as store:
        for _ in range(6):
            await put(store, [message("Short", keys="k"), message("Long", keys="k")])
            clock.advance(_HOUR_MS)
        await store._trimmer.sweep()
        assert (store.min_offset("Short", 0), store.max_offset("Short", 0)) == (4, 6)
        assert store.read("Short", 0, 3, ALL, None).status is ReadStatus.OFFSET_TOO_SMALL
        assert len(bodies(store, "Short")) == 2
        assert len(bodies(store, "Long")) == 6
        assert len(stored_records(store)) == 8
        kept = contents(store)
    async with running(make(tmp_path, clock, settings)) as store:
        assert contents(store) == kept
        assert len(store.query_by_key("Short", "k", 0, 1 << 60, 9).physical_offsets) == 2
        clock.advance(9 * _HOUR_MS)
        await store._trimmer.sweep()
        assert (store.min_offset("Short", 0), store.max_offset("Short", 0)) == (6, 6)
        assert (await put(store, [message("Short")]))[0].queue_offset == 6


async def test_topics_with_a_size_of_their_own(tmp_path: Path) -> None:
    """The oldest messages of all queues of the topic are removed until the rest is small enough, also after a
    restart and after a trim of the log."""
    clock = FakeClock()
    settings = {"topicRetentionBytes": ["Small=2000"], "topicRetentionHours": ["Small=5", "Other=1"]}

    async def sizes_kept(store: LmdbStore) -> list[list[bytes]]:
        await store._trimmer.sweep()
        found = [found for found in stored_records(store) if found.topic == "Small"]
        assert sum(one.size_bytes for one in found) <= 2000
        assert sum(one.size_bytes for one in found) + 300 > 2000
        assert [[one.body for one in found if one.queue_id == queue_id] for queue_id in (0, 1)] == [
            bodies(store, "Small", queue_id) for queue_id in (0, 1)
        ]
        return [bodies(store, "Small", queue_id) for queue_id in (0, 1)]

    async with running(make(tmp_path, clock, settings)) as store:
        await put(store, [message("Small", queue_id=1, body=bytes(100))])
        await store._trimmer.sweep()
        assert len(bodies(store, "Small", 1)) == 1
        for number in range(40):
            await put(
                store,
                [message("Small", number % 4 == 0, b"%03d" % number * 50), message("Big", body=bytes(900))],
            )
            if number % 9 == 0:
                await store._trimmer.sweep()
        kept = await sizes_kept(store)
        newest = sorted(kept[0] + kept[1])
        assert newest == [b"%03d" % number * 50 for number in range(40 - len(newest), 40)]
        assert len(bodies(store, "Big")) == 40
    async with running(make(tmp_path, clock, settings)) as store:
        assert await sizes_kept(store) == kept
        await put(store, [message("Small", body=b"more" * 50)])
        assert sorted(itertools.chain(*await sizes_kept(store))) == [*newest[1:], b"more" * 50]
        await put(store, [message("Big", body=bytes(900)) for _ in range(200)])
        await store._commits.flush()
        await store.trim((await store.log_parts())[-1].end)
        assert bodies(store, "Small") == []
        for number in range(20):
            await put(store, [message("Small", body=b"%03d" % number * 50)])
        await sizes_kept(store)
        clock.advance(6 * _HOUR_MS)
        await store._trimmer.sweep()
        assert bodies(store, "Small") == []


async def test_pages_are_used_again(tmp_path: Path) -> None:
    """While as much is removed as is appended, the file does not grow."""
    async with running(make(tmp_path)) as store:
        sizes = []
        for _ in range(8):
            for _ in range(20):
                await put(store, [message(body=bytes(900)) for _ in range(10)])
            await store._commits.flush()
            parts = await store.log_parts()
            await store.trim(parts[-1].end if len(parts) > 2 else 0)
            await store._commits.flush()
            sizes.append((tmp_path / "lmdb" / "data.mdb").stat().st_size)
        assert sizes[-1] <= sizes[2] * 1.3


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    """Beyond the limit of waiting messages senders get SYSTEM_BUSY, until the messages are in LMDB."""
    policy = CommitWhenWanted()
    policy.commit_buffer_bytes = 5_000
    store = LmdbStore(store_config(tmp_path), FakeClock(), policy)
    async with running(store):
        with pytest.raises(StoreBusy, match="waits to be written"):
            _append_many(store)
        assert 5_000 <= store.end_offset < 6_000
        await store._commits.drain()
        await put(store, [message()])


def _append_many(store: LmdbStore) -> None:
    for _ in range(100):
        store.append([message(body=bytes(100))])


async def test_keys_in_the_database_and_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query finds keys of both, newest first, and no more than asked for."""
    monkeypatch.setattr("rmqkit_store_lmdb.read.key_index.KEPT_BACK", 50)
    async with running(make(tmp_path)) as store:
        offsets = []
        for number in range(120):
            offsets += [at.physical_offset for at in await put(store, [message(keys=f"all k{number}")])]
            if number % 7 == 0:
                await store._commits.drain()
        assert 0 < store._keys.indexed_to < store.end_offset
        for most in (1, 10, 100, 1000):
            assert (
                store.query_by_key("Orders", "all", 0, 1 << 60, most).physical_offsets == offsets[::-1][:most]
            )
        for number, offset in enumerate(offsets):
            assert store.query_by_key("Orders", f"k{number}", 0, 1 << 60, 9).physical_offsets == [offset]


async def test_keys_may_be_kept_elsewhere(tmp_path: Path) -> None:
    """A plugin's look-up replaces the index."""
    store = make(tmp_path)
    store.use_external_index(NoKeys())
    async with running(store):
        await put(store, [message(keys="k")])
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
        assert list(store.dispatch_behind()) == ["consume-queue"]


# --- being chosen -------------------------------------------------------------------------------------------


def test_the_plugin_registers_the_store(tmp_path: Path) -> None:
    """`store = "lmdb"` selects it."""
    config = store_config(tmp_path)
    make_store = loader.load(config, extra=[("lmdb", plugin)], entry_points=False).chosen("stores", "lmdb")
    assert isinstance(make_store(config, FakeClock(), NeverFlush()), LmdbStore)


def test_without_the_package_only_who_chooses_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin loads without the package; creating the store raises an error that names what to install."""
    monkeypatch.setitem(sys.modules, "lmdb", None)
    config = store_config(tmp_path)
    registry = loader.load(config, extra=[("lmdb", plugin)], entry_points=False)
    with pytest.raises(ConfigError, match=r"pip install '\.\[lmdb\]'"):
        registry.chosen("stores", "lmdb")(config, FakeClock(), NeverFlush())


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"mapSizeMaxBytes": 5}, "mapSizeMaxBytes"),
        ({"maxReaders": 1}, "maxReaders"),
        ({"topicRetentionHours": ["Orders"]}, "not a Topic=hours"),
        ({"topicRetentionHours": ["Orders=0"]}, "not a Topic=hours"),
        ({"topicRetentionBytes": ["Orders=1.5"]}, "topicRetentionBytes: 'Orders=1.5' is not a Topic=bytes"),
        ({"mapSize": 5}, "did you mean 'mapSizeMaxBytes'"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    """The error is raised before anything is opened."""
    with pytest.raises(ConfigError, match=fault):
        make(tmp_path, plugins=settings)
