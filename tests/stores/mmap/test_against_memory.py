"""After random operations the mmap store holds the same as the memory store; and its fast paths make the same
bytes as the slow ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.config import with_values
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.store import Boundary, MessageStore, ReadLimits
from rmqkit.protocol.key_hash import KeyHasher
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit.protocol.record import message_size, pack
from rmqkit.protocol.tags import extend_hash, index_hash, java_hash
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, CommitWhenWanted, FlushWhenWanted, contents, message, store_config
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore
from tests.stores.disks import Forgetful

TOPICS = ("T", "Orders", "%RETRY%" + "g" * 150)
KEYS = ("Aa", "BB", "k1", "k2 k3", "x" * 100)
_UNIQUE = UniqueKeys(pid=1, instance=2)
UNIQUE = tuple(_UNIQUE.make(1_700_000_000_000 + number) for number in range(3))


@st.composite
def messages(draw: st.DrawFn) -> PutMessage:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["keys"] = draw(st.sampled_from(KEYS))
    if draw(st.booleans()):
        fields["unique_key"] = draw(st.sampled_from(UNIQUE))
    if draw(st.booleans()):
        fields["tag"] = draw(st.sampled_from(("a", "TagB")))
    made = message(
        draw(st.sampled_from(TOPICS)),
        draw(st.integers(0, 2)),
        draw(st.binary(max_size=50)) * draw(st.integers(0, 20)),
        **fields,
    )
    if draw(st.integers(0, 9)) == 0:
        made.sys_flag |= BORN_HOST_V6
        made.born_host = bytes(range(20))
    if draw(st.integers(0, 9)) == 0:
        made.sys_flag |= draw(
            st.sampled_from((TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK))
        )
    return made


appends = st.tuples(st.just("append"), st.lists(messages(), min_size=1, max_size=30), st.integers(1, 8))
reads = st.tuples(
    st.just("read"),
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.integers(-1, 40),
    st.integers(0, 20),
    st.integers(1, 5000),
    st.booleans(),
)
damages = st.sampled_from(
    (
        None,
        None,
        "consumequeue",
        "index",
        "checkpoint",
        "queue",
        "queue file",
        "index file",
        "garbage",
        "record",
    )
)
operations = st.lists(
    st.one_of(
        appends,
        appends,
        reads,
        st.just(("tick",)),
        st.tuples(st.sampled_from(("crash", "reopen")), damages, st.integers(0, 1 << 30)),
        st.tuples(st.just("query"), st.sampled_from(KEYS)),
        st.tuples(st.just("index"), st.integers(1, 50)),
    ),
    max_size=15,
)


def damage(root: Path, kind: str | None, number: int, end: int) -> None:
    """Delete something that can be built again, or put bytes after the end of the log that must be
    ignored."""
    if kind in ("consumequeue", "index"):
        shutil.rmtree(root / kind)
    elif kind == "checkpoint":
        (root / "checkpoint").unlink()
    elif kind == "index file" and list((root / "index").iterdir()):
        max((root / "index").iterdir()).unlink()
    elif kind in ("queue", "queue file"):
        found = sorted((root / "consumequeue").glob("*/*" if kind == "queue" else "*/*/*"))
        if found:
            chosen = found[number % len(found)]
            shutil.rmtree(chosen) if chosen.is_dir() else chosen.unlink()
    elif kind in ("garbage", "record"):
        path = root / "commitlog" / f"{end - end % SMALL['mapped_file_size_commit_log']:020d}"
        if path.exists() and end % SMALL["mapped_file_size_commit_log"] < 60_000:
            size = int.from_bytes(path.read_bytes()[:4], "big")
            noise = (
                Random(number).randbytes(500) if kind == "garbage" else path.read_bytes()[: min(size, 5_000)]
            )
            with path.open("r+b") as file:
                file.seek(end % SMALL["mapped_file_size_commit_log"])
                file.write(noise if end else noise[:3])


class Pair:
    """Both stores; physical offsets are compared by the order of the messages, since only one of them has
    segments.

    With a commit buffer what was appended is committed when somebody looks, or before the store goes away.
    """

    def __init__(self, directory: Path, policy: FlushPolicy) -> None:
        self.clock = FakeClock()
        self.policy = policy
        self.directory = directory
        self.rounds = 0
        self.config = store_config(directory / "0", **SMALL, max_hash_slot_num=3, max_index_num=6)
        self.memory: MessageStore = MemoryStore(self.config, self.clock, FlushWhenWanted())
        self.mmap = MmapStore(self.config, self.clock, policy, disk=Forgetful())
        self.order: dict[int, int] = {}
        self.times: list[int] = []

    async def apply(self, operation: tuple[Any, ...]) -> None:
        kind, *arguments = operation
        if kind not in ("append", "tick"):
            await self.mmap._log.commit()
        await getattr(self, kind)(*arguments)

    async def append(self, batch: list[PutMessage], times: int) -> None:
        for _ in range(times):
            first, second = self.memory.append(batch), self.mmap.append(batch)
            assert [at._replace(physical_offset=0) for at in first] == [
                at._replace(physical_offset=0) for at in second
            ]
            self.order.update(
                (b.physical_offset, a.physical_offset) for a, b in zip(first, second, strict=True)
            )
        self.times.append(self.clock.now_ms())

    async def read(
        self, topic: str, queue_id: int, offset: int, most: int, most_bytes: int, filtered: bool
    ) -> None:
        limits = ReadLimits(most, most_bytes, 10)
        unit_filter = (lambda code: code != 0) if filtered else None
        first = self.memory.read(topic, queue_id, offset, limits, unit_filter)
        second = self.mmap.read(topic, queue_id, offset, limits, unit_filter)
        for name in ("next_offset", "min_offset", "max_offset", "message_count", "total_bytes"):
            assert getattr(first, name) == getattr(second, name)
        if first.max_offset:
            assert first.status is second.status

    async def index(self, count: int) -> None:
        self.mmap._index.drain(count)

    async def query(self, keys: str) -> None:
        for topic in TOPICS:
            for key in (*keys.split(), *UNIQUE):
                first = self.memory.query_by_key(
                    topic, key, self.times[0] if self.times else 0, self.clock.now_ms() - 1, 9
                )
                second = self.mmap.query_by_key(
                    topic, key, self.times[0] if self.times else 0, self.clock.now_ms() - 1, 9
                )
                assert first.physical_offsets == [self.order[offset] for offset in second.physical_offsets]

    async def tick(self) -> None:
        self.clock.advance(700)

    async def reopen(self, kind: str | None, number: int) -> None:
        end = self.mmap.end_offset
        await self.mmap.close()
        damage(self.config.root_path, kind, number, end)
        self.mmap = MmapStore(self.config, self.clock, self.policy, disk=Forgetful())
        await self.mmap.open()
        self.compare()

    async def crash(self, kind: str | None, number: int) -> None:
        self.rounds += 1
        copy = self.directory / str(self.rounds)
        shutil.copytree(self.config.root_path, copy)
        damage(copy, kind, number, self.mmap.end_offset)
        await self.mmap.close()
        shutil.rmtree(self.config.root_path)
        self.config = with_values(self.config, store_path_root_dir=str(copy))
        self.mmap = MmapStore(self.config, self.clock, self.policy, disk=Forgetful())
        await self.mmap.open()
        self.compare()

    def compare(self) -> None:
        first, second = contents(self.memory), contents(self.mmap)
        for key, (low, high, found, units) in first.items():
            if high == 0:
                continue
            other = second.pop(key)
            assert (low, high) == other[:2]
            assert [msgspec.structs.replace(one, physical_offset=0) for one in found] == [
                msgspec.structs.replace(one, physical_offset=0) for one in other[2]
            ]
            assert [self.order[unit.physical_offset] for unit in other[3]] == [
                unit.physical_offset for unit in units
            ]
            assert [unit.tags_code for unit in other[3]] == [unit.tags_code for unit in units]
            for time_ms in self.times:
                for boundary in Boundary:
                    assert self.memory.offset_by_time(*key, time_ms, boundary) == self.mmap.offset_by_time(
                        *key, time_ms, boundary
                    )
        assert all(high == 0 for _, high, _, _ in second.values())


async def _run(sequence: list[tuple[Any, ...]], policy: FlushPolicy) -> None:
    with TemporaryDirectory() as directory:
        pair = Pair(Path(directory), policy)
        await pair.memory.open()
        await pair.mmap.open()
        try:
            for operation in sequence:
                await pair.apply(operation)
            await pair.mmap._log.commit()
            pair.compare()
            await pair.query("Aa BB k1 k2 k3")
        finally:
            await pair.mmap.close()


def test_index_files_made_again_are_not_trusted_after_a_crash() -> None:
    """A full index file that was made again, in place of a lost one of the same times, and was not flushed
    before a crash, is made once more."""
    noted = [message("T", keys="Aa", unique_key=UNIQUE[0])]
    sequence = [
        ("append", noted, 3),
        ("tick",),
        ("reopen", "index", 0),
        ("append", noted, 1),
        ("crash", None, 0),
    ]
    trio.run(_run, sequence, FlushWhenWanted())


@settings(max_examples=60, deadline=None)
@given(operations)
def test_both_stores_agree(sequence: list[tuple[Any, ...]]) -> None:
    """Appends, reads, queries, clean and unclean restarts in any order, with losses between restarts: the
    mmap store answers as the memory store does."""
    trio.run(_run, sequence, FlushWhenWanted())


@settings(max_examples=40, deadline=None)
@given(operations)
def test_both_stores_agree_when_one_writes_later(sequence: list[tuple[Any, ...]]) -> None:
    """The same histories with a commit buffer, in which several appends wait together."""
    trio.run(_run, sequence, CommitWhenWanted())


@pytest.mark.row("S237")
@settings(max_examples=60, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=20))
def test_records_are_packed_as_the_kernel_packs_them(batch: list[PutMessage]) -> None:
    """The packing inside `append` and protocol.record.pack make the same bytes."""

    async def main() -> None:
        with TemporaryDirectory() as directory:
            store = MmapStore(store_config(Path(directory)), FakeClock(), FlushWhenWanted(), disk=Forgetful())
            await store.open()
            try:
                results = store.append(batch)
                packed = b"".join(
                    pack(
                        one,
                        message_size(one),
                        at.queue_offset,
                        at.physical_offset,
                        at.store_timestamp_ms,
                        bytes.fromhex("7f00000100002a9f"),
                    )
                    for one, at in zip(batch, results, strict=True)
                )
                assert bytes(store.read_log(0, 1 << 30)) == packed
            finally:
                await store.close()

    trio.run(main)


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_hash_can_be_worked_out_in_two_steps(first: str, second: str) -> None:
    """`extend_hash` continues a hash: both halves give the hash of the whole."""
    assert extend_hash(extend_hash(0, first), second) == java_hash(first + second) & 0xFFFFFFFF


@given(
    st.text(max_size=80),
    st.one_of(st.text(max_size=80), st.text("0123456789ABCDEF", min_size=32, max_size=32)),
)
def test_key_hashes_are_those_of_the_kernel(topic: str, key: str) -> None:
    """The index's quick hash of a unique key equals `index_hash`, at the first and at the second call."""
    hasher = KeyHasher()
    expected = index_hash(topic, key)
    assert [hasher.unique(extend_hash(0, f"{topic}#"), key) for _ in range(2)] == [expected, expected]


def test_the_hasher_forgets() -> None:
    """What the hasher keeps is bounded."""
    hasher = KeyHasher()
    for number in range(10_000):
        hasher.unique(0, f"{number:032X}")
        hasher.unique(0, f"{number:016X}" * 2)
    assert len(hasher._heads) <= 4096
    assert len(hasher._clients) <= 4096
