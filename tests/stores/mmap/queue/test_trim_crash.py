"""Crashes around a trim: whatever is left of log, queues and checkpoint, no queue offset is given a second
time and none goes back.

A life appends, flushes, trims and dies at random: killed at any step of a trim or between two, or with the
power, so that of what was not flushed any part is gone. What is left is opened and compared with what was
acknowledged, trimmed messages included.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import NoQueues
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, contents, message, running, store_config
from rmqkit_store_mmap.log.disk import Disk, delete_file
from rmqkit_store_mmap.open import trimming
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.queue import queue_table
from rmqkit_store_mmap.store import MmapStore
from tests.stores.mmap.open.test_recovery_power import Device

SEGMENT_BYTES = 66_560
#: Small queue files, so that a trim deletes some of them too.
SIZES = SMALL | {"mapped_file_size_consume_queue": 400}
#: The first queue gets most messages, the last ones few: after a trim those have no message left in the log.
QUEUES = [("Often", 0)] * 12 + [("Often", 1)] * 4 + [("Seldom", 0), ("Seldom", 1)]

Place = tuple[str, int]


class Stepping(Device):
    """Calls `step` before and after each write to the device, and at each file that a trim deletes."""

    def __init__(self, root: Path, step: Callable[[], None]) -> None:
        self.step: Callable[[], None] = lambda: None
        super().__init__(root)
        self.step = step

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        super().write(fd, parts, offset)
        self.step()

    def sync(self, fd: int) -> None:
        self.step()
        super().sync(fd)
        self.step()

    def sync_path(self, path: Path) -> None:
        self.step()
        super().sync_path(path)

    def delete(self, path: Path, directory_fd: int | None = None) -> int:
        self.step()
        return delete_file(path, directory_fd)


class Life:
    """One store over its crashes. `given` holds where each queue's messages begin and end in the log, by
    queue offset; `lost` where those began that a power failure took though it left later ones."""

    def __init__(self, base: Path, seed: int, with_queues: bool) -> None:
        self.base = base
        self.rng = random.Random(seed)
        self.with_queues = with_queues
        self.clock = FakeClock()
        self.given: dict[Place, list[tuple[int, int]]] = {}
        self.lost: set[int] = set()
        self.generation = 0
        self.countdown = -1
        self.power = False
        self.flushed = 0
        self.make()

    @property
    def root(self) -> Path:
        return self.base / str(self.generation)

    def make(self) -> None:
        self.device = Stepping(self.root, self.step)
        self.store = MmapStore(
            store_config(self.root, **SIZES), self.clock, FlushWhenWanted(), disk=self.device
        )
        if not self.with_queues:
            self.store.use_external_consume_queue(NoQueues())

    def step(self) -> None:
        if self.countdown == 0:
            self.leave()
        self.countdown -= 1

    def leave(self) -> None:
        """Keep the state that a crash now would leave; the store continues, and what it does from now on is
        discarded."""
        after = self.base / str(self.generation + 1)
        self.flushed = self.store.statistics().flushed_physical_offset
        if self.power:
            self.device.after_power_failure(after, self.rng)
        else:
            shutil.copytree(self.root, after)

    # --- what it does ---------------------------------------------------------------------------------------

    async def append(self) -> None:
        batch = [
            message(*self.rng.choice(QUEUES), body=self.rng.randbytes(900), keys="k")
            for _ in range(self.rng.randrange(1, 40))
        ]
        for one, at in zip(batch, self.store.append(batch), strict=True):
            places = self.given.setdefault((one.topic, one.queue_id), [])
            assert at.queue_offset == len(places), (
                f"{one.topic} {one.queue_id}: offset {at.queue_offset} after {len(places)} messages"
            )
            places.append((at.physical_offset, at.physical_offset + at.size_bytes))
            self.lost.discard(at.physical_offset)
        self.clock.advance(self.rng.choice((1, 2_000, 7_000)))

    async def flush_log(self) -> None:
        await self.store._log.flush()

    async def round(self) -> None:
        await self.store._rounds.flush(self.rng.random() < 0.3)

    async def trim(self) -> None:
        await self.store._log.flush()
        parts = await self.store.log_parts()
        if parts:
            await self.store.trim(self.rng.choice(parts[-2:]).end)

    async def reopen(self) -> None:
        await self.store.close()
        self.make()
        await self.store.open()
        self.check()

    async def crash(self, operation: str) -> None:
        """Crash during an operation, or after it."""
        self.power = self.rng.random() < 0.5
        self.countdown = self.rng.randrange(30)
        await getattr(self, operation)()
        if self.countdown >= 0:
            self.countdown = 0
            self.step()
        self.countdown = -1
        self.store._release_files()
        self.device.close()
        shutil.rmtree(self.root)
        self.generation += 1
        self.make()
        await self.store.open()
        end = self.store.end_offset
        assert end >= self.flushed
        for key, places in self.given.items():
            self._take_stock(key, places)
        self.check()

    def _take_stock(self, key: Place, places: list[tuple[int, int]]) -> None:
        """Which messages of a queue a crash has left: all that were flushed; it goes on behind the last
        one, or behind one that is known to be lost. Only flushed parts are trimmed: what lies before the log
        and was not flushed went with a file that the device never had."""
        queue = self.store._queues.by_key.get(key)
        number = 0 if queue is None else queue.next_offset
        there = [
            stop <= min(self.store.start_offset, self.flushed) or self.store.read_record(start) is not None
            for start, stop in places
        ]
        for (start, stop), kept in zip(places, there, strict=True):
            assert kept or stop > self.flushed or start in self.lost, f"lost: what begins at {start}"
        assert (
            max((offset + 1 for offset, kept in enumerate(there) if kept), default=0) <= number <= len(places)
        )
        del places[number:]
        self.lost |= {start for (start, _), kept in zip(places, there, strict=False) if not kept}

    # --- the comparison -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each queue continues after the last message that was kept, and has all its messages that are still
        in the log."""
        store = self.store
        numbers = {key: queue.next_offset for key, queue in store._queues.by_key.items() if queue.next_offset}
        assert numbers == {key: len(places) for key, places in self.given.items() if places}
        if not self.with_queues:
            return
        for (topic, queue_id), (low, high, messages, units) in contents(store).items():
            places = self.given[topic, queue_id]
            kept = [offset for offset in range(low, high) if places[offset][0] not in self.lost]
            assert [one.queue_offset for one in messages] == kept
            found = {
                unit.queue_offset: (unit.physical_offset, unit.physical_offset + unit.size_bytes)
                for unit in units
            }
            assert [found[offset] for offset in kept] == [places[offset] for offset in kept]
            trimmed = len([stop for _, stop in places if stop <= store.start_offset])
            assert low == trimmed or (
                low < trimmed and all(start in self.lost for start, _ in places[low:trimmed])
            )


