"""The LMDB store when something fails: the machine, the disk, the map, the reader table, a process in the middle of a write."""

from __future__ import annotations

import mmap
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.abc import Level
from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, NeverFlush, bodies, contents, message, put, running, store_config
from rmqkit_store_lmdb.environment import Environment, Transaction
from rmqkit_store_lmdb.layout import OFFSET
from rmqkit_store_lmdb.store import LmdbStore
from tests.faults.kit import mounted

_PAGE = mmap.PAGESIZE
_MAP_BYTES = 1 << 30


class FailingEnvironment(Environment):
    """Commits fail while it is told so."""

    failing = False

    def write(self, work: Callable[[Transaction[bytes]], None]) -> None:
        if self.failing:
            raise StoreNotWritable("cannot write: Input/output error")
        super().write(work)


def make(directory: Path, *, durable: bool = False, boot: str = "A" * 36, map_bytes: int = _MAP_BYTES) -> LmdbStore:
    env = FailingEnvironment(directory / "lmdb", map_bytes, 8, durable, boot)
    return LmdbStore(store_config(directory, **SMALL), FakeClock(), NeverFlush(), env=env)


# --- the machine dies ------------------------------------------------------------------------------------------------


def torn(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """What a device may hold of a file that was `before` at a flush and `after` when the power went: of each page the one or the other."""
    pages = []
    for at in range(0, len(after), _PAGE):
        older, newer = before[at : at + _PAGE], after[at : at + _PAGE]
        pages.append(newer if rng.random() < 0.5 else older.ljust(_PAGE, b"\0"))
    return b"".join(pages)


@pytest.mark.parametrize("seed", range(12))
async def test_a_machine_that_dies_goes_back_to_the_last_flush(tmp_path: Path, seed: int) -> None:
    """Whatever of the pages written since has got to the device: all that was flushed is there, and the store goes on."""
    rng = random.Random(seed)
    held = tmp_path / "held"
    expected, before, after = await lived_and_kept(tmp_path / "store", held, rng)
    (held / "lmdb" / "data.mdb").write_bytes(torn(before, after, rng))
    async with running(make(held, boot="B" * 36)) as store:
        assert store._env.restored
        assert contents(store) == expected
        found = store.query_by_key("T0", "k", 0, 1 << 60, 1000).physical_offsets
        assert len(found) == len(expected["T0", 0][2])
        await put(store, [message("T0", body=b"more")])
        assert bodies(store, "T0")[-1] == b"more"
    async with running(make(held, boot="C" * 36)) as store:
        assert bodies(store, "T0")[-1] == b"more"


async def lived_and_kept(directory: Path, held: Path, rng: random.Random) -> tuple[dict[Any, Any], bytes, bytes]:
    """As `lived`; `held` gets a copy of the directory as it was while the store was open."""
    async with running(make(directory)) as store:
        flushed: tuple[dict[Any, Any], bytes] = ({}, b"")
        for number in range(60):
            batch = [message(f"T{rng.randrange(4)}", 0, rng.randbytes(rng.randrange(900)), keys="k") for _ in range(rng.randint(1, 20))]
            await put(store, batch)
            if number == 20:
                store.delete_topic("T3")
                await store._trimmer.sweep()
            if number in (10, 30):
                await store._commits.flush()
                flushed = contents(store), (directory / "lmdb" / "data.mdb").read_bytes()
            if number in (32, 50):
                await store.trim((number - 20) * 10_000)
        shutil.copytree(directory / "lmdb", held / "lmdb")
        return *flushed, (directory / "lmdb" / "data.mdb").read_bytes()


async def test_without_the_snapshot_a_torn_file_would_be_taken(tmp_path: Path) -> None:
    """The test above can fail: the same files are no store, or another one, when nothing is put back."""
    wrong = 0
    for seed in range(6):
        rng = random.Random(seed)
        held = tmp_path / f"held{seed}"
        expected, before, after = await lived_and_kept(tmp_path / f"store{seed}", held, rng)
        (held / "lmdb" / "data.mdb").write_bytes(torn(before, after, rng))
        (held / "lmdb" / "synced").unlink()
        check = f"import sys; from tests.stores.test_lmdb_faults import open_and_count; sys.exit(open_and_count({str(held)!r}))"
        wrong += run_python(check).returncode != sum(len(found[2]) for found in expected.values()) % 100 + 100
    assert wrong > 2


def open_and_count(directory: str) -> int:
    """For a process of its own, which a damaged file may kill: 100 and more for a store that opens and reads."""

    async def main() -> int:
        async with running(make(Path(directory), boot="B" * 36)) as store:
            return sum(len(found[2]) for found in contents(store).values()) % 100 + 100

    return trio.run(main)


async def test_a_process_that_dies_goes_back_to_nothing(tmp_path: Path) -> None:
    """While the machine runs on, all that is written counts; the keys that were kept back are found again."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"flushed", keys="a k")])
        await store._commits.flush()
        await put(store, [message(body=b"written", keys="b k")])
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink()
    async with running(make(tmp_path / "copy")) as store:
        assert not store._env.restored
        assert bodies(store) == [b"flushed", b"written"]
        assert store.is_settled(store.end_offset, Level.FLUSHED)
        for key, count in (("a", 1), ("b", 1), ("k", 2)):
            assert len(store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets) == count


async def test_a_snapshot_is_for_stores_that_flush_later(tmp_path: Path) -> None:
    """One whose commits are flushed has none, nor one that was closed; an old one must not take later messages back."""
    snapshot = tmp_path / "store" / "lmdb" / "synced"
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"first")])
        assert snapshot.exists()
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert not snapshot.exists()
    async with running(make(tmp_path / "copy", durable=True)) as store:
        assert not (tmp_path / "copy" / "lmdb" / "synced").exists()
        await put(store, [message(body=b"second")])
        assert store.is_settled(store.end_offset, Level.FLUSHED)
        shutil.copytree(tmp_path / "copy", tmp_path / "again")
    async with running(make(tmp_path / "again", boot="B" * 36)) as store:
        assert bodies(store) == [b"first", b"second"]


@pytest.mark.parametrize("name", ["synced", "data.mdb"])
async def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    """Nothing is guessed from it, and the directory is free again."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message()])
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    path = tmp_path / "copy" / "lmdb" / name
    path.write_bytes(b"damaged!" + path.read_bytes()[8:] if name == "synced" else b"d" * 8192)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="lmdb"):
            await make(tmp_path / "copy").open()


