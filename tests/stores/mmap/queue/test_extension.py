"""Extensions of consume queues (enableConsumeQueueExt): those of Java are read, and ours have its form."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from rmqkit.errors import StoreCorrupt
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import ExtensionFilter, ReadStatus, UnitExtension
from rmqkit.protocol.tags import tags_code
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    FlushWhenWanted,
    contents,
    message,
    records,
    running,
    store_config,
)
from rmqkit_delay.levels import delivery_time_of, parse_levels
from rmqkit_filter.tag import TagCodes
from rmqkit_store_mmap.queue.extension import reader
from rmqkit_store_mmap.queue.units import UNIT
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.verify import Verifier
from tests.stores.crashes import FIRST, make, write_at
from tests.stores.disks import Forgetful

_ADDRESSES_FROM = -(1 << 63)
#: Slots of an index file, as `make` sets them.
_SLOTS = 1_000
#: Files with room for four extensions without bit maps.
_SIZES: dict[str, Any] = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 100}


def extension_files(directory: Path, topic: str = "Orders", queue_id: int = 0) -> list[Path]:
    return sorted((directory / "consumequeue_ext" / topic / str(queue_id)).glob("*"))


def unit_codes(directory: Path, topic: str = "Orders", queue_id: int = 0) -> list[int]:
    """The tags codes in the files of a queue."""
    files = sorted((directory / "consumequeue" / topic / str(queue_id)).iterdir())
    units = UNIT.iter_unpack(b"".join(path.read_bytes() for path in files))
    return [code for _, size, code in units if size]


def tags_of(store: MmapStore, offset: int, tag: str) -> list[int]:
    """The queue offsets that a consumer of a tag gets."""
    codes = TagCodes(frozenset((tags_code(tag) & 0xFFFFFFFF,)))
    return [each.queue_offset for each in records(store.read("Orders", 0, offset, ALL, codes))]


def tagged(count: int, first: int = 0) -> list[PutMessage]:
    return [message(body=b"%d" % number, tag=f"t{number % 3}") for number in range(first, first + count)]


def damage_of(directory: Path) -> object:
    with StoreReader(directory) as store:
        return Verifier(store, {}, _SLOTS).run().damage


async def java_directory(directory: Path, count: int) -> None:
    """A directory as Java with enableConsumeQueueExt leaves it, with a bit map of two bytes in every unit."""
    async with running(make(directory)) as store:
        store.append(tagged(count))
    units, extension = b"", b""
    for number, (offset, size, code) in enumerate(
        UNIT.iter_unpack((directory / "consumequeue/Orders/0" / FIRST).read_bytes()[: count * 20])
    ):
        units += UNIT.pack(offset, size, len(extension) + _ADDRESSES_FROM)
        extension += pack(">hqqh2s", 22, code, 1_000 + number, 2, bytes((number, 0)))
    write_at(directory / "consumequeue/Orders/0" / FIRST, 0, units)
    files = directory / "consumequeue_ext/Orders/0"
    files.mkdir(parents=True)
    (files / FIRST).write_bytes(extension.ljust(4_096, b"\0"))


JAVA_SIZE: dict[str, Any] = {"mapped_file_size_consume_queue_ext": 4_096}


@pytest.mark.parametrize("enabled", [False, True])
async def test_tags_are_read_from_the_extension_of_java(tmp_path: Path, enabled: bool) -> None:
    """Whether the setting is on or off: the consumer of a tag gets its messages alone, and units have the
    hash of their tags."""
    await java_directory(tmp_path, 9)
    assert damage_of(tmp_path) is None
    async with running(make(tmp_path, enable_consume_queue_ext=enabled, **JAVA_SIZE)) as store:
        assert tags_of(store, 0, "t1") == [1, 4, 7]
        units = store.read_units("Orders", 0, 0, 9)
        assert [unit.tags_code for unit in units] == [tags_code(f"t{number % 3}") for number in range(9)]
        store.append(tagged(3, first=9))
        assert tags_of(store, 0, "t1") == [1, 4, 7, 10]
        assert [code < -(1 << 31) for code in unit_codes(tmp_path)[9:]] == [enabled] * 3
    assert damage_of(tmp_path) is None


async def test_a_message_without_its_extension_matches_every_tag(tmp_path: Path) -> None:
    """Consumers compare the text of the tags; the code of the unit is computed from the record."""
    await java_directory(tmp_path, 6)
    write_at(extension_files(tmp_path)[0], 22 * 3, bytes(44))
    async with running(make(tmp_path, **JAVA_SIZE)) as store:
        assert tags_of(store, 0, "t1") == [1, 3, 4]
        codes = [unit.tags_code for unit in store.read_units("Orders", 0, 0, 6)]
        assert codes == [tags_code(f"t{number % 3}") for number in range(6)]
    shutil.rmtree(tmp_path / "consumequeue_ext")
    async with running(make(tmp_path)) as store:
        assert tags_of(store, 0, "t1") == list(range(6))


async def test_an_extension_that_is_wrong_is_damage(tmp_path: Path) -> None:
    """`rmqkit store verify` compares the tags code in the extension with the record."""
    await java_directory(tmp_path, 6)
    write_at(extension_files(tmp_path)[0], 22 * 3 + 2, bytes(8))
    assert "tags code 0" in str(damage_of(tmp_path))


async def test_files_of_another_length_are_named(tmp_path: Path) -> None:
    """The setting must have the value of the broker that wrote them."""
    await java_directory(tmp_path, 3)
    with pytest.raises(StoreCorrupt, match="mappedFileSizeConsumeQueueExt says 100"):
        async with running(make(tmp_path, **_SIZES)):
            pass


class Bits(ExtensionFilter):
    """Matches messages without a bit map, or with the first bit of one; keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[UnitExtension] = []

    def __call__(self, tags_code: int) -> bool:
        return True

    def extended(self, extension: UnitExtension) -> bool:
        self.seen.append(extension)
        return not extension.bit_map or bool(extension.bit_map[0] & 1)


