"""The mark in the checkpoint: recovery begins where the device certainly had everything, and notices other
losses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from rmqkit.errors import StoreCorrupt
from rmqkit.model.sysflag import TRANSACTION_ROLLBACK
from rmqkit.plugin.flush import Level
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    SMALL,
    FlushWhenWanted,
    NeverFlush,
    bodies,
    contents,
    message,
    running,
    store_config,
)
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.scan import Found, parse_record
from rmqkit_store_mmap.open.checkpoint import CHECKPOINT_BYTES, Checkpoint, IndexMark, Mark, QueueMark
from rmqkit_store_mmap.open.recovery import Recovery
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.queue import consume_queue
from rmqkit_store_mmap.queue.consume_queue import allocated_bytes
from rmqkit_store_mmap.queue.unit_tail import pure_tail
from rmqkit_store_mmap.queue.units import UNIT_BYTES
from rmqkit_store_mmap.store import MmapStore

SEGMENT_BYTES = 66_560
FIRST = "0" * 20


def make(directory: Path, disk: Disk | None = None, **settings: Any) -> MmapStore:
    return MmapStore(store_config(directory, **(SMALL | settings)), FakeClock(), FlushWhenWanted(), disk=disk)


async def bring(store: MmapStore) -> None:
    """Run what the background does every few seconds."""
    store._index.drain(len(store._index.backlog))
    mark = store._queues.new_mark(store.end_offset)
    await store._queues.flush(everything=True)
    store._queues.mark = mark
    await store._index.flush(store.end_offset)
    await store._log.flush()
    store.write_checkpoint()


async def crashed(
    directory: Path, before: int = 200, after: int = 30, **settings: Any
) -> tuple[Path, dict[Any, Any]]:
    """A directory as a killed process leaves it, with `after` messages after the mark, and the store's
    content."""
    copy = directory / "crashed"
    async with running(make(directory / "live", **settings)) as store:
        assert isinstance(store, MmapStore)
        for number in range(before + after):
            store.append([message(queue_id=number % 3, body=b"%d" % number * 30, keys=f"k{number}")])
            if number + 1 == before:
                await bring(store)
        shutil.copytree(directory / "live", copy)
        held = contents(store)
    return copy, held


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    """The records a recovery read in full."""
    found: list[Found] = []
    really = Redispatch.dispatch_all

    def noting_run(self: Redispatch, data: memoryview, at: int, stop: int, offset: int) -> None:
        really(self, data, at, stop, offset)
        while at < stop:
            found.append(parse_record(data, at))
            at += found[-1].size_bytes

    def noting(data: memoryview, at: int) -> Found:
        found.append(parse_record(data, at))
        return found[-1]

    monkeypatch.setattr(Recovery, "_last_known_is_good", lambda self, mark: True)
    monkeypatch.setattr("rmqkit_store_mmap.open.recovery.parse_record", noting)
    monkeypatch.setattr(Redispatch, "dispatch_all", noting_run)
    return found


def all_keys(store: MmapStore, count: int) -> bool:
    return all(
        len(store.query_by_key("Orders", f"k{number}", 0, 1 << 60, 9).physical_offsets) == 1
        for number in range(count)
    )


@pytest.mark.row("S255", "S260")
async def test_only_what_came_after_the_mark_is_read(tmp_path: Path, looked_at: list[Found]) -> None:
    """Of 230 messages a recovery reads the thirty that were appended after everything had been flushed;
    queues and keys are whole."""
    copy, held = await crashed(tmp_path)
    store = make(copy)
    async with running(store):
        assert len(looked_at) == 30
        assert contents(store) == held
        assert all_keys(store, 230)
    looked_at.clear()
    async with running(make(copy)) as again:
        assert not looked_at
        assert contents(again) == held


@pytest.mark.row("S255")
async def test_the_mark_counts_for_nothing_once_java_wrote_the_checkpoint(
    tmp_path: Path, looked_at: list[Found]
) -> None:
    """Java changes the first forty bytes only: the CRC no longer matches, and recovery begins where Java's
    would."""
    copy, held = await crashed(tmp_path)
    path = copy / "checkpoint"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    assert Checkpoint.load(path).mark is None
    store = make(copy)
    async with running(store):
        assert len(looked_at) == 230
        assert contents(store) == held
        assert all_keys(store, 230)


def test_the_mark_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """All its numbers are read back; a checkpoint that is truncated, all zeros or changed in one byte has no
    mark."""
    mark = Mark(1 << 40, QueueMark(2, 3, 4, 5), IndexMark(6, 20250919101530123, bytes(range(40)), 7))
    for given in (mark, evolve(mark, index=None)):
        Checkpoint(tmp_path / "checkpoint", 1, 2, 3, 4, 5, given).write(Disk())
        assert Checkpoint.load(tmp_path / "checkpoint").mark == given
    good = (tmp_path / "checkpoint").read_bytes()
    assert len(good) == CHECKPOINT_BYTES
    bad = [
        good[:100],
        bytes(4096),
        *(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(156)),
    ]
    for data in bad:
        (tmp_path / "checkpoint").write_bytes(data)
        assert Checkpoint.load(tmp_path / "checkpoint").mark is None


def lose_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "Orders" / "1")


def lose_topic(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "Orders")


def lose_queue_file(number: int) -> Callable[[Path], None]:
    def lose(directory: Path) -> None:
        sorted((directory / "consumequeue" / "Orders" / "1").iterdir())[number].unlink()

    return lose


def lose_index_files(*numbers: int) -> Callable[[Path], None]:
    def lose(directory: Path) -> None:
        files = sorted((directory / "index").iterdir())
        for number in numbers:
            files[number].unlink()

    return lose


LOSSES = {
    "a queue": lose_queue,
    "a topic": lose_topic,
    "its first file": lose_queue_file(0),
    "a file between": lose_queue_file(2),
    "its last file": lose_queue_file(-1),
    "the newest index file": lose_index_files(-1),
    "the oldest index file": lose_index_files(0),
    "an index file between": lose_index_files(2),
    "several index files": lose_index_files(1, 3, -1),
}


@pytest.mark.row("S257", "S261")
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("lost", list(LOSSES))
async def test_what_was_lost_is_made_again(tmp_path: Path, lost: str, crash: bool) -> None:
    """Single queues, single files of a queue, single index files: afterwards all offsets and keys are as
    before, no key is there twice, and appends work."""
    copy, held = await crashed(tmp_path, max_index_num=50)
    directory = copy if crash else tmp_path / "live"
    LOSSES[lost](directory)
    store = make(directory, max_index_num=50)
    async with running(store):
        assert contents(store) == held
        assert all_keys(store, 230)
        store._index.drain(1_000)
        # The last record of an existing file may be indexed again in the next file, because it is unknown
        # whether all its keys were in the first.
        assert 230 <= sum(file.next_entry - 1 for file in store._index.files) <= 231
        assert [store.append([message(queue_id=queue_id)])[0].queue_offset for queue_id in range(3)] == [
            77,
            77,
            76,
        ]
    async with running(make(directory, max_index_num=50)) as again:
        assert [again.max_offset("Orders", queue_id) for queue_id in range(3)] == [78, 78, 77]


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("number", [1, -1])
async def test_a_lost_segment_stops_the_start(tmp_path: Path, number: int, crash: bool) -> None:
    """Whether in the middle or at the end, the error names the file, and putting the file back repairs the
    store."""
    copy, held = await crashed(tmp_path, before=1000)
    directory = copy if crash else tmp_path / "live"
    mark = Checkpoint.load(directory / "checkpoint").mark
    assert mark is not None
    path = [
        path for path in sorted((directory / "commitlog").iterdir()) if int(path.name) < mark.log_flushed
    ][number]
    path.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=rf"{int(path.name)} is missing"):
            await make(directory).open()
    (tmp_path / "away").rename(path)
    async with running(make(directory)) as store:
        assert contents(store) == held


def as_java_left_it(directory: Path) -> None:
    """Remove the mark from a checkpoint, which Java does not write."""
    path = directory / "checkpoint"
    path.write_bytes(path.read_bytes()[:40].ljust(CHECKPOINT_BYTES, b"\0"))


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/Orders/1/00000000000000000400"])
async def test_an_index_that_lost_nothing_is_not_made_a_second_time(tmp_path: Path, lost: str) -> None:
    """Queues missing in Java's directory after a clean stop are built again; the index has its entries
    already, and gets no others."""
    _, held = await crashed(tmp_path, max_index_num=50)
    directory = tmp_path / "live"
    as_java_left_it(directory)
    shutil.rmtree(directory / lost) if (directory / lost / "Orders").is_dir() else (directory / lost).unlink()
    before = {path.name: path.read_bytes() for path in (directory / "index").iterdir()}
    async with running(make(directory, max_index_num=50)) as store:
        assert contents(store) == held
    assert {path.name: path.read_bytes() for path in (directory / "index").iterdir()} == before


async def test_queues_lost_before_anything_was_indexed(tmp_path: Path) -> None:
    """Without index files there is no last indexed record, so keys are taken from the beginning of the
    log."""
    async with running(make(tmp_path)) as store:
        store.append([message(keys="k")])
    as_java_left_it(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    async with running(make(tmp_path)) as store:
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == [0]


@pytest.mark.parametrize("number", [0, 2])
async def test_an_index_file_that_javas_directory_lacks_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Java leaves gaps in its index after a crash and ignores them; so does our first start, but it logs
    which messages cannot be found."""
    _, held = await crashed(tmp_path, max_index_num=50)
    directory = tmp_path / "live"
    as_java_left_it(directory)
    lose_index_files(number)(directory)
    async with running(make(directory, max_index_num=50)) as store:
        found = [
            len(store.query_by_key("Orders", f"k{n}", 0, 1 << 60, 9).physical_offsets) for n in range(230)
        ]
        assert found == [int(not 49 * number <= n < 49 * (number + 1)) for n in range(230)]
    (warning,) = [
        record.getMessage()
        for record in caplog.records
        if "cannot be found by their keys" in record.getMessage()
    ]
    offset = next(
        one.physical_offset
        for queue in held.values()
        for one in queue[2]
        if one.properties["KEYS"] == f"k{49 * number}"
    )
    assert f"from log offset {offset} on" in warning
    caplog.clear()
    async with running(make(directory, max_index_num=50)):
        pass
    assert not caplog.records


