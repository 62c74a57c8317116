"""The positions of the log of an LMDB store, and what failures and cancellations leave of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import lmdb
import pytest
import trio
import trio.testing

from rmqkit.errors import StoreBusy, StoreError, StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.testing.store import bodies, message, put, running
from rmqkit_store_lmdb.journal import commits as module
from rmqkit_store_lmdb.store import LmdbStore
from tests.stores.lmdb.test_faults import make, parts_of


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LmdbStore]:
    """A store that moves nothing into LMDB by itself."""
    monkeypatch.setattr(module, "DRAIN_AFTER_S", 1e6)
    async with running(make(tmp_path)) as store:
        await trio.testing.wait_all_tasks_blocked()
        yield store


async def test_an_append_passes_the_journal_lmdb_and_the_device(store: LmdbStore) -> None:
    """Each step moves its own position, and a step with nothing to do changes nothing."""
    commits = store._commits
    await put(store, [message(keys="k")])
    end = store.end_offset
    assert (commits.written_offset, commits.tail.start, commits.flushed_offset) == (end, 0, 0)
    assert await commits.flush() == end
    assert (commits.tail.start, commits.flushed_offset) == (0, end)
    for _ in range(2):
        await commits.drain()
        assert commits.tail.start == end
    assert commits.keys.indexed_to < end
    await commits.drain(all_keys=True)
    assert commits.keys.indexed_to == end


async def test_a_checkpoint_is_a_flush(store: LmdbStore) -> None:
    """What LMDB has is on the device after it, and the journal up to there is not needed any more."""
    commits = store._commits
    await put(store, [message(body=b"0")])
    await commits.drain()
    drained = store.end_offset
    await put(store, [message(body=b"1")])
    await commits.checkpoint()
    assert commits.flushed_offset == drained < store.end_offset
    assert bodies(store) == [b"0", b"1"]


async def test_a_cancelled_drain_is_taken_again(store: LmdbStore) -> None:
    """A drain that is cancelled while it waits for its thread keeps the units and deletions for the next
    one: LMDB has all of them afterwards."""
    commits, busy = store._commits, object()
    await put(store, [message(body=b"0"), message("Gone")])
    await commits.drain()
    await put(store, [message(body=b"1")])
    store.delete_topic("Gone")
    await commits._thread.acquire_on_behalf_of(busy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.drain)
        await trio.testing.wait_all_tasks_blocked()
        assert commits.writing.locked()
        nursery.cancel_scope.cancel()
    commits._thread.release_on_behalf_of(busy)
    assert commits.tail.start < store.end_offset
    await commits.drain()
    assert commits.tail.start == store.end_offset
    await store.close()
    await store.open()
    assert bodies(store) == [b"0", b"1"]
    assert store.queues() == {"Orders": [0]}


async def test_a_failed_drain_refuses_until_one_succeeds(
    store: LmdbStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once, and so is its end; nothing that was taken is lost."""
    commits, (env, _) = store._commits, parts_of(store)
    await put(store, [message(body=b"0")])
    env.failing = True
    for _ in range(2):
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            await commits.drain()
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.append([message()])
    env.failing = False
    await commits.drain()
    await put(store, [message(body=b"1")])
    assert bodies(store) == [b"0", b"1"]
    lines = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert len(lines) == 2
    assert "no message is taken until that succeeds" in lines[0]
    assert "can be written again" in lines[1]


async def test_too_much_that_waits_refuses_for_the_moment(store: LmdbStore) -> None:
    """The sender is told to come again, and may when LMDB has the data."""
    commits = store._commits
    commits._limit_bytes = commits._drain_bytes = 1000
    await put(store, [message(body=bytes(1000))])
    with pytest.raises(StoreBusy, match="too much waits to be written"):
        store.append([message()])
    await commits.drain()
    await put(store, [message()])
    assert len(bodies(store)) == 2


async def test_a_full_reader_table_puts_a_checkpoint_off(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not a failure of the device: appends go on, and the next checkpoint succeeds."""
    commits = store._commits
    await put(store, [message()])
    await commits.drain()

    def full() -> None:
        raise lmdb.ReadersFullError("MDB_READERS_FULL")

    with monkeypatch.context() as patch:
        patch.setattr(commits.env, "hold", full)
        await commits.checkpoint()
    assert "until there is room in the reader table" in caplog.text
    assert (commits.flushed_offset, commits.fault) == (0, None)
    await commits.checkpoint()
    assert commits.flushed_offset == store.end_offset


async def test_who_waits_for_the_device_is_told_how_it_ends(store: LmdbStore) -> None:
    """A flush lets them go on, the end of flushing raises its reason, and what is not appended is refused at
    once."""
    commits = store._commits
    await put(store, [message()])
    with pytest.raises(StoreError, match="behind the end of the log"):
        await commits.wait(store.end_offset + 1, Level.WRITTEN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.wait, store.end_offset, Level.FLUSHED)
        await commits.progress_wanted()
        await commits.flush()
    await put(store, [message()])
    with pytest.RaisesGroup(pytest.RaisesExc(StoreNotWritable, match="nobody flushes")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits.wait, store.end_offset, Level.FLUSHED)
            await commits.progress_wanted()
            commits.give_up("nobody flushes")
