"""The public read side: it reads what the store holds, and changes nothing in the directory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqkit.errors import StoreCorrupt, StoreError
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import contents, message, running
from rmqkit_store_mmap.queue.units import FILLER_SIZE
from rmqkit_store_mmap.readonly.readonly import StoreReader
from tests.stores.tools.kit import (
    SEGMENT_BYTES,
    batches,
    build,
    change,
    cut,
    flip,
    log_place,
    make,
    unit_place,
)


async def test_it_reads_what_the_store_holds(tmp_path: Path) -> None:
    """Topics, offsets, units and messages of every queue, beside the open store and after it was closed."""
    clock = FakeClock()
    async with running(make(tmp_path, clock)) as store:
        for batch in batches(clock):
            store.append(batch)
        expected = contents(store)
        end = store.end_offset
        with StoreReader(tmp_path) as reader:
            assert reader.topics() == store.queues()
            beside = {key: list(reader.messages(*key)) for key in expected}
    with StoreReader(tmp_path) as reader:
        assert reader.log.end_offset(0) == end
        for (topic, queue_id), (low, high, messages, units) in expected.items():
            queue = reader.queue(topic, queue_id)
            assert (queue.min_offset(0), queue.end_offset) == (low, high)
            assert list(queue.units(0, high)) == units
            assert list(reader.messages(topic, queue_id)) == messages == beside[topic, queue_id]


async def test_ranges(tmp_path: Path) -> None:
    """Ranges [start, stop) are cut to the existing offsets, also across queue files of ten units."""
    await build(tmp_path)
    with StoreReader(tmp_path) as reader:
        queue = reader.queue("Bills", 0)
        assert queue.end_offset > 100
        for start, stop in (
            (0, 0),
            (0, 1),
            (7, 33),
            (10, 20),
            (100, 1_000_000),
            (1_000_000, 2_000_000),
            (5, 3),
        ):
            offsets = [found.queue_offset for found in reader.messages("Bills", 0, start, stop)]
            assert offsets == list(range(start, min(stop, queue.end_offset)))
            assert [unit.queue_offset for unit in queue.units(start, stop)] == offsets


async def test_records_are_slices_of_the_log(tmp_path: Path) -> None:
    """Records equal the log byte for byte, and stay readable after the reader was closed."""
    await build(tmp_path)
    with StoreReader(tmp_path) as reader:
        found = list(reader.records("Six", 1, 3, 5))
    assert [unit.queue_offset for unit, _ in found] == [3, 4]
    for unit, record in found:
        name, byte = log_place(unit.physical_offset)
        assert record == (tmp_path / name).read_bytes()[byte : byte + unit.size_bytes]


async def test_a_new_segment_is_found(tmp_path: Path) -> None:
    """A reader opened before the broker began the next log file finds that file."""
    async with running(make(tmp_path)) as store:
        store.append([message(body=b"x" * 900)])
        with StoreReader(tmp_path) as reader:
            assert len(list(reader.messages("Orders", 0))) == 1
            store.append([message(body=b"x" * 900) for _ in range(100)])
            assert store.end_offset > SEGMENT_BYTES
            assert len(list(reader.messages("Orders", 0))) == 101


async def test_records_that_retention_deletes_while_they_are_read_are_left_out(tmp_path: Path) -> None:
    """Deleted records are left out by reads of the log and of the queue; files already mapped are read to
    their end."""
    messages = (await build(tmp_path))["Bills", 0]
    kept = [found.queue_offset for found in messages if found.physical_offset >= SEGMENT_BYTES]
    with StoreReader(tmp_path) as reader:
        assert reader.log.min_offset == 0
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        (tmp_path / "consumequeue" / "Bills" / "0" / f"{0:020d}").unlink()
        assert [found.queue_offset for found in reader.messages("Bills", 0)] == kept
        assert reader.log.min_offset == SEGMENT_BYTES
    with StoreReader(tmp_path) as reader:
        (tmp_path / "consumequeue" / "Bills" / "0" / f"{200:020d}").unlink()
        assert next(iter(reader.queue("Bills", 0).units(0, 100))).queue_offset == 20


async def test_a_file_that_was_put_in_the_place_of_another(tmp_path: Path) -> None:
    """After `refresh` the new one is read; slices of the old one stay what they were."""
    found = (await build(tmp_path))["Bills", 0][3]
    with StoreReader(tmp_path) as reader:
        old = reader.log.record(found.physical_offset, found.size_bytes)
        path = tmp_path / log_place(found.physical_offset)[0]
        (tmp_path / "other").write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
        (tmp_path / "other").rename(path)
        reader.log.refresh()
        new = reader.log.record(found.physical_offset, found.size_bytes)
        assert old is not None
        assert new is not None
        assert bytes(new) == bytes(byte ^ 0xFF for byte in old)


async def test_errors_of_the_system_name_the_file(tmp_path: Path) -> None:
    """Read errors have the file's name too, which the system does not give."""
    await build(tmp_path)
    path = tmp_path / unit_place("Bills", 0, 0)[0]
    path.unlink()
    path.mkdir()
    with StoreReader(tmp_path) as reader, pytest.raises(IsADirectoryError) as caught:
        reader.queue("Bills", 0).data(0, 5)
    assert caught.value.filename == str(path)