async def _live(operations: list[str], seed: int, with_queues: bool) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        life = Life(Path(directory), seed, with_queues)
        for module in (trimming, queue_table):
            patch.setattr(module, "delete_file", lambda *arguments: life.device.delete(*arguments))
        await life.store.open()
        try:
            for operation in [*operations, "crash trim", "append"]:
                match operation.split():
                    case ["crash", what]:
                        await life.crash(what)
                    case _:
                        await getattr(life, operation)()
            life.check()
        finally:
            await life.store.close()
            life.device.close()


_steps = st.sampled_from(
    ["append"] * 8
    + [
        "flush_log",
        "round",
        "round",
        "trim",
        "trim",
        "crash trim",
        "crash trim",
        "crash append",
        "crash round",
        "reopen",
    ]
)


@pytest.mark.parametrize("with_queues", [True, False])
@settings(max_examples=50, deadline=None)
@given(operations=st.lists(_steps, min_size=5, max_size=40), seed=st.integers(0, 1 << 30))
def test_no_offset_is_given_twice(with_queues: bool, operations: list[str], seed: int) -> None:
    """With consume queues and without: neither a kill nor a power failure at any step of a trim makes a queue
    offset be assigned again."""
    trio.run(_live, operations, seed, with_queues)


# --- one at a time ------------------------------------------------------------------------------------------


def make(directory: Path, disk: Disk | None = None) -> MmapStore:
    return MmapStore(store_config(directory, **SIZES), FakeClock(), FlushWhenWanted(), disk=disk)


async def fill(store: MmapStore, segments: int) -> int:
    """Fill the log up to so many segments, flushed; returns the end of the last one that can be trimmed."""
    while store.end_offset < segments * SEGMENT_BYTES:
        store.append([message(body=b"x" * 900)])
    await store._log.flush()
    return (await store.log_parts())[-1].end


async def test_the_numbers_of_trimmed_messages_are_known_after_a_kill(tmp_path: Path) -> None:
    """Queue offsets of messages after the last mark that were trimmed with the front of the log are not
    assigned again."""
    store = make(tmp_path / "live")
    await store.open()
    store.append([message("Seldom")])
    await store._rounds.flush(thorough=True)
    store.append([message("Seldom")] * 3)
    end = await fill(store, 3)
    assert (await store.trim(end)).log_start == end
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    await store.close()
    async with running(make(tmp_path / "killed")) as again:
        assert again.min_offset("Seldom", 0) == 4
        assert again.append([message("Seldom")])[0].queue_offset == 4