# --- writes fail -----------------------------------------------------------------------------------------------------


async def test_a_commit_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """All that wait are told; nothing is taken and nothing of it shows until a commit succeeds; then offsets go on where they were."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
        assert isinstance(store._env, FailingEnvironment)
        store._env.failing = True
        (at,) = store.append([message(body=b"1", keys="k"), message("New")])[:1]
        for _ in range(2):
            with pytest.raises(StoreNotWritable, match="Input/output error"):
                await store.settled(store.end_offset, Level.WRITTEN)
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            store.append([message()])
        assert bodies(store) == [b"0"]
        assert store.read_record(at.physical_offset) is None
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
        store._env.failing = False
        await written(store)
        (more,) = await put(store, [message(body=b"2")])
        assert (at.queue_offset, more.queue_offset) == (1, 2)
        assert bodies(store) == [b"0", b"1", b"2"]
        assert len(bodies(store, "New")) == 1


async def fill(store: LmdbStore) -> tuple[int, StoreNotWritable]:
    """Put messages, ten at a time, until they are refused; how many were taken, and the refusal."""
    for count in range(0, 100_000, 10):
        try:
            await put(store, [message(body=b"%04d" % number * 200) for number in range(count, count + 10)])
        except StoreNotWritable as error:
            return count, error
    raise AssertionError("nothing was refused")


async def written(store: LmdbStore) -> None:
    """Wait until what was refused has been written after all."""
    with trio.fail_after(30):
        while not store.is_settled(store.end_offset, Level.WRITTEN):
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_full_map_refuses_until_something_is_trimmed(tmp_path: Path) -> None:
    """The refusal names the setting; reads go on; a trim finds room to work even then, and messages are taken again."""
    async with running(make(tmp_path / "store", map_bytes=2 << 20)) as store:
        count, refusal = await fill(store)
        assert "mapSizeMaxBytes" in str(refusal)
        assert count > 400
        assert bodies(store) == [b"%04d" % number * 200 for number in range(count)]
        await store._commits.flush()
        parts = await store.log_parts()
        await store.trim(parts[len(parts) // 2].end)
        await written(store)
        await put(store, [message(body=b"more")])
        found = bodies(store)
        assert found[-1] == b"more"
        assert found[:-1] == [b"%04d" % number * 200 for number in range(store.min_offset("Orders", 0), count + 10)]


async def test_a_full_reader_table_refuses_reads(tmp_path: Path) -> None:
    """As long as others have taken all places: reads say so, writes go on."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
        taken: list[Transaction[memoryview]] = []
        with suppress(StoreError):
            taken.extend(store._env.begin() for _ in range(8))
        with pytest.raises(StoreError, match="READERS_FULL"):
            store.read_record(0)
        await put(store, [message(body=b"1")])
        assert await store._commits.flush() < store._commits.written
        while taken:
            taken.pop().abort()
        await store._commits.flush()
        assert store.is_settled(store.end_offset, Level.FLUSHED)
        assert bodies(store) == [b"0", b"1"]


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """On a file system that is really full: no signal, a refusal with the reason, and with space again everything goes on."""
    with mounted(tmp_path / "disk", 4 << 20) as disk:
        (disk / "ballast").write_bytes(bytes(1 << 20))
        async with running(make(disk / "store")) as store:
            count, refusal = await fill(store)
            assert "No space left on device" in str(refusal)
            assert count > 500
            assert len(bodies(store)) == count
            (disk / "ballast").unlink()
            await written(store)
            await put(store, [message(body=b"more")])
            assert bodies(store) == [*(b"%04d" % number * 200 for number in range(count + 10)), b"more"]


