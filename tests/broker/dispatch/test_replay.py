"""What dispatchers get that were away: the log from their progress on, before the broker serves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.broker.dispatch import cursor
from rmqkit.broker.dispatch.manager import DispatchProgress
from rmqkit.errors import PluginError
from rmqkit.plugin.dispatcher import DispatchEntry
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, message, store_config
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore
from tests.broker.dispatch.bench import Bench, Noted, Slow, bench, dispatching_of, settle
from tests.broker.kit import config_of


async def filled(
    count: int, store: MessageStore | None = None, size_bytes: int = 0
) -> tuple[MessageStore, list[int]]:
    """An open store with messages, and the offset of each; the last offset is the end."""
    store = store or MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    await store.open()
    results = store.append([message(body=b"%d" % number + bytes(size_bytes)) for number in range(count)])
    return store, [at.physical_offset for at in results] + [store.end_offset]


async def test_replayed_entries_are_equal_to_given_ones() -> None:
    """Also prepared and rolled-back messages, with the number that they have in place of a queue offset."""
    store = MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    await store.open()
    messages = [message(sys_flag=kind) for kind in (0, 4, 8, 12)]
    for each in messages:
        each.unqueued_offset = 9 if each.sys_flag & 4 else 0
    landed = store.append(messages)
    entries: list[DispatchEntry] = []

    class Replayed(Noted):
        def dispatch(self, given: Sequence[DispatchEntry]) -> None:
            super().dispatch(given)
            entries.extend(given)

    await dispatching_of(store, Replayed()).open()
    assert entries == [DispatchEntry(*pair) for pair in zip(messages, landed, strict=True)]


async def test_replay_from_the_progress() -> None:
    """Before the broker serves, each gets the entries after its progress, in batches; one without a progress
    gets nothing."""
    store, places = await filled(2_000, size_bytes=1_000)
    halfway, new, done, volatile = (
        Noted(progress=places[1_000]),
        Noted(),
        Noted(progress=places[-1]),
        Noted(keeps=False),
    )
    dispatching = dispatching_of(store, halfway, new, done, volatile)
    await dispatching.open()
    bodies = [b"%d" % number for number in range(2_000)]
    assert [body.rstrip(b"\0") for body in halfway.bodies] == bodies[1_000:]
    assert [body.rstrip(b"\0") for body in new.bodies] == bodies
    assert done.bodies == volatile.bodies == []
    assert len(new.batches) > 5
    assert max(new.batches) <= cursor.READ_BYTES
    assert {each.begun_with for each in (halfway, new, done, volatile)} == {(0, places[-1])}
    assert [each.behind_bytes for each in dispatching.progress()] == [0] * 6


async def test_a_replay_that_fails_does_not_keep_the_broker_from_starting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The dispatcher is then behind, and gets the rest when it can process it."""
    store, _ = await filled(5)
    failing, other = Noted(fails=1), Noted()
    dispatching = dispatching_of(store, failing, other)
    await dispatching.open()
    assert (len(failing.bodies), len(other.bodies)) == (0, 5)
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatching.run)
        await trio.sleep(1.5)
        assert len(failing.bodies) == 5
        nursery.cancel_scope.cancel()


async def test_slow_ones_do_not_hold_up_the_start() -> None:
    """They catch up while the broker serves."""
    store, _ = await filled(5)
    slow = Slow()
    dispatching = dispatching_of(store, slow)
    await dispatching.open()
    assert slow.bodies == []
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatching.run)
        slow.may_go.release()
        await settle()
        assert len(slow.bodies) == 5
        nursery.cancel_scope.cancel()


