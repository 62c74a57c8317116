"""The LMDB store under failures: of the machine, the disk, the map, the reader table, a process in the middle
of a write."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define

from rmqkit.errors import StoreCorrupt, StoreError, StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    NeverFlush,
    bodies,
    contents,
    message,
    put,
    records,
    running,
    store_config,
)
from rmqkit_store_lmdb.database.environment import Environment, Held, Transaction
from rmqkit_store_lmdb.database.layout import OFFSET
from rmqkit_store_lmdb.journal.journal import File, Journal, frames_of
from rmqkit_store_lmdb.read.readonly import EnvironmentReader
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_lmdb.tools.verify import verify
from tests.faults.kit import mounted

_PAGE = mmap.PAGESIZE
_MAP_BYTES = 1 << 30


class FailingEnvironment(Environment):
    """Writes fail while told to; it remembers what the device has."""

    failing = False
    on_device = b""

    def write(self, work: Callable[[Transaction[bytes]], None]) -> None:
        if self.failing:
            raise StoreNotWritable("cannot write: Input/output error")
        super().write(work)

    def sync(self, held: Held) -> None:
        super().sync(held)
        self.on_device = (self.directory / "data.mdb").read_bytes()


class FailingJournal(Journal):
    """A journal that fails in the same way."""

    failing = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.on_device: dict[str, bytes] = {}

    def write(self, fd: int, parts: Sequence[bytes], size_bytes: int, at: int) -> None:
        if self.failing:
            os.pwrite(fd, b"".join(parts)[:124], at)
            raise OSError(errno.EIO, "Input/output error")
        super().write(fd, parts, size_bytes, at)

    def flush(self, files: Sequence[File]) -> None:
        super().flush(files)
        self.on_device |= {file.path.name: file.path.read_bytes() for file in files}


def make(directory: Path, *, boot: str = "A" * 36, map_bytes: int = _MAP_BYTES) -> LmdbStore:
    env, journal = (
        FailingEnvironment(directory / "lmdb", map_bytes, 8, boot),
        FailingJournal(directory / "lmdb"),
    )
    return LmdbStore(store_config(directory, **SMALL), FakeClock(), NeverFlush(), env=env, journal=journal)


def parts_of(store: LmdbStore) -> tuple[FailingEnvironment, FailingJournal]:
    assert isinstance(store._env, FailingEnvironment)
    assert isinstance(store._journal, FailingJournal)
    return store._env, store._journal


# --- the machine dies ---------------------------------------------------------------------------------------


def torn(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """A possible content of a file on the device that was `before` at a flush and `after` at the power
    failure: each page is taken from one of them."""
    pages = []
    for at in range(0, len(after), _PAGE):
        older, newer = before[at : at + _PAGE], after[at : at + _PAGE]
        pages.append(newer if rng.random() < 0.5 else older.ljust(len(newer), b"\0"))
    return b"".join(pages)


def tear(directory: Path, data: bytes, journal: dict[str, bytes], rng: random.Random) -> None:
    """Replace the files of a store by a possible content of the device, from data.mdb's states `data` and
    these files of the journal."""
    for path in directory.iterdir():
        if path.name.startswith("journal-"):
            path.write_bytes(torn(journal.get(path.name, b""), path.read_bytes(), rng))
    path = directory / "data.mdb"
    path.write_bytes(torn(data, path.read_bytes(), rng))


@define
class Life:
    """What a store went through: the bodies of each queue, as they were at the last flush and as far as
    they came, and those that were trimmed last."""

    flushed: dict[str, int]
    appended: dict[str, list[bytes]]
    lows: dict[str, int]

    def check(self, store: LmdbStore) -> None:
        for topic, stop in self.flushed.items():
            low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
            assert low <= self.lows[topic]
            assert stop <= high
            found = {one.queue_offset: one.body for one in records(store.read(topic, 0, low, ALL, None))}
            assert found.keys() >= set(range(low, stop))
            assert all(self.appended[topic][offset] == body for offset, body in found.items())
        assert store.queues().keys() <= self.appended.keys()


async def lived_and_kept(directory: Path, held: Path, rng: random.Random) -> Life:
    """A life in `directory`; `held` gets what a device may hold of it when the power goes at the end."""
    async with running(make(directory)) as store:
        life = Life({}, {f"T{number}": [] for number in range(3)}, {})
        env, journal = parts_of(store)
        for number in range(60):
            for _ in range(rng.randint(1, 3)):
                batch = [
                    message(f"T{rng.randrange(4)}", 0, rng.randbytes(rng.randrange(900)), keys="k")
                    for _ in range(rng.randint(1, 7))
                ]
                await put(store, batch)
                for one in batch:
                    life.appended.setdefault(one.topic, []).append(one.body)
            if number == 20:
                store.delete_topic("T3")
                life.appended["T3"] = []
            if number % 5 == 0:
                await store._commits.drain()
            if number in (17, 43):
                await store._commits.checkpoint()  # of less than the journal has
            if number in (10, 30, 46, 54):
                await store._commits.flush()
                life.flushed = {topic: store.max_offset(topic, 0) for topic in store.queues()}
            if number in (32, 41):
                await store.trim((number - 20) * 6_000)
        life.lows = {topic: store.min_offset(topic, 0) for topic in store.queues()}
        shutil.copytree(directory / "lmdb", held / "lmdb")
        tear(
            held / "lmdb", env.on_device, journal.on_device, rng
        )  # before the store is closed, which flushes everything
    return life


@pytest.mark.parametrize("seed", range(12))
async def test_a_machine_that_dies_keeps_what_was_flushed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All flushed messages are there, whichever later pages reached the device; of later messages any part,
    each in its place; and the store takes messages again."""
    monkeypatch.setattr("rmqkit_store_lmdb.journal.journal.FILE_BYTES", 5_000)
    held = tmp_path / "held"
    life = await lived_and_kept(tmp_path / "store", held, random.Random(seed))
    async with running(make(held, boot="B" * 36)) as store:
        assert store._env.restored
        life.check(store)
        found = store.query_by_key("T0", "k", 0, 1 << 60, 1000).physical_offsets
        assert len(found) == len(bodies(store, "T0"))
        await put(store, [message("T0", body=b"more")])
        before = contents(store)
        shutil.copytree(held, tmp_path / "killed")
    (tmp_path / "killed" / "lock").unlink()
    for directory, boot in ((held, "C" * 36), (tmp_path / "killed", "B" * 36)):
        async with running(make(directory, boot=boot)) as store:
            assert contents(store) == before


