"""Reads of data that is not in memory: they are recognised before the read, and worker threads fetch the
data."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.plugin.store import Boundary, NotInMemory, ReadResult
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import ALL, SMALL, NeverFlush, bodies, message, records, running, store_config
from rmqkit.toolkit.cold_reads import blocking
from rmqkit_store_mmap.cold import FileRange
from rmqkit_store_mmap.log import residency
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.mincore import PAGES
from rmqkit_store_mmap.log.residency import TRUST_S, Residency
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.queue import consume_queue
from rmqkit_store_mmap.queue.units import UNIT_BYTES
from rmqkit_store_mmap.store import MmapStore

SETTINGS: dict[str, Any] = {
    "max_message_size": 20_000,
    "mapped_file_size_commit_log": 4 << 20,
    "mapped_file_size_consume_queue": 200,
}
#: Whether pages leave memory when told to depends on the system: a kernel that moves pages by itself may keep
#: some or bring them back. A read that wrongly blocks fails every time.
pytestmark = pytest.mark.flaky(reruns=10)

COUNT = 200


def make(directory: Path, **settings: Any) -> MmapStore:
    return MmapStore(store_config(directory, **SETTINGS | settings), FakeClock(), NeverFlush())


def body(number: int) -> bytes:
    return b"%04d" % number * 1_000


async def fill(directory: Path) -> None:
    """A store of 200 messages of 4 KB, alternating between queues 0 and 1, closed and on the device."""
    async with running(make(directory), blocking=False) as store:
        for number in range(COUNT):
            store.append([message(queue_id=number % 2, body=body(number), tag="A" if number < 150 else "B")])


def is_cold(path: Path) -> bool:
    """Whether the first page of a file is out of memory. (To ask by RWF_NOWAIT would begin to read it.)"""
    segment = Segment(path.parent, int(path.name), path.stat().st_size)
    segment.path = path  # the names of index files are shorter
    try:
        return not Residency(CommitLog(path.parent, segment.size_bytes, Disk()), Disk()).is_resident(
            segment, segment.base, segment.base + 1
        )
    finally:
        segment.close()


def evict(paths: Iterable[Path]) -> None:
    """Throw files out of memory; skips the test where the file system keeps them there (tmpfs)."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.pread(
                fd, path.stat().st_size, 0
            )  # what the device is being asked for already would come in later
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        if not is_cold(path):
            pytest.skip(f"the file system of {path} does not let go of pages")


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


def queue_files(directory: Path, queue_id: int = 0) -> list[Path]:
    return sorted((directory / "consumequeue" / "Orders" / str(queue_id)).iterdir())


def read(store: MmapStore, offset: int = 0, **options: Any) -> ReadResult:
    return store.read("Orders", 0, offset, ALL._replace(**options), None)


def missing(read: Callable[[], object]) -> list[FileRange]:
    """The ranges that a read reports as not in memory."""
    with pytest.raises(NotInMemory) as caught:
        read()
    return [piece for piece in caught.value.cold if isinstance(piece, FileRange)]


async def warm(store: MmapStore, pieces: Iterable[FileRange]) -> None:
    await store.fetch(NotInMemory(*pieces))


async def test_cold_records_are_noticed_and_warmed(tmp_path: Path) -> None:
    """A read names the stretch that is not in memory; after the fetch it returns the records."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        evict(log_files(tmp_path))
        (where,) = missing(lambda: read(store, max_messages=5))
        size = store.read_units("Orders", 0, 0, 1)[0].size_bytes
        assert where == FileRange(log_files(tmp_path)[0], 0, 9 * size)
        assert is_cold(where.path)
        await warm(store, [where])
        assert not is_cold(where.path)
        again = read(store, max_messages=5)
        assert [found.body for found in records(again)] == [body(number) for number in range(0, 10, 2)]


async def test_who_reads_the_whole_log_has_the_device_read_ahead(tmp_path: Path) -> None:
    """A slave that catches up needs what follows as well; who looks one record up does not."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        first = store.read_units("Orders", 0, 0, 1)[0].physical_offset
        evict(log_files(tmp_path))
        (range_of_log,) = missing(lambda: store.read_log(first, 1_000))
        (range_of_record,) = missing(lambda: store.read_record(first))
        assert range_of_log.ahead_bytes >= 4 * 1024 * 1024
        assert range_of_record.ahead_bytes == 0