async def test_a_log_that_begins_behind_the_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The dispatcher gets the start of the log, a warning names what it missed, and it continues there. A new
    one has missed nothing."""
    store, places = await filled(
        500, MmapStore(store_config(tmp_path, **SMALL), FakeClock(), FlushWhenWanted()), 200
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.settled(store.end_offset, Level.FLUSHED)
        await store.trim((await store.log_parts())[0].end)
        start = store.start_offset
        late, new = Noted(progress=places[3]), Noted()
        await dispatching_of(store, late, new).open()
        assert late.begun_with == (start, places[-1])
        assert late.bodies == new.bodies
        assert len(late.bodies) == sum(place >= start for place in places[:-1])
        missed = (
            f"dispatcher 'd0' of plugin 'mine' has missed the log from {places[3]} to {start}: it was removed"
        )
        assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [missed]
        nursery.cancel_scope.cancel()
    await store.close()


async def test_a_log_that_is_trimmed_under_one_that_is_behind(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues at the start of the log, and all dispatchers get the removed range."""
    failing, other = Noted(fails=3), Noted()
    store = MemoryStore(config_of(mappedFileSizeCommitLog=5_000_000), FakeClock(), FlushWhenWanted())
    async with bench(failing, other, store=store) as at:
        at.send(6, size_bytes=1_000_000)
        part = (await store.log_parts())[0]
        assert (await store.trim(part.end)).log_start == 0
        store.end_pins(part.end)
        trimmed = await store.trim(part.end)
        at.dispatching.trimmed(trimmed.log_start)
        assert failing.forgotten == other.forgotten == [trimmed.log_start]
        await trio.sleep(20)
        assert [body.rstrip(b"\0") for body in failing.bodies] == [b"4", b"5"]
        assert at.behind()[0] == (0, 3)
        assert "has missed" not in caplog.text


async def test_forgetting_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The other dispatchers still get the removed range."""

    class Stubborn(Noted):
        def forget_before(self, log_start: int) -> None:
            raise ValueError("never")

    other = Noted()
    async with bench(Stubborn(), other) as at:
        at.dispatching.trimmed(7)
        assert other.forgotten == [7]
        assert at.behind()[0][1] == 1
    assert "never" in caplog.text


async def test_a_progress_ahead_of_the_log_stops_the_start() -> None:
    """A dispatcher must respect the end it is given; otherwise it would miss later messages."""
    store, places = await filled(3)
    dispatching = dispatching_of(store, Noted(progress=places[-1] + 1))
    with pytest.raises(
        PluginError,
        match=f"'d0' of plugin 'mine' says it has come to {places[-1] + 1}, but the log ends at {places[-1]}",
    ):
        await dispatching.open()


async def test_a_part_of_the_log_that_cannot_be_read(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A dispatcher that needs the unreadable part stays behind, which is visible in its progress."""
    store, places = await filled(5)
    assert isinstance(store, MemoryStore)
    del store._log.records[places[2]]
    lost = Noted()
    dispatching = dispatching_of(store, lost)
    await dispatching.open()
    assert len(lost.bodies) == 2
    assert dispatching.progress()[-1] == DispatchProgress(
        "d0", places[-1] - places[2], places[-1] - places[2], 1
    )
    assert f"the log cannot be read at {places[2]}" in caplog.text


async def test_one_that_cannot_open_stops_the_start() -> None:
    """The error names it; those opened before are closed, later ones are not opened."""

    class Broken(Noted):
        async def open(self, log_start: int, log_end: int) -> None:
            raise OSError(13, "Permission denied")

    store, _ = await filled(1)
    first, broken, last = Noted(), Broken(), Noted()
    dispatching = dispatching_of(store, first, broken, last)
    with pytest.raises(
        PluginError,
        match=r"dispatcher 'd1' of plugin 'mine' cannot start: PermissionError: .*Permission denied",
    ):
        await dispatching.open()
    await dispatching.close()
    assert [each.closed for each in (first, broken, last)] == [1, 0, 0]


async def test_closing(autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """All are closed once, although one raises, one hangs, and everything is cancelled; then they get nothing
    more."""

    class Raises(Noted):
        async def close(self) -> None:
            await super().close()
            raise OSError(28, "No space left on device")

    class Hangs(Noted):
        async def close(self) -> None:
            await super().close()
            await trio.sleep_forever()

    dispatchers = [Raises(), Hangs(), Noted()]
    store, _ = await filled(1)
    dispatching = dispatching_of(store, *dispatchers)
    await dispatching.open()
    with trio.CancelScope() as scope:
        scope.cancel()
        await dispatching.close()
    await dispatching.close()
    assert [each.closed for each in dispatchers] == [1, 1, 1]
    given = [list(each.bodies) for each in dispatchers]
    Bench(store, dispatching).send()
    assert [each.bodies for each in dispatchers] == given
    assert "No space left" in caplog.text
    assert "dispatcher 'd1' of plugin 'mine' did not close within 5.0 s" in caplog.text
