"""A mmap store without consume queues: offsets are assigned and recovered nevertheless, and the queues can be
switched on again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqkit.config import CONSUME_QUEUE, INDEX
from rmqkit.model.sysflag import TRANSACTION_PREPARED
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import NoKeys, NoQueues, ReadStatus
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    ALL,
    SMALL,
    FlushWhenWanted,
    NeverFlush,
    bodies,
    contents,
    message,
    running,
    store_config,
)
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.queue.queue_numbers import FILE_NAME
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.survey import survey
from rmqkit_store_mmap.tools.verify import Verifier
from tests.stores.disks import Forgetful


def make(directory: Path, *, queues: bool, **settings: Any) -> MmapStore:
    store = MmapStore(
        store_config(directory, **(SMALL | settings)), FakeClock(), FlushWhenWanted(), disk=Forgetful()
    )
    if not queues:
        store.use_external_consume_queue(NoQueues())
    return store


def next_offset(store: MmapStore, topic: str = "Orders", queue_id: int = 0) -> int:
    """The queue offset that the next message gets; uses it up."""
    return store.append([message(topic, queue_id)])[0].queue_offset


def kept(directory: Path) -> Any:
    return json.loads((directory / FILE_NAME).read_text())


async def test_nothing_is_kept_of_queues_but_their_numbers(tmp_path: Path) -> None:
    """There is no directory of queues, reads find nothing, and offsets continue after a stop; prepared
    messages have no queue offset."""
    for number in range(3):
        async with running(make(tmp_path, queues=False)) as store:
            results = store.append(
                [message(), message(queue_id=1), message(), message(sys_flag=TRANSACTION_PREPARED)]
            )
            assert [at.queue_offset for at in results] == [2 * number, number, 2 * number + 1, 0]
            assert store.queues() == {"Orders": [0, 1]}
            result = store.read("Orders", 0, 1, ALL, None)
            assert (result.status, result.next_offset, result.slices) == (
                ReadStatus.NO_MESSAGE_IN_QUEUE,
                0,
                [],
            )
            assert store.read("Nowhere", 0, 0, ALL, None).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
            assert (
                store.min_offset("Orders", 0),
                store.max_offset("Orders", 0),
                store.read_units("Orders", 0, 0, 9),
            ) == (0, 0, [])
            assert store.read_record(results[0].physical_offset) is not None
            assert all(path.is_dir() for path in store.disk_paths)
        assert not (tmp_path / "consumequeue").exists()
    assert kept(tmp_path) == {"logOffset": store.end_offset, "nextOffsets": {"Orders": {"0": 6, "1": 3}}}


async def test_more_messages_than_the_scratch_holds(tmp_path: Path) -> None:
    """Units of one append and of many reuse the same memory and are not kept."""
    async with running(make(tmp_path, queues=False)) as store:
        results = store.append([message(queue_id=number % 2) for number in range(2_000)])
        assert [at.queue_offset for at in results] == [number // 2 for number in range(2_000)]
        assert [next_offset(store) for _ in range(600)] == list(range(1_000, 1_600))


@pytest.mark.parametrize("saved_between", [True, False])
async def test_a_killed_process_forgets_no_number(tmp_path: Path, saved_between: bool) -> None:
    """Recovery counts the log from the numbers in the file on: for existing queues, new ones, and one that
    was deleted and created again."""
    async with running(make(tmp_path / "live", queues=False)) as store:
        store.append([message("Old"), message("Old"), message("Anew"), message("Anew")])
        if saved_between:
            await store._log.flush()
            await store._queues.flush(everything=True)
        saved = store.end_offset if saved_between else 0
        store.append([message("Old"), message("New"), message("New", 3)])
        store.delete_topic("Anew")
        store.append([message("Anew")])
        assert kept(tmp_path / "live")["logOffset"] == saved
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    async with running(make(tmp_path / "crashed", queues=False)) as store:
        assert [
            next_offset(store, *queue)
            for queue in (("Old", 0), ("New", 0), ("New", 3), ("Anew", 0), ("Other", 0))
        ] == [3, 1, 1, 1, 0]


async def test_the_file_is_never_ahead_of_the_device(tmp_path: Path) -> None:
    """Numbers of records that a power failure could take are written only once those are flushed, at the next
    round at the latest."""
    store = MmapStore(store_config(tmp_path, **SMALL), FakeClock(), NeverFlush(), disk=Forgetful())
    store.use_external_consume_queue(NoQueues())
    await store.open()
    store.append([message()])
    first = store.end_offset
    await store._queues.flush(everything=True)
    assert kept(tmp_path) == {"logOffset": 0, "nextOffsets": {}}
    await store._log.flush()
    store.append([message()])
    await store._queues.flush(everything=False)
    assert kept(tmp_path)["logOffset"] == 0
    await store._queues.flush(everything=True)
    assert kept(tmp_path) == {"logOffset": first, "nextOffsets": {"Orders": {"0": 1}}}
    await store._log.flush()
    await store._queues.flush(everything=True)
    assert kept(tmp_path) == {"logOffset": store.end_offset, "nextOffsets": {"Orders": {"0": 2}}}
    await store.close()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"logOffset": 1}', b'{"logOffset": 0, "nextOffsets": {"../x": {"0": 1}}}']
)
@pytest.mark.parametrize("crashed", [True, False])
async def test_a_damaged_file_costs_a_walk_through_the_log(
    tmp_path: Path, damage: bytes, crashed: bool
) -> None:
    """Every queue with a message in the log gets its number back."""
    async with running(make(tmp_path / "live", queues=False)) as store:
        store.append([message(queue_id=number % 3) for number in range(10)])
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    directory = tmp_path / ("crashed" if crashed else "live")
    (directory / FILE_NAME).write_bytes(damage)
    async with running(make(directory, queues=False)) as store:
        assert [next_offset(store, "Orders", queue_id) for queue_id in range(4)] == [4, 3, 3, 0]
    assert kept(directory)["nextOffsets"] == {"Orders": {"0": 5, "1": 4, "2": 4, "3": 1}}


async def test_a_log_that_was_cut_by_damage(tmp_path: Path) -> None:
    """When the index must be built from a log whose end is damaged, the log ends there; the queue offsets of
    the lost records are not used again."""
    async with running(make(tmp_path, queues=False)) as store:
        results = store.append([message(keys="k") for _ in range(5)])
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        for at in results[3:]:
            file.seek(at.physical_offset)
            file.write(bytes(20))
    shutil.rmtree(tmp_path / "index")
    async with running(make(tmp_path, queues=False)) as store:
        assert store.end_offset == results[3].physical_offset
        assert kept(tmp_path)["logOffset"] == store.end_offset
        assert next_offset(store) == 5
    assert kept(tmp_path) == {"logOffset": store.end_offset, "nextOffsets": {"Orders": {"0": 6}}}


async def test_what_another_broker_appended_counts(tmp_path: Path) -> None:
    """After Java has appended, the mark is missing and the log is longer; the log is counted from where the
    file's numbers were valid."""
    async with running(make(tmp_path / "ours", queues=False)) as store:
        store.append([message() for _ in range(3)])
        shutil.copytree(tmp_path / "ours" / "commitlog", tmp_path / "before")
    numbers = (tmp_path / "ours" / FILE_NAME).read_bytes()
    async with running(make(tmp_path / "ours", queues=True)) as store:
        store.append([message() for _ in range(4)])
    (tmp_path / "ours" / FILE_NAME).write_bytes(numbers)
    checkpoint = Checkpoint.load(tmp_path / "ours" / "checkpoint")
    checkpoint.mark = None
    checkpoint.write(Forgetful())
    async with running(make(tmp_path / "ours", queues=False)) as store:
        assert next_offset(store) == 7
    assert not (tmp_path / "ours" / "consumequeue").exists()


