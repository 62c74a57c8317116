"""What goes wrong while a stream runs, in a real Spark: processes that die, brokers that go, messages that expire. What was promised is still read once."""

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
from rmqkit.client import BlockingClient
from tests.spark.kit_brokers import Brokers, brokers
from tests.spark.kit_stream import Reading, bodies, on, read_to, sizes, until_it_waits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker with log files so small that old ones can be deleted."""
    with brokers(tmp_path_factory.mktemp("brokers"), mappedFileSizeCommitLog=256 * 1024, maxMessageSize=64 * 1024) as running:
        yield running


class DyingSource(DefaultSource):
    """Reads as the real one does; the worker that reads kills itself after the first rows, once."""

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
    """Reads as the real one does; a hundred messages come each time before Spark learns where the query begins, and before it learns how far the first
    batch goes."""

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
    """The sources of this module go to the workers whole: these cannot import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def fails_once(reading: Reading, mark: Path, at: int) -> Any:
    """The frame of a query that fails when it comes to a message, as long as the mark is there."""

    def look(number: int) -> int:
        if number == at and mark.exists():
            raise RuntimeError("as the test wants it")
        return number

    return reading.frame.withColumn("number", udf(look, "int", useArrow=False)("number"))


def test_batch_0_is_repeated_as_it_was(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A query begins at the latest message; messages come while Spark asks where that is; its first batch fails, more come, and it is started again: of
    the messages since its beginning none is missing, and none is read twice."""
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
    """The Python worker is killed in the middle of reading a batch: the query fails, and goes on from its checkpoint without a gap or a repeat. The batch is
    repeated as it was, though the limit is another now, which holds for the batches after it."""
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
from tests.spark.kit_stream import Reading

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.memory", "512m").getOrCreate()
group = os.getpgid(0)
options = {"nameServer": name_server, "topic": "Driver", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
reading = Reading(spark, Path(place), options)

def kill(number):
    if number == 150:
        os.killpg(group, signal.SIGKILL)
    return number

frame = reading.frame.withColumn("number", udf(kill, "int", useArrow=False)("number"))
reading.start(frame, available_now=True).awaitTermination()
"""


def test_driver_killed(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """Driver and JVM are killed in the middle of the second batch: a new driver goes on from the checkpoint without a gap or a repeat."""
    cluster.create_topic("Driver", 2)
    cluster.send("Driver", bodies(0, 400), queues=2)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", DRIVER, cluster.name_server, str(tmp_path), root]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    dead = subprocess.run(command, env=environment, start_new_session=True, capture_output=True, timeout=120, check=False)
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()[-2000:]
    again = Reading(spark, tmp_path, on(cluster, "Driver", maxOffsetsPerTrigger="100"))
    assert again.batches() == [0, 1]
    again.run()
    assert again.numbers() == list(range(400))


def test_broker_stopped_and_started(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A broker that is stopped and started again under a stream interrupts it and no more."""
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


def test_broker_stays_away(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """When the broker does not come back the query ends with an error that says what is gone; started again later it goes on."""
    cluster.create_topic("Away", 1)
    cluster.send("Away", bodies(0, 10))
    reading = Reading(spark, tmp_path, on(cluster, "Away"))
    query = reading.start()
    read_to(query, 10)
    cluster.stop()
    try:
        with pytest.raises(StreamingQueryException, match=r"queue 0 of topic Away .* or its broker is down"):
            query.awaitTermination(60)
    finally:
        cluster.start()
    cluster.send("Away", bodies(10, 20))
    reading.run()
    assert reading.numbers() == list(range(20))


def test_retention_overtakes(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """Messages expire before a query comes to them: an error with the range and the remedy; with failOnDataLoss=false it goes on with what is left."""
    cluster.create_topic("Expires", 1)
    cluster.send("Expires", bodies(0, 20))
    Reading(spark, tmp_path, on(cluster, "Expires")).run()
    cluster.send("Expires", bodies(20, 900))
    cluster.forget_old_messages()
    first = cluster.min_offset("Expires")
    assert 20 < first < 900
    said = rf"offsets 20 to {first - 1} of queue 0 of topic Expires .*failOnDataLoss=false"
    with pytest.raises(StreamingQueryException, match=said):
        Reading(spark, tmp_path, on(cluster, "Expires")).run()
    lenient = Reading(spark, tmp_path, on(cluster, "Expires", failOnDataLoss="false"))
    lenient.run()
    assert lenient.numbers() == [*range(20), *range(first, 900)]


def test_topic_made_again(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A topic is deleted and made again while a query stands still: an error that says so; with failOnDataLoss=false the new one is read from its start."""
    cluster.create_topic("Again", 1)
    cluster.send("Again", bodies(0, 50))
    Reading(spark, tmp_path, on(cluster, "Again")).run()
    cluster.delete_topic("Again")
    cluster.create_topic("Again", 1)
    cluster.send("Again", bodies(50, 60))
    with pytest.raises(StreamingQueryException, match="ends at offset 10, and was read up to 50: the topic was made again"):
        Reading(spark, tmp_path, on(cluster, "Again")).run()
    lenient = Reading(spark, tmp_path, on(cluster, "Again", failOnDataLoss="false"))
    lenient.run()
    assert lenient.numbers() == list(range(60))


def test_no_such_topic(spark: SparkSession, cluster: Brokers, tmp_path: Path) -> None:
    """A topic that is not there is an error of the query that names it."""
    with pytest.raises(StreamingQueryException, match="Nowhere"):
        Reading(spark, tmp_path, on(cluster, "Nowhere")).run()