async def test_filler_is_left_out(tmp_path: Path) -> None:
    """A unit without a record is left out."""
    await build(tmp_path)
    name, byte = unit_place("Bills", 0, 4)
    change(tmp_path / name, byte, bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8))
    with StoreReader(tmp_path) as reader:
        assert [found.queue_offset for found in reader.messages("Bills", 0, 0, 7)] == [0, 1, 2, 3, 5, 6]


async def test_damage_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place of a body that does not match its CRC, and of a unit that points to another
    record."""
    looked: list[float] = []
    monkeypatch.setattr("rmqkit_store_mmap.readonly.readonly.time", SimpleNamespace(sleep=looked.append))
    queues = await build(tmp_path)
    name, byte = log_place(queues["Six", 1][6].physical_offset)
    flip(tmp_path / name, byte + 102)
    name, byte = unit_place("Six", 1, 8)
    change(tmp_path / name, byte + 7, bytes(((queues["Six", 1][8].physical_offset + 1) & 0xFF,)))
    with StoreReader(tmp_path) as reader:
        with pytest.raises(StoreCorrupt, match=r"queue offset 6 of Six queue 1: at log offset .* CRC"):
            list(reader.messages("Six", 1))
        assert len(looked) == 2
        with pytest.raises(StoreCorrupt, match="queue offset 8 of Six queue 1"):
            list(reader.messages("Six", 1, 7))


async def test_a_record_that_is_being_written_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that looks torn may be complete a moment later, so it is read again."""
    queues = await build(tmp_path)
    name, byte = log_place(queues["Six", 1][6].physical_offset)
    flip(tmp_path / name, byte + 102)
    monkeypatch.setattr(
        "rmqkit_store_mmap.readonly.readonly.time",
        SimpleNamespace(sleep=lambda _: flip(tmp_path / name, byte + 102)),
    )
    with StoreReader(tmp_path) as reader:
        assert len(list(reader.messages("Six", 1))) == len(queues["Six", 1])


async def test_what_is_not_there(tmp_path: Path) -> None:
    """Directories and queues that do not exist; a topic name that leads out of the store; a log kept
    elsewhere."""
    with pytest.raises(StoreError, match="is not a message store"):
        StoreReader(tmp_path)
    await build(tmp_path / "store")
    with StoreReader(tmp_path / "store") as reader:
        for topic, queue_id in (("Nothing", 0), ("Orders", 99), ("../index", 0), ("Orders/1", 0)):
            with pytest.raises(StoreError, match="has no queue"):
                reader.queue(topic, queue_id)
    (tmp_path / "store" / "commitlog").rename(tmp_path / "log")
    with StoreReader(tmp_path / "store", tmp_path / "log") as reader:
        assert len(list(reader.messages("Bills", 0))) > 100


async def test_a_cut_or_empty_file_is_no_end_of_the_world(tmp_path: Path) -> None:
    """Records lost with a truncated segment are left out; an empty file that is just being created is
    ignored."""
    queues = await build(tmp_path)
    cut(tmp_path / "commitlog" / f"{0:020d}", SEGMENT_BYTES // 2)
    last = max((tmp_path / "consumequeue" / "Bills" / "0").iterdir())
    (last.parent / f"{int(last.name) + 200:020d}").touch()
    lost = [
        found for found in queues["Bills", 0] if found.physical_offset + found.size_bytes > SEGMENT_BYTES // 2
    ]
    lost = [found for found in lost if found.physical_offset < SEGMENT_BYTES]
    with StoreReader(tmp_path) as reader:
        assert len(list(reader.messages("Bills", 0))) == len(queues["Bills", 0]) - len(lost)


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Closing the reader closes all its files."""
    await build(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with StoreReader(tmp_path) as reader:
        for topic, queue_ids in reader.topics().items():
            for queue_id in queue_ids:
                for _ in reader.records(topic, queue_id):
                    pass
    del _
    assert len(os.listdir("/proc/self/fd")) == before