# --- off and on again ---------------------------------------------------------------------------------------


async def trimmed_store(directory: Path, **settings: Any) -> MmapStore:
    """A closed store with queues whose log was trimmed: all of Old, some of Orders."""
    async with running(make(directory, queues=True, **settings)) as store:
        store.append([message("Old") for _ in range(7)])
        for number in range(300):
            store.append([message(body=b"%d" % number * 100, queue_id=number % 2, keys=f"k{number}")])
        await store._log.flush()
        await store.trim((await store.log_parts())[0].end)
        assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (7, 7)
        assert store.min_offset("Orders", 0) > 0
    return store


async def test_off_and_on_again(tmp_path: Path) -> None:
    """The queues are deleted and built again from the log, including later messages; a queue without messages
    keeps its next offset, also in later starts."""
    await trimmed_store(tmp_path)
    async with running(make(tmp_path, queues=True)) as store:
        before = contents(store)
    async with running(make(tmp_path, queues=False)) as store:
        assert not (tmp_path / "consumequeue").exists()
        assert next_offset(store, "Orders", 0) == 150
        assert (store.queues(), store.max_offset("Old", 0)) == ({"Old": [0], "Orders": [0, 1]}, 0)
    for _ in range(2):
        async with running(make(tmp_path, queues=True)) as store:
            assert not (tmp_path / FILE_NAME).exists()
            after = contents(store)
            assert after["Old", 0] == before["Old", 0] == (7, 7, [], [])
            assert after["Orders", 1] == before["Orders", 1]
            low, high, messages, units = after["Orders", 0]
            assert (low, high, messages[:-1], units[:-1]) == (
                before["Orders", 0][0],
                151,
                *before["Orders", 0][2:],
            )
            assert len(store.query_by_key("Orders", "k299", 0, 1 << 60, 9).physical_offsets) == 1
    async with running(make(tmp_path, queues=True)) as store:
        assert next_offset(store, "Old") == 7
        assert len(bodies(store, "Old")) == 1
    with StoreReader(tmp_path) as reader:
        assert Verifier(reader, {}, 1_000).run().damage is None


