"""Random histories: the LMDB store answers as the memory store does, also after a kill and after a trim."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model.message import PutMessage
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.store import Boundary, MessageStore, ReadLimits
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, NeverFlush, contents, store_config
from rmqkit_store_lmdb.database.environment import Environment
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_memory.store import MemoryStore
from tests.stores.mmap.test_against_memory import KEYS, TOPICS, UNIQUE, messages, reads

operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(messages(), min_size=1, max_size=30), st.integers(1, 8)),
        st.tuples(st.just("append"), st.lists(messages(), min_size=1, max_size=30), st.integers(1, 8)),
        reads,
        st.just(("tick",)),
        st.just(("sweep",)),
        st.just(("drain",)),
        st.just(("checkpoint",)),
        st.just(("crash",)),
        st.just(("reopen",)),
        st.tuples(st.just("delete"), st.sampled_from(TOPICS), st.integers(0, 2)),
        st.tuples(st.just("query"), st.sampled_from(KEYS)),
    ),
    max_size=15,
)


class Pair:
    """Both stores. Physical offsets are compared by the order of the messages, since the LMDB store leaves
    gaps where files would end. Queues without messages do not count: a half message makes one, which is
    forgotten by a crash."""

    def __init__(self, directory: Path, policy: FlushPolicy) -> None:
        self.clock = FakeClock()
        self.policy = policy
        self.directory = directory
        self.rounds = 0
        self.memory: MessageStore = MemoryStore(store_config(directory, **SMALL), self.clock, policy)
        self.lmdb = self.make(directory / "0")
        self.order: dict[int, int] = {}
        self.times: list[int] = []
        #: Queues some of which were freed in the LMDB store; the memory store still finds their keys.
        self.deleted = False

    def make(self, root: Path) -> LmdbStore:
        config = store_config(root, **SMALL)
        return LmdbStore(config, self.clock, self.policy, env=Environment(root / "lmdb", 1 << 30, 64))

    async def append(self, batch: list[PutMessage], times: int) -> None:
        for _ in range(times):
            first, second = self.memory.append(batch), self.lmdb.append(batch)
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
        first, second = (
            store.read(topic, queue_id, offset, limits, unit_filter) for store in (self.memory, self.lmdb)
        )
        for name in ("status", "next_offset", "min_offset", "max_offset", "message_count", "total_bytes"):
            assert getattr(first, name) == getattr(second, name)

    async def query(self, keys: str) -> None:
        for topic in TOPICS:
            for key in (*keys.split(), *UNIQUE):
                first, second = (
                    store.query_by_key(topic, key, 0, self.clock.now_ms(), 1000)
                    for store in (self.memory, self.lmdb)
                )
                found = [self.order[offset] for offset in second.physical_offsets]
                assert found == [
                    offset for offset in first.physical_offsets if not self.deleted or offset in found
                ]

    async def delete(self, topic: str, queue_id: int) -> None:
        self.deleted = True
        for store in (self.memory, self.lmdb):
            store.delete_queue(topic, queue_id)

    async def sweep(self) -> None:
        await self.lmdb._trimmer.sweep()

    async def drain(self) -> None:
        await self.lmdb._commits.drain()

    async def checkpoint(self) -> None:
        await self.lmdb._commits.checkpoint()

    async def tick(self) -> None:
        self.clock.advance(700)

    async def reopen(self) -> None:
        await self.lmdb.close()
        await self.lmdb.open()
        self.compare()

    async def crash(self) -> None:
        self.rounds += 1
        copy = self.directory / str(self.rounds)
        shutil.copytree(self.directory / str(self.rounds - 1), copy)
        await self.lmdb.close()
        self.lmdb = self.make(copy)
        await self.lmdb.open()
        with self.lmdb.blocking_reads():
            self.compare()

    def compare(self) -> None:
        first, second = (
            {key: content for key, content in contents(store).items() if content[1]}
            for store in (self.memory, self.lmdb)
        )
        assert first.keys() == second.keys()
        for key, (low, high, found, units) in first.items():
            other = second[key]
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
                    assert self.memory.offset_by_time(*key, time_ms, boundary) == self.lmdb.offset_by_time(
                        *key, time_ms, boundary
                    )


async def _run(sequence: list[tuple[Any, ...]], policy: FlushPolicy) -> None:
    with TemporaryDirectory() as directory:
        pair = Pair(Path(directory), policy)
        await pair.memory.open()
        await pair.lmdb.open()
        try:
            for kind, *arguments in sequence:
                with pair.lmdb.blocking_reads():
                    await getattr(pair, kind)(*arguments)
            with pair.lmdb.blocking_reads():
                pair.compare()
                await pair.query("Aa BB k1 k2 k3")
        finally:
            await pair.lmdb.close()


@settings(max_examples=100, deadline=None)
@given(operations)
def test_both_stores_agree(sequence: list[tuple[Any, ...]]) -> None:
    """Appends, reads, queries, deleted queues, clean and unclean restarts in any order, while messages are in
    memory, in LMDB, or in both."""
    trio.run(_run, sequence, NeverFlush())
