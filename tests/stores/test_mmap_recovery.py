"""Opening after a crash: what was appended is there, what was torn is not, and nothing comes back from behind the end."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqkit.abc import Boundary, ReadStatus
from rmqkit.errors import StoreCorrupt
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.testing.broker import running_broker
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.peer import FakePeer, ask
from rmqkit.testing.store import ALL, SMALL, SMALL_INDEX, FlushWhenWanted, bodies, contents, message, running, store_config
from rmqkit_retention.processor import CleanProcessor
from rmqkit_store_mmap.consume_queue import FILLER
from rmqkit_store_mmap.disk import Disk
from rmqkit_store_mmap.store import MmapStore

SEGMENT_BYTES = 66_560
FIRST = "00000000000000000000"


class Forgetful(Disk):
    """Flushes nothing: these tests kill no machine, and are quicker so."""

    def sync(self, fd: int) -> None:
        return

    def sync_path(self, path: Path) -> None:
        return


def make(directory: Path, **settings: Any) -> MmapStore:
    return MmapStore(store_config(directory, **(SMALL | settings)), FakeClock(), FlushWhenWanted(), disk=Forgetful())


async def crashed_store(directory: Path, *batches: list[Any], **settings: Any) -> Path:
    """A directory as a killed process leaves it: copied while the store is open."""
    copy = directory / "crashed"
    async with running(make(directory / "live", **settings)) as store:
        for batch in batches:
            store.append(batch)
        shutil.copytree(directory / "live", copy)
    assert (copy / "abort").exists()
    return copy


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.row("S256", "S258")
async def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Everything appended is there after a kill, over several segments, queues and index files, keys included."""
    batches = [
        [message(f"T{n % 3}", n % 4, b"x" * (n * 7 % 900), keys=f"k{n}") for n in range(start, start + 9)] for start in range(0, 270, 9)
    ]
    async with running(make(tmp_path / "live", **SMALL_INDEX)) as store:
        for batch in batches:
            store.append(batch)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        before = contents(store)
        keys = [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9).physical_offsets for n in range(270)]
        end = store.statistics().max_physical_offset
    assert end > 2 * SEGMENT_BYTES
    async with running(make(tmp_path / "crashed", **SMALL_INDEX)) as store:
        assert contents(store) == before
        assert [store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9).physical_offsets for n in range(270)] == keys
        assert store.append([message("T0", 0)])[0].physical_offset == end
    assert not (tmp_path / "crashed" / "abort").exists()


@pytest.mark.row("S258")
@pytest.mark.parametrize("topic", ["Orders", "%RETRY%".ljust(200, "g")])
async def test_a_record_torn_at_any_byte_is_cut(tmp_path: Path, topic: str) -> None:
    """Wherever a write stopped, the record is cut, its queue unit and key with it, and the log goes on in its place."""
    crashed = await crashed_store(tmp_path, [message(topic, body=b"kept", keys="k"), message(topic, body=b"torn" * 5, keys="k")])
    log = crashed / "commitlog" / FIRST
    start = int.from_bytes(log.read_bytes()[:4], "big")
    size = int.from_bytes(log.read_bytes()[start : start + 4], "big")
    for length in range(size):
        directory = tmp_path / f"cut{length}"
        shutil.copytree(crashed, directory)
        write_at(directory / "commitlog" / FIRST, start + length, bytes(size - length))
        store = make(directory)
        await store.open()
        assert bodies(store, topic) == [b"kept"]
        assert store.query_by_key(topic, "k", 0, 1 << 60, 9).physical_offsets == [0]
        (at,) = store.append([message(topic, body=b"next")])
        assert (at.queue_offset, at.physical_offset) == (1, start)
        assert bodies(store, topic) == [b"kept", b"next"]
        await store.close()
        shutil.rmtree(directory)


@pytest.mark.row("S245", "S258")
async def test_a_flipped_bit_ends_the_log(tmp_path: Path) -> None:
    """A body that does not fit its CRC ends the log there; the good records behind it are gone too, and do not come back."""
    crashed = await crashed_store(tmp_path, [message(body=b"%d" % number * 10) for number in range(5)])
    log = crashed / "commitlog" / FIRST
    write_at(log, log.read_bytes().index(b"2222222222"), b"2223222222")
    async with running(make(crashed)) as store:
        assert bodies(store) == [b"0" * 10, b"1" * 10]
        assert store.max_offset("Orders", 0) == 2
        assert store.append([message(body=b"new" * 4)])[0].queue_offset == 2
    assert b"3333333333" not in log.read_bytes()
    (crashed / "abort").write_text("1")
    async with running(make(crashed)) as store:
        assert bodies(store)[2:] == [b"new" * 4]


