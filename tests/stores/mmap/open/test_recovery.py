"""Opening after a crash: complete records are there, torn ones are not, and no old bytes after the end are
read as records."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import StoreCorrupt
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.store import Boundary, ReadStatus
from rmqkit.protocol.record import pack
from rmqkit.testing.broker import running_broker
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    SMALL_INDEX,
    FlushWhenWanted,
    bodies,
    contents,
    message,
    records,
    running,
    store_config,
)
from rmqkit_delay.levels import delivery_time_of, parse_levels
from rmqkit_store_mmap.log import residency
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.queue.consume_queue import FILLER
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.survey import survey
from rmqkit_store_mmap.tools.verify import Verifier
from tests.stores.crashes import FIRST, SEGMENT_BYTES, crashed_store, make, write_at
from tests.stores.disks import Forgetful


@pytest.mark.row("S256", "S258")
async def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Everything appended is there after a kill, over several segments, queues and index files, keys
    included."""
    batches = [
        [message(f"T{n % 3}", n % 4, b"x" * (n * 7 % 900), keys=f"k{n}") for n in range(start, start + 9)]
        for start in range(0, 270, 9)
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
        assert [
            store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9).physical_offsets for n in range(270)
        ] == keys
        assert store.append([message("T0", 0)])[0].physical_offset == end
    assert not (tmp_path / "crashed" / "abort").exists()


@pytest.mark.row("S258")
@pytest.mark.parametrize("topic", ["Orders", "%RETRY%".ljust(200, "g")])
async def test_a_record_torn_at_any_byte_is_cut(tmp_path: Path, topic: str) -> None:
    """Wherever a write stopped, the record is cut off with its queue unit and key, and the next record takes
    its place."""
    crashed = await crashed_store(
        tmp_path, [message(topic, body=b"kept", keys="k"), message(topic, body=b"torn" * 5, keys="k")]
    )
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
async def test_flipped_bits_at_the_end_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records whose bodies do not match their CRC, without a good record after them, are cut off with a
    warning and do not come back."""
    crashed = await crashed_store(tmp_path, [message(body=b"%d" % number * 10) for number in range(5)])
    log = crashed / "commitlog" / FIRST
    for number in (3, 4):
        write_at(log, log.read_bytes().index(b"%d" % number * 10), b"x")
    async with running(make(crashed)) as store:
        assert bodies(store) == [b"0" * 10, b"1" * 10, b"2" * 10]
        assert store.append([message(body=b"new" * 4)])[0].queue_offset == 3
    assert "ends at offset 351; 234 bytes of no whole record behind it are cut off" in caplog.text
    assert b"4444444444" not in log.read_bytes()
    (crashed / "abort").write_text("1")
    async with running(make(crashed)) as store:
        assert bodies(store)[3:] == [b"new" * 4]


def spoil(path: Path, at: int, data: bytes | None = None) -> None:
    """Change one byte, or put other bytes there."""
    if data is None:
        data = bytes((path.read_bytes()[at] ^ 0xFF,))
    write_at(path, at, data)


@pytest.mark.row("S245", "S258")
@pytest.mark.parametrize("part", ["body", "length", "magic", "everything"])
async def test_damage_with_good_records_behind_it(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the damaged record is lost. The log names the place; its queue offset is not assigned again; keys
    of other records work; a second crash changes nothing; `verify` names the place and finds nothing else."""
    given = [message(body=b"%d" % number * 10, queue_id=number % 2, keys=f"k{number}") for number in range(8)]
    crashed = await crashed_store(tmp_path, given)
    log = crashed / "commitlog" / FIRST
    size = int.from_bytes(log.read_bytes()[:4], "big")
    at = 3 * size
    match part:
        case "body":
            spoil(log, at + 90)
        case "length":
            spoil(log, at + 3)
        case "magic":
            spoil(log, at + 4)
        case "everything":
            spoil(log, at, b"\x55" * size)
    for _ in range(2):
        async with running(make(crashed)) as store:
            assert bodies(store, queue_id=0) == [b"%d" % number * 10 for number in (0, 2, 4, 6)]
            found = records(store.read("Orders", 1, 0, ALL, None))
            assert [(one.queue_offset, one.body) for one in found] == [
                (0, b"1" * 10),
                (2, b"5" * 10),
                (3, b"7" * 10),
            ]
            assert store.max_offset("Orders", 1) == 4
            alone = store.read("Orders", 1, 1, ALL._replace(max_messages=1), None)
            assert (alone.status, alone.next_offset, alone.slices) == (ReadStatus.MESSAGE_WAS_REMOVING, 2, [])
            for number, place in ((2, [2 * size]), (3, []), (5, [5 * size])):
                assert store.query_by_key("Orders", f"k{number}", 0, 1 << 60, 9).physical_offsets == place
            assert store.read_record(at) is None
            assert store.read_faults == 0
            assert len(store.read_log(0, 1 << 20)) == 8 * size
        (crashed / "abort").write_text("1")
    assert caplog.text.count("is damaged") == 1
    assert f"is damaged from offset {at} up to {at + size}: {size} bytes" in caplog.text
    assert "the 4 records behind them are kept" in caplog.text
    (crashed / "abort").unlink()
    with StoreReader(crashed) as reader:
        outcome = Verifier(reader, {}, 1_000).run()
    assert outcome.damage is None
    assert any(f"log offset {at}" in note for note in outcome.notes), outcome.notes


