"""Dispatchers: the entries they get, and the handling of failing, slow and stopped ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit import limits
from rmqkit.broker.dispatch import cursor
from rmqkit.broker.dispatch.manager import DispatchProgress
from rmqkit.broker.dispatch.replay import read_entries
from rmqkit.errors import PluginError, StoreError
from rmqkit.model.message import PutMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.properties import DELAY
from rmqkit.model.sysflag import BORN_HOST_V6, TRANSACTION_PREPARED
from rmqkit.plugin.dispatcher import DispatchEntry, LogFollower
from rmqkit.plugin.store import MessageStore, NotInMemory
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, message, running, store_config
from rmqkit_delay.levels import delivery_time_of
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore
from tests.broker.dispatch.appends import append
from tests.broker.dispatch.bench import Noted, Slow, bench, dispatching_of, settle
from tests.broker.kit import config_of
from tests.counting import Counter, SlowCounter, Volatile


def test_what_is_no_dispatcher() -> None:
    """An object that is not a dispatcher is detected at the start."""
    with pytest.raises(
        PluginError,
        match="'d0' of plugin 'mine' is neither a Dispatcher nor a QueuedDispatcher, but LogFollower",
    ):
        dispatching_of(MemoryStore(config_of(), FakeClock(), FlushWhenWanted()), LogFollower())


# --- what they are given ------------------------------------------------------------------------------------


async def test_entries_come_in_order_and_at_once() -> None:
    """When the append returns every direct dispatcher has seen it; one with a queue sees it a little
    later."""
    first, second, slow = Noted(), Noted(keeps=False), Slow()
    slow.may_go = trio.Semaphore(100)
    async with bench(first, slow, second) as at:
        for count in (1, 5, 2):
            at.send(count)
            assert first.bodies == second.bodies == at.all
        assert slow.bodies == []
        await settle()
        assert slow.bodies == at.all
        assert at.behind() == [(0, 0)] * 3


def odd_messages() -> list[PutMessage]:
    """One message for each property by which records differ."""
    delayed = message(SCHEDULE_TOPIC, 1, b"later")
    delayed.set_properties(delayed.properties | {DELAY: "2"})
    strange = message(body=b"strange")
    strange.properties, strange.properties_bytes = {"a": "b"}, b"a\x01b\x02\x02x\x02a\x01b"
    return [
        message(keys="k1 k2", unique_key="u", tag="T"),
        message("%RETRY%".ljust(200, "g"), 3, b"", flag=-7, reconsume_times=3),
        message(body=b"v6", born_host=bytes(range(20)), sys_flag=BORN_HOST_V6, born_timestamp_ms=12),
        message(body=b"half", sys_flag=TRANSACTION_PREPARED, prepared_offset=99),
        delayed,
        strange,
    ]


@pytest.mark.parametrize("kind", [MemoryStore, MmapStore])
async def test_entries_from_the_log_are_those_of_the_append(kind: type[MemoryStore], tmp_path: Path) -> None:
    """A dispatcher that gets a message from the log gets the same entry as from the append, in batches of
    limited size."""
    made = kind(store_config(tmp_path, **SMALL), FakeClock(), FlushWhenWanted())
    made.queue_codes = {SCHEDULE_TOPIC: delivery_time_of((1_000, 5_000))}
    async with running(made) as store:
        expected: list[DispatchEntry] = []
        for _ in range(80):
            messages = odd_messages()
            expected += map(DispatchEntry, messages, store.append(messages))
        found: list[DispatchEntry] = []
        at = 0
        while at < store.end_offset:
            entries, end = read_entries(store, at, 1_000)
            assert sum(entry.at.size_bytes for entry in entries) <= 1_000
            found += entries
            at = end
        assert found == expected
        assert store.end_offset > SMALL["mapped_file_size_commit_log"]
        with pytest.raises(StoreError, match=f"cannot be read at {at}"):
            read_entries(store, at, 1_000)


class Cold(MemoryStore):
    """A store whose log is only on the device until it is fetched."""

    warmed = 0

    def read_log(self, offset: int, max_bytes: int) -> bytes | memoryview:
        if not self.warmed:
            raise NotInMemory(offset)
        return super().read_log(offset, max_bytes)

    async def fetch(self, missed: NotInMemory) -> None:
        await trio.lowlevel.checkpoint()
        self.warmed += 1


async def test_the_log_is_read_off_the_loop_where_it_is_cold() -> None:
    """A dispatcher that is far behind does not block other tasks."""
    store = Cold(config_of(), FakeClock(), FlushWhenWanted())
    noted = Noted()
    await store.open()
    store.append([message(body=b"old")])
    await dispatching_of(store, noted).open()
    assert (noted.bodies, store.warmed) == ([b"old"], 1)


async def test_a_record_that_cannot_be_decoded_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Such a record is skipped, as in Java, and the log contains its position."""
    store = MemoryStore(config_of(), FakeClock(), FlushWhenWanted())
    await store.open()
    first, bad, last = store.append([message(body=b"first"), message(body=b"bad"), message(body=b"last")])
    store._log.records[bad.physical_offset] = store._log.records[bad.physical_offset].replace(
        b"\0\0\0\3bad", b"\x7f\xff\xff\xffbad"
    )
    entries, end = read_entries(store, 0, 10_000)
    assert [entry.at for entry in entries] == [first, last]
    assert end == store.end_offset
    assert str(bad.physical_offset) in caplog.text