async def test_without_the_snapshot_a_torn_file_would_be_taken(tmp_path: Path) -> None:
    """Shows that the test above can fail: without putting the snapshot back, one of the same files is
    unreadable or has other contents."""
    for seed in range(12):
        held = tmp_path / f"held{seed}"
        life = await lived_and_kept(tmp_path / f"store{seed}", held, random.Random(seed))
        (held / "lmdb" / "synced").unlink()
        check = (
            f"from tests.stores.lmdb.test_faults import open_and_check; open_and_check({str(held)!r},"
            f" {life.flushed!r})"
        )
        if run_python(check).returncode != 0:
            return
    raise AssertionError("every file was sound")


def open_and_check(directory: str, flushed: dict[str, int]) -> None:
    """Runs in a process of its own, which a damaged file may crash."""

    async def main() -> None:
        async with running(make(Path(directory), boot="B" * 36)) as store:
            found = {topic: store.max_offset(topic, 0) for topic in flushed}
            assert all(found[topic] >= stop for topic, stop in flushed.items())
            assert all(high - low == len(messages) for low, high, messages, _ in contents(store).values())

    trio.run(main)


async def test_a_process_that_dies_goes_back_to_nothing(tmp_path: Path) -> None:
    """While the machine stays up, everything written survives, whether it is in LMDB or only in the journal,
    including keys not yet in LMDB."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"flushed", keys="a k"), message("Gone")])
        await store._commits.drain()
        store.delete_topic("Gone")
        await put(store, [message(body=b"written", keys="b k", tags_code=77)])
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink()
    async with running(make(tmp_path / "copy")) as store:
        assert not store._env.restored
        assert bodies(store) == [b"flushed", b"written"]
        assert list(store.queues()) == ["Orders"]
        assert store.read_units("Orders", 0, 1, 1)[0].tags_code == 77
        assert store.is_settled(store.end_offset, Level.FLUSHED)
        for key, count in (("a", 1), ("b", 1), ("k", 2)):
            assert len(store.query_by_key("Orders", key, 0, 1 << 60, 9).physical_offsets) == count


async def test_a_closed_store_is_data_mdb_alone(tmp_path: Path) -> None:
    """The journal is empty after a close, and a start restores nothing from it."""
    async with running(make(tmp_path)) as store:
        await put(store, [message(body=b"first")])
        assert {path.name for path in (tmp_path / "lmdb").iterdir()} == {
            "data.mdb",
            "lock.mdb",
            "synced",
            f"journal-{1:020}",
        }
    assert {path.name for path in (tmp_path / "lmdb").iterdir()} == {"data.mdb", "lock.mdb"}
    async with running(make(tmp_path, boot="B" * 36)) as store:
        assert bodies(store) == [b"first"]


@pytest.mark.parametrize("name", ["synced", "data.mdb", "journal"])
async def test_a_damaged_file_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is refused, and the directory is unlocked again."""
    monkeypatch.setattr("rmqkit_store_lmdb.journal.journal.FILE_BYTES", 500)
    async with running(make(tmp_path / "store")) as store:
        for _ in range(9):
            await put(store, [message()])
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    if name == "journal":
        min((tmp_path / "copy" / "lmdb").glob("journal-*")).unlink()
    else:
        path = tmp_path / "copy" / "lmdb" / name
        path.write_bytes(b"damaged!" + path.read_bytes()[8:] if name == "synced" else b"d" * 8192)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="lmdb"):
            await make(tmp_path / "copy").open()