async def test_a_filter_of_bit_maps_gets_the_extensions(tmp_path: Path) -> None:
    """Such a filter decides by the bit map and the store time."""
    await java_directory(tmp_path, 6)
    async with running(make(tmp_path, **JAVA_SIZE)) as store:
        bits = Bits()
        found = records(store.read("Orders", 0, 1, ALL, bits))
        assert [each.queue_offset for each in found] == [1, 3, 5]
        assert bits.seen[0] == UnitExtension(tags_code("t1"), 1_001, b"\x01\0")
        assert store.read("Orders", 0, 2, ALL._replace(max_scanned_units=1), bits).status is (
            ReadStatus.FOUND
        )


async def test_delivery_times_are_in_the_extension(tmp_path: Path) -> None:
    """Also in the queues of delay levels; one that is lost is computed from the record."""
    codes = {SCHEDULE_TOPIC: delivery_time_of(parse_levels("1s 5s"))}
    store = make(tmp_path, **_SIZES)
    store.queue_codes = codes
    async with running(store):
        delayed = [message(SCHEDULE_TOPIC, 1) for _ in range(3)]
        for each in delayed:
            each.set_properties(each.properties | {"DELAY": "2"})
        store.append(delayed)
        times = [unit.tags_code for unit in store.read_units(SCHEDULE_TOPIC, 1, 0, 3)]
        assert times == [store.store_time(SCHEDULE_TOPIC, 1, 0) + 5_000] * 3
        write_at(extension_files(tmp_path, SCHEDULE_TOPIC, 1)[0], 20, bytes(20))
        assert [unit.tags_code for unit in store.read_units(SCHEDULE_TOPIC, 1, 0, 3)] == times


async def test_the_files_have_the_form_of_java(tmp_path: Path) -> None:
    """Four units fit into a file of 100 bytes, because its last four bytes are not used; -1 ends a file."""
    async with running(make(tmp_path, **_SIZES)) as store:
        store.append(tagged(3))
        store.append(tagged(3, first=3))
        now = store.store_time("Orders", 0, 0)
    first, second = extension_files(tmp_path)
    assert [first.name, second.name] == [FIRST, f"{100:020d}"]
    units = [pack(">hqqh", 20, tags_code(f"t{number % 3}"), now, 0) for number in range(6)]
    assert first.read_bytes() == b"".join(units[:4]) + b"\xff\xff" + bytes(18)
    assert second.read_bytes() == b"".join(units[4:]) + bytes(60)
    assert unit_codes(tmp_path) == [_ADDRESSES_FROM + at for at in (0, 20, 40, 60, 100, 120)]
    assert damage_of(tmp_path) is None


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_restart_continues_behind_the_last_unit(tmp_path: Path, crashed: bool) -> None:
    """After a clean stop and after a crash; what was behind the last address in the queue is removed."""
    live = tmp_path / "live"
    async with running(make(live, **_SIZES)) as store:
        store.append(tagged(6))
        if crashed:
            shutil.copytree(live, tmp_path / "copy")
    directory = tmp_path / "copy" if crashed else live
    write_at(extension_files(directory)[1], 40, b"\1" * 30)
    (extension_files(directory)[1].parent / f"{200:020d}").write_bytes(b"\1" * 100)
    async with running(make(directory, **_SIZES)) as store:
        store.append(tagged(1, first=6))
        assert tags_of(store, 0, "t0") == [0, 3, 6]
    assert unit_codes(directory)[-1] == _ADDRESSES_FROM + 140
    assert [path.name for path in extension_files(directory)] == [FIRST, f"{100:020d}"]
    assert extension_files(directory)[1].read_bytes()[60:] == bytes(40)
    assert damage_of(directory) is None


async def test_a_crash_without_the_queue_makes_the_extension_again(tmp_path: Path) -> None:
    """Queues that are made from the log get extensions with the store times of the records."""
    async with running(make(tmp_path, **_SIZES)) as store:
        store.append(tagged(6))
        before = contents(store)
    shutil.rmtree(tmp_path / "consumequeue")
    async with running(make(tmp_path, **_SIZES)) as store:
        assert contents(store) == before
        assert tags_of(store, 0, "t2") == [2, 5]
        now = store.store_time("Orders", 0, 0)
    look_up = reader(tmp_path, "Orders", 0)
    assert [look_up(code) for code in unit_codes(tmp_path)] == [
        UnitExtension(tags_code(f"t{number % 3}"), now, b"") for number in range(6)
    ]


