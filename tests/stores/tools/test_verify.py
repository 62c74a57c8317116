"""`rmqkit store verify` accepts a sound store and finds each kind of damage with its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import trio

from rmqkit.errors import ConfigError
from rmqkit.model.names import SCHEDULE_TOPIC, lite_queue
from rmqkit.model.sysflag import INNER_BATCH
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import message, running
from rmqkit_store_mmap.queue.queue_reader import QueueReader
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.log_check import LogCheck
from rmqkit_store_mmap.tools.verify import Verifier
from tests.stores.tools.harms import HARMS, Queues
from tests.stores.tools.kit import (
    ENTRIES_AT,
    LEVELS_MS,
    LONG_TOPIC,
    QUEUE_CODES,
    SEGMENT_BYTES,
    build,
    change,
    delayed,
    flip,
    index_files,
    log_place,
    make,
    place,
    unit_place,
    verify,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Queues]:
    """A closed store of several segments, queue files and index files; to be copied, not changed."""

    directory = tmp_path_factory.mktemp("sound") / "store"
    return directory, trio.run(build, directory)


def test_a_sound_store_has_no_damage(sound: tuple[Path, Queues]) -> None:
    """Every record, unit and entry is counted: V2 and IPv6 records, delay units, records without a place
    in a queue, keys over several files."""
    root, queues = sound
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }
    outcome = verify(root)
    assert outcome.damage is None
    assert (outcome.in_use, outcome.holder, outcome.abort, outcome.notes, outcome.superseded) == (
        False,
        None,
        False,
        [],
        0,
    )
    queued = sum(map(len, queues.values()))
    assert outcome.units == queued > 1000
    assert outcome.records == queued + 2  # one prepared, one rolled back
    # 3 keys in Orders, 1 in Bills, Six and the schedule topic, and "x" twice: the rolled-back message has
    # none.
    assert outcome.index_entries == 180 * 6 + 2
    assert outcome.log_bytes > 3 * SEGMENT_BYTES
    assert len(index_files(root)) == 10
    assert (LONG_TOPIC, 0) in queues
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("name", HARMS)
def test_damage_is_found_where_it_is(sound: tuple[Path, Queues], tmp_path: Path, name: str) -> None:
    """The first damaged place is reported: file, first byte of the damaged item, and what is wrong."""
    root = tmp_path / "store"
    shutil.copytree(sound[0], root)
    where, words = HARMS[name](root, sound[1])
    outcome = verify(root)
    assert place(outcome, root) == where
    assert outcome.damage is not None
    assert words in outcome.damage.what


def test_bits_flipped_anywhere_in_records_units_and_entries_are_found(
    sound: tuple[Path, Queues], tmp_path: Path
) -> None:
    """A changed bit is found in every byte of a unit or entry, and in every byte of a record's position
    fields."""
    root = tmp_path / "store"
    shutil.copytree(sound[0], root)
    found = sound[1]["Bills", 0][20]
    record, at = log_place(found.physical_offset)
    unit, unit_at = unit_place("Bills", 0, 20)
    index = f"index/{index_files(root)[1].name}"
    # The CRC of an empty body; flag; system flag, times, hosts, reconsume times, prepared offset.
    uncovered = {*range(8, 12), *range(16, 20), *range(36, 84)}
    spots = [(record, at + byte) for byte in range(96) if byte not in uncovered]
    spots += [(unit, unit_at + byte) for byte in range(20)]
    spots += [(index, ENTRIES_AT + 20 * 7 + byte) for byte in range(20)]
    for name, byte in spots:
        flip(root / name, byte)
        assert verify(root).damage is not None, (name, byte, at, unit_at)
        flip(root / name, byte)
    assert verify(root).damage is None


async def test_a_killed_broker_leaves_no_damage(tmp_path: Path) -> None:
    """The directory of a killed process is sound as far as it was written, and the next start's directory can
    be verified too."""
    clock = FakeClock()
    async with running(make(tmp_path / "live", clock)) as store:
        for number in range(300):
            clock.advance(100)
            store.append([message(body=b"x" * number, keys=f"k{number} l{number}", tag="t")])
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    outcome = verify(tmp_path / "killed")
    assert outcome.damage is None
    assert (outcome.abort, outcome.in_use, outcome.records, outcome.units) == (True, False, 300, 300)
    async with running(make(tmp_path / "killed", clock)):
        pass
    again = verify(tmp_path / "killed")
    assert (again.damage, again.abort, again.records, again.units, again.index_entries) == (
        None,
        False,
        300,
        300,
        600,
    )


async def test_a_kill_between_unit_and_record_is_noted(tmp_path: Path) -> None:
    """Units of records that are missing in the log are left to the next start while `abort` exists; without
    it they are damage."""
    async with running(make(tmp_path)) as store:
        (last,) = store.append([message(), message()])[1:]
    (tmp_path / "abort").touch()
    change(tmp_path / "commitlog" / f"{0:020d}", last.physical_offset, bytes(last.size_bytes))
    outcome = verify(tmp_path)
    assert outcome.damage is None
    assert outcome.notes == ["1 queue units are of records that have not got into the log"]
    (tmp_path / "abort").unlink()
    assert place(verify(tmp_path), tmp_path) == unit_place("Orders", 0, 1)


async def test_a_torn_end_is_noted(tmp_path: Path) -> None:
    """Bytes after the last record that no queue refers to are the trace of a crash; the next start removes
    them."""
    async with running(make(tmp_path)) as store:
        (last,) = store.append([message()])
    (tmp_path / "abort").touch()
    change(tmp_path / "commitlog" / f"{0:020d}", last.size_bytes, b"\0\0\0\x7f\xda\xa3\x20\xa7")
    outcome = verify(tmp_path)
    assert outcome.damage is None
    assert len(outcome.notes) == 1
    assert (
        f"byte {last.size_bytes}: the bytes behind the last record are not a record; the next start cuts"
        " them off" in outcome.notes[0]
    )


async def test_an_open_store_is_verified_and_said_to_be_in_use(tmp_path: Path) -> None:
    """The process with the lock keeps it; keys that wait to be indexed are not damage."""
    async with running(make(tmp_path)) as store:
        store.append([message(keys=f"k{number}") for number in range(50)])
        outcome = verify(tmp_path)
        assert (outcome.damage, outcome.in_use, outcome.holder, outcome.abort, outcome.units) == (
            None,
            True,
            os.getpid(),
            True,
            50,
        )
        store.append([message()])
        assert verify(tmp_path).units == 51
        flip(tmp_path / "commitlog" / f"{0:020d}", 90)
        assert place(verify(tmp_path), tmp_path) == (f"commitlog/{0:020d}", 0)
        flip(tmp_path / "commitlog" / f"{0:020d}", 90)


async def test_what_is_appended_during_the_walk_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units, keys, new queues and new segments that appear after the walk began are accepted."""
    walk = LogCheck.run
    async with running(make(tmp_path)) as store:

        def append_and_walk(self: LogCheck) -> int:
            for number in range(400):
                store.append(
                    [message("Orders", number % 3, b"y" * 300, keys=f"n{number}"), message("New", 0)]
                )
            store._index.drain(10_000)
            return walk(self)

        store.append([message(body=b"x" * 300, keys="k") for _ in range(50)])
        store._index.drain(10_000)
        monkeypatch.setattr(LogCheck, "run", append_and_walk)
        outcome = verify(tmp_path)
        assert (outcome.damage, outcome.units, outcome.index_entries) == (None, 50, 50)
        assert outcome.records > 50