# --- what fails ---------------------------------------------------------------------------------------------


async def test_one_that_fails_gets_the_same_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its progress stays, it gets no other entries meanwhile, others are not affected, and the pauses grow.
    Nothing is lost or out of order."""
    failing, other = Noted(), Noted()
    async with bench(failing, other) as at:
        at.send(3)
        failing.fails = 3
        at.send(2)
        assert at.behind() == [(at.store.end_offset - failing.end, 1), (0, 0)]
        begun = trio.current_time()
        while failing.fails:
            at.send(1)
            assert failing.bodies == at.all[:3]
            await trio.sleep(0.25)
        assert trio.current_time() - begun == pytest.approx(1 + 2, abs=0.3)
        await trio.sleep(4.5)
        assert failing.bodies == other.bodies == at.all
        at.send(1)
        assert failing.bodies == other.bodies == at.all
        assert at.behind() == [(0, 3), (0, 0)]
        assert [record.message for record in caplog.records] == [
            "dispatcher 'd0' of plugin 'mine' failed at log offset 324"
        ] * 3
        assert all(record.exc_info for record in caplog.records)


async def test_pauses_have_an_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A dispatcher that always fails is retried every minute."""
    caplog.set_level(logging.CRITICAL)
    failing = Noted(fails=1_000_000)
    async with bench(failing) as at:
        at.send()
        await trio.sleep(3_600)
        ((behind, failures),) = at.behind()
        assert behind == at.store.end_offset
        assert 60 <= failures <= 68


async def test_one_that_keeps_nothing_goes_on_with_the_next() -> None:
    """The failure is counted, and the failed batch is not given again."""
    failing = Noted(keeps=False)
    async with bench(failing) as at:
        at.send()
        failing.fails = 1
        at.send(2)
        at.send()
        assert failing.bodies == [b"0", b"3"]
        assert at.behind() == [(0, 1)]


async def test_one_that_writes_messages_itself() -> None:
    """Messages appended while entries are passed on come after them, for all dispatchers."""

    class Echo(Noted):
        def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
            super().dispatch(entries)
            for entry in entries:
                if entry.message.topic != "Echo":
                    echo = [message("Echo", body=b"echo " + entry.message.body)]
                    append(at.store, at.dispatching, echo)

    echo, after = Echo(), Noted()
    async with bench(echo, after) as at:
        at.send(2)
        await settle()
        at.send()
        await settle()
        expected = [b"0", b"1", b"echo 0", b"echo 1", b"2", b"echo 2"]
        assert echo.bodies == after.bodies == expected
        assert at.behind() == [(0, 0), (0, 0)]


async def test_its_own_task_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The dispatcher still gets entries."""

    class Restless(Noted):
        async def run(self) -> None:
            await trio.lowlevel.checkpoint()
            raise OSError(28, "No space left on device")

    restless = Restless()
    async with bench(restless) as at:
        await settle()
        at.send()
        assert restless.bodies == at.all
        assert at.behind() == [(0, 1)]
    assert "No space left on device" in caplog.text


# --- what is slow -------------------------------------------------------------------------------------------


async def test_a_queue_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """Batches wait in order; a failure affects only its own batch, and later ones follow."""
    slow, direct = Slow(), Noted()
    slow.fails_on = [b"2"]
    async with bench(slow, direct) as at:
        for _ in range(4):
            at.send(2)
        assert direct.bodies == at.all
        slow.may_go.release()
        await settle()
        assert slow.bodies == at.all[:2]
        assert at.behind()[0][0] == at.store.end_offset - slow.end
        for _ in range(10):
            slow.may_go.release()
        await settle()
        assert (slow.bodies, at.behind()[0][1]) == (at.all[:2], 1)
        await trio.sleep(2)
        assert slow.bodies == at.all
        assert at.behind() == [(0, 1), (0, 0)]


@pytest.mark.parametrize("keeps", [True, False])
async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    """Batches beyond the queue's capacity are read from the log later; then the queue is used again."""
    monkeypatch.setattr(cursor, "MAX_DISPATCH_QUEUE_BYTES", 5_000)
    assert limits.MAX_DISPATCH_QUEUE_BYTES > 5_000
    slow = Slow(keeps)
    async with bench(slow) as at:
        feed: Any = at.dispatching.cursors[0]
        for _ in range(100):
            at.send(1, size_bytes=900)
        assert (feed._waiting_bytes, len(feed._waiting)) == (
            sum(batch.size_bytes for batch in feed._waiting),
            4,
        )
        reads = []
        read_log = at.store.read_log
        at.store.read_log = lambda offset, *rest: reads.append(offset) or read_log(offset, *rest)  # type: ignore[method-assign,func-returns-value]
        for _ in range(100):
            slow.may_go.release()
        await settle()
        assert [body.rstrip(b"\0") for body in slow.bodies] == at.all
        assert (reads, feed._waiting_bytes) == ([slow_end(4, at.store)], 0)
        at.send()
        assert len(feed._waiting) == 1
        await settle()
        assert len(slow.bodies) == len(at.all)
        assert len(reads) == 1