def faults() -> int:
    """How often this thread waited for the device because it touched a page."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


async def test_the_loop_never_waits_for_the_device(tmp_path: Path) -> None:
    """A backlog that is read as pulls read it brings the thread of the loop no major fault; read at once
    it does."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        evict(log_files(tmp_path))
        before, offset = faults(), 0
        while offset < 50:
            try:
                result = read(store, offset, max_messages=7)
            except NotInMemory as missed:
                await store.fetch(missed)
                result = read(store, offset, max_messages=7)
            assert [found.queue_offset for found in records(result)] == list(range(offset, offset + 7))
            offset = result.next_offset
        assert faults() == before
    del result  # its slices keep the map, and the map the pages
    async with running(make(tmp_path), blocking=False) as store:
        evict(log_files(tmp_path))
        before = faults()
        assert len(records(blocking(store, lambda: read(store)))) == 100
        assert faults() > before


async def test_a_read_that_waits_says_nothing_of_the_cold(tmp_path: Path) -> None:
    """A blocking read returns everything at once and does not raise NotInMemory."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        evict(log_files(tmp_path))
        assert len(records(blocking(store, lambda: read(store)))) == 100


async def test_cold_units_end_a_read(tmp_path: Path) -> None:
    """The entries of a queue are on disk too: the read stops before them. What it found by then, and what
    it lacks of that, is not forgotten."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        store.append([message()])  # maps the last file
        evict(queue_files(tmp_path)[:5])
        assert missing(lambda: read(store, 3)) == [FileRange(queue_files(tmp_path)[0], 60, 200)]
        await warm(store, missing(lambda: read(store, 3)))
        assert not is_cold(queue_files(tmp_path)[0])
        assert read(store, 3, max_messages=7, max_scanned_units=7).message_count == 7
        evict(queue_files(tmp_path)[1:3])
        assert missing(lambda: read(store, 3)) == [FileRange(queue_files(tmp_path)[1], 0, 200)]
        evict(queue_files(tmp_path)[1:3])
        store._residency = counted = CountedResidency(store._log, store.disk)
        counted.cold_bases = frozenset({0})
        assert [where.path for where in missing(lambda: read(store, 3))] == [
            log_files(tmp_path)[0],
            queue_files(tmp_path)[1],
        ]


