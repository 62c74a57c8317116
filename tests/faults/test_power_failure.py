"""Power failures under SYNC_FLUSH, simulated in this process: part of the unflushed data is lost (see
tests.faults.power).

A round works on a store at random until the power fails at some call to the disk, opens the remaining data,
and compares. The next round continues with that data, so that damage left by a recovery is found later.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio
from attrs import define, field

from rmqkit.errors import DecodeError, StoreError
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.protocol.damage import is_damage
from rmqkit.protocol.record import BLANK, MAGIC_BLANK, unpack
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, CommitWhenWanted, FlushWhenWanted, contents, message, store_config
from rmqkit_store_mmap.store import MmapStore
from tests.faults.power import LosingDisk

SIZES = SMALL | {"mapped_file_size_consume_queue": 4_000, "max_hash_slot_num": 7, "max_index_num": 40}
ROUNDS = 12
GENERATIONS = 5
_TOPICS = ("Orders", "Bills")
_QUEUES = 3
#: Number of keys looked up by a comparison; the last comparison uses all.
_KEYS = 30


@define
class Machine:
    """One machine with one store through several power failures.

    promised  body by place of everything whose flush was awaited, and of everything found after the last
              start
    appended  place by body of everything that was ever appended
    """

    base: Path
    rng: random.Random
    setbacks: bool = False
    disk_kind: type[LosingDisk] = LosingDisk
    policy: FlushPolicy = field(factory=FlushWhenWanted)
    clock: FakeClock = field(factory=FakeClock)
    promised: dict[tuple[str, int, int], bytes] = field(factory=dict)
    appended: dict[bytes, tuple[str, int, int]] = field(factory=dict)
    waiting: dict[tuple[str, int, int], bytes] = field(factory=dict)
    generation: int = 0
    failed_with: dict[tuple[str, int, int], bytes] = field(factory=dict)

    @property
    def root(self) -> Path:
        return self.base / str(self.generation)

    async def live_and_die(self) -> None:
        """One generation, from the start to the power failure, which may occur during the start."""
        self.root.mkdir(parents=True, exist_ok=True)
        disk = self.disk_kind(
            self.root, self.rng, self.rng.randrange(120), self.base / str(self.generation + 1), self._failed
        )
        self.clock.advance(self.rng.randrange(5_000))
        store = MmapStore(store_config(self.root, **SIZES), self.clock, self.policy, disk=disk)
        self.waiting = {}
        await store.open()
        if not disk.has_failed:
            self._compare(store)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.policy.run, store._log, store._log.progress_wanted)
                while not disk.has_failed:
                    await self._act(store, disk)
                nursery.cancel_scope.cancel()
        store._release_files()
        shutil.rmtree(self.root)
        self.generation += 1
        self.promised = self.failed_with

    async def last_start(self) -> None:
        disk = LosingDisk(self.root, self.rng, 1 << 60, self.base / "never", self._failed)
        store = MmapStore(store_config(self.root, **SIZES), self.clock, self.policy, disk=disk)
        await store.open()
        self._compare(store, all_keys=True)
        store._release_files()

    def _failed(self) -> None:
        self.failed_with = dict(self.promised)

    async def _act(self, store: MmapStore, disk: LosingDisk) -> None:
        match self.rng.choices(range(9), (40, 25, 6, 4, 4, 4, 2, 2, 4))[0]:
            case 0:
                self._append(store)
            case 1:
                await store.settled(store.end_offset, Level.FLUSHED)
                if not disk.has_failed:
                    self.promised |= self.waiting
                self.waiting = {}
            case 2:
                await self._background_round(store, thorough=False)
            case 3:
                await self._background_round(store, thorough=True)
            case 4:
                store._index.drain(self.rng.randrange(50))
            case 5:
                await store._log.prepare_next()
            case 6:
                # A clean stop and start; the power may fail during the stop.
                await store.close()
                if not disk.has_failed:
                    self.promised |= self.waiting
                    self.waiting = {}
                    await store.open()
                    if not disk.has_failed:
                        self._compare(store)
            case 7:
                disk.fail()
            case 8:
                await store._log.commit()

    async def _background_round(self, store: MmapStore, *, thorough: bool) -> None:
        """The work that rmqkit_store_mmap.open.background does every second, and every few seconds."""
        log, queues, index = store._log, store._queues, store._index
        thorough |= queues.flush_soon.is_set()
        if thorough:
            queues.flush_soon = trio.Event()
        time_ms = log.last_time_ms if thorough else None
        mark = queues.new_mark(log.position) if thorough else None
        if thorough:
            await log.commit()
        await queues.flush(everything=thorough)
        queues.mark = mark or queues.mark
        if thorough or index.full_waits:
            await index.flush(log.written)
        store.write_checkpoint(time_ms)

    def _append(self, store: MmapStore) -> None:
        self.clock.advance(
            self.rng.randrange(-100_000, 0)
            if self.setbacks and self.rng.random() < 0.05
            else self.rng.randint(1, 2_000)
        )
        given = []
        for _ in range(self.rng.randint(1, 30)):
            body = self.rng.randbytes(12) + bytes([self.rng.randrange(256)]) * self.rng.randrange(980)
            given.append(
                message(
                    self.rng.choice(_TOPICS), self.rng.randrange(_QUEUES), body, keys=body[:12].hex(), tag="t"
                )
            )
        for one, at in zip(given, store.append(given), strict=True):
            place = one.topic, one.queue_id, at.queue_offset
            self.appended[one.body] = place
            self.waiting[place] = one.body

    # --- the comparison -------------------------------------------------------------------------------------

    def _compare(self, store: MmapStore, *, all_keys: bool = False) -> None:
        """Everything promised exists, log and queues agree, keys find their messages, and nothing was
        invented. Of other appended messages any part may exist, each at its place."""
        found = contents(store)
        there = {
            (topic, queue_id, one.queue_offset): one
            for (topic, queue_id), (_, _, some, _) in found.items()
            for one in some
        }
        for place, body in self.promised.items():
            assert place in there, f"lost: {place}"
            assert there[place].body == body, f"another body at {place}"
        by_position = {one.physical_offset: place for place, one in there.items()}
        assert len(by_position) == len(there), "two places share a record"
        for low, high, some, units in found.values():
            assert len(units) == high - low
            by_offset = {unit.queue_offset: (unit.physical_offset, unit.size_bytes) for unit in units}
            assert [by_offset[one.queue_offset] for one in some] == [
                (one.physical_offset, one.size_bytes) for one in some
            ]
        logged = self._logged(store)
        assert {one.physical_offset for one in logged} == set(by_position), "log and queues differ"
        for one in logged:
            place = one.topic, one.queue_id, one.queue_offset
            assert by_position[one.physical_offset] == place
            assert self.appended[one.body] == place
        for one in logged if all_keys else self.rng.sample(logged, min(len(logged), _KEYS)):
            place = one.topic, one.queue_id, one.queue_offset
            keys = store.query_by_key(one.topic, one.properties[props.KEYS], 0, 1 << 60, 32).physical_offsets
            assert keys == [one.physical_offset], f"the key of {place} finds {keys}"
        self.promised = {place: one.body for place, one in there.items()}

    def _logged(self, store: MmapStore) -> list[StoredMessage]:
        """All messages from the start of the log to its end, each verified by its checksum. Replacements of
        damaged records are skipped."""
        found = []
        at = 0
        while at < store.end_offset:
            data = store.read_log(at, 1 << 20)
            assert len(data), f"the log cannot be read at {at}, it ends at {store.end_offset}"
            inside = 0
            while inside < len(data):
                size, magic = BLANK.unpack_from(data, inside)
                if magic != MAGIC_BLANK:
                    record = unpack(data, inside)
                    assert record.physical_offset == at + inside
                    if not is_damage(record.flag, record.sys_flag):
                        found.append(record)
                inside += size
            at += inside
        return found


async def lives(
    base: Path,
    seed: int,
    *,
    setbacks: bool = False,
    disk_kind: type[LosingDisk] = LosingDisk,
    policy: type[FlushPolicy] = FlushWhenWanted,
) -> None:
    """One machine through its generations."""
    machine = Machine(base, random.Random(seed), setbacks, disk_kind, policy())
    try:
        for _ in range(GENERATIONS):
            await machine.live_and_die()
        await machine.last_start()
    except BaseException as error:
        error.add_note(f"seed {seed}, generation {machine.generation}")
        raise
    finally:
        shutil.rmtree(base)


@pytest.mark.row("S256", "S258", "S261", "S333")
@pytest.mark.parametrize(
    ("setbacks", "policy"),
    [(False, FlushWhenWanted), (True, FlushWhenWanted), (False, CommitWhenWanted)],
    ids=["", "the clock is set back", "with a commit buffer"],
)
async def test_what_was_flushed_survives_power_failures(
    tmp_path: Path, setbacks: bool, policy: type[FlushPolicy]
) -> None:
    """The power fails at any call to the disk, also while the store starts or stops; the seed of a failure is
    in its notes."""
    for seed in range(ROUNDS):
        await lives(tmp_path / "machine", seed, setbacks=setbacks, policy=policy)


class IdleDisk(LosingDisk):
    """Reports a flush that it has not made."""

    def sync(self, fd: int) -> None:
        self._step()


class FlatDisk(LosingDisk):
    """Flushes files, but not directories."""

    def sync_path(self, path: Path) -> None:
        if not path.is_dir():
            super().sync_path(path)


@pytest.mark.parametrize("disk_kind", [IdleDisk, FlatDisk])
async def test_a_disk_that_lies_is_noticed(tmp_path: Path, disk_kind: type[LosingDisk]) -> None:
    """The comparison fails within a few rounds for data lost by such a disk."""
    failures = []
    for seed in range(10):
        try:
            await lives(tmp_path / "machine", seed, disk_kind=disk_kind)
        except* (AssertionError, StoreError, DecodeError) as group:
            failures.append(group)
    assert failures