async def test_a_truncation_truncates_the_extension(tmp_path: Path) -> None:
    """The next unit takes the address of the first removed one."""
    async with running(make(tmp_path, **_SIZES)) as store:
        results = store.append(tagged(9))
        await store.truncate(results[5].physical_offset)
        assert [path.name for path in extension_files(tmp_path)] == [FIRST, f"{100:020d}"]
        store.append(tagged(2, first=1))
        assert tags_of(store, 0, "t1") == [1, 4, 5]
    assert unit_codes(tmp_path)[4:] == [_ADDRESSES_FROM + at for at in (100, 120, 140)]
    assert damage_of(tmp_path) is None


async def test_raw_log_of_another_broker_gets_extensions(tmp_path: Path) -> None:
    """A slave with the setting writes them as well."""
    async with running(make(tmp_path / "master")) as master:
        master.append(tagged(5))
        log = bytes(master.read_log(0, 1 << 20))
    async with running(make(tmp_path / "slave", **_SIZES)) as slave:
        slave.append_log(0, log)
        assert tags_of(slave, 0, "t1") == [1, 4]
    assert all(code < -(1 << 31) for code in unit_codes(tmp_path / "slave"))


async def test_retention_deletes_the_files_of_removed_messages(tmp_path: Path) -> None:
    """Files before the first message that is left are deleted."""
    async with running(make(tmp_path, **_SIZES)) as store:
        for number in range(120):
            store.append([message(body=bytes(900), tag=f"t{number % 3}")])
        await store.settled(store.end_offset, Level.FLUSHED)
        assert len(extension_files(tmp_path)) == 30
        assert (await store.trim(store.end_offset)).log_start > 0
        first = store.min_offset("Orders", 0)
        assert first > 0
        assert extension_files(tmp_path)[0].name == f"{first // 4 * 100:020d}"
        assert tags_of(store, first, "t1") == [number for number in range(first, 120) if number % 3 == 1]


async def test_deleted_queues_lose_their_extension(tmp_path: Path) -> None:
    """A topic that is created again begins with an empty extension."""
    async with running(make(tmp_path, **_SIZES)) as store:
        store.append([*tagged(6), message("Orders", 1), message("Others")])
        store.delete_queue("Orders", 1)
        assert not extension_files(tmp_path, "Orders", 1)
        store.delete_topic("Orders")
        assert not (tmp_path / "consumequeue_ext/Orders").exists()
        assert extension_files(tmp_path, "Others")
        store.append(tagged(1))
    assert unit_codes(tmp_path) == [_ADDRESSES_FROM]


class Recording(Forgetful):
    """Notes what is flushed by name."""

    def __init__(self) -> None:
        self.flushed: list[Path] = []

    def sync_path(self, path: Path) -> None:
        self.flushed.append(path)


async def test_extensions_are_flushed_before_the_units_that_refer_to_them(tmp_path: Path) -> None:
    """With their directories; after a power failure no unit of the queue refers to what was never written."""
    disk = Recording()
    store = MmapStore(store_config(tmp_path, **(SMALL | _SIZES)), FakeClock(), FlushWhenWanted(), disk=disk)
    async with running(store):
        store.append(tagged(6))
        disk.flushed.clear()
        await store._rounds.flush(thorough=True)
        names = [path.relative_to(tmp_path).as_posix() for path in disk.flushed]
    first, second = (f"consumequeue_ext/Orders/0/{base:020d}" for base in (0, 100))
    unit = names.index(f"consumequeue/Orders/0/{FIRST}")
    wanted = [first, second, "consumequeue_ext/Orders/0", "consumequeue_ext/Orders", "consumequeue_ext", "."]
    assert all(name in names[:unit] for name in wanted), names


class FullForExtensions(Forgetful):
    """A disk on which the extension cannot be written while `full`."""

    full = False

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.full and all(len(part) % 20 == 0 for part in parts) and len(parts[0]) <= 80:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, parts, offset)


async def test_a_full_disk_costs_extensions_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The units then have their tags codes, the fault is logged once, and later units have extensions."""
    disk = FullForExtensions()
    store = MmapStore(store_config(tmp_path, **(SMALL | _SIZES)), FakeClock(), FlushWhenWanted(), disk=disk)
    async with running(store):
        store.append(tagged(2))
        disk.full = True
        store.append(tagged(1, first=2))
        store.append(tagged(1, first=3))
        disk.full = False
        store.append(tagged(1, first=4))
        assert tags_of(store, 0, "t1") == [1, 4]
    assert [code < -(1 << 31) for code in unit_codes(tmp_path)] == [True, True, False, False, True]
    assert caplog.text.count("new units have no extension") == 1
