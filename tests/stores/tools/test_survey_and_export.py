"""`inspect` and `export` without the command line."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from rmqkit.errors import StoreError
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import message, running
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.export import export
from rmqkit_store_mmap.tools.survey import survey
from tests.stores.tools.kit import INDEX_BYTES, QUEUE_BYTES, SEGMENT_BYTES, build, index_files, make

NOW_MS = 1_700_000_000_000


async def test_a_small_store_in_full(tmp_path: Path) -> None:
    """The whole document, except for the allocated bytes and the checkpoint's own fields, of which there may
    be more."""
    clock = FakeClock(NOW_MS)
    async with running(make(tmp_path, clock)) as store:
        store.append([message("Orders", 2, b"one", keys="a b"), message("Orders", 2, b"two")])
        clock.advance(5_000)
        (last,) = store.append([message("Bills", 0, b"three", keys="c")])
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{}")
    (tmp_path / "timerwheel").touch()
    with StoreReader(tmp_path) as reader:
        found = survey(reader)
    checkpoint = found.pop("checkpoint")
    assert {
        name: checkpoint[name]
        for name in ("logTimeMs", "queueTimeMs", "indexTimeMs", "masterFlushedOffset", "confirmedOffset")
    } == {
        "logTimeMs": NOW_MS + 5_000,
        "queueTimeMs": NOW_MS + 5_000,
        "indexTimeMs": 0,
        "masterFlushedOffset": 0,
        "confirmedOffset": last.physical_offset + last.size_bytes,
    }
    allocated = [
        part.pop("allocatedBytes")
        for part in (found["log"], found["log"]["segments"][0], found["index"][0], found["queueFiles"])
    ]
    assert all(0 < number <= 4096 * 20 for number in allocated)
    for topic in found["topics"]:
        for queue in topic["queues"]:
            assert 0 < queue.pop("allocatedBytes") <= 4096
    queue = {"files": 1, "bytes": QUEUE_BYTES}
    assert found == {
        "directory": str(tmp_path),
        "inUse": False,
        "lockHolder": None,
        "abort": False,
        "log": {
            "directory": str(tmp_path / "commitlog"),
            "segmentBytes": SEGMENT_BYTES,
            "minOffset": 0,
            "maxOffset": last.physical_offset + last.size_bytes,
            "files": 1,
            "bytes": SEGMENT_BYTES,
            "gaps": [],
            "strangers": [],
            "segments": [
                {"name": "0" * 20, "from": 0, "to": SEGMENT_BYTES, "bytes": SEGMENT_BYTES, "empty": False}
            ],
        },
        "queueFiles": {"fileBytes": QUEUE_BYTES, "files": 2, "bytes": 2 * QUEUE_BYTES, "gaps": []},
        "index": [
            {
                "name": index_files(tmp_path)[0].name,
                "bytes": INDEX_BYTES,
                "entries": 3,
                "usedSlots": found["index"][0]["usedSlots"],
                "beginTimestamp": NOW_MS,
                "endTimestamp": NOW_MS + 5_000,
                "beginPhyOffset": 0,
                "endPhyOffset": last.physical_offset,
            }
        ],
        "config": [{"name": "topics.json", "bytes": 2}],
        "others": ["timerwheel"],
        "topics": [
            {
                "topic": "Bills",
                "messages": 1,
                "queues": [{"queueId": 0, "minOffset": 0, "maxOffset": 1, "messages": 1, **queue}],
            },
            {
                "topic": "Orders",
                "messages": 2,
                "queues": [{"queueId": 2, "minOffset": 0, "maxOffset": 2, "messages": 2, **queue}],
            },
        ],
    }
    assert 1 <= found["index"][0]["usedSlots"] <= 3


async def test_gaps_strangers_and_retention_show(tmp_path: Path) -> None:
    """The document lists missing files, unknown files and the remaining offsets, and says that a store is
    open."""
    queues = await build(tmp_path)
    with StoreReader(tmp_path) as reader:
        end = survey(reader)["log"]["maxOffset"]
    (tmp_path / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").unlink()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    (tmp_path / "commitlog" / "notes").touch()
    (tmp_path / "consumequeue" / "Bills" / "0" / f"{200:020d}").unlink()
    (tmp_path / "abort").touch()
    with StoreReader(tmp_path) as reader:
        found = survey(reader)
    assert found["abort"] is True
    assert found["log"]["gaps"] == [{"from": 2 * SEGMENT_BYTES, "to": 3 * SEGMENT_BYTES}]
    assert found["log"]["strangers"] == ["notes"]
    assert found["queueFiles"]["gaps"] == [
        {"directory": str(tmp_path / "consumequeue" / "Bills" / "0"), "from": 200, "to": 400}
    ]
    six = next(topic for topic in found["topics"] if topic["topic"] == "Six")["queues"][0]
    kept = [message.queue_offset for message in queues["Six", 1] if message.physical_offset >= SEGMENT_BYTES]
    assert (six["minOffset"], six["maxOffset"]) == (kept[0], kept[-1] + 1)
    assert found["log"]["maxOffset"] == end > 3 * SEGMENT_BYTES


async def test_the_end_of_the_log_without_queues(tmp_path: Path) -> None:
    """It is found by reading the last segment; a segment made ahead does not count."""
    async with running(make(tmp_path)) as store:
        store.append([message(body=b"x" * 900) for _ in range(100)])
        end = store.end_offset
    (tmp_path / "commitlog" / f"{2 * SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")
    with StoreReader(tmp_path) as reader:
        found = survey(reader)
    assert SEGMENT_BYTES < end == found["log"]["maxOffset"]
    assert [segment["empty"] for segment in found["log"]["segments"]] == [False, False, True]


def plain(stored: StoredMessage) -> dict[str, object]:
    """The exported fields of a message, without the body."""
    return {
        "topic": stored.topic,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "physicalOffset": stored.physical_offset,
        "messageId": stored.properties.get(
            "UNIQ_KEY", offset_message_id(stored.store_host, stored.physical_offset)
        ),
        "offsetMessageId": offset_message_id(stored.store_host, stored.physical_offset),
        "storeTimestamp": stored.store_timestamp_ms,
        "bornTimestamp": stored.born_timestamp_ms,
        "bornHost": host_text(stored.born_host),
        "storeHost": host_text(stored.store_host),
        "reconsumeTimes": stored.reconsume_times,
        "preparedTransactionOffset": stored.prepared_offset,
        "flag": stored.flag,
        "sysFlag": stored.sys_flag & ~COMPRESSED,
        "tag": stored.properties.get("TAGS"),
        "keys": stored.properties.get("KEYS", "").split(),
        "properties": stored.properties,
    }


async def test_what_is_exported_is_what_was_appended(tmp_path: Path) -> None:
    """Every message of every topic, queue by queue; bodies as text where they are text, decompressed where
    they are compressed."""
    queues = await build(tmp_path)
    with StoreReader(tmp_path) as reader:
        for topic in reader.topics():
            found = list(export(reader, topic, [], 0, None, None, True))
            expected = [stored for key in sorted(queues) if key[0] == topic for stored in queues[key]]
            assert len(found) == len(expected) > 0
            for document, stored in zip(found, expected, strict=True):
                body = zlib.decompress(stored.body) if stored.sys_flag & COMPRESSED else stored.body
                assert document.pop("bodyHex", "") == (body.hex() if b"\xff" in body else "")
                assert document.pop("body", "") == ("" if b"\xff" in body else body.decode())
                assert document == plain(stored)
        six = next(export(reader, "Six", [], 0, None, None, True))
        assert (six["bodyHex"], six["bornHost"]) == ("ff" * 9, "[2001:db8::1]:5")


async def test_choices(tmp_path: Path) -> None:
    """Queues, offsets and a tag can be selected."""
    await build(tmp_path)
    with StoreReader(tmp_path) as reader:
        some = list(export(reader, "Orders", [3, 1], 5, 8, None, True))
        assert [(found["queueId"], found["queueOffset"]) for found in some] == [
            (3, 5),
            (3, 6),
            (3, 7),
            (1, 5),
            (1, 6),
            (1, 7),
        ]
        tagged = list(export(reader, "Orders", [], 0, None, "t2", True))
        assert {found["tag"] for found in tagged} == {"t2"}
        assert len(tagged) == 60
        with pytest.raises(StoreError, match="no topic 'Nothing'; see `rmqkit store inspect"):
            list(export(reader, "Nothing", [], 0, None, None, True))
        with pytest.raises(StoreError, match="no queue 9"):
            list(export(reader, "Orders", [9], 0, None, None, True))


async def test_compressed_bodies(tmp_path: Path) -> None:
    """Exported as stored when asked for; a body that cannot be decompressed is exported as stored, with the
    reason; a decompression bomb is not inflated."""
    bomb = zlib.compress(bytes(65 << 20), 9)
    bodies = [zlib.compress(b"text"), b"\xffno such thing", bomb]
    async with running(
        make(tmp_path, max_message_size=1 << 20, mapped_file_size_commit_log=4 << 20)
    ) as store:
        store.append([message(body=body, sys_flag=COMPRESSED) for body in bodies])
    with StoreReader(tmp_path) as reader:
        stored = list(export(reader, "Orders", [], 0, None, None, False))
        assert [(found["bodyHex"], found["sysFlag"]) for found in stored] == [
            (body.hex(), COMPRESSED) for body in bodies
        ]
        text, broken, large = export(reader, "Orders", [], 0, None, None, True)
    assert (text["body"], text["sysFlag"], "fault" in text) == ("text", 0, False)
    assert (broken["bodyHex"], broken["sysFlag"]) == (bodies[1].hex(), COMPRESSED)
    assert "damaged" in broken["fault"]
    assert large["bodyHex"] == bomb.hex()
    assert "more than 67108864 bytes" in large["fault"]