class Refusing(Disk):
    """Fails to write the checkpoint, or to flush queues, while `what` names it."""

    what = ""

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.what and self.what in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        super().write(fd, parts, offset)

    def sync_path(self, path: Path) -> None:
        if self.what and self.what in str(path):
            raise OSError(5, "Input/output error")
        super().sync_path(path)


async def test_a_mark_that_covers_what_is_trimmed_is_not_written_again(tmp_path: Path) -> None:
    """Retention trims what is hours old, so a trim writes the new start of the log down, and needs no flush
    of all queues."""
    disk = Refusing()
    store = make(tmp_path, disk)
    await store.open()
    end = await fill(store, 3)
    await store._rounds.flush(thorough=True)
    before = Checkpoint.load(tmp_path / "checkpoint")
    store.append([message()])
    disk.what = "consumequeue"
    assert (await store.trim(end)).log_start == end
    after = Checkpoint.load(tmp_path / "checkpoint")
    assert (after.mark, after.log_start) == (before.mark, end)
    disk.what = ""
    await store.close()


@pytest.mark.parametrize("what", ["checkpoint", "consumequeue"])
async def test_a_log_is_not_trimmed_behind_the_mark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """What the mark covers is trimmed while the device does not take the queues, and nothing while it does
    not take the checkpoint, which says where the log begins; the log says why."""
    disk = Refusing()
    store = make(tmp_path, disk)
    await store.open()
    first = await fill(store, 2)
    await store._rounds.flush(thorough=True)
    end = await fill(store, 4)
    disk.what = what
    with caplog.at_level(logging.WARNING):
        assert (await store.trim(end)).log_start == (0 if what == "checkpoint" else first) < end
    assert "not trimmed" in caplog.text
    disk.what = ""
    assert (await store.trim(end)).log_start == (end if what == "checkpoint" else first)
    assert len(contents(store)["Orders", 0][2]) == store.max_offset("Orders", 0) - store.min_offset(
        "Orders", 0
    )
    await store.close()


@pytest.mark.parametrize("units_lost", [False, True])
async def test_a_log_whose_front_somebody_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, units_lost: bool
) -> None:
    """The units of the missing part are kept as they are, the others built again. A queue whose units are
    lost too begins at its first record."""
    store = make(tmp_path / "live")
    await store.open()
    store.append([message("Seldom")])
    await store._rounds.flush(thorough=True)
    store.append([message("Seldom")] * 3)
    await fill(store, 3)
    held = contents(store)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    await store.close()
    (tmp_path / "killed" / "commitlog" / f"{0:020d}").unlink()
    if units_lost:
        for path in sorted((tmp_path / "killed" / "consumequeue" / "Orders" / "0").iterdir())[1:]:
            path.unlink()
    with caplog.at_level(logging.WARNING):
        async with running(make(tmp_path / "killed")) as again:
            low, high, messages, units = contents(again)["Orders", 0]
            assert (high, units) == (held["Orders", 0][1], held["Orders", 0][3][low:])
            assert [one.body for one in messages] == [b"x" * 900] * (high - low)
            assert again.append([message("Seldom")])[0].queue_offset == 4
    assert "the log begins behind the mark" in caplog.text


async def test_no_older_mark_follows_a_newer_one(tmp_path: Path) -> None:
    """A trim during a background round waits for it."""

    class Slow(Disk):
        """The first flush of a queue waits until the test releases it; notes the marks that are written."""

        def __init__(self) -> None:
            self.entered = trio.Event()
            self.go_on = threading.Event()
            self.marks: list[int] = []

        def sync_path(self, path: Path) -> None:
            if "consumequeue" in str(path) and not self.entered.is_set():
                trio.from_thread.run_sync(self.entered.set)
                assert self.go_on.wait(60)
            super().sync_path(path)

        def sync(self, fd: int) -> None:
            super().sync(fd)
            if os.readlink(f"/proc/self/fd/{fd}").endswith("checkpoint"):
                mark = Checkpoint.load(tmp_path / "checkpoint").mark
                self.marks.append(mark.queues.offset if mark else -1)

    disk = Slow()
    store = make(tmp_path, disk)
    await store.open()
    store.append([message()])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store._rounds.flush, True)
        await disk.entered.wait()
        end = await fill(store, 3)
        nursery.start_soon(store.trim, end)
        await trio.testing.wait_all_tasks_blocked(0.01)
        disk.go_on.set()
    assert store.start_offset == end <= disk.marks[-1]
    assert disk.marks == sorted(disk.marks)
    assert len(disk.marks) == 4
    await store.close()
