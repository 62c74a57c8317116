"""Reading topics from the files of a store: complete content, nothing beyond what is proven, and clear
errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq.decode.columns import Projection
from pyspark_rocketmq.files.places import ONLY_BROKER
from pyspark_rocketmq.files.source import FilesSource
from pyspark_rocketmq.read.source import (
    Block,
    Bounds,
    DataLoss,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Selection,
    Source,
    SourceError,
)
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import TRANSACTION_PREPARED
from rmqkit.protocol.tags import index_hash
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import contents, message, running
from rmqkit_store_mmap.queue.units import FILLER_SIZE
from rmqkit_store_mmap.readonly.data_files import file_row
from tests.spark.kit_records import ALL, decoded
from tests.stores.tools.kit import (
    LONG_TOPIC,
    SEGMENT_BYTES,
    batches,
    build,
    change,
    flip,
    log_place,
    make,
    unit_place,
)

Held = dict[tuple[str, int], list[StoredMessage]]
EVERYTHING = Selection()
#: Java's number of slots, the only one supported; the files have holes.
REAL_SLOTS: dict[str, Any] = {"max_hash_slot_num": 5_000_000, "max_index_num": 120}
OFFSETS = Projection(("queueOffset",))
FIRST_MS, LAST_MS = 0, 1 << 60


def _key(topic: str, queue_id: int, broker: str = ONLY_BROKER) -> QueueKey:
    return QueueKey(topic, broker, queue_id)


def _part(topic: str, queue_id: int, start: int, stop: int) -> QueueRange:
    return QueueRange(_key(topic, queue_id), start, stop)


def _rows(
    blocks: Sequence[Block], start: int = 0, stop: int = 1 << 62, projection: Projection = ALL
) -> list[dict[str, Any]]:
    return [row for block in blocks for row in decoded(block, projection, start, stop)]


def _offsets(source: Source, part: QueueRange, selection: Selection = EVERYTHING) -> list[int]:
    return [row["queueOffset"] for row in _rows(list(source.blocks(part, selection, 2)), projection=OFFSETS)]


def _until_loss(blocks: Iterable[Block]) -> tuple[list[int], DataLoss]:
    """The offsets delivered before messages are missing, and the error."""
    seen: list[int] = []
    try:
        for block in blocks:
            seen += [row["queueOffset"] for row in _rows([block])]
    except DataLoss as loss:
        return seen, loss
    pytest.fail("nothing was missed")


async def test_it_reads_what_the_store_holds(tmp_path: Path) -> None:
    """Topics, queues, bounds and every message are read, across files of queue and log; system and retry
    topics are not listed, but can be requested."""
    held = await build(tmp_path)
    source: Source = FilesSource(tmp_path)
    assert source.topics() == ["Bills", "Orders", "Six"]
    assert source.queues("Orders") == [_key("Orders", number) for number in range(4)]
    assert source.queues(LONG_TOPIC) == [_key(LONG_TOPIC, 0)]
    assert len(source.queues("SCHEDULE_TOPIC_XXXX")) == 3
    for (topic, queue_id), messages in held.items():
        key = _key(topic, queue_id)
        bounds = source.bounds([key])[key]
        assert bounds == Bounds(0, len(messages))
        rows = _rows(list(source.blocks(QueueRange(key, *bounds), EVERYTHING, 3)))
        assert [row["queueOffset"] for row in rows] == [found.queue_offset for found in messages]
        assert [row["physicalOffset"] for row in rows] == [found.physical_offset for found in messages]
        assert [row["bodyCrc"] for row in rows] == [found.body_crc for found in messages]
        assert [dict(row["properties"]) for row in rows] == [found.properties for found in messages]
        assert {row["topic"] for row in rows} == {topic}
    source.close()


async def test_blocks_begin_small_and_keep_within_one_file(tmp_path: Path) -> None:
    """The first block is small, so that a reader that stops early is cheap, and a block is a mapping of one
    file of the log."""
    await build(tmp_path, mapped_file_size_consume_queue=20_000)
    blocks = list(FilesSource(tmp_path).blocks(_part("Orders", 0, 5, 225), EVERYTHING, 2))
    assert [len(block.starts) for block in blocks[:2]] == [2, 8]
    assert max(len(block.starts) for block in blocks) > 8
    assert len({block.origin for block in blocks}) > 1
    for block in blocks:
        assert len(block.data) == SEGMENT_BYTES
        assert block.base == int(Path(block.origin).name)
    assert [row["queueOffset"] for row in _rows(blocks)] == list(range(5, 225))


async def test_tags_are_chosen_by_the_queue_file_alone(tmp_path: Path) -> None:
    """Units with another hash are skipped without reading their records, which may be missing in the log.
    Units whose code is in an extension are kept."""
    messages = (await build(tmp_path))["Orders", 1]
    source = FilesSource(tmp_path)
    wanted = [found.queue_offset for found in messages if found.properties.get("TAGS") in ("t0", "t2")]
    assert 0 < len(wanted) < len(messages)
    assert _offsets(source, _part("Orders", 1, 0, 45), Selection(tags=("t0", "t2"))) == wanted
    assert _offsets(source, _part("Orders", 1, 0, 45), Selection(tags=("none",))) == []
    assert len(_offsets(source, _part("SCHEDULE_TOPIC_XXXX", 0, 0, 60), Selection(tags=("late",)))) == 60
    other = next(found for found in messages if found.properties.get("TAGS") == "t1")
    name, byte = unit_place("Orders", 1, other.queue_offset)
    change(tmp_path / name, byte, (1 << 50).to_bytes(8, "big"))
    assert _offsets(source, _part("Orders", 1, 0, 45), Selection(tags=("t0", "t2"))) == wanted
    change(tmp_path / name, byte, other.physical_offset.to_bytes(8, "big"))
    change(tmp_path / name, byte + 12, (-(1 << 40)).to_bytes(8, "big", signed=True))
    assert _offsets(source, _part("Orders", 1, 0, 45), Selection(tags=("t0",))).count(other.queue_offset) == 1


async def test_times(tmp_path: Path) -> None:
    """The result is the first message stored at that time or later, or the end offset."""
    messages = (await build(tmp_path))["Orders", 0]
    source, key = FilesSource(tmp_path), _key("Orders", 0)
    for time_ms in (0, *(found.store_timestamp_ms + late for found in messages[::17] for late in (-1, 0, 1))):
        expected = next(
            (found.queue_offset for found in messages if found.store_timestamp_ms >= time_ms), len(messages)
        )
        assert source.offsets_at({key: time_ms}) == {key: expected}
    assert source.offsets_at({key: LAST_MS}) == {key: len(messages)}


async def test_mean_length(tmp_path: Path) -> None:
    """The mean of a few hundred records is exact; without records it is 1."""
    messages = (await build(tmp_path))["Orders", 0]
    source, key = FilesSource(tmp_path), _key("Orders", 0)
    assert source.mean_record_bytes(key, Bounds(0, 225)) == sum(found.size_bytes for found in messages) // 225
    assert source.mean_record_bytes(key, Bounds(3, 4)) == messages[3].size_bytes
    assert source.mean_record_bytes(key, Bounds(7, 7)) == 1


async def test_a_running_broker(tmp_path: Path) -> None:
    """Appended messages can be read at once, also from new files, and the bounds move."""
    key = _key("Orders", 0)
    async with running(make(tmp_path)) as store:
        store.append([message(body=b"x" * 900)])
        source = FilesSource(tmp_path)
        assert source.bounds([key]) == {key: Bounds(0, 1)}
        assert source.bounds([_key("Orders", 9)]) == {}
        store.append([message(body=b"y" * 900) for _ in range(100)])
        assert store.end_offset > SEGMENT_BYTES
        assert source.bounds([key]) == {key: Bounds(0, 101)}
        assert _offsets(source, _part("Orders", 0, 0, 101)) == list(range(101))


@pytest.mark.parametrize("count", [1, 2, 20, 150, 181])
async def test_nothing_is_read_that_the_log_does_not_prove(tmp_path: Path, count: int) -> None:
    """Units whose records have not been written are beyond the end, whatever their number."""
    messages = (await build(tmp_path))["Bills", 0]
    assert len(messages) == 181
    for found in messages[-count:]:
        name, byte = log_place(found.physical_offset)
        change(tmp_path / name, byte, bytes(found.size_bytes))
    key = _key("Bills", 0)
    assert FilesSource(tmp_path).bounds([key]) == {key: Bounds(0, 181 - count)}


async def test_a_store_that_was_made_anew(tmp_path: Path) -> None:
    """A source that has read the files of a store does not return them for a new store under the same
    path."""
    for body in (b"old", b"new"):
        async with running(make(tmp_path)) as store:
            store.append([message(body=body) for _ in range(3)])
        if body == b"old":
            source = FilesSource(tmp_path)
            assert len(_rows(list(source.blocks(_part("Orders", 0, 0, 3), EVERYTHING, 9)))) == 3
            shutil.rmtree(tmp_path)
    rows = _rows(list(source.blocks(_part("Orders", 0, 0, 3), EVERYTHING, 9)))
    assert [row["body"] for row in rows] == [b"new"] * 3


async def test_topics_that_come_and_go(tmp_path: Path) -> None:
    """An open source sees topics that are created and deleted later."""
    await build(tmp_path)
    source = FilesSource(tmp_path)
    states: tuple[dict[str, dict[str, Any]], ...] = (
        {"New": {}},
        {"New": {}, "Newer": {"readQueueNums": 3}},
        {},
    )
    for topics in states:
        _configure(tmp_path, **topics)
        assert {"New", "Newer"} & set(source.topics()) == set(topics)
        assert source.bounds([_key("New", 0)]) == ({_key("New", 0): Bounds(0, 0)} if topics else {})


async def test_a_copy_needs_neither_index_nor_settings(tmp_path: Path) -> None:
    """Log and queues are sufficient, and the broker has the same name as in the original."""
    held = await build(tmp_path / "store")
    for name in ("commitlog", "consumequeue"):
        shutil.copytree(tmp_path / "store" / name, tmp_path / "copy" / name)
    source = FilesSource(tmp_path / "copy")
    assert source.queues("Six") == FilesSource(tmp_path / "store").queues("Six")
    assert len(_offsets(source, _part("Six", 1, 0, 180))) == len(held["Six", 1])


async def test_several_brokers(tmp_path: Path) -> None:
    """In the directory of `rmqkit serve --brokers`, each store is a broker named as its directory; other
    entries are ignored."""
    (tmp_path / "logs").mkdir()
    for number, name in enumerate(("broker-a", "broker-b")):
        async with running(make(tmp_path / name)) as store:
            store.append([message(queue_id=number, body=name.encode())])
    source = FilesSource(tmp_path)
    queues = [QueueKey("Orders", "broker-a", 0), QueueKey("Orders", "broker-b", 1)]
    assert source.queues("Orders") == queues
    assert source.bounds(queues) == {key: Bounds(0, 1) for key in queues}
    for key in queues:
        (row,) = _rows(list(source.blocks(QueueRange(key, 0, 1), EVERYTHING, 9)))
        assert (row["brokerName"], row["body"]) == (key.broker, key.broker.encode())


# --- what retention and operators do ------------------------------------------------------------------------


async def test_retention_overtook_the_reader(tmp_path: Path) -> None:
    """The error for lost offsets contains the range, the first readable offset, and the remedy."""
    messages = (await build(tmp_path))["Bills", 0]
    first = next(found.queue_offset for found in messages if found.physical_offset >= SEGMENT_BYTES)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    source, key = FilesSource(tmp_path), _key("Bills", 0)
    assert source.bounds([key]) == {key: Bounds(first, len(messages))}
    with pytest.raises(
        DataLoss, match=rf"offsets \[0, {first}\) are no longer there: retention .* set failOnDataLoss=false"
    ) as caught:
        list(source.blocks(QueueRange(key, 0, len(messages)), EVERYTHING, 4))
    assert (caught.value.queue, caught.value.first) == (key, first)
    assert _offsets(source, QueueRange(key, first, len(messages))) == list(range(first, len(messages)))


@pytest.mark.parametrize("what", ["commitlog", "consumequeue/Bills/0"])
async def test_retention_while_reading(tmp_path: Path, what: str) -> None:
    """Messages before the loss are delivered completely; the error contains the offset to continue at."""
    messages = (await build(tmp_path))["Bills", 0]
    source, key = FilesSource(tmp_path), _key("Bills", 0)
    blocks = source.blocks(QueueRange(key, 0, len(messages)), EVERYTHING, 1)
    first = next(blocks)
    for file in file_row(tmp_path / what).files[:-1]:
        file.path.unlink()
    seen, loss = _until_loss(chain([first], blocks))
    assert seen == list(range(len(seen)))
    assert len(seen) <= loss.first < len(messages)
    assert _offsets(source, QueueRange(key, loss.first, len(messages))) == list(
        range(loss.first, len(messages))
    )


async def test_a_topic_that_was_made_again(tmp_path: Path) -> None:
    """A queue that ends before the range delivers its messages, and the rest is reported as lost."""
    held = await build(tmp_path)
    seen, loss = _until_loss(FilesSource(tmp_path).blocks(_part("Orders", 2, 40, 60), EVERYTHING, 4))
    assert "ends at offset 45, but was to be read up to 60" in str(loss)
    assert seen == list(range(40, len(held["Orders", 2])))
    assert loss.first == 60


async def test_a_topic_that_was_deleted(tmp_path: Path) -> None:
    """Deleted queues have no bounds, and reading a range of them raises an error."""
    await build(tmp_path)
    source, key = FilesSource(tmp_path), _key("Six", 1)
    shutil.rmtree(tmp_path / "consumequeue" / "Six")
    assert source.bounds([key]) == {}
    with pytest.raises(NoSuchTopic, match="has no queue 1 of topic Six any more"):
        list(source.blocks(QueueRange(key, 0, 5), EVERYTHING, 4))


# --- damage -------------------------------------------------------------------------------------------------


async def test_a_corrupted_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains file, byte, queue and offset; messages before and after can be read."""
    monkeypatch.setattr("pyspark_rocketmq.decode.records.LOOK_AGAIN_S", 0.0)
    found = (await build(tmp_path))["Six", 1][6]
    name, byte = log_place(found.physical_offset)
    flip(tmp_path / name, byte + 102)
    source = FilesSource(tmp_path)
    with pytest.raises(SourceError) as caught:
        _rows(list(source.blocks(_part("Six", 1, 0, 180), EVERYTHING, 4)))
    assert str(caught.value).startswith(
        f"{tmp_path / name}, byte {byte}: record of topic Six, store, queue 1 at queue offset 6: the checksum"
    )
    assert _offsets(source, _part("Six", 1, 0, 6)) + _offsets(source, _part("Six", 1, 7, 180)) == [
        *range(6),
        *range(7, 180),
    ]