async def test_what_is_appended_while_queues_are_looked_up_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue read late may refer to records after those of queues read early, and may not have existed at
    the beginning."""
    look_up = StoreReader.queue
    async with running(make(tmp_path)) as store:

        def look_up_and_append(self: StoreReader, topic: str, queue_id: int) -> QueueReader:
            found = look_up(self, topic, queue_id)
            store.append(
                [
                    message(name, number, keys="k")
                    for name in ("Late", "Orders", "Seldom")
                    for number in range(3)
                ]
            )
            return found

        store.append([message("Orders", number) for number in range(3)])
        monkeypatch.setattr(StoreReader, "queue", look_up_and_append)
        outcome = verify(tmp_path)
        monkeypatch.undo()
        assert outcome.damage is None
        assert outcome.records > 27
        assert (verify(tmp_path).damage, verify(tmp_path).notes) == (None, [])


async def test_retention_leaves_no_damage(tmp_path: Path) -> None:
    """Units and entries of records in deleted segments are skipped."""
    await build(tmp_path)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    outcome = verify(tmp_path)
    assert outcome.damage is None
    assert 0 < outcome.units < 900
    with StoreReader(tmp_path) as store:
        assert store.log.min_offset == SEGMENT_BYTES
        first = next(store.messages("Orders", 0))
        assert first.physical_offset >= SEGMENT_BYTES
        assert first.queue_offset == store.queue("Orders", 0).min_offset(SEGMENT_BYTES)


async def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    """The records of the deleted topic stay in the log without units; they are counted, not reported as
    damage."""
    async with running(make(tmp_path)) as store:
        store.append([message("Twice") for _ in range(12)] + [message("Gone"), message("Stays")])
        store.delete_topic("Twice")
        store.delete_topic("Gone")
        store.append([message("Twice") for _ in range(5)])
    outcome = verify(tmp_path)
    assert outcome.damage is None
    assert (outcome.records, outcome.units) == (19, 6)
    assert outcome.superseded > 0
    assert outcome.notes == ["topics that have records but no queues, as after they were deleted: Gone"]


async def test_a_topic_of_the_brokers_table_must_have_queues(tmp_path: Path) -> None:
    """With topics.json a lost directory is distinguished from a deleted topic."""
    async with running(make(tmp_path)) as store:
        store.append([message("Lost"), message("Stays")])
    shutil.rmtree(tmp_path / "consumequeue" / "Lost")
    assert verify(tmp_path).damage is None
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"Lost":{"topicName":"Lost"}}}')
    assert place(verify(tmp_path), tmp_path) == ("consumequeue/Lost/0", 0)


async def test_a_queue_may_begin_with_filler(tmp_path: Path) -> None:
    """This happens when a queue was built again from a log that retention had shortened."""
    await build(tmp_path)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    async with running(make(tmp_path)) as store:
        low = store.min_offset("Orders", 0)
    outcome = verify(tmp_path)
    assert outcome.damage is None
    with StoreReader(tmp_path) as reader:
        assert reader.queue("Orders", 0).min_offset(reader.log.min_offset) == low > 10


async def test_a_delivery_time_that_is_off_by_a_millisecond_is_damage(tmp_path: Path) -> None:
    """A unit of the schedule topic holds exactly the store time of its record plus the delay of its level."""
    clock = FakeClock()
    async with running(make(tmp_path, clock)) as store:
        store.append([delayed(2), delayed(2)])
    assert verify(tmp_path).damage is None
    name, byte = unit_place(SCHEDULE_TOPIC, 1, 1)
    change(tmp_path / name, byte + 12, (clock.now_ms() + LEVELS_MS[1] - 1).to_bytes(8, "big"))
    assert place(verify(tmp_path), tmp_path) == (name, byte)


class TickingClock(FakeClock):
    """A clock that advances by a millisecond at each reading."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


