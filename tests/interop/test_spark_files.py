"""Files of Apache's store read for Spark: stopped properly, killed, and while its program appends."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, Projection
from pyspark_rocketmq.files.source import FilesSource
from pyspark_rocketmq.read.source import QueueRange, Selection
from tests.interop import stores
from tests.interop.stores import Place, Seen
from tests.spark.kit_records import decoded

COLUMNS = Projection((*DEFAULT_COLUMNS, "physicalOffset"))


def told(rows: Iterable[dict[str, Any]]) -> dict[Place, Seen]:
    """Rows in the format of the Java program, by place, without ids."""
    return {
        (row["topic"], row["queueId"], row["queueOffset"]): {
            "physicalOffset": row["physicalOffset"],
            "keys": stores.keys_of(dict(row["properties"])),
            "storeTimestamp": row["storeTimestamp"] // 1000,
            "tags": row["tags"],
            "flag": row["flag"],
            "sha256": hashlib.sha256(row["body"]).hexdigest(),
        }
        for row in rows
    }


def expected(appended: Iterable[Seen]) -> dict[Place, Seen]:
    kept = ("physicalOffset", "keys", "storeTimestamp", "tags", "flag", "sha256")
    return {
        place: {name: seen[name] for name in kept} for place, seen in stores.by_place(list(appended)).items()
    }


def read_all(source: FilesSource, directory: Path) -> dict[Place, Seen]:
    """All readable messages of all topics; retry topics are found by their directories."""
    rows: list[dict[str, Any]] = []
    retries = {
        path.name for path in (directory / "consumequeue").iterdir() if path.name.startswith("%RETRY%")
    }
    for topic in {*source.topics(), *retries}:
        for queue, (first, end) in source.bounds(source.queues(topic)).items():
            for block in source.blocks(QueueRange(queue, first, end), Selection(), 100):
                rows += decoded(block, COLUMNS)
    return told(rows)


def test_a_store_stopped_in_order(java_store: list[str], directory: Path) -> None:
    """All messages acknowledged by Apache's store are read, over several files of log and queues; tags are
    selected by hash, and times are found."""
    appended = stores.of_kind(stores.play(java_store, "--write", "2500"), "appended")
    assert len(list((directory / "commitlog").iterdir())) > 1
    source = FilesSource(directory)
    assert read_all(source, directory) == expected(appended)
    for queue, (first, end) in source.bounds(source.queues("Orders")).items():
        mine = [seen for seen in appended if (seen["topic"], seen["queue"]) == ("Orders", queue.queue_id)]
        blocks = source.blocks(QueueRange(queue, first, end), Selection(tags=("tag1", "tag3")), 100)
        found = [row["queueOffset"] for block in blocks for row in decoded(block, COLUMNS)]
        assert found == [seen["queueOffset"] for seen in mine if seen["tags"] in ("tag1", "tag3")]
        time_ms = mine[len(mine) // 2]["storeTimestamp"]
        assert source.offsets_at({queue: time_ms})[queue] == min(
            seen["queueOffset"] for seen in mine if seen["storeTimestamp"] >= time_ms
        )


def test_a_store_that_was_killed(java_store: list[str], directory: Path) -> None:
    """All acknowledged messages in the queues are read; those that Java had not dispatched are beyond the
    end, without a gap."""
    appended = expected(stores.of_kind(stores.play_and_kill(java_store, 1500), "appended"))
    found = read_all(FilesSource(directory), directory)
    assert len(found) > 100
    for place, seen in found.items():
        assert place not in appended or appended[place] == seen
    for topic, queue, offset in found:
        assert offset == 0 or (topic, queue, offset - 1) in found


def test_beside_a_program_that_appends(java_store: list[str], directory: Path) -> None:
    """A source that reads repeatedly only adds complete records, and finally has all of them."""
    with subprocess.Popen(
        [*java_store, "--write", "6000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(200)]
        source = FilesSource(directory)
        sizes: list[int] = []
        seen: dict[Place, Seen] = {}
        while len(lines) < 3000:
            now = read_all(source, directory)
            assert {place: now[place] for place in seen} == seen
            seen = now
            sizes.append(len(now))
            lines += [process.stdout.readline() for _ in range(400)]
        lines += process.stdout.readlines()
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 2
    found = read_all(source, directory)
    assert len(found) >= 6000
    assert {place: found[place] for place in seen} == seen