@pytest.mark.parametrize(
    ("at", "data", "text"),
    [
        (0, (1 << 50).to_bytes(8, "big"), "log offset 1125899906842624, but there is no such file"),
        (8, (7).to_bytes(4, "big"), "a record of 7 bytes"),
        (8, (1 << 20).to_bytes(4, "big"), "a record of 1048576 bytes"),
    ],
)
async def test_a_corrupted_unit(tmp_path: Path, at: int, data: bytes, text: str) -> None:
    """A unit that points to no record of the log is reported with its file, byte and offset."""
    await build(tmp_path)
    name, byte = unit_place("Six", 1, 8)
    change(tmp_path / name, byte + at, data)
    with pytest.raises(SourceError) as caught:
        list(FilesSource(tmp_path).blocks(_part("Six", 1, 0, 180), EVERYTHING, 4))
    assert f"{tmp_path / name}, byte {byte}: queue offset 8 refers to {text}" in str(caught.value)


async def test_filler_is_left_out(tmp_path: Path) -> None:
    """Filler units, which represent no record, are skipped."""
    await build(tmp_path)
    name, byte = unit_place("Bills", 0, 4)
    change(tmp_path / name, byte, bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8))
    assert _offsets(FilesSource(tmp_path), _part("Bills", 0, 0, 7)) == [0, 1, 2, 3, 5, 6]