@pytest.mark.parametrize("part", ["body", "topic length"])
async def test_damaged_records_side_by_side(tmp_path: Path, part: str) -> None:
    """After a record without a head follows one whose head is whole: it is not served by its log offset, and
    its queue offset is not assigned again when its lengths are right, though no record of its queue follows.
    """
    given = [message(body=b"%d" % number * 10, queue_id=int(number == 2)) for number in range(5)]
    crashed = await crashed_store(tmp_path, given)
    log = crashed / "commitlog" / FIRST
    size = int.from_bytes(log.read_bytes()[:4], "big")
    spoil(log, size + 4)
    spoil(log, 2 * size + (90 if part == "body" else 98))
    for _ in range(2):
        async with running(make(crashed)) as store:
            assert bodies(store, queue_id=0) == [b"%d" % number * 10 for number in (0, 3, 4)]
            assert store.read("Orders", 1, 0, ALL, None).slices == []
            assert store.max_offset("Orders", 1) == int(part == "body")
            assert [store.read_record(at * size) is not None for at in range(5)] == [
                True,
                False,
                False,
                True,
                True,
            ]
        (crashed / "abort").write_text("1")


@pytest.mark.row("S258")
async def test_damage_over_the_end_of_a_segment(tmp_path: Path) -> None:
    """The end of one segment and the beginning of the next are zeros: later records are kept, and the lost
    queue offsets are not assigned again."""
    given = [message(body=b"%03d" % number * 300) for number in range(150)]
    crashed = await crashed_store(tmp_path, given)
    names = sorted(path.name for path in (crashed / "commitlog").iterdir())
    write_at(crashed / "commitlog" / names[0], SEGMENT_BYTES - 5_000, bytes(5_000))
    write_at(crashed / "commitlog" / names[1], 0, bytes(3_000))
    for _ in range(2):
        async with running(make(crashed)) as store:
            found = records(store.read("Orders", 0, 0, ALL, None))
            assert [one.body for one in found] == [given[one.queue_offset].body for one in found]
            assert 140 <= len(found) < 145
            assert store.max_offset("Orders", 0) == 150
        (crashed / "abort").write_text("1")


async def test_a_record_in_a_body_is_not_taken_for_one_of_the_log(tmp_path: Path) -> None:
    """A body may contain bytes that look like a record of that place; when the message is damaged they are
    not read as a record."""
    async with running(make(tmp_path / "probe")) as store:
        (first,) = store.append([message(body=b"x" * 400)])
        inner_at = 88 + 100
        inner = pack(
            message("Forged", body=b"forged"), 88 + 6 + 1 + 6 + 2 + 10, 0, inner_at, 1 << 50, bytes(8)
        )
    crashed = await crashed_store(
        tmp_path, [message(body=(b"x" * 100 + inner).ljust(400, b"x")), message(body=b"good")]
    )
    assert first.physical_offset == 0
    spoil(crashed / "commitlog" / FIRST, 90)
    async with running(make(crashed)) as store:
        assert store.queues() == {"Orders": [0]}
        assert bodies(store) == [b"good"]


async def test_old_records_behind_the_end_do_not_come_back(tmp_path: Path) -> None:
    """Java leaves records after the end when it has cut the log, each in its place. They are older than the
    records before them."""
    clock = FakeClock()
    store = MmapStore(store_config(tmp_path / "live", **SMALL), clock, FlushWhenWanted(), disk=Forgetful())
    async with running(store):
        store.append([message(body=b"%d" % number * 100) for number in range(6)])
        old = (tmp_path / "live" / "commitlog" / FIRST).read_bytes()
    shutil.rmtree(tmp_path / "live")
    clock.advance(60_000)
    store = MmapStore(store_config(tmp_path / "live", **SMALL), clock, FlushWhenWanted(), disk=Forgetful())
    async with running(store):
        store.append([message(body=b"n" * 50)])
        end = store.end_offset
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    write_at(tmp_path / "crashed" / "commitlog" / FIRST, end, old[end:])
    (tmp_path / "crashed" / "checkpoint").write_bytes(bytes(4096))
    async with running(make(tmp_path / "crashed")) as store:
        assert bodies(store) == [b"n" * 50]
        assert store.end_offset == end


