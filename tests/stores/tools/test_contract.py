"""The contract of `rmqkit store` run over the kinds of store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from rmqkit.config import Config
from rmqkit.plugin.store import MessageStore
from rmqkit.plugin.store_tools import StoreTools
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, bodies, message, put, running
from rmqkit.testing.store_tools import StoreToolsContract
from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import OFFSET
from rmqkit_store_lmdb.database.scanning import seek_chunk
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_lmdb.tools.verb import LmdbTools
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.verb import MmapTools

_BODY_AT = 100


class TestMmapTools(StoreToolsContract):
    """Over RocketMQ's files."""

    def make_store(self, config: Config, clock: FakeClock) -> MessageStore:
        return MmapStore(config, clock, FlushWhenWanted())

    def make_tools(self) -> StoreTools:
        return MmapTools()

    def damage(self, directory: Path, physical_offset: int) -> None:
        segment_bytes = SMALL["mapped_file_size_commit_log"]
        path = directory / "commitlog" / f"{physical_offset - physical_offset % segment_bytes:020d}"
        data = bytearray(path.read_bytes())
        data[physical_offset % segment_bytes + _BODY_AT] ^= 1
        path.write_bytes(data)


class TestLmdbTools(StoreToolsContract):
    """Over an LMDB environment."""

    def make_store(self, config: Config, clock: FakeClock) -> MessageStore:
        return LmdbStore(config, clock, FlushWhenWanted())

    def make_tools(self) -> StoreTools:
        return LmdbTools()

    def damage(self, directory: Path, physical_offset: int) -> None:
        env = Environment(directory / "lmdb", 1 << 30, 8)
        env.open()

        def work(txn: Transaction[bytes]) -> None:
            with txn.cursor(env.db("log")) as cursor:
                assert seek_chunk(cursor, physical_offset)
                key, chunk = cursor.key(), bytearray(cursor.value())
            chunk[physical_offset - OFFSET.unpack(key)[0] + _BODY_AT] ^= 1
            txn.put(key, bytes(chunk), db=env.db("log"))

        env.write(work)
        env.close(clean=True)


@pytest.mark.parametrize("contract", [TestMmapTools(), TestLmdbTools()], ids=["mmap", "lmdb"])
async def test_a_store_that_a_broker_has_open_can_be_inspected(
    contract: StoreToolsContract, tmp_path: Path
) -> None:
    """A tool in another process reports that the store is open; the store is not disturbed."""
    async with running(contract.make_store(contract.config(tmp_path), FakeClock())) as store:
        await put(store, [message("T1", 0, b"first")])
        command = [
            sys.executable,
            "-m",
            "rmqkit.cli",
            "store",
            "inspect",
            str(tmp_path),
            "--json",
            "--set",
            "maxMessageSize=1000",
            "--set",
            "mappedFileSizeCommitLog=66560",
        ]
        done = await trio.run_process(command, capture_stdout=True)
        assert json.loads(done.stdout)["inUse"] is True
        await put(store, [message("T1", 0, b"second")])
        assert bodies(store, "T1") == [b"first", b"second"]