async def test_a_queue_file_that_was_cut(tmp_path: Path) -> None:
    """The error contains the end of the file."""
    await build(tmp_path)
    name, byte = unit_place("Bills", 0, 15)
    source = FilesSource(tmp_path)
    with (tmp_path / name).open("r+b") as file:
        file.truncate(byte)
    with pytest.raises(SourceError, match=rf"{name} ends at byte {byte}, before queue offset 15"):
        list(source.blocks(_part("Bills", 0, 0, 30), EVERYTHING, 4))


async def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """The system's error is raised with the path of the file."""
    await build(tmp_path)
    source = FilesSource(tmp_path)
    path = tmp_path / unit_place("Bills", 0, 20)[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match=f"{path} cannot be read: Is a directory"):
        list(source.blocks(_part("Bills", 0, 0, 30), EVERYTHING, 4))


# --- no store of this kind, and topics that files cannot give -----------------------------------------------


async def test_what_is_no_store(tmp_path: Path) -> None:
    """A missing path, a directory without stores, and an unknown topic each raise an error with the path and
    the existing names."""
    with pytest.raises(SourceError, match="is not a directory; use the one of `rmqkit serve --data`"):
        FilesSource(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=f"storePath {tmp_path} contains no message store"):
        FilesSource(tmp_path)
    (tmp_path / "lost+found" / "commitlog").mkdir(parents=True)
    with pytest.raises(SourceError, match=f"storePath {tmp_path} contains no message store"):
        FilesSource(tmp_path)
    await build(tmp_path / "a")
    source = FilesSource(tmp_path)
    with pytest.raises(NoSuchTopic, match=r"has no topic 'order'; there are: .*Bills, Orders, Six"):
        source.queues("order")
    with pytest.raises(SourceError, match="has no broker 'b'; there are: a"):
        list(source.blocks(QueueRange(QueueKey("Orders", "b", 0), 0, 1), EVERYTHING, 1))
    with pytest.raises(SourceError, match="sql92 is evaluated by brokers"):
        list(source.blocks(_part("Orders", 0, 0, 1), Selection(sql92="a = 1"), 1))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("lmdb/data.mdb", "is a store in LMDB"),
        ("dledger-n0/data/x", "is a store in DLedger mode"),
        ("config/tieredStoreMetadata.json", "is a tiered store"),
    ],
)
@pytest.mark.parametrize("below", ["", "broker-a/"])
async def test_stores_of_other_kinds_are_refused(tmp_path: Path, path: str, below: str, text: str) -> None:
    """Such stores are refused even if part of the messages could be read, also as one of several stores."""
    await build(tmp_path / below)
    (tmp_path / below / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / below / path).write_bytes(b"x")
    with pytest.raises(SourceError, match=text):
        FilesSource(tmp_path)