async def test_messages_without_keys_between_two_index_files_are_no_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Trimmed and rolled-back messages are not a gap either."""
    plain, rolled_back = message(keys=" "), message(keys="x", sys_flag=TRANSACTION_ROLLBACK)
    async with running(make(tmp_path, max_index_num=4)) as store:
        for number in range(900):
            store.append(
                [plain, rolled_back, message(keys=f"k{number}")]
                if number % 3 == 0
                else [message(keys=f"k{number}")]
            )
        await store.settled(store.end_offset, Level.FLUSHED)
    first, second, third, *_ = sorted((tmp_path / "index").iterdir())
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    checkpoint.log_start = SEGMENT_BYTES
    checkpoint.write(Disk())
    for path in (tmp_path / "commitlog" / FIRST, first, second):
        path.unlink()
    for directory in (tmp_path / "live", tmp_path / "java"):
        shutil.copytree(tmp_path, directory, ignore=lambda _, names: {"live", "java"} & set(names))
    as_java_left_it(tmp_path / "java")
    for directory in (tmp_path / "live", tmp_path / "java"):
        async with running(make(directory, max_index_num=4)) as store:
            assert store._index.files[0].path.name == third.name
    assert not caplog.records


async def test_keys_go_with_the_records_that_are_cut(tmp_path: Path) -> None:
    """When the device lost indexed records, their keys do not lead to the records that take their place."""
    _, held = await crashed(tmp_path, before=20, after=0)
    last = held["Orders", 1][2][-1]
    log = tmp_path / "live" / "commitlog" / FIRST
    data = bytearray(log.read_bytes())
    data[data.rindex(last.body)] ^= 1
    log.write_bytes(data)
    async with running(make(tmp_path / "live")) as store:
        (at,) = store.append([message(keys="new")])
        assert at.physical_offset == last.physical_offset
        assert store.query_by_key("Orders", "k19", 0, 1 << 60, 9).physical_offsets == []
        assert store.query_by_key("Orders", "new", 0, 1 << 60, 9).physical_offsets == [at.physical_offset]
        assert all_keys(store, 19)


async def test_a_lost_log_stops_the_start(tmp_path: Path) -> None:
    """A file system that is not mounted must not destroy the queues; without the checkpoint the store starts
    empty, as Java does."""
    copy, _ = await crashed(tmp_path)
    shutil.rmtree(copy / "commitlog")
    with pytest.raises(StoreCorrupt, match=r"delete .*checkpoint to go on"):
        await make(copy).open()
    (copy / "checkpoint").unlink()
    async with running(make(copy)) as store:
        assert store.queues() == {}


async def test_files_trimmed_since_the_mark_are_no_loss(tmp_path: Path, looked_at: list[Found]) -> None:
    """When log and queues were trimmed after the mark was written, the queues begin later than the mark says,
    and nothing is built again."""
    copy, held = await crashed(tmp_path, before=1000)
    files = sorted((copy / "commitlog").iterdir())
    files[0].unlink()
    for queue in (copy / "consumequeue" / "Orders").iterdir():
        low = next(
            n
            for n, unit in enumerate(held["Orders", int(queue.name)][3])
            if unit.physical_offset >= SEGMENT_BYTES
        )
        for file in sorted(queue.iterdir())[: low // 10]:
            file.unlink()
    async with running(make(copy)) as store:
        assert len(looked_at) == 30
        assert all(0 < store.min_offset("Orders", queue_id) < 1030 // 3 for queue_id in range(3))
        assert [store.max_offset("Orders", queue_id) for queue_id in range(3)] == [344, 343, 343]


@pytest.mark.parametrize("crash", [True, False])
async def test_a_lost_beginning_of_the_log_is_told_of_once(
    tmp_path: Path, crash: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Files at the beginning that somebody removed by hand are named at the next start, not again, and what
    follows is served."""
    copy, held = await crashed(tmp_path, before=1000)
    directory = copy if crash else tmp_path / "live"
    files = sorted((directory / "commitlog").iterdir())
    for file in files[:2]:
        file.unlink()
    async with running(make(directory)) as store:
        assert store.start_offset == 2 * SEGMENT_BYTES
        assert store.max_offset("Orders", 0) == len(held["Orders", 0][3])
    (told,) = [text for text in caplog.messages if "files are missing at the beginning" in text]
    assert f"from {files[0].name} to {files[1].name}" in told
    assert f"{2 * SEGMENT_BYTES} bytes" in told
    caplog.clear()
    async with running(make(directory)):
        pass
    assert "missing" not in caplog.text