@pytest.mark.row("S259")
@pytest.mark.parametrize("crash", [True, False])
async def test_garbage_behind_the_end_becomes_zeros(tmp_path: Path, crash: bool) -> None:
    """Bytes behind the last record do not matter, even if they look like records of another place."""
    crashed = await crashed_store(tmp_path, [message(body=b"one"), message(body=b"two")])
    if not crash:
        (crashed / "abort").unlink()
    log = crashed / "commitlog" / FIRST
    data = log.read_bytes().rstrip(b"\0")
    first = data[: int.from_bytes(data[:4], "big")]
    noise = random.Random(1).randbytes(5000)
    write_at(log, len(data), first + noise)
    async with running(make(crashed)) as store:
        assert bodies(store) == [b"one", b"two"]
        assert store.statistics().max_physical_offset == len(data)
    assert log.read_bytes() == data.ljust(SEGMENT_BYTES, b"\0")


async def test_a_blank_record_of_another_place_ends_the_log(tmp_path: Path) -> None:
    """Only a blank record that says how much is left leads to the next file."""
    crashed = await crashed_store(tmp_path, [message()])
    write_at(crashed / "commitlog" / FIRST, 111, bytes.fromhex("00001000 cbd43194"))
    (crashed / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    async with running(make(crashed)) as store:
        assert store.append([message()])[0].physical_offset == 111


@pytest.mark.row("S254", "S261")
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("lost", ["consumequeue", "index", "both"])
async def test_lost_queues_and_lost_index_are_built_again(tmp_path: Path, lost: str, crash: bool) -> None:
    """Queues and index can be made from the log alone, tags and delivery times included."""
    batches = [
        [message(queue_id=n % 3, body=b"x" * 500, keys=f"k{n}", tag=f"t{n}") for n in range(start, start + 10)]
        for start in range(0, 200, 10)
    ]
    async with running(make(tmp_path / "live")) as store:
        for batch in batches:
            store.append(batch)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        before = contents(store)
        keys = [store.query_by_key("Orders", f"k{n}", 0, 1 << 60, 9) for n in range(200)]
    directory = tmp_path / ("crashed" if crash else "live")
    for name in ("consumequeue", "index") if lost == "both" else (lost,):
        shutil.rmtree(directory / name)
    async with running(make(directory)) as store:
        assert contents(store) == before
        assert [store.query_by_key("Orders", f"k{n}", 0, 1 << 60, 9) for n in range(200)] == keys


async def test_delivery_times_are_found_again(tmp_path: Path) -> None:
    """In the schedule topic a unit carries the time of delivery: store time plus the delay of the level, clamped to the last level."""
    given = []
    for level in ("2", "19", "0", "x"):
        given.append(message(SCHEDULE_TOPIC, 1))
        given[-1].set_properties({"DELAY": level, "TAGS": "a"})
    crashed = await crashed_store(tmp_path, given)
    shutil.rmtree(crashed / "consumequeue")
    async with running(make(crashed)) as store:
        now = FakeClock().now_ms()
        assert [unit.tags_code for unit in store.read_units(SCHEDULE_TOPIC, 1, 0, 9)] == [now + 5_000, now + 7_200_000, 97, 97]


async def test_units_without_a_record_are_dropped(tmp_path: Path) -> None:
    """A queue that came further than the log is cut to it, over file boundaries (5.7)."""
    crashed = await crashed_store(tmp_path, [message(body=b"%d" % number) for number in range(25)])
    log = crashed / "commitlog" / FIRST
    write_at(log, 4 * 112, bytes(SEGMENT_BYTES - 4 * 112))
    async with running(make(crashed)) as store:
        kept = len(bodies(store))
        assert 0 < kept < 10
        assert store.max_offset("Orders", 0) == kept
        store.append([message(body=b"n")] * 20)
        assert bodies(store)[kept:] == [b"n"] * 20
    assert not any((crashed / "consumequeue" / "Orders" / "0" / f"{400:020d}").read_bytes()[(kept + 20 - 20) * 20 :])


@pytest.mark.row("S257")
async def test_a_hole_in_a_queue_file_is_filled_from_the_log(tmp_path: Path) -> None:
    """A page of units that never reached the disk is made again, and those behind it too."""
    crashed = await crashed_store(tmp_path, [message(body=b"%d" % number) for number in range(25)])
    write_at(crashed / "consumequeue" / "Orders" / "0" / FIRST, 60, bytes(60))
    store = make(crashed)
    await store.open()
    assert store._queues.by_key["Orders", 0].flushed_offset == 0
    assert bodies(store) == [b"%d" % number for number in range(25)]
    await store.close()


@pytest.mark.row("S243")
async def test_files_made_ahead_and_empty_files(tmp_path: Path) -> None:
    """After a crash files made ahead go away and an empty last file counts as absent; a clean stop leaves none."""
    crashed = await crashed_store(tmp_path, [message()])
    (crashed / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    (crashed / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").write_bytes(b"")
    (crashed / "consumequeue" / "Orders" / "0" / f"{200:020d}").write_bytes(b"")
    async with running(make(crashed)) as store:
        assert bodies(store) == [b"body"]
        assert [path.name for path in (crashed / "commitlog").iterdir()] == [FIRST]
        assert [path.name for path in (crashed / "consumequeue" / "Orders" / "0").iterdir()] == [FIRST]


@pytest.mark.row("S261")
@pytest.mark.parametrize("lost", [True, False])
async def test_a_log_whose_first_file_was_trimmed(tmp_path: Path, lost: bool) -> None:
    """Queues begin at their first message that is still there; a queue made anew from such a log begins with filler."""
    batches = [[message(body=b"%03d" % n * 300) for n in range(start, start + 10)] for start in range(0, 100, 10)]
    crashed = await crashed_store(tmp_path, *batches)
    (crashed / "commitlog" / FIRST).unlink()
    if lost:
        shutil.rmtree(crashed / "consumequeue")
    async with running(make(crashed)) as store:
        low = store.min_offset("Orders", 0)
        assert 0 < low < 100 == store.max_offset("Orders", 0)
        assert bodies(store) == [b"%03d" % n * 300 for n in range(low, 100)]
        assert store.read("Orders", 0, low - 1, ALL, None, None).status is ReadStatus.OFFSET_TOO_SMALL
        assert store.store_time("Orders", 0, low - 1) == -1
        assert store.offset_by_time("Orders", 0, 0, Boundary.LOWER) == low
        assert store.statistics().min_physical_offset == SEGMENT_BYTES
    if lost:
        first = crashed / "consumequeue" / "Orders" / "0" / f"{low // 10 * 200:020d}"
        assert first.read_bytes()[: low % 10 * 20] == FILLER * (low % 10)
    async with running(make(crashed)) as store:
        assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (low, 100)


async def test_units_whose_records_are_gone_are_passed_over(tmp_path: Path) -> None:
    """Units in the readable range without a record give MESSAGE_WAS_REMOVING and the way on (8.1)."""
    store = make(tmp_path)
    async with running(store):
        store.append([message(body=b"%03d" % n * 300) for n in range(100)])
        del store._log.segments[0]
        store._log._first = SEGMENT_BYTES
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=5, max_scanned_units=20), None, None)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 20)
        assert store.read("Orders", 0, 0, ALL._replace(max_messages=1), None, None).status is ReadStatus.FOUND
        assert store.read_record(0) is None


