"""Faults during a stream in Spark: dying processes, stopping brokers, expiring messages. Guaranteed messages
are still read once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from pyspark_rocketmq import DefaultSource
from pyspark_rocketmq.read.source import DataLoss, Unanswered
from rmqkit.client import BlockingClient
from tests.spark.kit_brokers import Brokers, brokers
from tests.spark.kit_engine import Engine
from tests.spark.kit_stream import Reading, bodies, on, read_to, sizes, until_it_waits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker with log files small enough that old ones can be deleted."""
    with brokers(
        tmp_path_factory.mktemp("brokers"), mappedFileSizeCommitLog=256 * 1024, maxMessageSize=64 * 1024
    ) as running:
        yield running


class DyingSource(DefaultSource):
    """Reads like the real source; the worker kills itself once after the first rows."""

    def __init__(self, options: Any) -> None:
        self.mark = Path(options.pop("mark"))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq_dying"

    def streamReader(self, schema: Any) -> Any:
        mark, reader = self.mark, super().streamReader(schema)

        class Dying(type(reader)):  # type: ignore[misc]
            def read(self, partition: Any) -> Iterator[Any]:
                for batch in super().read(partition):
                    yield batch
                    if not mark.exists():
                        mark.touch()
                        os.kill(os.getpid(), signal.SIGKILL)

        reader.__class__ = Dying
        return reader


class BusySource(DefaultSource):
    """Reads like the real source; a hundred messages arrive each time before Spark learns the start of the
    query, and before it learns the end of the first batch."""

    def __init__(self, options: Any) -> None:
        self.numbers = Path(options.pop("numbers"))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq_busy"

    def streamReader(self, schema: Any) -> Any:
        numbers, name_server, topic = self.numbers, self.options["nameServer"], self.options["topic"]
        reader = super().streamReader(schema)

        def send() -> None:
            begin = int(numbers.read_text())
            with BlockingClient(name_server) as client, client.producer("busy") as producer:
                for body in bodies(begin, begin + 100):
                    producer.send(topic, body)
            numbers.write_text(str(begin + 100))

        class Busy(type(reader)):  # type: ignore[misc]
            calls = 0

            def initialOffset(self) -> Any:
                found = super().initialOffset()
                send()
                return found

            def latestOffset(self, start: Any, limit: Any) -> Any:
                Busy.calls += 1
                if Busy.calls == 1:
                    send()
                return super().latestOffset(start, limit)

        reader.__class__ = Busy
        return reader


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """The sources of this module are pickled by value, because workers cannot import them."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def fails_once(reading: Reading, mark: Path, at: int) -> Any:
    """The frame of a query that fails at a message as long as the mark exists."""

    def look(number: int) -> int:
        if number == at and mark.exists():
            raise RuntimeError("as the test wants it")
        return number

    return reading.frame.withColumn("number", udf(look, "int", useArrow=False)("number"))


def test_batch_0_is_repeated_as_it_was(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A query starts at the latest message; messages arrive while Spark asks for the start; its first batch
    fails, more arrive, and it is restarted: no message since its start is missing or read twice."""
    cluster.create_topic("Batch0", 2)
    cluster.send("Batch0", bodies(0, 100), queues=2)
    numbers, mark = tmp_path / "numbers", tmp_path / "mark"
    numbers.write_text("100")
    mark.touch()
    spark.dataSource.register(BusySource)
    options = on(cluster, "Batch0", startingOffsets="latest")
    busy = Reading(spark, tmp_path, options | {"numbers": str(numbers)}, "rocketmq_busy")
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        busy.start(fails_once(busy, mark, 150)).awaitTermination()
    sent = int(numbers.read_text())
    assert sent >= 300
    mark.unlink()
    cluster.send("Batch0", bodies(sent, 500), queues=2)
    again = Reading(spark, tmp_path, options)
    query = again.start()
    read_to(query, 400)
    query.stop()
    assert again.numbers() == list(range(100, 500))


