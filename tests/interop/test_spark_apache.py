"""Spark with Apache's own broker, and with its files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmqkit.client import BlockingClient
from tests.interop import peers
from tests.interop.builds import BuildError
from tests.spark.conftest import quick_virtual_machines, spark

__all__ = ["quick_virtual_machines", "spark"]

PATIENCE_S = 30
ROWS = 5000


def until(found: Callable[[], bool]) -> None:
    """Check a condition of another process repeatedly until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, "it took too long"


def made(server: peers.Server, topic: str, queues: int = 4) -> str:
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic(topic, queues=queues)
    return topic


def written(frame: DataFrame, server: peers.Server, topic: str) -> None:
    frame.write.format("rocketmq").mode("append").options(nameServer=server.namesrv, topic=topic).save()


def read(spark: SparkSession, server: peers.Server, topic: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("rocketmq").options(nameServer=server.namesrv, body="string", **options).load(topic)
    )


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 2).selectExpr(
        "concat('order ', id) AS body",
        "concat('tag', id % 3) AS tags",
        "concat('key-', id) AS keys",
        "map('number', string(id), 'farbe', 'blå') AS properties",
        "concat('customer ', id % 10) AS shardingKey",
        "int(id % 7) AS flag",
    )


def seen(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.selectExpr(
        "body",
        "tags",
        "keys",
        "properties['number']",
        "properties['farbe']",
        "properties['__SHARDINGKEY']",
        "flag",
    )
    return sorted(tuple(row) for row in rows.collect())


def sent(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.selectExpr(
        "body", "tags", "keys", "properties['number']", "properties['farbe']", "shardingKey", "flag"
    )
    return sorted(tuple(row) for row in rows.collect())


def test_rows_go_to_apaches_broker_and_come_back(spark: SparkSession, apache_cluster: peers.Server) -> None:
    """All fields are restored, selected by tag, key and offset; rows of one sharding key are in one queue in
    order."""
    topic = made(apache_cluster, "spark_rows")
    written(orders(spark), apache_cluster, topic)
    until(lambda: read(spark, apache_cluster, topic, columns="queueOffset").count() == ROWS)
    assert seen(read(spark, apache_cluster, topic)) == sent(orders(spark))
    assert read(spark, apache_cluster, topic, tags="tag1").count() == ROWS // 3 + 1
    assert [row.body for row in read(spark, apache_cluster, topic, key="key-77").collect()] == ["order 77"]
    number = "int(properties['number']) AS number"
    rows = (
        read(spark, apache_cluster, topic)
        .selectExpr("properties['__SHARDINGKEY'] AS customer", "queueId", "queueOffset", number)
        .collect()
    )
    for customer in {row.customer for row in rows}:
        own = sorted((row.queueOffset, row.number, row.queueId) for row in rows if row.customer == customer)
        assert len({queue for _, _, queue in own}) == 1
        # Each of the two tasks sends its half in order; the halves may be interleaved.
        for half in (range(ROWS // 2), range(ROWS // 2, ROWS)):
            numbers = [each for _, each, _ in own if each in half]
            assert numbers == sorted(numbers)


def test_a_stream_through_apaches_broker(
    spark: SparkSession, apache_cluster: peers.Server, tmp_path: Path
) -> None:
    """A stream reads one topic in limited micro-batches and writes to another; a replayed batch is not
    written again."""
    source, target = made(apache_cluster, "spark_from"), made(apache_cluster, "spark_to")
    written(orders(spark), apache_cluster, source)
    until(lambda: read(spark, apache_cluster, source, columns="queueOffset").count() == ROWS)

    def run() -> int:
        reader = spark.readStream.format("rocketmq").options(
            nameServer=apache_cluster.namesrv, startingOffsets="earliest", columns="body,keys"
        )
        writer = (
            reader.option("maxOffsetsPerTrigger", 2000)
            .load(source)
            .writeStream.format("rocketmq")
            .trigger(availableNow=True)
        )
        writer = writer.options(
            nameServer=apache_cluster.namesrv, topic=target, checkpointLocation=str(tmp_path / "checkpoint")
        )
        query = writer.start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)

    assert run() == ROWS
    until(lambda: read(spark, apache_cluster, target, columns="queueOffset").count() == ROWS)
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    assert run() > 0
    assert sorted(row["keys"] for row in read(spark, apache_cluster, target).collect()) == sorted(
        f"key-{number}" for number in range(ROWS)
    )


def test_a_time_of_delivery(spark: SparkSession, apache_cluster: peers.Server) -> None:
    """Apache's broker has timers: the row is not readable before its time."""
    topic = made(apache_cluster, "spark_timed", queues=1)
    at_ms = time.time_ns() // 1_000_000 + 4_000
    written(spark.createDataFrame([("later", at_ms)], "body string, deliverAt bigint"), apache_cluster, topic)
    until(lambda: read(spark, apache_cluster, topic).count() == 1)
    (row,) = read(spark, apache_cluster, topic).select("body", "storeTimestamp").collect()
    assert row.body == "later"
    assert row.storeTimestamp.astimezone(UTC) >= datetime.fromtimestamp(at_ms / 1000 - 1, UTC)


def test_the_files_of_apaches_broker(spark: SparkSession, tmp_path: Path) -> None:
    """The files are read while the broker writes them, after it has stopped, and as a copy; also by key."""
    try:
        with (
            peers.apache_namesrv(tmp_path) as namesrv,
            peers.apache_broker(tmp_path, namesrv.namesrv) as server,
        ):
            topic = made(server, "spark_files")
            written(orders(spark), server, topic)
            until(lambda: read(spark, server, topic, columns="queueOffset").count() == ROWS)
            assert seen(files(spark, tmp_path / "store", topic)) == sent(orders(spark))
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)
    assert seen(files(spark, tmp_path / "store", topic)) == sent(orders(spark))
    assert [row.body for row in files(spark, tmp_path / "store", topic, key="key-77").collect()] == [
        "order 77"
    ]
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    shutil.rmtree(tmp_path / "store")
    assert seen(files(spark, tmp_path / "copy", topic, tags="tag2")) == [
        row for row in sent(orders(spark)) if row[1] == "tag2"
    ]


def files(spark: SparkSession, path: Path, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(storePath=str(path), body="string", **options).load(topic)