async def test_a_reader_says_where_no_record_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pull skips a damaged place of the flushed log, which is logged and counted once."""
    async with running(make(tmp_path)) as store:
        given = store.append([message(body=b"%d" % number * 10) for number in range(4)])
        write_at(tmp_path / "commitlog" / FIRST, given[1].physical_offset + 28, b"\xff")
        for _ in range(2):
            assert bodies(store) == [b"0" * 10, b"2" * 10, b"3" * 10]
        everything = store.read("Orders", 0, 0, ALL, lambda code: True)
        assert everything.message_count == 3
        assert store.read_faults == store.statistics().read_faults == 1
    assert caplog.text.count(f"is damaged at offset {given[1].physical_offset}") == 1


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("unit", [b"\xa5" * 20, b"\x00\x00\x00\x01" * 5], ids=["negative", "far away"])
@pytest.mark.parametrize("codes", [None, {0}], ids=["all", "filtered"])
async def test_a_reader_says_where_a_unit_is_garbage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, unit: bytes, codes: set[int] | None
) -> None:
    """Its message is passed over although the log is whole, with one line and one count for all reads."""
    async with running(make(tmp_path)) as store:
        store.append([message(body=b"%d" % number) for number in range(6)])
        write_at(tmp_path / "consumequeue" / "Orders" / "0" / FIRST, 20 * at, unit[:12] + bytes(8))
        for _ in range(3):
            found = store.read("Orders", 0, 0, ALL, None if codes is None else codes.__contains__)
            assert found.message_count == 5
            assert found.next_offset == 6
        assert store.read_faults == store.statistics().read_faults == 1
    assert caplog.text.count(f"queue Orders:0 is damaged at offset {at}") == 1


async def test_units_that_fill_a_queue_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's broker writes them where a queue begins behind offset 0."""
    async with running(make(tmp_path)) as store:
        store.append([message(body=b"%d" % number) for number in range(3)])
        write_at(tmp_path / "consumequeue" / "Orders" / "0" / FIRST, 0, FILLER)
        assert store.read("Orders", 0, 0, ALL, None).message_count == 2
        assert store.read_faults == 0
    assert "damaged" not in caplog.text


async def test_a_reader_says_where_a_body_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit in a body that this process has not written; it is served, and the reader finds it."""
    async with running(make(tmp_path)) as store:
        given = store.append([message(body=b"%d" % number * 10) for number in range(4)])
    body_at = given[1].physical_offset + 88
    write_at(tmp_path / "commitlog" / FIRST, body_at, b"0")
    async with running(make(tmp_path)) as store:
        for _ in range(2):
            assert store.read("Orders", 0, 0, ALL, None).message_count == 4
        assert store.read_faults == 1
    told = f"the body of the record at log offset {given[1].physical_offset} does not match its checksum"
    assert caplog.text.count(told) == 1


async def test_bodies_that_this_process_wrote_are_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading old messages again costs no checksums, for the device has not been asked."""
    monkeypatch.setattr(residency, "HOT_BYTES", 0)
    async with running(make(tmp_path)) as store:
        given = store.append([message(body=b"%d" % number * 10) for number in range(4)])
        write_at(tmp_path / "commitlog" / FIRST, given[1].physical_offset + 88, b"0")
        with store.disk.blocking_reads():
            assert store.read("Orders", 0, 0, ALL, None).message_count == 4
        assert store.read_faults == 0