async def test_a_store_without_queues_is_refused(tmp_path: Path) -> None:
    """A store with messages whose queues are in RocksDB or kept by a plugin is refused."""
    await build(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(SourceError, match="has messages but no consume queues: they are in RocksDB"):
        FilesSource(tmp_path)


def _configure(directory: Path, **topics: dict[str, Any]) -> None:
    path = directory / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    table = {
        name: {"topicName": name, "readQueueNums": 2, "perm": 6} | fields for name, fields in topics.items()
    }
    path.write_text(json.dumps({"dataVersion": {}, "topicConfigTable": table}))


async def test_topics_that_are_configured(tmp_path: Path) -> None:
    """A topic without messages has its queues, empty; one without read permission is missing."""
    await build(tmp_path)
    _configure(tmp_path, New={}, Closed={"perm": 2}, Six={"readQueueNums": 3})
    source = FilesSource(tmp_path)
    assert {"New", "Six"} <= set(source.topics())
    assert "Closed" not in source.topics()
    queues = source.queues("New")
    assert source.bounds(queues) == {_key("New", 0): Bounds(0, 0), _key("New", 1): Bounds(0, 0)}
    assert source.offsets_at({queues[0]: 5}) == {queues[0]: 0}
    assert source.mean_record_bytes(queues[0], Bounds(0, 0)) == 1
    assert _offsets(source, QueueRange(queues[0], 0, 0)) == []
    assert source.queues("Six") == [_key("Six", number) for number in range(3)]
    with pytest.raises(NoSuchTopic):
        source.queues("Closed")


@pytest.mark.parametrize(
    ("attributes", "made", "text"),
    [
        ({"cleanup.policy": "COMPACTION"}, "", "is compacted"),
        ({}, "compaction/compactionLog/Six", "is compacted"),
        ({"+queue.type": "BatchCQ"}, "", "has batch consume queues"),
        ({}, "batchconsumequeue/Six", "has batch consume queues"),
    ],
)
async def test_topics_of_other_kinds_are_refused(
    tmp_path: Path, attributes: dict[str, str], made: str, text: str
) -> None:
    """Topics are recognised by their attributes and by their files; other topics of the store can be read."""
    await build(tmp_path)
    _configure(tmp_path, Six={"attributes": attributes})
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    source = FilesSource(tmp_path)
    with pytest.raises(SourceError, match=f"topic Six {text}"):
        source.queues("Six")
    assert len(source.queues("Orders")) == 4


async def test_settings_that_are_damaged(tmp_path: Path) -> None:
    """Without the settings, a compacted topic could not be recognised."""
    await build(tmp_path)
    _configure(tmp_path)
    (tmp_path / "config" / "topics.json").write_bytes(b"{")
    with pytest.raises(SourceError, match=r"topics\.json is damaged"):
        FilesSource(tmp_path)


# --- look-ups by key ----------------------------------------------------------------------------------------


def _with_key(
    source: Source, topic: str, key: str, start_ms: int = FIRST_MS, stop_ms: int = LAST_MS
) -> list[tuple[int, int]] | None:
    """Queue and offset of the messages with the key, among those returned by the index."""
    blocks = source.with_key(topic, [ONLY_BROKER], key, start_ms, stop_ms)
    if blocks is None:
        return None
    found = [row for row in _rows(list(blocks)) if key in [*(row["keys"] or "").split(), row["msgId"]]]
    return sorted((row["queueId"], row["queueOffset"]) for row in found)


def _holders(
    held: Held, topic: str, key: str, start_ms: int = FIRST_MS, stop_ms: int = LAST_MS
) -> list[tuple[int, int]]:
    return sorted(
        (queue_id, found.queue_offset)
        for (name, queue_id), messages in held.items()
        for found in messages
        if name == topic and start_ms <= found.store_timestamp_ms <= stop_ms
        if key in [*found.properties.get("KEYS", "").split(), found.properties.get("UNIQ_KEY")]
    )


async def test_keys(tmp_path: Path) -> None:
    """Each key and unique key is found, a frequent one and a missing one too, over many index files."""
    held = await build(tmp_path, **REAL_SLOTS)
    assert len(list((tmp_path / "index").iterdir())) > 3
    source = FilesSource(tmp_path)
    for key in ("k0", "k5", "k90", "k179", "shared", "none", "7F00000100001234000000000000002A"):
        assert _with_key(source, "Orders", key) == _holders(held, "Orders", key)
    assert _with_key(source, "Bills", "b7") == _holders(held, "Bills", "b7") != []
    assert _with_key(source, "Bills", "k7") == []
    few = list(source.with_key("Orders", [ONLY_BROKER], "k5", FIRST_MS, LAST_MS) or ())
    assert sum(len(block.starts) for block in few) < 10


async def test_keys_within_a_time(tmp_path: Path) -> None:
    """Only messages stored between the two times, both inclusive, are found."""
    held = await build(tmp_path, **REAL_SLOTS)
    times = [found.store_timestamp_ms for found in held["Orders", 1]]
    source = FilesSource(tmp_path)
    for start_ms, stop_ms in (
        (times[3], times[30]),
        (times[9], times[9]),
        (times[9] + 1, times[10] - 1),
        (times[-1] + 1, LAST_MS),
    ):
        expected = _holders(held, "Orders", "shared", start_ms, stop_ms)
        assert _with_key(source, "Orders", "shared", start_ms, stop_ms) == expected


async def test_keys_beside_a_running_broker(tmp_path: Path) -> None:
    """The slots and entries of a running broker lag behind its log; messages missing in the index are found
    through the queues."""
    clock = FakeClock()
    async with running(make(tmp_path, clock, **REAL_SLOTS)) as store:
        source = FilesSource(tmp_path)
        for batch in batches(clock):
            store.append(batch)
        held = {key: messages for key, (_, _, messages, _) in contents(store).items()}
        for key in ("k0", "k100", "k179", "shared"):
            assert _with_key(source, "Orders", key) == _holders(held, "Orders", key)


async def test_index_files_that_are_gone(tmp_path: Path) -> None:
    """Messages covered by missing index files, or without any index, are found through the queues."""
    held = await build(tmp_path, **REAL_SLOTS)
    files = sorted((tmp_path / "index").iterdir())
    source = FilesSource(tmp_path)
    for gone in (files[0], files[2], files[-1], *files):
        gone.unlink(missing_ok=True)
        for key in ("k0", "k60", "k179", "shared"):
            assert _with_key(source, "Orders", key) == _holders(held, "Orders", key)


async def test_too_much_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no answer for a very frequent key, and with very many messages missing in the index, so that
    everything is read in parallel."""
    await build(tmp_path, **REAL_SLOTS)
    monkeypatch.setattr("pyspark_rocketmq.files.index.MAX_CANDIDATES", 50)
    source = FilesSource(tmp_path)
    assert _with_key(source, "Orders", "shared") is None
    assert _with_key(source, "Orders", "k5") is not None
    shutil.rmtree(tmp_path / "index")
    assert _with_key(source, "Orders", "k5") is None


async def test_index_files_of_other_settings(tmp_path: Path) -> None:
    """The number of slots is not stored in the file; files with another number than Java's are not used."""
    await build(tmp_path)
    assert _with_key(FilesSource(tmp_path), "Orders", "k5") is None
    (sorted((tmp_path / "index").iterdir())[0]).write_bytes(b"short")
    assert _with_key(FilesSource(tmp_path), "Orders", "k5") is None


async def test_a_hash_is_not_a_key(tmp_path: Path) -> None:
    """Records of other topics, and records in no queue, are not returned although the index contains them."""
    assert index_hash("AaOrders", "k") == index_hash("BBOrders", "k")
    async with running(make(tmp_path, **REAL_SLOTS)) as store:
        prepared = message("AaOrders", keys="k", sys_flag=TRANSACTION_PREPARED)
        store.append(
            [
                message("AaOrders", keys="k"),
                message("BBOrders", keys="k"),
                prepared,
                message("Last", keys="l"),
            ]
        )
    found = FilesSource(tmp_path).with_key("AaOrders", [ONLY_BROKER], "k", FIRST_MS, LAST_MS)
    assert [(row["topic"], row["queueOffset"], row["sysFlag"]) for row in _rows(list(found or ()))] == [
        ("AaOrders", 0, 0)
    ]


async def test_an_index_of_a_damaged_record_is_not_used(tmp_path: Path) -> None:
    """Everything is read then, and the reader treats the record as badRecords says."""
    async with running(make(tmp_path, **REAL_SLOTS)) as store:
        store.append([message("Orders", keys="k"), message("Orders", keys="l")])
    assert _with_key(FilesSource(tmp_path), "Orders", "k") == [(0, 0)]
    flip(tmp_path / log_place(0)[0], 84)
    assert _with_key(FilesSource(tmp_path), "Orders", "k") is None