@pytest.mark.parametrize("file_bytes", [20, 140, 200])
async def test_a_queue_without_messages_keeps_its_place_at_any_file_end(
    tmp_path: Path, file_bytes: int
) -> None:
    """When its next unit would begin a file, the file before it exists, full of filler."""
    await trimmed_store(tmp_path, mapped_file_size_consume_queue=file_bytes)
    async with running(make(tmp_path, queues=False, mapped_file_size_consume_queue=file_bytes)):
        pass
    for number in range(3):
        async with running(make(tmp_path, queues=True, mapped_file_size_consume_queue=file_bytes)) as store:
            assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (7, 7 + number)
            assert next_offset(store, "Old") == 7 + number


async def test_a_switch_that_was_cut_short(tmp_path: Path) -> None:
    """Whichever part of a switch was done when the process died, the next start completes it, in either
    direction."""
    await trimmed_store(tmp_path / "queues")
    shutil.copytree(tmp_path / "queues", tmp_path / "off")
    async with running(make(tmp_path / "off", queues=False)) as store:
        assert next_offset(store) == 150
    both = tmp_path / "both"
    shutil.copytree(tmp_path / "off", both)
    shutil.copytree(tmp_path / "queues" / "consumequeue", both / "consumequeue")
    for queues in (False, True):
        directory = tmp_path / f"ended{queues}"
        shutil.copytree(both, directory)
        async with running(make(directory, queues=queues)) as store:
            assert [next_offset(store, *queue) for queue in (("Orders", 0), ("Orders", 1), ("Old", 0))] == [
                151,
                150,
                7,
            ]
        assert (directory / "consumequeue").exists() == queues
        assert (directory / FILE_NAME).exists() != queues