async def test_old_units_of_the_file_that_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is mapped, but only its end is read through the map: older units may be cold like those of any
    other file."""
    monkeypatch.setattr(consume_queue, "HOT_BYTES", 10 * UNIT_BYTES)
    large = {"mapped_file_size_consume_queue": 20_000}
    async with running(make(tmp_path, **large), blocking=False) as store:
        store.append([message() for _ in range(100)])
    (path,) = queue_files(tmp_path)
    async with running(make(tmp_path, **large), blocking=False) as store:
        evict([path])
        pieces = missing(lambda: read(store, 80, max_scanned_units=10, max_messages=10))
        assert pieces == [FileRange(path, 80 * UNIT_BYTES, 90 * UNIT_BYTES)]
        store.append([message()])
        assert read(store, 91, max_messages=10).message_count == 10
        await warm(store, pieces)
        assert [
            found.queue_offset for found in records(read(store, 80, max_scanned_units=10, max_messages=10))
        ] == list(range(80, 90))
        queue = store._queues.by_key["Orders", 0]
        assert queue._map is not None
        await store._queues.flush(everything=True)
        queue._map.madvise(mmap.MADV_DONTNEED)
        evict([path])
        assert missing(lambda: read(store, 80, max_scanned_units=10, max_messages=10)) == pieces
        evict([path])
        assert missing(lambda: store.store_time("Orders", 0, 85)) == [
            FileRange(path, 85 * UNIT_BYTES, 86 * UNIT_BYTES)
        ]


# --- every kind of read -------------------------------------------------------------------------------------

STARTED_MS = FakeClock().now_ms()
#: Messages are 10 ms apart, alternating between queues 0 and 1, every twentieth long. `at` has their physical
#: offsets.
READS: dict[str, Callable[[MmapStore, Sequence[int]], object]] = {
    "units": lambda store, at: store.read_units("Orders", 0, 5, 30),
    "record": lambda store, at: bytes(store.read_record(at[0]) or b""),
    "long record": lambda store, at: bytes(store.read_record(at[19]) or b""),
    "no record": lambda store, at: store.read_record(17),
    "store time": lambda store, at: store.store_time("Orders", 0, 31),
    "up to a time": lambda store, at: store.offset_by_time("Orders", 0, STARTED_MS + 555, Boundary.UPPER),
    "from a time on": lambda store, at: store.offset_by_time("Orders", 0, STARTED_MS + 555, Boundary.LOWER),
    "log": lambda store, at: bytes(store.read_log(at[0], 300_000)),
    "long record of the log": lambda store, at: bytes(store.read_log(at[19], 10)),
    "key": lambda store, at: store.query_by_key("Orders", "k77", 0, 1 << 60, 64),
    "key of many": lambda store, at: store.query_by_key("Orders", "all", 0, 1 << 60, 64),
    "key in a time": lambda store, at: store.query_by_key(
        "Orders", "all", STARTED_MS + 500, STARTED_MS + 900, 64
    ),
    "no key": lambda store, at: store.query_by_key("Orders", "none", 0, 1 << 60, 64),
}
SMALL_FILES: dict[str, Any] = {"max_message_size": 100_000, "max_hash_slot_num": 2_000, "max_index_num": 100}


async def fill_with_keys(directory: Path) -> list[int]:
    """As `fill`, with two keys to each message and five index files; some messages are longer than what is
    read of one on suspicion."""
    clock = FakeClock()
    store = MmapStore(store_config(directory, **SETTINGS | SMALL_FILES), clock, NeverFlush())
    places: list[int] = []
    async with running(store, blocking=False):
        for number in range(COUNT):
            long = 20 if number % 20 == 19 else 1
            (at,) = store.append(
                [message(queue_id=number % 2, body=body(number) * long, keys=f"all k{number}")]
            )
            places.append(at.physical_offset)
            clock.advance(10)
    return places


def forget(store: MmapStore, directory: Path) -> None:
    """Remove everything from memory; skips the test where that is not possible."""
    for segment in store._log.segments.values():
        segment.view()
        assert segment._map is not None
        segment._map.madvise(mmap.MADV_DONTNEED)
    for file in store._index.files:
        file._map.madvise(mmap.MADV_DONTNEED)
    evict(
        [
            *log_files(directory),
            *queue_files(directory),
            *queue_files(directory, 1),
            *(directory / "index").iterdir(),
        ]
    )


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts reads of files by the test's thread that may have waited for the device. (Pages touched through
    a map are not counted.)"""
    waited: list[str] = []
    this, pread, preadv = threading.get_ident(), os.pread, os.preadv

    def watched_pread(fd: int, size: int, offset: int) -> bytes:
        if threading.get_ident() == this:
            waited.append(f"pread at {offset}")
        return pread(fd, size, offset)

    def watched_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if threading.get_ident() == this and not flags & os.RWF_NOWAIT:
            waited.append(f"preadv at {offset}")
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pread", watched_pread)
    monkeypatch.setattr(os, "preadv", watched_preadv)
    return waited


@pytest.mark.parametrize("kind", READS)
async def test_no_read_lets_the_loop_wait_for_the_device(
    tmp_path: Path, device: list[str], kind: str
) -> None:
    """A read names what is missing without a major fault or a system call that might block; after the fetches
    it returns the same as a blocking read."""
    places = await fill_with_keys(tmp_path)
    read = READS[kind]
    store = make(tmp_path, **SMALL_FILES)
    async with running(store, blocking=False):
        expected = blocking(store, lambda: read(store, places))
        forget(store, tmp_path)
        device.clear()
        before, rounds = faults(), 0
        while True:
            try:
                found = read(store, places)
                break
            except NotInMemory as missed:
                rounds += 1
                await store.fetch(missed)
        assert (device, faults()) == ([], before)
        assert found == expected
        assert 0 < rounds < 20


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("key", 2),
        ("key of many", 3),
        ("no key", 1),
        ("log", 1),
        ("record", 1),
        ("long record", 2),
        ("up to a time", 14),
    ],
)
async def test_the_device_is_waited_for_seldom(tmp_path: Path, kind: str, most: int) -> None:
    """The files of an index are searched side by side, each to its end, and the records of an answer
    brought in together."""
    places = await fill_with_keys(tmp_path)
    store = make(tmp_path, **SMALL_FILES)
    async with running(store, blocking=False):
        rounds = 0
        for _ in range(5):
            # With a page that the store itself touches the kernel may bring in its neighbours.
            forget(store, tmp_path)
            if rounds := await fetches(store, lambda: READS[kind](store, places)):
                break
        assert 0 < rounds <= most


