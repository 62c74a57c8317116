"""Streams of real topics: messages, batches, and the data reported to Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from attrs import frozen
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_rocketmq.stream.lag import lag
from rmqkit.model.queue import MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers, brokers
from tests.spark.kit_engine import Engine
from tests.spark.kit_stream import Reading, bodies, on, read_to, sizes, until, until_it_waits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def test_what_comes_is_read(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """Existing and new messages are read once each, and an idle query makes no batch, in whatever order its
    many queues are listed. Without commitToGroup, brokers do not get the position."""
    cluster.create_topic("Flow", 12)
    cluster.send("Flow", bodies(0, 120), queues=12)
    reading = Reading(spark, tmp_path, on(cluster, "Flow", groupId="spark-unseen"))
    query = reading.start()
    query.processAllAvailable()
    assert reading.batches() == [0]
    cluster.send("Flow", bodies(120, 150), queues=3)
    read_to(query, 150)
    query.processAllAvailable()
    query.stop()
    assert reading.numbers() == list(range(150))
    assert reading.batches() == [0, 1]
    assert reading.logged(0).startswith('{"from": {"Flow": {"broker-a": {"0": 0, ')
    assert reading.logged(1) == json.dumps(
        {"q": {"Flow": {BROKER: {str(queue): 20 if queue < 3 else 10 for queue in range(12)}}}, "v": 1}
    )
    with cluster.client.pull_consumer("spark-unseen") as unseen:
        assert {unseen.committed(MessageQueue("Flow", BROKER, queue)) for queue in range(12)} == {None}


@frozen
class Limited:
    """A query that has read 302 messages of two queues in several batches: its progress, and the messages
    that brokers knew as read at its end."""

    reading: Reading
    progress: list[StreamingQueryProgress]
    committed: int

    @property
    def sizes(self) -> list[int]:
        return [each.numInputRows for each in self.progress]


@pytest.fixture(scope="module")
def limited(spark: SparkSession, cluster: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Limited:
    cluster.create_topic("Runs", 4)
    cluster.send("Runs", bodies(0, 300), queues=1)
    cluster.send("Runs", bodies(300, 302), queues=2)
    options = on(cluster, "Runs", maxOffsetsPerTrigger="100", groupId="spark-seen", commitToGroup="true")
    reading = Reading(spark, tmp_path_factory.mktemp("limited"), options)
    progress = [each for each in reading.run().recentProgress if each.numInputRows]
    with cluster.client.pull_consumer("spark-seen") as seen:
        committed = [seen.committed(MessageQueue("Runs", BROKER, queue)) or 0 for queue in range(4)]
    return Limited(reading, progress, sum(committed))


def test_available_now(limited: Limited, cluster: Brokers) -> None:
    """A run to the end takes several batches within the limit, small queues included; the next run takes
    newer messages."""
    assert sum(limited.sizes) == 302
    assert len(limited.sizes) == 4
    assert max(limited.sizes) <= 101
    cluster.send("Runs", bodies(302, 310), queues=4)
    assert sizes(limited.reading.run()) == [8]
    assert limited.reading.batches() == [0, 1, 2, 3, 4]
    assert limited.reading.numbers() == list(range(310))


def test_lag_is_reported(limited: Limited) -> None:
    """The progress of a limited query contains the remaining messages, and the helper returns them as
    numbers."""
    left = [302 - taken for taken in accumulate(limited.sizes)]
    assert [lag(progress).total for progress in limited.progress] == left


def test_commit_to_group(limited: Limited) -> None:
    """With commitToGroup, brokers have the position that was read, also of the last batch of a run."""
    assert limited.committed == sum(limited.sizes)


def test_limit_of_bytes(cluster: Brokers) -> None:
    """maxBytesPerTrigger limits a batch by the mean record length."""
    cluster.create_topic("Bytes", 1)
    cluster.send("Bytes", bodies(0, 100))
    engine = Engine()
    engine.run(on(cluster, "Bytes", maxBytesPerTrigger="50k"))
    assert engine.numbers == list(range(100))
    assert len(engine.sizes) >= 3
    assert max(engine.sizes) <= 50


def test_minimum_and_delay(cluster: Brokers) -> None:
    """After the first batch, fewer messages than the minimum wait for more."""
    cluster.create_topic("Enough", 1)
    cluster.send("Enough", bodies(0, 5))
    engine = Engine()
    with engine.started(on(cluster, "Enough", minOffsetsPerTrigger="10", maxTriggerDelay="1h")) as query:
        assert query.batch() == 5
        cluster.send("Enough", bodies(5, 14))
        assert query.batch() == 0
        cluster.send("Enough", bodies(14, 15))
        query.read_to(15)
    assert engine.sizes == [5, 10]


def test_more_queues(cluster: Brokers) -> None:
    """A topic that grows from 4 to 8 queues during a query is read completely, although the query began at
    the end of the old ones."""
    cluster.create_topic("Grows", 4)
    cluster.send("Grows", bodies(0, 8), queues=4)
    engine = Engine()
    with engine.started(on(cluster, "Grows", startingOffsets="latest")) as query:
        assert query.batch() == 0
        cluster.create_topic("Grows", 8)
        cluster.send("Grows", bodies(8, 40), queues=8)
        query.read_to(32)
    assert sorted(engine.numbers) == list(range(8, 40))


def test_new_topic_by_pattern(cluster: Brokers) -> None:
    """A matching topic created during a query is read from its first message; one that does not match is not
    read."""
    cluster.create_topic("Shop-1", 1)
    cluster.send("Shop-1", bodies(0, 5))
    options = on(cluster, "", topicPattern="Shop-[0-9]")
    del options["topic"]
    engine = Engine()
    with engine.started(options) as query:
        assert query.batch() == 5
        for topic, numbers in (("Shop-x", bodies(100, 105)), ("Shop-2", bodies(5, 9))):
            cluster.create_topic(topic, 2)
            cluster.send(topic, numbers, queues=2)
        query.read_to(9)
    assert sorted(engine.numbers) == list(range(9))


def test_stop_while_waiting(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A query that waits for its next check of the queues stops at once."""
    cluster.create_topic("Idle", 1)
    reading = Reading(spark, tmp_path, on(cluster, "Idle", pollIntervalMs="600000"), sink="noop")
    query = reading.start()
    until(query, lambda: query.lastProgress is not None, "the first batch was made")
    until_it_waits(query)
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 10


def test_store_files(cluster: Brokers) -> None:
    """A store directory is followed like a cluster while a broker writes to it."""
    cluster.create_topic("Files", 2)
    cluster.send("Files", bodies(0, 20), queues=2)
    engine = Engine()
    with engine.started(
        {"storePath": str(cluster.directory), "topic": "Files", "startingOffsets": "earliest"}
    ) as query:
        query.read_to(20)
        cluster.send("Files", bodies(20, 30), queues=2)
        query.read_to(30)
    assert sorted(engine.numbers) == list(range(30))
