"""Power failures: any part of the unflushed data may have reached the device. In every case the store opens
with all flushed messages and any others that are whole, each in its place, and queues, keys and log agree."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.protocol.record import unpack
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import FlushWhenWanted, contents, message, store_config
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore

#: The unit a device writes atomically. Less than a sector, so that small files have many of them; the
#: checkpoint relies on real sectors.
PAGE_BYTES = 128
SECTOR_BYTES = 512
SIZES = {
    "max_message_size": 1_000,
    "mapped_file_size_commit_log": 66_560,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 100,
    "max_index_num": 60,
}


class Device(Disk):
    """Remembers what each file held when it was last flushed, and which names a directory had."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.flushed: dict[int, bytes] = {}
        self.known: set[Path] = {root}
        self._open: list[int] = []
        for path in root.rglob("*"):
            self.known.add(path)
            self.sync_path(path)

    def sync(self, fd: int) -> None:
        number = os.fstat(fd).st_ino
        if number not in self.flushed:
            self._open.append(os.dup(fd))  # so that no other file gets the number
        self.flushed[number] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_path(self, path: Path) -> None:
        if path.is_dir():
            self.known |= {path, *path.iterdir()}
        elif path.exists():
            super().sync_path(path)

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open = []

    def after_power_failure(self, copy: Path, rng: random.Random) -> None:
        """Make `copy` a directory as it may be found after a power failure: each file is any mixture of
        flushed and later pages, new names may be missing."""
        shutil.copytree(self.root, copy)
        for path in sorted(self.root.rglob("*"), reverse=True):
            found = copy / path.relative_to(self.root)
            if path.is_file():
                now = path.read_bytes()
                before = self.flushed.get(path.stat().st_ino, b"").ljust(len(now), b"\0")
                page = SECTOR_BYTES if path.name == "checkpoint" else PAGE_BYTES
                share = rng.choice((0.0, 0.5, 1.0))
                starts = range(0, len(now), page)
                found.write_bytes(
                    b"".join((now if rng.random() < share else before)[at : at + page] for at in starts)
                )
                if path not in self.known and path.stat().st_ino not in self.flushed and rng.random() < 0.3:
                    found.unlink()


class Life:
    """A store through several power failures, and what it must still hold."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.rounds = 0
        self.appended: list[tuple[PutMessage, int, int, int]] = []
        self.store, self.device = self._make()

    def _make(self) -> tuple[MmapStore, Device]:
        root = self.directory / str(self.rounds)
        device = Device(root)
        return MmapStore(store_config(root, **SIZES), self.clock, FlushWhenWanted(), disk=device), device

    async def apply(self, operation: str) -> None:
        await getattr(self, operation)()
        self.clock.advance(self.rng.choice((0, 1, 2_000, 7_000)))

    async def append(self) -> None:
        batch = []
        for _ in range(self.rng.randrange(1, 12)):
            fields: dict[str, Any] = {"keys": f"k{self.rng.randrange(40)}"} if self.rng.random() < 0.8 else {}
            batch.append(
                message(
                    f"T{self.rng.randrange(2)}",
                    self.rng.randrange(2),
                    self.rng.randbytes(self.rng.randrange(300)),
                    **fields,
                )
            )
        for one, at in zip(batch, self.store.append(batch), strict=True):
            self.appended.append(
                (one, at.queue_offset, at.physical_offset, at.physical_offset + at.size_bytes)
            )

    async def drain(self) -> None:
        self.store._index.drain(self.rng.randrange(20))

    async def flush_log(self) -> None:
        await self.store._log.flush()

    async def flush_queues(self) -> None:
        mark = self.store._queues.new_mark(self.store.end_offset)
        await self.store._queues.flush(everything=True)
        self.store._queues.mark = mark

    async def flush_index(self) -> None:
        await self.store._index.flush(self.store.end_offset)

    async def write_checkpoint(self) -> None:
        self.store.write_checkpoint()

    async def truncate(self) -> None:
        """Cut the log at a message; the device knows of it at once, so a failure brings nothing back."""
        if self.appended:
            cut = self.rng.randrange(len(self.appended))
            await self.store.truncate(self.appended[cut][2])
            del self.appended[cut:]
            assert self.store.statistics().flushed_physical_offset == self.store.end_offset
            self.check(cut)

    async def reopen(self) -> None:
        await self.close()
        self.store, self.device = self._make()
        await self.store.open()
        self.check(len(self.appended))

    async def fail(self) -> None:
        flushed = self.store.statistics().flushed_physical_offset
        self.rounds += 1
        self.device.after_power_failure(self.directory / str(self.rounds), self.rng)
        await self.close()
        self.store, self.device = self._make()
        await self.store.open()
        assert self.store.end_offset >= flushed
        kept = [one for one in self.appended if self._is_there(one)]
        assert [one for one in kept if one[3] <= flushed] == [
            one for one in self.appended if one[3] <= flushed
        ]
        self.appended = kept
        self.check(len(kept))

    def _is_there(self, appended: tuple[PutMessage, int, int, int]) -> bool:
        """Whether the log still has the record. Unflushed records may be lost although later ones are not."""
        one, queue_offset, physical_offset, end = appended
        record = self.store.read_record(physical_offset)
        if record is None or len(record) != end - physical_offset:
            return False
        found = unpack(record)
        return (found.topic, found.queue_id, found.queue_offset, found.body) == (
            one.topic,
            one.queue_id,
            queue_offset,
            one.body,
        )

    async def close(self) -> None:
        await self.store.close()
        self.device.close()

    def check(self, count: int) -> None:
        """The store holds the first `count` appended messages and nothing else; where a queue lacks one of
        them, readers find nothing."""
        found = contents(self.store)
        expected: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        keys: dict[tuple[str, str], list[int]] = {}
        for one, queue_offset, physical_offset, _ in self.appended[:count]:
            expected.setdefault((one.topic, one.queue_id), []).append(
                (queue_offset, physical_offset, one.body)
            )
            if props.KEYS in one.properties:
                keys.setdefault((one.topic, one.properties[props.KEYS]), []).append(physical_offset)
        for key, (low, high, stored, units) in found.items():
            told = [(each.queue_offset, each.physical_offset, each.body) for each in stored]
            assert told == expected.pop(key, [])
            assert len(units) == high - low
            assert [units[offset - low].physical_offset for offset, _, _ in told] == [
                place for _, place, _ in told
            ]
        assert not expected
        for topic in ("T0", "T1"):
            for number in range(40):
                places = self.store.query_by_key(topic, f"k{number}", 0, 1 << 60, 1000).physical_offsets
                assert places == keys.get((topic, f"k{number}"), [])[::-1]


async def _run(operations: list[str], seed: int) -> None:
    with TemporaryDirectory() as directory:
        life = Life(Path(directory), seed)
        await life.store.open()
        try:
            for operation in operations:
                await life.apply(operation)
            await life.fail()
            await life.append()
            life.check(len(life.appended))
            await life.fail()
        finally:
            await life.close()


steps = st.sampled_from(
    ["append"] * 5
    + [
        "drain",
        "flush_log",
        "flush_queues",
        "flush_index",
        "write_checkpoint",
        "write_checkpoint",
        "truncate",
        "fail",
        "reopen",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(0, 1 << 30))
def test_a_power_failure_takes_no_more_than_what_was_not_flushed(operations: list[str], seed: int) -> None:
    """Appends, cuts, flushes of any part in any order, checkpoints, stops and power failures happen one after
    the other, and what was flushed is always there."""
    trio.run(_run, operations, seed)
