"""Store directories in Spark: the rows of `storePath`, and its error texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.stores.tools.kit import SEGMENT_BYTES, build, flip, log_place


def _read(spark: SparkSession, directory: Path, topic: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").option("storePath", str(directory)).options(**options).load(topic)


async def test_a_directory_of_several_stores(spark: SparkSession, tmp_path: Path) -> None:
    """All messages of all brokers' queues are read with their columns; brokers are named as their
    directories."""
    held = {name: await build(tmp_path / name) for name in ("broker-a", "broker-b")}
    frame = _read(spark, tmp_path, "Orders").select(
        "brokerName", "queueId", "queueOffset", "body", "tags", "properties"
    )
    rows = {(row.brokerName, row.queueId, row.queueOffset): row for row in frame.collect()}
    assert rows.keys() == {
        (name, queue_id, found.queue_offset)
        for name, queues in held.items()
        for (topic, queue_id), messages in queues.items()
        for found in messages
        if topic == "Orders"
    }
    for found in held["broker-b"]["Orders", 1]:
        row = rows["broker-b", 1, found.queue_offset]
        assert (bytes(row.body), row.tags, row.properties) == (
            found.body,
            found.properties["TAGS"],
            found.properties,
        )


async def test_tags_and_keys(spark: SparkSession, tmp_path: Path) -> None:
    """The options select exactly the messages that have them, whether an index answers or everything is
    read."""
    orders = (await build(tmp_path))["Orders", 1]
    wanted = {found.queue_offset for found in orders if found.properties["TAGS"] in ("t0", "t2")}
    found = (
        _read(spark, tmp_path, "Orders", tags="t0 || t2", columns="queueId,queueOffset")
        .where("queueId = 1")
        .collect()
    )
    assert {row.queueOffset for row in found} == wanted
    keyed = _read(spark, tmp_path, "Orders", key="k5", columns="keys").collect()
    assert [row["keys"] for row in keyed] == ["k5 shared"]


async def test_a_corrupted_record(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails, and its error contains file, byte, queue and offset; badRecords leaves the record out,
    or makes its body null."""
    record = (await build(tmp_path))["Six", 1][6]
    name, byte = log_place(record.physical_offset)
    flip(tmp_path / name, byte + 102)
    with pytest.raises(PySparkException) as caught:
        _read(spark, tmp_path, "Six").collect()
    assert (
        f"{tmp_path / name}, byte {byte}: record of topic Six, store, queue 1 at queue offset 6: the checksum"
        in str(caught.value)
    )
    assert _read(spark, tmp_path, "Six", columns="queueOffset").count() == 180
    assert _read(spark, tmp_path, "Six", checkCrc="false").count() == 180
    assert _read(spark, tmp_path, "Six", badRecords="skip").count() == 179
    rows = _read(spark, tmp_path, "Six", badRecords="null").where("body IS NULL").collect()
    assert [(row.queueId, row.queueOffset) for row in rows] == [(1, 6)]


async def test_retention_overtook_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    """The error contains range and remedy; with failOnDataLoss=false the remaining messages are read."""
    messages = (await build(tmp_path))["Bills", 0]
    first = next(found.queue_offset for found in messages if found.physical_offset >= SEGMENT_BYTES)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    start = '{"Bills": {"store": {"0": 0}}}'
    with pytest.raises(PySparkException, match=r"failOnDataLoss=false") as caught:
        _read(spark, tmp_path, "Bills", startingOffsets=start).count()
    assert f"[0, {first})" in str(caught.value)
    left = _read(spark, tmp_path, "Bills", startingOffsets=start, failOnDataLoss="false")
    assert left.count() == len(messages) - first


async def test_what_is_no_store(spark: SparkSession, tmp_path: Path) -> None:
    """The error names a valid directory instead."""
    with pytest.raises(PySparkException, match=r"contains no message store"):
        _read(spark, tmp_path, "Orders").collect()
    await build(tmp_path)
    with pytest.raises(PySparkException, match=r"has no topic 'order'; there are: Bills, Orders, Six"):
        _read(spark, tmp_path, "order").collect()