async def fetches(store: MmapStore, read: Callable[[], object]) -> int:
    """How often a read waits for the device until it has all it needs."""
    for rounds in range(20):
        try:
            read()
            return rounds
        except NotInMemory as missed:
            await store.fetch(missed)
    raise AssertionError("the read lacks something again and again")


async def test_an_index_file_that_is_trimmed_while_it_is_waited_for(tmp_path: Path) -> None:
    """The missing file is deleted: the search starts again without it."""
    await fill_with_keys(tmp_path)
    store = make(tmp_path, **SMALL_FILES)
    async with running(store, blocking=False):
        forget(store, tmp_path)
        with pytest.raises(NotInMemory) as caught:
            store.query_by_key("Orders", "k3", 0, 1 << 60, 9)
        for file in store._index.detach(1 << 60):
            file.close()
            file.path.unlink()
        await store.fetch(caught.value)
        while True:
            try:
                assert store.query_by_key("Orders", "k3", 0, 1 << 60, 9).physical_offsets == []
                break
            except NotInMemory as missed:
                await store.fetch(missed)


async def test_a_newer_index_file_that_is_cold_keeps_older_ones_from_answering(tmp_path: Path) -> None:
    """Otherwise a query's limit would be filled with old messages."""
    await fill_with_keys(tmp_path)
    store = make(tmp_path, **SMALL_FILES)
    async with running(store, blocking=False):
        newest = store.query_by_key("Orders", "all", 0, 1 << 60, 2)
        await warm_everything(store)
        store._index.files[-1]._map.madvise(mmap.MADV_DONTNEED)
        evict([store._index.files[-1].path])
        with pytest.raises(NotInMemory) as caught:
            store.query_by_key("Orders", "all", 0, 1 << 60, 2)
        await store.fetch(caught.value)
        assert store.query_by_key("Orders", "all", 0, 1 << 60, 2) == newest


async def warm_everything(store: MmapStore) -> None:
    paths = [*log_files(store._root), *(store._root / "index").iterdir()]
    await warm(store, [FileRange(path, 0, path.stat().st_size) for path in paths])


class CountedResidency(Residency):
    """Counts the questions; reports the given segments as cold."""

    asked = 0
    cold_bases: frozenset[int] = frozenset()

    def is_resident(self, segment: Segment, start: int, stop: int) -> bool:
        self.asked += 1
        return segment.base not in self.cold_bases and super().is_resident(segment, start, stop)


async def test_what_was_just_written_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the end of the log no system call is made, but never for data that another process wrote."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        counted = store._residency = CountedResidency(store._log, store.disk)
        size = store.append([message(body=body(number)) for number in range(20)])[0].size_bytes
        assert read(store, 100).message_count == 20
        assert counted.asked == 0
        assert read(store, 99).message_count == 21
        assert counted.asked == 1
        counted = store._residency = CountedResidency(store._log, store.disk)
        monkeypatch.setattr(residency, "HOT_BYTES", 10 * size)
        assert read(store, 110).message_count == 10
        assert counted.asked == 0
        assert read(store, 109).message_count == 11
        assert counted.asked == 1