async def thorough_round(store: MmapStore) -> None:
    """What the background does every ten seconds: trimming removes only what is older."""
    mark = store._queues.new_mark(store.end_offset)
    await store._queues.flush(everything=True)
    store._queues.mark = mark
    store.write_checkpoint()


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_of_switches_and_crashes(tmp_path: Path, seed: int) -> None:
    """Through stops and kills, with and without queues, every message gets the next offset of its queue, and
    the queues are complete when they are on."""
    random = Random(seed)
    expected: dict[tuple[str, int], int] = {}
    directory = tmp_path / "0"
    for life in range(12):
        queues = random.random() < 0.5
        async with running(make(directory, queues=queues)) as store:
            if queues:
                found = contents(store)
                assert {queue: high for queue, (_, high, _, _) in found.items()} == expected
                for low, high, messages, _ in found.values():
                    assert [each.queue_offset for each in messages] == list(range(low, high))
            for _ in range(random.randrange(1, 30)):
                queue = (random.choice("ABC"), random.randrange(2))
                size = random.randrange(900)
                assert store.append([message(*queue, b"x" * size)])[0].queue_offset == expected.get(queue, 0)
                expected[queue] = expected.get(queue, 0) + 1
                if random.random() < 0.05:
                    await store._log.flush()
                    await store._queues.flush(everything=True)
            if random.random() < 0.3:
                await store.settled(store.end_offset, Level.FLUSHED)
                if queues:
                    await thorough_round(store)
                parts = await store.log_parts()
                if parts:
                    await store.trim(parts[0].end)
            if random.random() < 0.5:
                directory = tmp_path / f"{life + 1}"
                shutil.copytree(tmp_path / store._root.name, directory)


# --- what people see ----------------------------------------------------------------------------------------


async def test_tools_know_a_store_without_queues(tmp_path: Path) -> None:
    """The tools do not report missing queues or the file of numbers as damage."""
    async with running(make(tmp_path, queues=False)) as store:
        store.append([message(keys="k") for _ in range(5)])
    with StoreReader(tmp_path) as reader:
        outcome = Verifier(reader, {}, 1_000).run()
        assert (outcome.damage, outcome.records, outcome.index_entries) == (None, 5, 5)
        assert survey(reader)["others"] == []


async def test_how_far_queues_and_index_are(tmp_path: Path) -> None:
    """Queues are written with the append, the index a little later; parts that are left out are not
    reported."""
    store = make(tmp_path, queues=True)
    await store.open()
    assert store.dispatch_behind() == {CONSUME_QUEUE: 0, INDEX: 0}
    store.append([message(), message(keys="k"), message()])
    first = store.read_units("Orders", 0, 1, 1)[0].physical_offset
    assert store.dispatch_behind() == {CONSUME_QUEUE: 0, INDEX: store.end_offset - first}
    store._index.drain(1)
    assert store.dispatch_behind() == {CONSUME_QUEUE: 0, INDEX: 0}
    await store.close()
    store.use_external_consume_queue(NoQueues())
    assert store.dispatch_behind() == {INDEX: 0}
    store.use_external_index(NoKeys())
    assert store.dispatch_behind() == {}


async def test_an_index_left_out_is_continued_later(tmp_path: Path) -> None:
    """Without an index no file is touched and no key found; the next store that has one indexes the messages
    of the meantime, none twice."""
    async with running(make(tmp_path, queues=True)) as store:
        store.append([message(keys="k")])
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    store = make(tmp_path, queues=True)
    store.use_external_index(NoKeys())
    async with running(store):
        store.append([message(keys="k")])
        assert store.query_by_key("Orders", "k", 0, 1 << 60, 9) == ([], 0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()} == files
    async with running(make(tmp_path, queues=True)) as store:
        assert len(store.query_by_key("Orders", "k", 0, 1 << 60, 9).physical_offsets) == 2
    with StoreReader(tmp_path) as reader:
        outcome = Verifier(reader, {}, 1_000).run()
        assert (outcome.damage, outcome.index_entries) == (None, 2)