# --- processes -------------------------------------------------------------------------------------------------------

_IN_A_TRANSACTION = """
import os, signal, sys
from pathlib import Path
from rmqkit_store_lmdb.environment import Environment
env = Environment(Path(sys.argv[1]) / "lmdb", 1 << 30, 8, False, "A" * 36)
env.open()
def work(txn):
    for number in range(5000):
        txn.put((1 << 40 | number).to_bytes(8, "big"), bytes(1000), db=env.db("log"))
    os.kill(os.getpid(), signal.SIGKILL)
env.write(work)
"""

_OPEN = """
import sys, trio
from pathlib import Path
from tests.stores.test_lmdb_faults import make
trio.run(make(Path(sys.argv[1])).open)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60)


async def test_a_writer_that_is_killed_in_a_transaction(tmp_path: Path) -> None:
    """Leaves nothing of it, and no lock."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
    assert run_python(_IN_A_TRANSACTION, str(tmp_path / "store")).returncode == -9
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"1")])
        assert bodies(store) == [b"0", b"1"]
        with store._env.begin() as txn:
            assert txn.stat(store._env.db("log"))["entries"] == 2
            assert txn.get(OFFSET.pack(1 << 40), db=store._env.db("log")) is None


async def test_a_second_process_is_refused_before_it_touches_anything(tmp_path: Path) -> None:
    """It says which directory is held; files and store stay as they are."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message()])
        before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "lmdb").iterdir()}
        done = run_python(_OPEN, str(tmp_path / "store"))
        assert f"StoreInUse: another process holds the store directory {tmp_path / 'store'}" in done.stderr
        assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "lmdb").iterdir()} == before
        await put(store, [message()])
        assert len(bodies(store)) == 2


async def test_a_flush_that_fails_is_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what the device has then: waiters are told, nothing is taken any more, reads go on."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])

        def fail(held: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(store._env, "flush", fail)
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            await store._commits.flush()
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            store.append([message()])
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            await store.settled(store.end_offset, Level.FLUSHED)
        assert bodies(store) == [b"0"]


async def test_a_directory_of_another_store_is_refused(tmp_path: Path) -> None:
    """Its messages would seem to be gone."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(b"")
    with pytest.raises(StoreError, match="rmqkit store copy"):
        await make(tmp_path / "store").open()
    assert not (tmp_path / "store" / "lmdb").exists()
