"""The bytes of every file, against vectors worked out by hand from the store-format sheet."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from rmqkit.config import load
from rmqkit.errors import StoreCorrupt
from rmqkit.model.message import PutMessage
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import ALL, SMALL, FlushWhenWanted, bodies, message, records, running, store_config
from rmqkit_store_mmap.queue.consume_queue import (
    ALLOCATION_STEP_BYTES,
    LEAST_ALLOCATION_BYTES,
    MappedFiles,
    allocated_bytes,
)
from rmqkit_store_mmap.queue.units import UNIT_BYTES
from rmqkit_store_mmap.store import MmapStore

#: 0x18BCFE56800 ms.
NOW_MS = 1_700_000_000_000
#: topic T, queue 5, body `hello`, flag 1, properties WAIT=true KEYS="k1 k2" TAGS=a; the store is
#: 127.0.0.1:10911.
RECORD = bytes.fromhex(
    "0000007d daa320a7 3610a686 00000005 00000001"  # 125 bytes, V1, CRC of hello, queue id, flag
    "0000000000000000 0000000000000000 00000000"  # queue offset, physical offset, system flag
    "0000000000000007 0a00000100001234"  # born at 7 by 10.0.0.1:4660
    "0000018bcfe56800 7f00000100002a9f"  # store time and host
    "00000002 0000000000000003 00000005"  # reconsume times, prepared offset, body length
) + (b"hello" + b"\x01T" + b"\x00\x1c" + b"WAIT\x01true\x02KEYS\x01k1 k2\x02TAGS\x01a\x02")


def make(directory: Path, **settings: object) -> MmapStore:
    return MmapStore(store_config(directory, **settings), FakeClock(NOW_MS), FlushWhenWanted())


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def known_message() -> PutMessage:
    made = message(
        "T",
        5,
        b"hello",
        keys="k1 k2",
        tag="a",
        flag=1,
        born_timestamp_ms=7,
        reconsume_times=2,
        prepared_offset=3,
    )
    made.born_host = bytes.fromhex("0a00000100001234")
    return made


@pytest.mark.row("S233", "S237", "S238", "S243", "S255", "S285", "S286", "S288", "S289")
async def test_every_byte_of_a_small_store(tmp_path: Path) -> None:
    """One message makes exactly these files, of exactly these bytes."""
    store = make(tmp_path, max_hash_slot_num=7, max_index_num=5, mapped_file_size_consume_queue=90)
    async with running(store):
        (at,) = store.append([known_message()])
        assert (tmp_path / "abort").exists()
        assert (tmp_path / "lock").read_bytes() == b"lock"
    assert at.size_bytes == len(RECORD)
    files = files_below(tmp_path)
    (index,) = [name for name in files if name.startswith("index/")]
    assert len(Path(index).name) == 17
    assert set(files) == {
        "checkpoint",
        "commitlog/" + "0" * 20,
        "consumequeue/T/5/" + "0" * 20,
        index,
        "lock",
    }
    log = files["commitlog/" + "0" * 20]
    assert len(log) == 8 << 20
    assert log[: len(RECORD)] == RECORD
    assert not any(log[len(RECORD) :])
    # 90 bytes of queue file become 100; offset 0, size 125, hash of "a".
    assert files["consumequeue/T/5/" + "0" * 20] == bytes.fromhex(
        "0000000000000000 0000007d 0000000000000061"
    ).ljust(100, b"\0")
    # hash of "T#k1" = ((84*31 + 35)*31 + 107)*31 + 49 = 2539445 = 0x26bfb5, slot 2539445 % 7 = 6; "T#k2" is
    # one more: slot 0.
    assert files[index] == (
        bytes.fromhex("0000018bcfe56800 0000018bcfe56800 0000000000000000 0000000000000000 00000002 00000003")
        + bytes.fromhex("00000002 00000000 00000000 00000000 00000000 00000000 00000001")
        + bytes(20)
        + bytes.fromhex("0026bfb5 0000000000000000 00000000 00000000")
        + bytes.fromhex("0026bfb6 0000000000000000 00000000 00000000")
        + bytes(40)
    )
    expected = bytes.fromhex(
        "0000018bcfe56800 0000018bcfe56800 0000000000000000 0000000000000000 000000000000007d"
    )
    mark = (
        b"rmqkit01"
        + bytes.fromhex("000000000000007d 000000000000007d")  # log and units flushed up to 125
        + bytes.fromhex(
            "0000000000000001 0000000000000001 0000000000000000"
        )  # one queue, it ends at 1, its file begins at 0
        + bytes.fromhex("000000000000007d")  # keys as well
        + int(Path(index).name).to_bytes(8, "big")
        + files[index][:40]
        + bytes.fromhex("0000000000000001")  # one index file
    )
    known = expected + mark + crc32(expected + mark).to_bytes(4, "big") + bytes(8)  # the log begins at 0
    assert files["checkpoint"] == (known + crc32(known).to_bytes(4, "big")).ljust(4096, b"\0")


@pytest.mark.row("S236", "S248")
async def test_a_full_segment_ends_with_a_blank_record(tmp_path: Path) -> None:
    """A record that would leave fewer than 8 bytes goes whole to the next file; a blank record of 8 bytes
    says how much was left."""
    store = make(tmp_path, **SMALL)
    async with running(store):
        empty = store.append([message(body=b"")])[0].size_bytes
        count, room = divmod(66_560 - empty, empty + 900)
        store.append([message(body=b"x" * 900) for _ in range(count)])
        (fits,) = store.append([message(body=b"y" * (room - 8 - empty))])
        assert fits.physical_offset + fits.size_bytes == 66_560 - 8
        (rolled,) = store.append([message(body=b"z")])
        assert rolled.physical_offset == 66_560
        assert bodies(store)[-1] == b"z"
        assert [found.physical_offset for found in records(store.read("Orders", 0, 0, ALL, None))][
            -1
        ] == 66_560
        assert bytes(store.read_log(66_560 - 8, 1 << 20)) == bytes.fromhex("00000008 cbd43194")
    assert (tmp_path / "commitlog" / "00000000000000000000").read_bytes()[-8:] == bytes.fromhex(
        "00000008 cbd43194"
    )
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == [
        "00000000000000000000",
        "00000000000000066560",
    ]


async def test_a_record_that_leaves_seven_bytes_goes_to_the_next_segment(tmp_path: Path) -> None:
    """The blank record says how much was left from its first byte on; after its 8 bytes the file stays
    zero."""
    store = make(tmp_path, **SMALL)
    async with running(store):
        empty = store.append([message(body=b"")])[0].size_bytes
        count, room = divmod(66_560 - empty, empty + 900)
        store.append([message(body=b"x" * 900) for _ in range(count)])
        assert 7 + empty < room < 1000
        (rolled,) = store.append([message(body=b"y" * (room - 7 - empty))])
        assert rolled.physical_offset == 66_560
    data = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert data[66_560 - room :] == room.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(room - 8)


async def test_queue_files_follow_each_other(tmp_path: Path) -> None:
    """Unit n is at byte 20 n of the queue; a file is named by its first byte."""
    store = make(tmp_path, mapped_file_size_consume_queue=100)
    async with running(store):
        results = store.append([message(tags_code=number) for number in range(12)])
    names = [path.name for path in sorted((tmp_path / "consumequeue" / "Orders" / "0").iterdir())]
    assert names == [f"{number:020d}" for number in (0, 100, 200)]
    data = b"".join((tmp_path / "consumequeue" / "Orders" / "0" / name).read_bytes() for name in names)
    for number, at in enumerate(results):
        unit = data[20 * number : 20 * number + 20]
        assert unit == at.physical_offset.to_bytes(8, "big") + at.size_bytes.to_bytes(
            4, "big"
        ) + number.to_bytes(8, "big")
    assert not any(data[240:])


@pytest.mark.row("S241", "S242", "S287")
async def test_files_are_full_length_but_take_little_disk(tmp_path: Path) -> None:
    """With default sizes, which are RocketMQ's, a store of one message has a log file of 1 GiB, a queue file
    of 300 000 units and an index of 5 million slots and 20 million entries, 420 MB; it takes less than 40
    MiB."""
    store = MmapStore(
        load(environ={}, flags={"storePathRootDir": str(tmp_path)}), FakeClock(), FlushWhenWanted()
    )
    async with running(store):
        store.append([message(keys="k")])
        store._index.drain(1)
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 1).physical_offsets == [0]
        assert (tmp_path / "commitlog" / ("0" * 20)).stat().st_size == 1_073_741_824
        assert next((tmp_path / "index").iterdir()).stat().st_size == 40 + 5_000_000 * 4 + 20_000_000 * 20
        assert (tmp_path / "consumequeue" / "Orders" / "0" / ("0" * 20)).stat().st_size == 300_000 * 20
        statistics = store.statistics()
        assert statistics.file_count == 6
        assert (32 << 20) + LEAST_ALLOCATION_BYTES < statistics.disk_bytes < 40 << 20


async def test_the_disk_space_of_a_queue_grows_with_its_units(tmp_path: Path) -> None:
    """A queue of one message takes a block of 4 KiB, one of many at most twice its units, and a large one at
    most 64 KiB that it does not use yet. Its file has its full length from the start."""
    path = tmp_path / "consumequeue" / "Orders" / "0" / ("0" * 20)
    async with running(make(tmp_path, mapped_file_size_consume_queue=6_000_000)) as store:
        count = 0
        while count < 8_000:
            store.append([message(body=b"") for _ in range(max(1, count // 4))])
            count = store.max_offset("Orders", 0)
            status = path.stat()
            taken, used = status.st_blocks * 512, count * UNIT_BYTES
            most = used + ALLOCATION_STEP_BYTES if used > ALLOCATION_STEP_BYTES else 2 * used
            # A file system may count a block for its own notes about the file.
            assert used <= taken <= max(most, LEAST_ALLOCATION_BYTES) + 4_096
            assert status.st_size == 6_000_000
        assert len(bodies(store)) == count
    steps = [
        allocated_bytes(stop) for stop in (20, 4_096, 4_097, 8_200, 16_400, 32_800, 65_536, 65_540, 131_080)
    ]
    assert steps == [size * 1024 for size in (4, 4, 8, 16, 32, 64, 64, 128, 192)]


async def test_more_queues_than_may_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues share a bounded number of maps; none loses a unit."""
    monkeypatch.setattr(MappedFiles.__init__, "__defaults__", (3,))
    store = make(tmp_path)
    async with running(store):
        for number in range(5):
            store.append([message(queue_id=queue_id, body=b"%d" % number) for queue_id in range(8)])
        for queue_id in range(8):
            assert bodies(store, queue_id=queue_id) == [b"%d" % number for number in range(5)]
        assert sum(queue.reserved_until > 0 for queue in store._queues.by_key.values()) <= 3
    async with running(make(tmp_path)) as again:
        assert bodies(again, queue_id=7) == [b"%d" % number for number in range(5)]