async def test_append_recovery_and_verify_agree_to_the_millisecond(tmp_path: Path) -> None:
    """Delivery times depend only on the recorded store time, however the clock advances: the store is sound,
    and units built again from its log are the same."""
    async with running(make(tmp_path, TickingClock())) as store:
        for _ in range(5):
            store.append([delayed(3), delayed(1), delayed(3)])
        units = store.read_units(SCHEDULE_TOPIC, 2, 0, 99)
    assert verify(tmp_path).damage is None
    shutil.rmtree(tmp_path / "consumequeue")
    async with running(make(tmp_path, TickingClock())) as store:
        assert store.read_units(SCHEDULE_TOPIC, 2, 0, 99) == units
    assert len(units) == 10
    assert verify(tmp_path).damage is None


async def test_a_tags_code_may_be_an_address_in_the_extension(tmp_path: Path) -> None:
    """Java with enableConsumeQueueExt writes numbers below any hash; without that directory they are
    damage."""
    async with running(make(tmp_path)) as store:
        store.append([message(tag="t")])
    name, byte = unit_place("Orders", 0, 0)
    change(tmp_path / name, byte + 12, b"\x80\0\0\0\0\0\0\x14")
    assert place(verify(tmp_path), tmp_path) == (name, byte)
    (tmp_path / "consumequeue_ext").mkdir()
    assert verify(tmp_path).damage is None


async def test_the_index_may_have_entries_for_tags(tmp_path: Path) -> None:
    """Java has written them since 5.5, behind those of the keys, also for messages without keys."""
    async with running(make(tmp_path)) as store:
        for keys in ("k1 k2", ""):
            (at,) = store.append([message(tag="t", keys=keys)])
            store._index.drain(99)
            code = store._queues.by_key["Orders", 0].head.key_code
            store._index.note(code, None, "T#t", at.physical_offset, at.store_timestamp_ms)
            store._index.drain(99)
    outcome = verify(tmp_path)
    assert (outcome.damage, outcome.index_entries) == (None, 4)