# --- writes fail --------------------------------------------------------------------------------------------


async def test_an_append_that_cannot_be_written_did_not_happen(tmp_path: Path) -> None:
    """The sender gets the reason and offsets are unchanged, for a deletion too; the next write replaces the
    half-written one."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
        end = store.end_offset
        _, journal = parts_of(store)
        journal.failing = True
        for _ in range(2):
            with pytest.raises(
                StoreNotWritable, match=r"cannot write the journal in .*lmdb: Input/output error"
            ):
                store.append([message(body=b"1", keys="k"), message("New")])
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            store.delete_topic("Orders")
        assert store.end_offset == end
        assert store.queues() == {"Orders": [0]}
        assert bodies(store) == [b"0"]
        journal.failing = False
        (at,) = await put(store, [message(body=b"2")])
        assert (at.queue_offset, at.physical_offset) == (1, end)
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink()
    async with running(make(tmp_path / "copy")) as store:
        assert bodies(store) == [b"0", b"2"]


async def test_what_lmdb_does_not_take_is_in_the_journal(tmp_path: Path) -> None:
    """Acknowledged messages can be read and survive; further ones are refused until LMDB takes writes; then
    offsets continue without a gap."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
        env, _ = parts_of(store)
        env.failing = True
        await put(store, [message(body=b"1", keys="k"), message("New"), message("Gone")])
        store.delete_topic("Gone")
        for _ in range(2):
            with pytest.raises(StoreNotWritable, match="Input/output error"):
                await store._commits.drain()
        with pytest.raises(StoreNotWritable, match="Input/output error"):
            store.append([message()])
        assert bodies(store) == [b"0", b"1"]
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets) == 1
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        env.failing = False
        await written(store)
        (more,) = await put(store, [message(body=b"2")])
        assert more.queue_offset == 2
        assert bodies(store) == [b"0", b"1", b"2"]
        assert len(bodies(store, "New")) == 1
    (tmp_path / "copy" / "lock").unlink()
    async with running(make(tmp_path / "copy")) as store:
        assert bodies(store) == [b"0", b"1"]
        assert list(store.queues()) == ["New", "Orders"]


async def fill(store: LmdbStore) -> tuple[int, StoreNotWritable]:
    """Put messages, ten at a time, until they are refused; returns how many were taken, and the refusal."""
    for count in range(0, 100_000, 10):
        try:
            await put(store, [message(body=b"%04d" % number * 200) for number in range(count, count + 10)])
        except StoreNotWritable as error:
            return count, error
        if count % 100 == 0:
            with suppress(StoreNotWritable):
                await store._commits.drain()
    raise AssertionError("nothing was refused")