async def test_a_log_that_is_gone_takes_its_queues_along(tmp_path: Path) -> None:
    """Without a commit log there is nothing to consume (5.6)."""
    crashed = await crashed_store(tmp_path, [message(keys="k")])
    shutil.rmtree(crashed / "commitlog")
    async with running(make(crashed)) as store:
        assert store.queues() == {}
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
        assert store.append([message()])[0] == (0, 0, 111, FakeClock().now_ms())


async def test_a_topic_made_anew_is_found_as_it_was_last(tmp_path: Path) -> None:
    """Queues built from the log of a topic that was deleted and made anew hold what came after."""
    async with running(make(tmp_path / "live")) as store:
        store.append([message(body=b"old")] * 15)
        store.delete_topic("Orders")
        store.append([message(body=b"new")] * 2)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "crashed" / "consumequeue")
        (tmp_path / "crashed" / "abort").write_text("1")
        async with running(make(tmp_path / "crashed")) as store:
            assert bodies(store) == [b"new"] * 2


async def test_a_deleted_topic_that_comes_back_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Queues made from the log are those of deleted topics too. The broker does not serve them, says so, and forgets them when asked."""
    async with running_broker(tmp_path, store="mmap") as broker:
        for topic in ("Gone", "Kept"):
            broker.context.topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
            broker.context.put.put_one(message(topic))
        broker.context.topics.delete("Gone")
        broker.context.store.delete_topic("Gone")
    shutil.rmtree(tmp_path / "consumequeue")
    caplog.clear()
    async with running_broker(tmp_path, store="mmap") as broker:
        assert broker.context.store.queues() == {"Gone": [0], "Kept": [0]}
        assert "1 topics that are not in topics.json and are not served: Gone. " in caplog.text
        assert broker.context.topics.get("Gone") is None
        answer = await ask(CleanProcessor(broker.context), request(RequestCode.CLEAN_UNUSED_TOPIC), FakePeer())
        assert answer is not None
        assert answer.code == 0
        assert broker.context.store.queues() == {"Kept": [0]}


async def test_a_record_far_from_its_queue_stops_the_start(tmp_path: Path) -> None:
    """A queue offset that cannot be stops the start with the place, instead of making files up to there."""
    crashed = await crashed_store(tmp_path, [message(), message()])
    shutil.rmtree(crashed / "consumequeue")
    write_at(crashed / "commitlog" / FIRST, 111 + 20, (1 << 40).to_bytes(8, "big"))
    with pytest.raises(StoreCorrupt, match="queue offset 1099511627776 in Orders queue 0"):
        await make(crashed).open()


async def test_a_half_written_table_is_read_from_its_backup(tmp_path: Path) -> None:
    """A broker that was killed while it wrote `topics.json` starts with the table before, over a store that has the messages."""
    async with running_broker(tmp_path, store="mmap") as broker:
        broker.context.topics.put(TopicConfig(topic_name="Orders", read_queue_nums=3, write_queue_nums=3))
        broker.context.topics.put(TopicConfig(topic_name="Later", read_queue_nums=1, write_queue_nums=1))
        broker.context.put.put_one(message("Orders", 2, b"kept"))
    path = tmp_path / "config" / "topics.json"
    assert (tmp_path / "config" / "topics.json.bak").exists()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    (tmp_path / "abort").write_text("1")
    async with running_broker(tmp_path, store="mmap") as broker:
        found = broker.context.topics.get("Orders")
        assert found is not None
        assert found.write_queue_nums == 3
        assert bodies(broker.context.store, "Orders", 2) == [b"kept"]


@pytest.mark.row("S260", "S255")
async def test_the_checkpoint_saves_the_scan_of_old_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the scan begins in the newest segment whose first record is older than what the checkpoint says, less three seconds."""
    clock = FakeClock()
    store = MmapStore(store_config(tmp_path / "live", **SMALL, message_index_enable=False), clock, FlushWhenWanted())
    async with running(store):
        for _ in range(40):
            store.append([message(body=b"x" * 900)] * 10)
            clock.advance(1000)
    scanned = []
    make_found = MmapStore._open_sync.__globals__["Recovery"]._scan

    def scan(recovery: Any, start: int, *others: int) -> int:
        scanned.append(start)
        end: int = make_found(recovery, start, *others)
        return end

    monkeypatch.setattr("rmqkit_store_mmap.recovery.Recovery._scan", scan)
    (tmp_path / "live" / "abort").write_text("1")
    async with running(make(tmp_path / "live", message_index_enable=False)) as again:
        assert again.max_offset("Orders", 0) == 400
    assert scanned[0] >= 5 * SEGMENT_BYTES
    (tmp_path / "live" / "checkpoint").write_bytes(b"short")
    (tmp_path / "live" / "abort").write_text("1")
    async with running(make(tmp_path / "live", message_index_enable=False)) as again:
        assert again.max_offset("Orders", 0) == 400
    assert scanned[1:] == [0]