async def test_light_queues_and_inner_batches_are_passed_over(tmp_path: Path) -> None:
    """Units of light queues point to records of other topics; a batch stored as one record has its unit in
    batchconsumequeue."""
    async with running(make(tmp_path)) as store:
        store.append(
            [
                message("Orders", tag="t"),
                message("%LMQ%light", tag="other"),
                message("Batched", sys_flag=INNER_BATCH),
            ]
        )
    shutil.rmtree(tmp_path / "consumequeue" / "Batched")
    light = tmp_path / "consumequeue" / "%LMQ%light" / "0" / f"{0:020d}"
    change(light, 0, (tmp_path / "consumequeue" / "Orders" / "0" / f"{0:020d}").read_bytes()[:20])
    outcome = verify(tmp_path)
    assert (outcome.damage, outcome.records, outcome.units) == (None, 3, 1)


async def test_queues_of_lite_topics_are_checked_where_they_have_records(tmp_path: Path) -> None:
    """Those of this build have; Apache's point to records of the topic that has the lite topic. Damage to a
    unit is found."""
    queue = lite_queue("Orders", "alice")
    async with running(make(tmp_path)) as store:
        store.append([message("Orders"), message(queue, body=b"1"), message(queue, body=b"2")])
    directory = tmp_path / "consumequeue"
    shutil.copytree(directory / "Orders", directory / lite_queue("Orders", "bob"))
    outcome = verify(tmp_path)
    assert (outcome.damage, outcome.units) == (None, 3)
    flip(directory / queue / "0" / f"{0:020d}", 25)
    damage = verify(tmp_path).damage
    assert damage is not None
    assert "alice" in str(damage.path)


@pytest.mark.parametrize("number", [0, 4])
async def test_messages_that_java_left_out_of_the_index_are_counted(tmp_path: Path, number: int) -> None:
    """In a directory without a mark a gap in the index comes from a crash under Java; it is noted, with its
    first message."""
    queues = await build(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))
    files = index_files(tmp_path)
    offset = int.from_bytes(files[number].read_bytes()[16:24], "big")
    entries = verify(tmp_path).index_entries
    files[number].unlink()
    outcome = verify(tmp_path)
    assert outcome.damage is None
    (note,) = outcome.notes
    count, _, rest = note.partition(" ")
    # Keys of its first and its last record may be in a neighbouring file too.
    assert rest.startswith("messages from log offset ")
    assert offset <= int(rest.split()[4]) <= offset + 2_000
    assert 35 < int(count) < 119
    assert outcome.index_entries == entries - 119
    assert files[number + 1].name in rest
    assert len(queues) > 5


async def test_the_settings_must_fit_the_index(tmp_path: Path) -> None:
    """The number of slots is not written in the files."""
    await build(tmp_path)
    with StoreReader(tmp_path) as store, pytest.raises(ConfigError, match="--set maxHashSlotNum"):
        Verifier(store, QUEUE_CODES, 5_000_000).run()


async def test_a_store_without_index_or_messages(tmp_path: Path) -> None:
    """An empty store and a store without index are sound."""
    async with running(make(tmp_path / "empty")):
        pass
    assert verify(tmp_path / "empty").damage is None
    async with running(make(tmp_path / "plain", message_index_enable=False)) as store:
        store.append([message(keys="k")])
    outcome = verify(tmp_path / "plain")
    assert (outcome.damage, outcome.records, outcome.units, outcome.index_entries) == (None, 1, 1, 0)


async def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported bytes grow up to the total."""
    monkeypatch.setattr("rmqkit_store_mmap.tools.log_check._PROGRESS_RECORDS", 50)
    await build(tmp_path)
    told: list[tuple[int, int]] = []
    with StoreReader(tmp_path) as store:
        outcome = Verifier(store, QUEUE_CODES, 11, lambda done, total: told.append((done, total))).run()
    assert len(told) >= 8
    assert told == sorted(told)
    assert all(done <= total <= outcome.log_bytes for done, total in told)


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_topics_that_are_not_indexed(tmp_path: Path, rebuilt: bool) -> None:
    """Their keys are missing in the index, also after a crash for which it is built again; a verification
    with the setting accepts that."""
    unindexed = ("Orders",)
    async with running(make(tmp_path, unindexed_topics=unindexed)) as store:
        for topic in ("Orders", "Bills", "Orders", "Bills"):
            store.append([message(topic, keys="k"), message(topic, unique_key="U", keys="a b")])
    if rebuilt:
        (tmp_path / "abort").write_text("1")
        (tmp_path / "checkpoint").unlink()
        async with running(make(tmp_path, unindexed_topics=unindexed)) as again:
            assert again.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets == []
            assert len(again.query_by_key("Bills", "k", 0, 1 << 60, 9).physical_offsets) == 2
    outcome = verify(tmp_path, unindexed)
    assert (outcome.damage, outcome.records, outcome.index_entries) == (None, 8, 8)
    assert verify(tmp_path).damage is not None