@pytest.mark.parametrize("java", [True, False])
async def test_a_trimmed_log_has_lost_nothing(
    tmp_path: Path, java: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The new beginning is on the device before files are removed: a kill at any point of a trim is followed
    by a quiet start. So is a removal by Java, which changes its fields of the checkpoint."""
    live = tmp_path / "live"
    async with running(make(live)) as store:
        assert isinstance(store, MmapStore)
        for number in range(1000):
            store.append([message(queue_id=number % 3, body=b"%d" % number * 30)])
        await bring(store)
        kept = tmp_path / "kept"
        shutil.copytree(live, kept)
        await store.trim(2 * SEGMENT_BYTES)
        shutil.copytree(live, tmp_path / "after")
        assert Checkpoint.load(live / "checkpoint").log_start == 2 * SEGMENT_BYTES
        before = tmp_path / "before"
        shutil.copytree(kept, before)
        shutil.copy2(live / "checkpoint", before / "checkpoint")
    half = tmp_path / "half"
    shutil.copytree(before, half)
    (half / "commitlog" / FIRST).unlink()
    directories = [live, tmp_path / "after", before, half]
    if java:
        data = bytearray((kept / "checkpoint").read_bytes())
        data[7] ^= 1
        (kept / "checkpoint").write_bytes(data)
        (kept / "commitlog" / FIRST).unlink()
        directories = [kept]
    for directory in directories:
        async with running(make(directory)):
            pass
    assert "missing" not in caplog.text


async def test_a_log_that_begins_late_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The empty log of a slave begins where its master's does, and a kill before the next checkpoint is
    followed by a quiet start."""
    async with running(make(tmp_path / "master")) as master:
        for number in range(1000):
            master.append([message(body=b"%d" % number * 30)])
        assert isinstance(master, MmapStore)
        await bring(master)
        await master.trim(SEGMENT_BYTES)
        start = master.start_offset
        async with running(make(tmp_path / "slave")) as slave:
            assert isinstance(slave, MmapStore)
            await bring(slave)
            slave.append_log(start, master.read_log(start, 10_000))
            shutil.copytree(tmp_path / "slave", tmp_path / "killed")
    async with running(make(tmp_path / "killed")) as again:
        assert again.start_offset == start > 0
    assert "missing" not in caplog.text


@pytest.mark.row("S258")
async def test_longer_records_never_come_back_from_behind_a_shorter_one(tmp_path: Path) -> None:
    """A cut record and those after it are erased on the device, so that a shorter record in their place and a
    second crash do not bring them back."""
    copy, _ = await crashed(tmp_path, before=3, after=0)
    log = copy / "commitlog" / FIRST
    end = len(log.read_bytes().rstrip(b"\0"))
    async with running(make(copy)) as store:
        results = store.append([message(body=b"long" * 100), message(body=b"after")])
        shutil.copytree(copy, tmp_path / "again")
    torn = tmp_path / "again" / "commitlog" / FIRST
    data = bytearray(torn.read_bytes())
    for at in results:
        data[at.physical_offset + 90] ^= 0xFF
    torn.write_bytes(data)
    (tmp_path / "again" / "checkpoint").write_bytes(
        (copy / "checkpoint").read_bytes()[:40] if not end else bytes(4096)
    )
    async with running(make(tmp_path / "again")) as store:
        assert store.end_offset == end
        store.append([message(body=b"short")])
        shutil.copytree(tmp_path / "again", tmp_path / "third")
    assert b"after" not in (tmp_path / "third" / "commitlog" / FIRST).read_bytes()
    async with running(make(tmp_path / "third")) as store:
        assert bodies(store)[1:] == [b"short"]


class Failing(Disk):
    """Fails at the given call and at all later ones."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "no more")

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._count()
        super().allocate(fd, offset, length)

    def write(self, fd: int, parts: Any, offset: int) -> None:
        self._count()
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self._count()
        super().sync(fd)


@pytest.mark.row("S256")
@pytest.mark.parametrize("lost", [None, "consumequeue", "index"])
async def test_a_recovery_cut_short_is_done_again(tmp_path: Path, lost: str | None) -> None:
    """Wherever a recovery stops, the next one finds the same as if there had been one only."""
    copy, held = await crashed(tmp_path, before=40, after=20)
    if lost:
        shutil.rmtree(copy / lost)
    stopped = 0
    while True:
        store = make(copy, Failing(stopped))
        try:
            await store.open()
        except Exception:  # noqa: BLE001 - whatever it is called, it is the fault
            stopped += 1
            assert (copy / "abort").exists()
            continue
        break
    assert stopped > 5
    await store.close()
    async with running(make(copy)) as again:
        assert isinstance(again, MmapStore)
        assert contents(again) == held
        assert all_keys(again, 60)


async def test_a_deleted_topic_stays_deleted(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A deletion flushes everything at once, so that a crash soon afterwards does not restore the topic from
    the log."""
    written = trio.Event()

    class Watched(Disk):
        def write(self, fd: int, parts: Any, offset: int) -> None:
            super().write(fd, parts, offset)
            if sum(map(len, parts)) == CHECKPOINT_BYTES and store.max_offset("Kept", 0):
                trio.from_thread.run_sync(written.set)

    store = make(tmp_path / "live", Watched())
    async with running(store):
        store.append([message("Gone"), message("Kept")] * 5)
        store.delete_topic("Gone")
        await written.wait()
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    async with running(make(tmp_path / "crashed")) as again:
        assert again.queues() == {"Kept": [0]}


@pytest.mark.parametrize("crash", [True, False])
async def test_a_start_opens_the_file_of_a_queue_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    """With thousands of queues the work for each decides how long a start takes: one read of the file being
    written, if nothing came after the mark. Only the queue with the newest record is read again, for that
    record."""
    async with running(make(tmp_path / "live", mapped_file_size_consume_queue=20_000)) as store:
        assert isinstance(store, MmapStore)
        store.append([message(f"T{number % 10}", number % 7) for number in range(1_000)])
        await bring(store)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        held = contents(store)
    directory = tmp_path / ("crashed" if crash else "live")
    opened: list[str] = []
    really = os.open

    def counting(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(str(path))
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", counting)
    monkeypatch.setattr(consume_queue, "tail", pure_tail)
    store = make(directory, mapped_file_size_consume_queue=20_000)
    await store.open()
    monkeypatch.undo()
    assert set(opened) >= set(map(str, directory.glob("consumequeue/*/*/*")))
    assert len([path for path in opened if "consumequeue" in path]) == len(held) + 1 == 71
    assert contents(store) == held
    await store.close()


@pytest.mark.parametrize("units", [1, 300])
async def test_a_start_after_a_kill_reads_little_of_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    """Where nothing came after the mark, a start reads the blocks of the units and no more, however often it
    is killed again: what it reads may not make blocks count as data that were only allocated."""
    most_bytes = allocated_bytes(units * UNIT_BYTES) + 2 * UNIT_BYTES
    async with running(make(tmp_path, mapped_file_size_consume_queue=600_000)) as store:
        assert isinstance(store, MmapStore)
        store.append([message(queue_id=queue_id) for queue_id in range(20) for _ in range(units)])
        await bring(store)
    monkeypatch.setattr(consume_queue, "tail", pure_tail)
    sizes: list[int] = []
    really = os.pread

    def counting(fd: int, size_bytes: int, offset: int) -> bytes:
        data = really(fd, size_bytes, offset)
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            sizes.append(len(data))
        return data

    (tmp_path / "abort").touch()
    for _ in range(3):
        monkeypatch.setattr(os, "pread", counting)
        store = make(tmp_path, mapped_file_size_consume_queue=600_000)
        await store.open()
        monkeypatch.setattr(os, "pread", really)
        assert {store.max_offset("Orders", queue_id) for queue_id in range(20)} == {units}
        await store.close()
        assert sum(sizes) <= 20 * most_bytes
        sizes.clear()
        (tmp_path / "abort").touch()


@pytest.mark.parametrize("at", [2_000, 19_000])
async def test_what_stands_behind_the_units_of_a_queue_becomes_zeros(tmp_path: Path, at: int) -> None:
    """Right behind them, or behind a hole: after a crash of the machine nobody knows which pages got to
    the device."""
    async with running(make(tmp_path / "live", mapped_file_size_consume_queue=20_000)) as store:
        assert isinstance(store, MmapStore)
        store.append([message() for _ in range(100)])
        await bring(store)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        held = contents(store)
    path = tmp_path / "crashed" / "consumequeue" / "Orders" / "0" / FIRST
    os.truncate(path, 2_000)
    os.truncate(path, 20_000)  # a hole from the next page on
    units = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(units[:20])
    async with running(make(tmp_path / "crashed", mapped_file_size_consume_queue=20_000)) as store:
        assert contents(store) == held
        assert path.read_bytes() == units


async def test_an_index_that_was_switched_off_catches_up(tmp_path: Path) -> None:
    """Messages appended without an index are indexed once there is one again, and only those."""
    copy, _ = await crashed(tmp_path, before=20, after=5)
    async with running(make(copy, message_index_enable=False)) as store:
        for number in range(25, 30):
            store.append([message(queue_id=number % 3, keys=f"k{number}")])
    async with running(make(copy)) as store:
        assert isinstance(store, MmapStore)
        assert all_keys(store, 30)


async def test_a_mark_waits_for_the_log(tmp_path: Path) -> None:
    """A mark does not include keys of records that are not on the device: a power failure could take the
    records, and an index cannot be cut to the log."""
    store = MmapStore(store_config(tmp_path, **SMALL), FakeClock(), NeverFlush())
    async with running(store):
        store.append([message(keys="k")])
        store._index.drain(1)
        await store._index.flush(store.end_offset)
        store.write_checkpoint()
        mark = Checkpoint.load(tmp_path / "checkpoint").mark
        assert mark is not None
        assert mark.index is None
        await store._log.flush()
        store.write_checkpoint()
        mark = Checkpoint.load(tmp_path / "checkpoint").mark
        assert mark is not None
        assert mark.index == store._index.mark


async def test_the_abort_mark_is_on_the_device_before_anything_else(tmp_path: Path) -> None:
    """A power failure right after a start must not look like a clean stop."""
    done: list[str] = []

    class Watching(Disk):
        def sync_path(self, path: Path) -> None:
            done.append(path.name)
            super().sync_path(path)

        def write(self, fd: int, parts: Any, offset: int) -> None:
            done.append("write")
            super().write(fd, parts, offset)

    async with running(make(tmp_path, Watching())):
        assert done[:3] == ["abort", tmp_path.name, "write"]