async def test_neighbours_in_the_log_come_as_one_slice(tmp_path: Path) -> None:
    """Adjacent records of one segment are returned as one slice; a record of another queue between them ends
    the slice."""
    async with running(make(tmp_path)) as store:
        store.append([message(), message(), message(queue_id=1), message()])
        result = store.read("Orders", 0, 0, ALL, None)
        assert (len(result.slices), result.message_count) == (2, 3)


@pytest.mark.parametrize(
    "name", ["00000000000000066561", "tmp", "00000000000000199680"], ids=["size", "name", "hole"]
)
async def test_files_that_do_not_fit(tmp_path: Path, name: str) -> None:
    """A log file of another size, an unknown file, and a missing file stop the start with the file's name; no
    lock stays and nothing is changed."""
    async with running(make(tmp_path, **SMALL)) as store:
        store.append([message()])
    path = tmp_path / "commitlog" / name
    path.write_bytes(bytes(66_560 if name.endswith("0") else 5))
    store = make(tmp_path, **SMALL)
    with pytest.raises(StoreCorrupt, match=r"66561|tmp|199680"):
        await store.open()
    assert not (tmp_path / "abort").exists()
    path.unlink()
    async with running(make(tmp_path, **SMALL)) as again:
        assert again.max_offset("Orders", 0) == 1


async def test_other_sizes_in_the_settings(tmp_path: Path) -> None:
    """A directory made with other sizes is refused with the name of the first file of the wrong size."""
    async with running(make(tmp_path)) as store:
        store.append([message(keys="k")])
    for setting, match in (
        ("mapped_file_size_commit_log", "commitlog"),
        ("mapped_file_size_consume_queue", "Orders"),
        ("max_index_num", "index"),
    ):
        with pytest.raises(StoreCorrupt, match=match):
            await make(tmp_path, **{setting: 16 << 20}).open()