async def test_a_block_in_memory_is_trusted_for_a_moment(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Readers of the same megabyte share one question in a tenth of a second; cold data is asked about every
    time."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        counted = store._residency = CountedResidency(store._log, store.disk)
        for offset in range(20):
            store.read("Orders", offset % 2, offset, ALL._replace(max_messages=10), None)
        assert counted.asked == 1
        mock_clock.jump(TRUST_S)
        assert read(store, max_messages=10).message_count == 10
        assert counted.asked == 2
        mock_clock.jump(TRUST_S)
        counted.cold_bases = frozenset({0})
        for _ in range(3):
            assert len(missing(lambda: read(store, max_messages=10))) == 1
        assert counted.asked == 8


async def test_one_question_for_neighbours(tmp_path: Path) -> None:
    """Close records of a read are asked about as one stretch, whatever is between them; segment borders and
    great distances divide stretches."""
    async with running(make(tmp_path, **SMALL), blocking=False) as store:
        results = store.append([message(queue_id=number % 2, body=b"x" * 900) for number in range(300)])
        counted = store._residency = CountedResidency(store._log, store.disk)
        found = [(at.physical_offset, at.size_bytes) for at in results[::2]]
        assert counted.cold(found) == []
        assert counted.asked == len(store._log.segments)
        counted.cold_bases = frozenset({66_560})
        (where,) = counted.cold(found)
        inside = [at for at in results[::2] if 66_560 <= at.physical_offset < 2 * 66_560]
        last = inside[-1].physical_offset + inside[-1].size_bytes - 66_560
        assert where == FileRange(log_files(tmp_path)[1], inside[0].physical_offset - 66_560, last)
    async with running(make(tmp_path / "far"), blocking=False) as store:
        results = store.append([message(body=bytes(20_000)) for _ in range(150)])
        counted = store._residency = CountedResidency(store._log, store.disk)
        assert counted.cold([(at.physical_offset, at.size_bytes) for at in results]) == []
        assert counted.asked == 3


async def test_where_the_system_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without mincore everything counts as in memory."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        evict(log_files(tmp_path))
        monkeypatch.setattr(PAGES, "call", None)
        assert read(store).message_count == 100


async def test_every_page_counts(tmp_path: Path) -> None:
    """One page out of memory makes a stretch cold, and only the stretches that touch it."""
    path = tmp_path / f"{0:020d}"
    path.write_bytes(bytes(64 * mmap.PAGESIZE))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    evict([path])
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for page in (*range(20), *range(21, 64)):
        os.pread(fd, 1, page * mmap.PAGESIZE)
    os.close(fd)
    async with running(make(tmp_path / "store"), blocking=False) as store:
        segment = Segment(tmp_path, 0, 64 * mmap.PAGESIZE)
        page = mmap.PAGESIZE
        asked = [
            (0, 20 * page),
            (5, 20 * page - 5),
            (0, 20 * page + 1),
            (21 * page - 1, 64 * page),
            (21 * page, 64 * page),
            (20 * page, 20 * page + 1),
        ]
        assert [store._residency.is_resident(segment, *stretch) for stretch in asked] == [
            True,
            True,
            False,
            False,
            True,
            False,
        ]
        segment.close()


async def test_units_on_a_file_system_that_cannot_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where RWF_NOWAIT is not supported, the entries are read even if that blocks."""
    await fill(tmp_path)

    def unsupported(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    async with running(make(tmp_path), blocking=False) as store:
        store.append([message()])
        monkeypatch.setattr(os, "preadv", unsupported)
        assert store.read("Orders", 0, 0, ALL._replace(max_messages=5), None).message_count == 5


async def test_warming_what_is_gone(tmp_path: Path) -> None:
    """A fetch ignores a file that was trimmed meanwhile or cannot be read; the next read reports it."""
    await fill(tmp_path)
    async with running(make(tmp_path), blocking=False) as store:
        await warm(store, [FileRange(tmp_path / "gone", 0, 10), FileRange(tmp_path, 0, 10)])
        assert len(bodies(store)) == 100


async def test_few_threads_wait_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many readers are behind, most threads stay free for flushes; a reader that gives up does not
    wait for its thread."""
    running_now: list[int] = []
    most = 0
    let_go, lock = threading.Event(), threading.Lock()

    def slow(ranges: object) -> None:
        nonlocal most
        with lock:
            running_now.append(1)
            most = max(most, len(running_now))
        if not let_go.wait(120):
            raise TimeoutError
        with lock:
            running_now.pop()

    monkeypatch.setattr(residency, "bring_in", slow)
    async with running(make(tmp_path), blocking=False) as store:
        store.append([message()])
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(store.fetch, NotInMemory())
            with trio.fail_after(120):
                while most < 4:
                    await trio.lowlevel.checkpoint()
            await store._log.flush()
            assert (await trio.to_thread.run_sync(lambda: 5), len(running_now)) == (5, 4)
            let_go.set()
        assert (most, running_now) == (4, [])
        let_go.clear()
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.fetch(NotInMemory())
        assert scope.cancelled_caught
        let_go.set()