async def written(store: LmdbStore) -> None:
    """Wait until LMDB has everything."""
    with trio.fail_after(120):
        while store._commits.tail.start < store.end_offset:
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_full_map_refuses_until_something_is_trimmed(tmp_path: Path) -> None:
    """The refusal names the setting; reads work, also after a restart; a trim still has room to work, and
    then messages are taken again."""
    async with running(make(tmp_path / "store", map_bytes=2 << 20)) as store:
        count, refusal = await fill(store)
        assert "mapSizeMaxBytes" in str(refusal)
        assert count > 400
        assert bodies(store) == [b"%04d" % number * 200 for number in range(count)]
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        await store._commits.flush()
        parts = await store.log_parts()
        await store.trim(parts[len(parts) // 2].end)
        await written(store)
        await put(store, [message(body=b"more")])
        found = bodies(store)
        assert found[-1] == b"more"
        assert found[:-1] == [
            b"%04d" % number * 200 for number in range(store.min_offset("Orders", 0), count)
        ]
    (tmp_path / "copy" / "lock").unlink()
    async with running(make(tmp_path / "copy", map_bytes=2 << 20)) as store:
        assert bodies(store) == [b"%04d" % number * 200 for number in range(count)]


async def test_a_full_reader_table_refuses_reads(tmp_path: Path) -> None:
    """While other processes hold all reader slots, reads of data in LMDB raise an error, writes and flushes
    work, and checkpoints wait."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
        await store._commits.drain()
        taken: list[Transaction[memoryview]] = []
        with suppress(StoreError):
            taken.extend(store._env.begin() for _ in range(8))
        with pytest.raises(StoreError, match="READERS_FULL"):
            store.read_record(0)
        await put(store, [message(body=b"1")])
        await store._commits.checkpoint()
        assert not store.is_settled(store.end_offset, Level.FLUSHED)
        await store._commits.flush()
        assert store.is_settled(store.end_offset, Level.FLUSHED)
        while taken:
            taken.pop().abort()
        await store._commits.checkpoint()
        assert bodies(store) == [b"0", b"1"]


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """On a file system that is really full the process gets no signal but a refusal with the reason; once
    there is space everything works again."""
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
            assert bodies(store) == [*(b"%04d" % number * 200 for number in range(count)), b"more"]


def fill_up(path: Path) -> None:
    """Use up the free space."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("closed", [True, False])
async def test_a_start_on_a_full_disk_reads(
    tmp_path: Path, closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a stop and after a kill: what is there is read, a message is refused with the path and the
    reason, and is taken once there is space."""
    with mounted(tmp_path / "disk", 16 << 20) as disk:
        async with running(make(disk / "store")) as store:
            await put(store, [message(body=b"%d" % number) for number in range(10)])
            if not closed:
                await store._commits.drain()
                shutil.copytree(disk / "store", disk / "killed")
        root = disk / ("store" if closed else "killed")
        (root / "lock").unlink(missing_ok=True)
        (root / "lock").write_text("lock")
        fill_up(disk / "ballast")
        async with running(make(root)) as store:
            assert len(bodies(store)) == 10
            fill_up(disk / "ballast")  # with the space that the journal of a killed store had taken ahead
            with pytest.raises(StoreNotWritable, match=f"{root}.*No space left on device"):
                store.append([message(body=b"no")])
            assert len(bodies(store)) == 10
            (disk / "ballast").unlink()
            await put(store, [message(body=b"yes")])
            await store._commits.drain()
        async with running(make(root)) as store:
            assert bodies(store)[10:] == [b"yes"]
    assert f"cannot write {root}/lmdb/synced.new: No space left on device" in caplog.text


# --- damage -------------------------------------------------------------------------------------------------


def changed(root: Path, database: str, change: Callable[[bytes], bytes]) -> None:
    """Change the only value of a database of a store that is closed."""
    env = Environment(root / "lmdb", _MAP_BYTES, 8, "A" * 36)
    env.open()

    def work(txn: Transaction[bytes]) -> None:
        with txn.cursor(env.db(database)) as cursor:
            assert cursor.first()
            txn.put(cursor.key(), change(cursor.value()), db=env.db(database))

    env.write(work)
    env.close(clean=True)


async def test_damage_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A garbage unit is passed over, a body with a flipped bit is served; each has one line and one count,
    however often it is read."""
    async with running(make(tmp_path)) as store:
        given = await put(store, [message(body=b"%d" % number * 10) for number in range(4)])
        await store._commits.drain()
    flipped = given[1].physical_offset + 88
    changed(tmp_path, "log", lambda value: value[:flipped] + b"0" + value[flipped + 1 :])
    changed(tmp_path, "units", lambda value: value[:56] + b"\xa5" * 12 + value[68:])
    async with running(make(tmp_path)) as store:
        for _ in range(3):
            with store.blocking_reads():
                found = store.read("Orders", 0, 0, ALL, None)
            assert (found.message_count, found.next_offset) == (3, 4)
        assert store.read_faults == store.statistics().read_faults == 2
    told = f"the body of the record at log offset {given[1].physical_offset} does not match its checksum"
    assert caplog.text.count(told) == caplog.text.count("queue Orders:0 is damaged at offset 2") == 1


# --- processes ----------------------------------------------------------------------------------------------

_IN_A_TRANSACTION = """
import os, signal, sys
from pathlib import Path
from rmqkit_store_lmdb.database.environment import Environment
env = Environment(Path(sys.argv[1]) / "lmdb", 1 << 30, 8, "A" * 36)
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
from tests.stores.lmdb.test_faults import make
trio.run(make(Path(sys.argv[1])).open)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


async def test_a_writer_that_is_killed_in_a_transaction(tmp_path: Path) -> None:
    """Nothing of the transaction remains, and no lock."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])
    assert run_python(_IN_A_TRANSACTION, str(tmp_path / "store")).returncode == -9
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"1")])
        assert bodies(store) == [b"0", b"1"]
        with store._env.begin() as txn:
            assert txn.stat(store._env.db("log"))["entries"] == 1
            assert txn.get(OFFSET.pack(1 << 40), db=store._env.db("log")) is None