def test_worker_killed(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """When the worker is killed while reading a batch, the query fails, and continues from its checkpoint
    without a gap or duplicates. The batch is repeated unchanged although the limit has changed, which applies
    to later batches."""
    cluster.create_topic("Worker", 2)
    cluster.send("Worker", bodies(0, 400), queues=2)
    spark.dataSource.register(DyingSource)
    options = on(cluster, "Worker", maxOffsetsPerTrigger="150")
    dying = Reading(spark, tmp_path, options | {"mark": str(tmp_path / "mark")}, "rocketmq_dying")
    with pytest.raises(StreamingQueryException, match=r"Python worker exited unexpectedly|crashed"):
        dying.run()
    assert (tmp_path / "mark").exists()
    again = Reading(spark, tmp_path, options | {"maxOffsetsPerTrigger": "100"})
    assert sizes(again.run()) == [150, 100, 100, 50]
    assert again.numbers() == list(range(400))


DRIVER = """
import os, signal, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

name_server, place, kit = sys.argv[1:]
sys.path.insert(0, kit)
from pathlib import Path
from tests.spark.kit_engine import Engine
from tests.spark.kit_stream import Reading

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "512m").getOrCreate()
group = os.getpgid(0)
options = {"nameServer": name_server, "topic": "Driver", "startingOffsets": "earliest"}
options["maxOffsetsPerTrigger"] = "100"
reading = Reading(spark, Path(place), options)

def kill(number):
    if number == 150:
        os.killpg(group, signal.SIGKILL)
    return number

frame = reading.frame.withColumn("number", udf(kill, "int", useArrow=False)("number"))
reading.start(frame, available_now=True).awaitTermination()
"""


def test_driver_killed(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """When driver and JVM are killed during the second batch, a new driver continues from the checkpoint
    without a gap or duplicates."""
    cluster.create_topic("Driver", 2)
    cluster.send("Driver", bodies(0, 400), queues=2)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", DRIVER, cluster.name_server, str(tmp_path), root]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    dead = subprocess.run(
        command, env=environment, start_new_session=True, capture_output=True, timeout=300, check=False
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()[-2000:]
    again = Reading(spark, tmp_path, on(cluster, "Driver", maxOffsetsPerTrigger="100"))
    assert again.batches() == [0, 1]
    again.run()
    assert again.numbers() == list(range(400))


def test_broker_stopped_and_started(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """Restarting a broker interrupts a stream without loss."""
    cluster.create_topic("Restart", 2)
    cluster.send("Restart", bodies(0, 50), queues=2)
    patient = {"fetchOffset.numRetries": "200", "fetchOffset.retryIntervalMs": "100", "pollIntervalMs": "0"}
    reading = Reading(spark, tmp_path, on(cluster, "Restart", **patient))
    query = reading.start()
    read_to(query, 50)
    cluster.stop()
    try:
        until_it_waits(query)
    finally:
        cluster.start()
    cluster.send("Restart", bodies(50, 90), queues=2)
    read_to(query, 90)
    query.stop()
    assert reading.numbers() == list(range(90))


def test_broker_stays_away(cluster: Brokers) -> None:
    """If the broker is down for longer than outageTimeout, the query ends with an error about the outage;
    started again later, it continues."""
    cluster.create_topic("Away", 1)
    cluster.send("Away", bodies(0, 10))
    engine, options = Engine(), on(cluster, "Away", outageTimeout="1s")
    with engine.started(options) as query:
        query.read_to(10)
        cluster.stop()
        try:
            with pytest.raises(
                Unanswered, match=r"broker-a: no answer .*queue 0 of topic Away .* No message is lost"
            ):
                query.read_to(11)
        finally:
            cluster.start()
    cluster.send("Away", bodies(10, 20))
    engine.run(options)
    assert engine.numbers == list(range(20))


def test_retention_overtakes(cluster: Brokers) -> None:
    """Messages that expire before they are read raise an error with the range and the remedy; with
    failOnDataLoss=false the query continues with the rest."""
    cluster.create_topic("Expires", 1)
    cluster.send("Expires", bodies(0, 20))
    engine = Engine()
    engine.run(on(cluster, "Expires"))
    cluster.send("Expires", bodies(20, 900))
    cluster.forget_old_messages()
    first = cluster.min_offset("Expires")
    assert 20 < first < 900
    said = rf"offsets 20 to {first - 1} of queue 0 of topic Expires .*failOnDataLoss=false"
    with pytest.raises(DataLoss, match=said):
        engine.run(on(cluster, "Expires"))
    engine.run(on(cluster, "Expires", failOnDataLoss="false"))
    assert engine.numbers == [*range(20), *range(first, 900)]


def test_topic_made_again(cluster: Brokers) -> None:
    """If a topic is deleted and created again while a query is stopped, an error reports it; with
    failOnDataLoss=false the new topic is read from its start."""
    cluster.create_topic("Again", 1)
    cluster.send("Again", bodies(0, 50))
    engine = Engine()
    engine.run(on(cluster, "Again"))
    cluster.delete_topic("Again")
    cluster.create_topic("Again", 1)
    cluster.send("Again", bodies(50, 60))
    with pytest.raises(
        DataLoss, match="ends at offset 10, but was read up to 50: the topic was created again"
    ):
        engine.run(on(cluster, "Again"))
    engine.run(on(cluster, "Again", failOnDataLoss="false"))
    assert engine.numbers == list(range(60))


@pytest.mark.parametrize("available_now", [False, True])
def test_wrong_options_end_with_their_reason(
    spark: SparkSession, tmp_path: Path, available_now: bool
) -> None:
    """The error of a query with options that streams do not have, or that exclude each other, ends with the
    reason, not with a fault of Spark's runner."""
    for given, said in (
        ({"endingOffsets": "latest"}, "option endingOffsets does not apply to streaming reads"),
        ({"topicPattern": "T.*"}, "options topic and topicPattern exclude each other"),
    ):
        query = Reading(spark, tmp_path / said, {"nameServer": "127.0.0.1:1", "topic": "T"} | given).start(
            available_now=available_now
        )
        with pytest.raises(StreamingQueryException, match=said) as caught:
            query.awaitTermination()
        assert "UnboundLocalError" not in str(caught.value)


def test_no_such_topic(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """The error of the query names the missing topic."""
    with pytest.raises(StreamingQueryException, match="Nowhere"):
        Reading(spark, tmp_path, on(cluster, "Nowhere")).run()
