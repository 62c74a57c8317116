"""Cursors alone, without the tasks of a broker: which entries they give, and what they hold of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from rmqkit.broker.dispatch.cursor import DirectCursor, QueuedCursor
from rmqkit.errors import PluginError
from rmqkit.plugin.dispatcher import DispatchEntry
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, message, running
from rmqkit_store_memory.store import MemoryStore
from tests.broker.dispatch.bench import Noted, Slow
from tests.broker.kit import config_of


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with running(MemoryStore(config_of(), FakeClock(), FlushWhenWanted())) as store:
        yield store


def appended(store: MemoryStore, *bodies: bytes) -> tuple[list[DispatchEntry], int, int]:
    """The entries of one append, where it begins and where it ends: what a cursor is offered."""
    start = store.end_offset
    messages = [message(body=body) for body in bodies]
    entries = list(map(DispatchEntry, messages, store.append(messages)))
    store.positions.moved()
    return entries, start, store.end_offset


async def test_a_gap_is_filled_from_the_log(store: MemoryStore) -> None:
    """Entries behind ones that were not offered wait for `work`, which reads all of them in order; the log is
    held meanwhile, and no longer."""
    noted = Noted()
    cursor = DirectCursor("noted", noted, store)
    await cursor.open()
    cursor.offer(*appended(store, b"0"))
    _, start, _ = appended(store, b"1")
    cursor.offer(*appended(store, b"2"))
    assert noted.bodies == [b"0"]
    assert cursor.is_behind
    assert [(pin.offset, pin.reader) for pin in store.pins.before(1 << 60)] == [(start, "dispatcher noted")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.work)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert noted.bodies == [b"0", b"1", b"2"]
    assert cursor.cursor == store.end_offset
    assert store.pins.before(1 << 60) == []


async def test_a_replay_ends_at_the_first_failure(store: MemoryStore) -> None:
    """The broker starts although a dispatcher fails; it is behind, holds the log, and closing releases it."""
    appended(store, b"0", b"1")
    cursor = DirectCursor("noted", Noted(fails=1), store)
    await cursor.open()
    await cursor.replay()
    assert (cursor.failures, cursor.cursor, cursor.is_behind) == (1, 0, True)
    assert [pin.offset for pin in store.pins.before(1 << 60)] == [0]
    await cursor.close()
    assert store.pins.before(1 << 60) == []


@pytest.mark.parametrize("progress", [1, 1 << 40])
async def test_progress_beyond_the_log_is_refused(store: MemoryStore, progress: int) -> None:
    """The dispatcher's files belong to another log, and the error says what to do with them."""
    cursor = DirectCursor("noted", Noted(progress=progress), store)
    with pytest.raises(PluginError, match=f"it has come to {progress}, but the log ends at 0; its own files"):
        await cursor.open()


async def test_a_truncation_cancels_the_entries_under_way(store: MemoryStore) -> None:
    """Entries that a dispatcher is being given do not count, queued ones are dropped, and those that take
    their place are given."""

    class Forgets(Slow):
        async def forget_from(self, log_end: int) -> int:
            await trio.lowlevel.checkpoint()
            assert self.bodies == [b"0"]
            self.end = min(self.end, log_end)
            return self.end

    slow = Forgets()
    cursor = QueuedCursor("slow", slow, store)
    await cursor.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.work)
        for body in (b"0", b"lost", b"lost too"):
            cursor.offer(*appended(store, body))
        slow.may_go.release()
        await trio.testing.wait_all_tasks_blocked()
        end = cursor.cursor
        await store.truncate(end)
        await cursor.forget_from(end)
        assert (cursor.cursor, cursor.end, cursor.is_behind) == (end, end, False)
        cursor.offer(*appended(store, b"1"))
        slow.may_go.release()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert slow.bodies == [b"0", b"1"]
    assert cursor.cursor == store.end_offset


async def test_a_cancelled_step_is_taken_again(store: MemoryStore) -> None:
    """The entries that a cancelled `work` was giving are read from the log by the next one."""
    slow = Slow()
    cursor = QueuedCursor("slow", slow, store)
    await cursor.open()
    cursor.offer(*appended(store, b"0"))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cursor.work)
            await trio.testing.wait_all_tasks_blocked()
            assert cursor.is_behind
            nursery.cancel_scope.cancel()
    slow.may_go.release()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.work)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert slow.bodies == [b"0"]
    assert not cursor.is_behind


async def test_a_cursor_that_did_not_open_does_nothing(store: MemoryStore) -> None:
    """Neither a truncation nor a close reaches a dispatcher that has not been opened."""
    noted = Noted()
    cursor = DirectCursor("noted", noted, store)
    await cursor.forget_from(0)
    await cursor.close()
    assert noted.closed == 0
    await cursor.open()
    await cursor.close()
    await cursor.close()
    assert noted.closed == 1