async def test_a_second_process_is_refused_before_it_touches_anything(tmp_path: Path) -> None:
    """The error names the locked directory; files and store are unchanged."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message()])
        before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "lmdb").iterdir()}
        done = run_python(_OPEN, str(tmp_path / "store"))
        assert f"StoreInUse: another process holds the store directory {tmp_path / 'store'}" in done.stderr
        assert {
            path.name: path.stat().st_mtime_ns for path in (tmp_path / "store" / "lmdb").iterdir()
        } == before
        await put(store, [message()])
        assert len(bodies(store)) == 2


async def test_a_flush_that_fails_is_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed flush the content of the device is unknown: waiters get an error, no message is taken
    any more, reads work."""
    async with running(make(tmp_path / "store")) as store:
        await put(store, [message(body=b"0")])

        def fail(files: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(store._journal, "flush", fail)
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            await store._commits.flush()
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            store.append([message()])
        with pytest.raises(StoreNotWritable, match="failed to flush"):
            await store.settled(store.end_offset, Level.FLUSHED)
        assert bodies(store) == [b"0"]


@pytest.mark.parametrize("place", ["body", "code", "header", "whole frame"])
async def test_damage_in_the_journal_costs_what_is_damaged(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kill a flipped byte loses one message, or one append when its header is hit; later appends
    stay, no known queue offset is assigned again, and the tool finds no other damage."""
    async with running(make(tmp_path / "live")) as store:
        for number in range(10):
            await put(
                store,
                [
                    message("Orders", queue_id, b"%d.%d" % (number, queue_id) * 20, keys="k")
                    for queue_id in range(3)
                ],
            )
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    (tmp_path / "killed" / "lock").unlink(missing_ok=True)
    (path,) = (tmp_path / "killed" / "lmdb").glob("journal-*")
    data = bytearray(path.read_bytes())
    frames = [frame for frame, _ in frames_of(path, 1)]
    start = data.index(frames[4].data) - 24
    match place:
        case "body":
            data[data.index(b"4.1" * 20)] ^= 0xFF
        case "code":
            data[start + 24] ^= 0xFF
        case "header":
            data[start + 6] ^= 0xFF
        case "whole frame":
            data[start : start + 24 + len(frames[4].data)] = bytes(24 + len(frames[4].data))
    path.write_bytes(data)
    gone = {"body": [1], "code": [], "header": [0, 1, 2], "whole frame": [0, 1, 2]}[place]
    for _ in range(2):
        async with running(make(tmp_path / "killed")) as store:
            for queue_id in range(3):
                found = records(store.read("Orders", queue_id, 0, ALL, None))
                kept = [number for number in range(10) if number != 4 or queue_id not in gone]
                assert [(one.queue_offset, one.body) for one in found] == [
                    (n, b"%d.%d" % (n, queue_id) * 20) for n in kept
                ]
                assert store.max_offset("Orders", queue_id) == 10
            assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 100).physical_offsets) == 30 - len(gone)
            assert store.end_offset == 30 * store.read_units("Orders", 0, 0, 1)[0].size_bytes
            at = 0
            while at < store.end_offset:
                at += len(store.read_log(at, 1 << 20))
    assert "the 5 behind the first of them are kept" in caplog.text
    with EnvironmentReader(tmp_path / "killed") as reader:
        assert verify(reader, lambda done, total: None).damage is None


async def test_the_queue_offset_of_the_last_message_of_a_queue_is_not_given_again(tmp_path: Path) -> None:
    """This holds although its body is damaged in the journal and no message follows in its queue."""
    async with running(make(tmp_path / "live")) as store:
        await put(store, [message("Seldom", body=b"first")])
        await put(store, [message("Seldom", body=b"second"), message("Seldom", body=b"damaged")])
        await put(store, [message("Often")])
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    (tmp_path / "killed" / "lock").unlink(missing_ok=True)
    (path,) = (tmp_path / "killed" / "lmdb").glob("journal-*")
    data = bytearray(path.read_bytes())
    data[data.index(b"damaged")] ^= 0xFF
    path.write_bytes(data)
    async with running(make(tmp_path / "killed")) as store:
        assert bodies(store, "Seldom") == [b"first", b"second"]
        assert (await put(store, [message("Seldom", body=b"third")]))[0].queue_offset == 3
