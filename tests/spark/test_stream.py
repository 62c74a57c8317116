"""Streams of real topics in a real Spark: what is read, in which batches, and what Spark is told about it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.lag import lag
from rmqkit.model.queue import MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers, brokers
from tests.spark.kit_stream import Reading, bodies, on, read_to, sizes, until, until_it_waits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def test_what_comes_is_read(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """What is there and what comes is read once each, and an idle query makes no batch, whatever order its many queues come in."""
    cluster.create_topic("Flow", 12)
    cluster.send("Flow", bodies(0, 120), queues=12)
    reading = Reading(spark, tmp_path, on(cluster, "Flow"))
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
    assert reading.logged(1) == json.dumps({"q": {"Flow": {BROKER: {str(queue): 20 if queue < 3 else 10 for queue in range(12)}}}, "v": 1})


def test_available_now(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A run to the end takes several batches within the limit, small queues included, and ends; the next run takes what came since, and one with nothing
    to do makes no batch."""
    cluster.create_topic("Runs", 4)
    cluster.send("Runs", bodies(0, 300), queues=1)
    cluster.send("Runs", bodies(300, 302), queues=2)
    reading = Reading(spark, tmp_path, on(cluster, "Runs", maxOffsetsPerTrigger="100"))
    taken = sizes(reading.run())
    assert sum(taken) == 302
    assert len(taken) == 4
    assert max(taken) <= 101
    cluster.send("Runs", bodies(302, 310), queues=4)
    assert sizes(reading.run()) == [8]
    done = reading.batches()
    reading.run()
    assert reading.batches() == done
    assert reading.numbers() == list(range(310))


def test_lag_is_reported(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """The progress of a limited query tells how much is left, and the helper makes numbers of it."""
    cluster.create_topic("Behind", 1)
    cluster.send("Behind", bodies(0, 250))
    query = Reading(spark, tmp_path, on(cluster, "Behind", maxOffsetsPerTrigger="100"), sink="noop").run()
    assert [lag(progress).total for progress in query.recentProgress if progress.numInputRows] == [150, 50, 0]


def test_limit_of_bytes(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """maxBytesPerTrigger bounds a batch by the mean length of the records."""
    cluster.create_topic("Bytes", 1)
    cluster.send("Bytes", bodies(0, 100))
    taken = sizes(Reading(spark, tmp_path, on(cluster, "Bytes", maxBytesPerTrigger="50k"), sink="noop").run())
    assert sum(taken) == 100
    assert len(taken) >= 3
    assert max(taken) <= 50


def test_minimum_and_delay(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """After the first batch fewer messages than the minimum wait; with them there are enough."""
    cluster.create_topic("Enough", 1)
    cluster.send("Enough", bodies(0, 5))
    reading = Reading(spark, tmp_path, on(cluster, "Enough", minOffsetsPerTrigger="10", maxTriggerDelay="1h"), sink="noop")
    query = reading.start()
    query.processAllAvailable()
    cluster.send("Enough", bodies(5, 14))
    query.processAllAvailable()
    assert reading.batches() == [0]
    cluster.send("Enough", bodies(14, 15))
    read_to(query, 15)
    query.stop()
    assert reading.batches() == [0, 1]
    assert sizes(query) == [5, 10]


def test_more_queues(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A topic that grows from 4 to 8 queues in the middle of a query is read whole, though the query began at the end of the old ones."""
    cluster.create_topic("Grows", 4)
    cluster.send("Grows", bodies(0, 8), queues=4)
    reading = Reading(spark, tmp_path, on(cluster, "Grows", startingOffsets="latest"))
    query = reading.start()
    query.processAllAvailable()
    cluster.create_topic("Grows", 8)
    cluster.send("Grows", bodies(8, 40), queues=8)
    read_to(query, 32)
    query.stop()
    assert reading.numbers() == list(range(8, 40))


def test_new_topic_by_pattern(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A topic that is made in the middle of a query and matches its pattern is read from its first message; one that does not match is not."""
    cluster.create_topic("Shop-1", 1)
    cluster.send("Shop-1", bodies(0, 5))
    options = on(cluster, "", topicPattern="Shop-[0-9]")
    del options["topic"]
    reading = Reading(spark, tmp_path, options)
    query = reading.start()
    query.processAllAvailable()
    for topic, numbers in (("Shop-2", bodies(5, 9)), ("Shop-x", bodies(100, 105))):
        cluster.create_topic(topic, 2)
        cluster.send(topic, numbers, queues=2)
    read_to(query, 9)
    query.stop()
    assert reading.numbers() == list(range(9))


def test_stop_while_waiting(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A query that waits for its next look at the queues stops at once."""
    cluster.create_topic("Idle", 1)
    reading = Reading(spark, tmp_path, on(cluster, "Idle", pollIntervalMs="600000"), sink="noop")
    query = reading.start()
    until(query, lambda: query.lastProgress is not None, "the first batch was made")
    until_it_waits(query)
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 10


def test_store_files(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A store directory is followed as a cluster is, while a broker writes to it."""
    cluster.create_topic("Files", 2)
    cluster.send("Files", bodies(0, 20), queues=2)
    options = {"storePath": str(cluster.directory), "topic": "Files", "startingOffsets": "earliest"}
    reading = Reading(spark, tmp_path, options)
    query = reading.start()
    query.processAllAvailable()
    cluster.send("Files", bodies(20, 30), queues=2)
    read_to(query, 30)
    query.stop()
    assert reading.numbers() == list(range(30))


def test_commit_to_group(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """With commitToGroup brokers learn how far a query read, one batch behind it; without it they do not."""
    cluster.create_topic("Seen", 1)
    cluster.send("Seen", bodies(0, 30))
    for group, commit in (("spark-seen", "true"), ("spark-unseen", "false")):
        reading = Reading(
            spark, tmp_path / group, on(cluster, "Seen", maxOffsetsPerTrigger="15", groupId=group, commitToGroup=commit), sink="noop"
        )
        reading.run()
    with cluster.client.pull_consumer("spark-seen") as seen, cluster.client.pull_consumer("spark-unseen") as unseen:
        assert seen.committed(MessageQueue("Seen", BROKER, 0)) == 15
        assert unseen.committed(MessageQueue("Seen", BROKER, 0)) is None