@pytest.mark.row("S259")
@pytest.mark.parametrize("crash", [True, False])
async def test_garbage_behind_the_end_becomes_zeros(tmp_path: Path, crash: bool) -> None:
    """Bytes after the last record are ignored, even if they look like records of another place."""
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
    """Only a blank record with the right remaining length leads to the next file."""
    crashed = await crashed_store(tmp_path, [message()])
    write_at(crashed / "commitlog" / FIRST, 111, bytes.fromhex("00001000 cbd43194"))
    (crashed / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    async with running(make(crashed)) as store:
        assert store.append([message()])[0].physical_offset == 111


@pytest.mark.row("S254")
async def test_the_table_of_queues_is_built_from_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a store that was closed in order takes topics and queue ids from the folders, without a look
    at the log for them."""
    places = [("Orders", 0), ("Orders", 7), ("Payments", 2), ("%RETRY%group", 0)]
    async with running(make(tmp_path)) as store:
        store.append([message(topic, queue_id, topic.encode()) for topic, queue_id in places])

    def from_the_log(*args: Any) -> None:
        raise AssertionError("a queue was made from a record of the log")

    monkeypatch.setattr(Redispatch, "dispatch", from_the_log)
    (tmp_path / "consumequeue" / "Empty" / "3").mkdir(parents=True)
    shutil.move(tmp_path / "consumequeue" / "Payments", tmp_path / "consumequeue" / "Renamed")
    async with running(make(tmp_path)) as store:
        found = {(topic, queue_id) for topic, queue_ids in store.queues().items() for queue_id in queue_ids}
        assert found >= {("Orders", 0), ("Orders", 7), ("%RETRY%group", 0), ("Renamed", 2)}
        assert ("Payments", 2) not in found
        assert bodies(store, "Orders", 7) == [b"Orders"]


@pytest.mark.parametrize("crash", [True, False])
async def test_directories_of_a_volume_are_not_looked_into(tmp_path: Path, crash: bool) -> None:
    """A directory whose name is not a topic, as `lost+found`, is passed over, whatever it contains: here what
    no queue may contain, and a link that leads nowhere."""
    async with running(make(tmp_path / "live")) as store:
        store.append([message("Orders", 0, b"one")])
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    root = tmp_path / ("crashed" if crash else "live")
    for place in ("commitlog", "consumequeue", "consumequeue_ext", "index", "config"):
        for name in ("lost+found", ".snapshot", "#recycle"):
            queue = root / place / name / "0"
            queue.mkdir(parents=True)
            (queue / "junk").write_bytes(b"junk")
        (root / place / "lost+found" / "1").symlink_to("nowhere")
    with StoreReader(root) as reader:
        assert reader.topics() == {"Orders": [0]}
        assert survey(reader)["log"]["strangers"] == []
    async with running(make(root)) as store:
        assert store.queues() == {"Orders": [0]}
        assert bodies(store, "Orders", 0) == [b"one"]


@pytest.mark.row("S261")
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("lost", ["consumequeue", "index", "both"])
async def test_lost_queues_and_lost_index_are_built_again(tmp_path: Path, lost: str, crash: bool) -> None:
    """Queues and index can be made from the log alone, tags and delivery times included."""
    batches = [
        [
            message(queue_id=n % 3, body=b"x" * 500, keys=f"k{n}", tag=f"t{n}")
            for n in range(start, start + 10)
        ]
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


@pytest.mark.parametrize("left", ["nothing", "queues", "queues behind", "index"])
async def test_records_are_added_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """Without a checkpoint the whole log is read, and its records are added in runs to what is left of queues
    and index. Only the first record of each queue is dispatched alone."""
    live, copy = tmp_path / "live", tmp_path / "crashed"
    sizes = SMALL_INDEX | {"mapped_file_size_commit_log": 8 << 20}
    async with running(make(live, **sizes)) as store:
        for start in range(0, 3_000, 100):
            store.append([message(f"T{n % 3}", n % 2, b"x", keys=f"k{n}") for n in range(start, start + 100)])
            if start == 2_500:
                store._index.drain(len(store._index.backlog))
                shutil.copytree(live, tmp_path / "earlier")
        store._index.drain(len(store._index.backlog))
        shutil.copytree(live, copy)
        held, end = contents(store), store.end_offset
    (copy / "checkpoint").unlink()
    if left == "queues behind":
        shutil.rmtree(copy / "consumequeue")
        shutil.copytree(tmp_path / "earlier" / "consumequeue", copy / "consumequeue")
    for gone in {"nothing": ("consumequeue", "index"), "index": ("consumequeue",)}.get(left, ("index",)):
        shutil.rmtree(copy / gone)
    one_by_one: list[int] = []
    really = Redispatch.dispatch

    def counting(self: Redispatch, found: Any) -> None:
        one_by_one.append(found.physical_offset)
        really(self, found)

    monkeypatch.setattr(Redispatch, "dispatch", counting)
    async with running(make(copy, **sizes)) as store:
        assert (contents(store), store.end_offset) == (held, end)
        assert len(one_by_one) <= 6
        for n in range(0, 3_000, 7):
            found = store.query_by_key(f"T{n % 3}", f"k{n}", 0, 1 << 60, 9).physical_offsets
            assert len(found) == 1, n


async def test_delivery_times_are_found_again(tmp_path: Path) -> None:
    """In the schedule topic a unit carries the time of delivery: store time plus the delay of the level,
    clamped to the last level."""
    given = []
    for level in ("2", "19", "0", "x"):
        given.append(message(SCHEDULE_TOPIC, 1))
        given[-1].set_properties({"DELAY": level, "TAGS": "a"})
    crashed = await crashed_store(tmp_path, given)
    shutil.rmtree(crashed / "consumequeue")
    again = make(crashed)
    again.queue_codes = {SCHEDULE_TOPIC: delivery_time_of(parse_levels("1s 5s 2h"))}
    async with running(again) as store:
        now = FakeClock().now_ms()
        assert [unit.tags_code for unit in store.read_units(SCHEDULE_TOPIC, 1, 0, 9)] == [
            now + 5_000,
            now + 7_200_000,
            97,
            97,
        ]


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
    assert not any(
        (crashed / "consumequeue" / "Orders" / "0" / f"{400:020d}").read_bytes()[(kept + 20 - 20) * 20 :]
    )


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
    """After a crash files made ahead go away and an empty last file counts as absent; a clean stop leaves
    none."""
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
    """Queues begin at their first message that is still there; a queue made anew from such a log begins
    with filler."""
    batches = [
        [message(body=b"%03d" % n * 300) for n in range(start, start + 10)] for start in range(0, 100, 10)
    ]
    crashed = await crashed_store(tmp_path, *batches)
    (crashed / "commitlog" / FIRST).unlink()
    if lost:
        shutil.rmtree(crashed / "consumequeue")
    async with running(make(crashed)) as store:
        low = store.min_offset("Orders", 0)
        assert 0 < low < 100 == store.max_offset("Orders", 0)
        assert bodies(store) == [b"%03d" % n * 300 for n in range(low, 100)]
        assert store.read("Orders", 0, low - 1, ALL, None).status is ReadStatus.OFFSET_TOO_SMALL
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
        result = store.read("Orders", 0, 0, ALL._replace(max_messages=5, max_scanned_units=20), None)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 20)
        assert store.read("Orders", 0, 0, ALL._replace(max_messages=1), None).status is ReadStatus.FOUND
        assert store.read_record(0) is None


async def test_a_log_that_is_gone_takes_its_queues_along(tmp_path: Path) -> None:
    """Without a commit log there is nothing to consume (5.6)."""
    crashed = await crashed_store(tmp_path, [message(keys="k")])
    shutil.rmtree(crashed / "commitlog")
    async with running(make(crashed)) as store:
        assert store.queues() == {}
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
        assert store.append([message()])[0] == (0, 0, 111, FakeClock().now_ms())


async def test_a_record_far_from_its_queue_stops_the_start(tmp_path: Path) -> None:
    """An impossible queue offset stops the start with its place, instead of creating files up to it."""
    crashed = await crashed_store(tmp_path, [message(), message()])
    shutil.rmtree(crashed / "consumequeue")
    write_at(crashed / "commitlog" / FIRST, 111 + 20, (1 << 40).to_bytes(8, "big"))
    with pytest.raises(StoreCorrupt, match="queue offset 1099511627776 in Orders queue 0"):
        await make(crashed).open()


async def test_a_half_written_table_is_read_from_its_backup(tmp_path: Path) -> None:
    """A broker killed while it wrote `topics.json` starts with the previous table, over a store that has the
    messages."""
    async with running_broker(tmp_path, store="mmap") as broker:
        await broker.context.topics.put(
            TopicConfig(topic_name="Orders", read_queue_nums=3, write_queue_nums=3)
        )
        await broker.context.topics.put(
            TopicConfig(topic_name="Later", read_queue_nums=1, write_queue_nums=1)
        )
        broker.context.appender.append(MessageRun([message("Orders", 2, b"kept")]))
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
async def test_the_checkpoint_saves_the_scan_of_old_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the scan begins in the newest segment whose first record is older than the checkpoint's
    time less three seconds."""
    clock = FakeClock()
    store = MmapStore(
        store_config(tmp_path / "live", **SMALL, message_index_enable=False), clock, FlushWhenWanted()
    )
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

    monkeypatch.setattr("rmqkit_store_mmap.open.recovery.Recovery._scan", scan)
    (tmp_path / "live" / "abort").write_text("1")
    async with running(make(tmp_path / "live", message_index_enable=False)) as again:
        assert again.max_offset("Orders", 0) == 400
    assert scanned[0] >= 5 * SEGMENT_BYTES
    (tmp_path / "live" / "checkpoint").write_bytes(b"short")
    (tmp_path / "live" / "abort").write_text("1")
    async with running(make(tmp_path / "live", message_index_enable=False)) as again:
        assert again.max_offset("Orders", 0) == 400
    assert scanned[1:] == [0]