def slow_end(count: int, store: MessageStore) -> int:
    """Where the first messages end."""
    return store.read_units("Orders", 0, count, 1)[0].physical_offset


async def test_a_slow_one_that_keeps_nothing_goes_on_after_a_failure() -> None:
    """It continues without a pause and without the failed batch."""
    slow = Slow(keeps=False)
    slow.may_go = trio.Semaphore(100)
    slow.fails_on = [b"1"]
    async with bench(slow) as at:
        for _ in range(3):
            at.send()
        await settle()
        assert (slow.bodies, at.behind()) == ([b"0", b"2"], [(0, 1)])


@pytest.mark.parametrize("seed", range(8))
async def test_any_mixture_of_failures_and_pauses(
    seed: int,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For any failures and pauses, each dispatcher with a progress finally has had everything once and in
    order."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(cursor, "MAX_DISPATCH_QUEUE_BYTES", 2_000)
    monkeypatch.setattr(cursor, "READ_BYTES", 1_500)
    random = Random(seed)
    direct, steady, slow = Noted(), Noted(), Slow()
    async with bench(direct, slow, steady) as at:
        for _ in range(120):
            at.send(random.randrange(1, 6), size_bytes=random.randrange(300))
            if random.random() < 0.1:
                direct.fails = random.randrange(4)
            if random.random() < 0.1:
                slow.fails_on.append(b"%d" % random.randrange(at.sent, at.sent + 20))
            for _ in range(random.randrange(3)):
                slow.may_go.release()
            if random.random() < 0.3:
                await trio.sleep(random.choice((0, 0.1, 1, 5)))
        for _ in range(1_000):
            slow.may_go.release()
        await trio.sleep(1_000)
        for dispatcher in (direct, steady, slow):
            assert [body.rstrip(b"\0") for body in dispatcher.bodies] == at.all
        assert [behind for behind, _ in at.behind()] == [0, 0, 0]
        assert at.store.pins.before(at.store.end_offset) == []


async def test_a_blank_record_is_given_to_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """A read of the log that finds only the blank record at the end of a file passes it over."""
    store = MemoryStore(config_of(mappedFileSizeCommitLog=5_000_000), FakeClock(), FlushWhenWanted())
    failing = Noted(fails=1)
    async with bench(failing, store=store) as at:
        at.send(6, size_bytes=1_000_000)
        await trio.sleep(20)
        assert [body.rstrip(b"\0") for body in failing.bodies] == at.all
        assert at.behind() == [(0, 1)]


async def test_one_that_is_behind_holds_the_log(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the first entry that it will get from the log on, the log is pinned until the dispatcher has
    caught up; one that keeps up, or whose queue has everything, pins nothing. A pin that a full disk ended
    is not renewed."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(cursor, "MAX_DISPATCH_QUEUE_BYTES", 500)
    slow, failing, steady = Slow(), Noted(), Noted()
    async with bench(slow, failing, steady) as at:
        pins = at.store.pins
        at.send()
        await settle()
        assert pins.before(at.store.end_offset) == []
        first = at.store.end_offset
        failing.fails = 1
        for _ in range(8):
            at.send()
        await settle()
        assert [(pin.offset, pin.reader) for pin in pins.before(at.store.end_offset)] == [
            (0, "dispatcher 'd0' of plugin 'mine'"),
            (first, "dispatcher 'd1' of plugin 'mine'"),
        ]
        at.store.end_pins(1)
        await trio.sleep(2)
        assert failing.bodies == at.all
        for _ in range(3):
            slow.may_go.release()
            await settle()
            assert pins.before(at.store.end_offset) == []
        for _ in range(20):
            slow.may_go.release()
        await settle()
        assert slow.bodies == at.all


# --- what was away ------------------------------------------------------------------------------------------


# --- what can be seen ---------------------------------------------------------------------------------------


async def test_progress_of_all(tmp_path: Path) -> None:
    """The store's own come first, then the plugins' in order: bytes behind, bytes that a restart would
    repeat, failures."""
    counter, volatile = Counter(tmp_path), Volatile()
    slow = SlowCounter(tmp_path / "slow")
    (tmp_path / "slow").mkdir()
    async with bench(counter, volatile, slow) as at:
        at.send()
        counter.save()
        first = at.store.end_offset
        at.send()
        end = at.store.end_offset
        assert at.dispatching.progress() == [
            DispatchProgress("consume-queue", 0),
            DispatchProgress("index", 0),
            DispatchProgress("d0", 0, end - first),
            DispatchProgress("d1", 0),
            DispatchProgress("d2", end, end),
        ]
        await settle()
        assert at.dispatching.progress()[-1] == DispatchProgress("d2", 0, end)
