"""Writing through Spark, in batches and as a stream: acknowledgements, failures, and the state after a
failure."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq import DefaultSource
from tests.spark.kit_brokers import Brokers, brokers

IDENTITY = ["SPARK_QUERY", "SPARK_BATCH", "SPARK_PART", "SPARK_SEQ"]
ROWS = 2000


class DyingSink(DefaultSource):
    """Writes like the real sink; the worker kills itself once after five Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_dying_sink"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        mark = Path(self.options.pop("mark"))
        writer = super().streamWriter(schema, overwrite)

        class Dying(type(writer)):  # type: ignore[misc]
            def write(self, iterator: Iterator[Any]) -> Any:
                def rows() -> Iterator[Any]:
                    for number, batch in enumerate(iterator):
                        if number == 5 and not mark.exists():
                            mark.touch()
                            os.kill(os.getpid(), signal.SIGKILL)
                        yield batch

                return super().write(rows())

        writer.__class__ = Dying
        return writer


@pytest.fixture(autouse=True)
def _own_sink(spark: SparkSession) -> Iterator[None]:
    """The sink of this module is pickled by value, because workers cannot import it; Arrow batches are
    small."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(DyingSink)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def write(frame: DataFrame, cluster: Brokers, topic: str = "", **options: Any) -> None:
    given = {"nameServer": cluster.name_server, **({"topic": topic} if topic else {}), **options}
    frame.write.format("rocketmq").mode("append").options(**given).save()


def read(spark: SparkSession, cluster: Brokers, topic: str) -> DataFrame:
    return (
        spark.read.format("rocketmq")
        .options(nameServer=cluster.name_server, topic=topic, body="string")
        .load()
    )


def test_what_is_written_is_read(spark: SparkSession, shared_cluster: Brokers) -> None:
    """All columns of a write are read back; nulls stay nulls; rows that were read can be written to another
    topic unchanged."""
    shared_cluster.create_topic("Written", 2)
    shared_cluster.create_topic("Copied", 2)
    shared_cluster.create_topic("Placed", 2)
    later = datetime(2026, 1, 1)
    row = ("Written", "körper", "new", ["k1", "k2"], {"colour": "blå", "none": None}, 1, "broker-a", 7, later)
    other = ("Written", "other", None, None, None, 0, None, None, None)
    names = (
        "topic string, body string, tags string, keys array<string>, properties map<string,string>, queueId"
        " int, brokerName string, flag int"
    )
    write(spark.createDataFrame([row, other], f"{names}, bornTimestamp timestamp"), shared_cluster)
    found = {each.body: each for each in read(spark, shared_cluster, "Written").collect()}
    first, second = found["körper"], found["other"]
    assert (first.tags, first.keys, first.flag, first.queueId, first.properties["colour"]) == (
        "new",
        "k1 k2",
        7,
        1,
        "blå",
    )
    assert "none" not in first.properties
    assert (second.tags, second.keys, second.flag, second.queueId) == (None, None, 0, 0)
    assert first.bornTimestamp > later
    write(read(spark, shared_cluster, "Written"), shared_cluster, "Copied")
    copies = {each.body: each for each in read(spark, shared_cluster, "Copied").collect()}
    assert {body: (each.tags, each.keys, each.flag, each.queueId) for body, each in copies.items()} == {
        body: (each.tags, each.keys, each.flag, each.queueId) for body, each in found.items()
    }
    assert copies["körper"].properties["colour"] == "blå"
    assert copies["körper"].msgId != first.msgId


def test_wrong_frames_are_refused_before_any_task(spark: SparkSession, shared_cluster: Brokers) -> None:
    """All faults are reported together, with the correct type or name; options and modes are checked as
    well."""
    wrong = spark.createDataFrame([(1, 2, "x", "1")], "body int, tags int, key string, queueId string")
    with pytest.raises(AnalysisException) as refused:
        write(wrong, shared_cluster)
    text = str(refused.value)
    for fault in (
        "column body is int, it has to be binary or string",
        "column tags is int, it has to be string",
        "column key cannot be written; did you mean 'keys'?",
        "column queueId is string, it has to be int or bigint",
        "neither an option topic nor a column topic",
    ):
        assert fault in text
    fine = spark.createDataFrame([("x",)], "body string")
    with pytest.raises(AnalysisException, match="did you mean 'batchBytes'"):
        write(fine, shared_cluster, "T", batchByte="1")
    with pytest.raises(AnalysisException, match="set nameServer = host:9876"):
        fine.write.format("rocketmq").mode("append").save("T")
    with pytest.raises(AnalysisException, match="cannot be overwritten: write with mode append"):
        fine.write.format("rocketmq").mode("overwrite").options(nameServer=shared_cluster.name_server).save(
            "T"
        )


def test_a_failed_task_fails_the_job_with_the_brokers_reason(spark: SparkSession, tmp_path: Path) -> None:
    """The job fails for a row larger than the broker permits, a missing topic, and a row that cannot become a
    message."""
    with brokers(tmp_path, maxMessageSize=64 * 1024, autoCreateTopicEnable=False) as strict:
        strict.create_topic("Small", 1)
        large = spark.range(1).selectExpr("repeat('x', 100000) AS body")
        with pytest.raises(PySparkException, match=r"writing to topic 'Small' .* answered MESSAGE_ILLEGAL"):
            write(large, strict, "Small")
        with pytest.raises(PySparkException, match=r"writing to topic 'Missing' .* failed: .*Missing"):
            write(spark.createDataFrame([("x",)], "body string"), strict, "Missing")
        with pytest.raises(PySparkException, match=r"row 1 of partition 0 has no body"):
            write(spark.createDataFrame([("x",), (None,)], "body string").coalesce(1), strict, "Small")
    with pytest.raises(PySparkException, match=r"through 127.0.0.1:1 failed: no name server answers"):
        large.write.format("rocketmq").mode("append").options(
            nameServer="127.0.0.1:1", topic="T", **{"send.numRetries": "0"}
        ).save()


class Copying:
    """A query from text files to a topic that can be restarted where it stopped."""

    def __init__(self, spark: SparkSession, cluster: Brokers, topic: str, place: Path) -> None:
        self.spark, self.cluster, self.topic, self.place = spark, cluster, topic, place
        cluster.create_topic(topic, 2)
        (place / "in").mkdir()
        (place / "in" / "rows.txt").write_text("".join(f"{number}\n" for number in range(ROWS)))

    def run(self, kind: str = "rocketmq", checkpoint: str = "checkpoint", **options: str) -> StreamingQuery:
        """Write the existing rows. Raises the error of the query."""
        rows = (
            self.spark.readStream.format("text")
            .load(str(self.place / "in"))
            .withColumnRenamed("value", "body")
        )
        writer = rows.writeStream.format(kind).options(
            nameServer=self.cluster.name_server, topic=self.topic, **options
        )
        query = (
            writer.option("checkpointLocation", str(self.place / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def forget_the_end(self, checkpoint: str) -> None:
        """A copy of the checkpoint as if Spark had died after the last row was written and before recording
        it."""
        shutil.copytree(self.place / "checkpoint", self.place / checkpoint)
        for file in (self.place / checkpoint / "commits").iterdir():
            file.unlink()

    def found(self) -> list[tuple[Any, ...]]:
        """(number, identity) of each message."""
        columns = [f"properties['{name}']" for name in IDENTITY]
        return [
            tuple(row)
            for row in read(self.spark, self.cluster, self.topic).selectExpr("int(body)", *columns).collect()
        ]


def test_two_sinks_that_replay_a_batch_write_it_once(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """A completely written batch is skipped by every replay. With the option off, a replay gives each row the
    same identity."""
    copying = Copying(spark, shared_cluster, "Replayed", tmp_path)
    query = copying.run()
    once = copying.found()
    assert sorted(number for number, *_ in once) == list(range(ROWS))
    assert {row[1:3] for row in once} == {(str(query.id), "0")}
    for checkpoint in ("second", "third"):
        copying.forget_the_end(checkpoint)
        again = copying.run(checkpoint=checkpoint)
        assert again.recentProgress[0].numInputRows == ROWS
        assert sorted(copying.found()) == sorted(once)
    copying.forget_the_end("fourth")
    copying.run(checkpoint="fourth", skipCommittedBatches="false")
    assert sorted(copying.found()) == sorted(once * 2)


def test_a_checkpoint_from_a_backup_costs_no_row(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """The backup lacks the last batch, so its number is used again for other rows, which are written although
    a batch with this number is marked."""
    copying = Copying(spark, shared_cluster, "Restored", tmp_path)
    copying.run()
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(tmp_path / "checkpoint" / "metadata", restored)
    (tmp_path / "in" / "more.txt").write_text(f"{ROWS}\n")
    query = copying.run(checkpoint="restored")
    assert query.recentProgress[0].batchId == 0
    found = copying.found()
    assert {row[1:3] for row in found} == {(str(query.id), "0")}
    assert {number for number, *_ in found} == set(range(ROWS + 1))


def test_a_worker_killed_while_it_writes_costs_no_row(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """The query fails, and after a restart it writes the batch completely; duplicates have the same
    identity."""
    copying = Copying(spark, shared_cluster, "Killed", tmp_path)
    options = {"mark": str(tmp_path / "mark"), "maxInFlight": "1"}
    with pytest.raises(StreamingQueryException):
        copying.run("rocketmq_dying_sink", **options)
    before = copying.found()
    assert 0 < len(before) < ROWS
    copying.run("rocketmq_dying_sink", **options)
    found = copying.found()
    assert len(found) == len(before) + ROWS
    assert sorted(number for number, *_ in set(found)) == list(range(ROWS))


def test_rows_of_foreach_batch_tell_their_batch(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """A batch write within a stream gives each row the identity of its micro-batch; a separate batch job has
    its own id and no batch."""
    copying = Copying(spark, shared_cluster, "ForEach", tmp_path)

    def send(frame: DataFrame, number: int) -> None:
        write(frame, shared_cluster, "ForEach")

    rows = spark.readStream.format("text").load(str(tmp_path / "in")).withColumnRenamed("value", "body")
    writer = rows.writeStream.foreachBatch(send).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert {row[1:4] for row in copying.found()} == {(str(query.id), "0", "0")}
    write(spark.createDataFrame([("7",)], "body string"), shared_cluster, "ForEach")
    (alone,) = [row for row in copying.found() if row[1] != str(query.id)]
    assert alone[1]
    assert alone[2] is None


def test_two_writes_of_a_batch_keep_all_their_rows(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """Dropping duplicates by the four properties keeps both writes of a batch, of other rows and of the same
    rows; a batch that is repeated after a failure adds nothing."""
    shared_cluster.create_topic("Twice", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("1\n2\n3\n")
    failures = iter([True, False])

    def send(frame: DataFrame, number: int) -> None:
        write(frame, shared_cluster, "Twice")
        write(frame, shared_cluster, "Twice")
        write(
            frame.selectExpr("concat('copy of ', body) AS body"), shared_cluster, "Twice", writeName="copies"
        )
        if next(failures):
            raise RuntimeError("the batch fails after its rows were written")

    rows = spark.readStream.format("text").load(str(tmp_path / "in")).withColumnRenamed("value", "body")
    writer = rows.writeStream.foreachBatch(send).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="the batch fails"):
        writer.start().awaitTermination()
    writer.start().awaitTermination()
    names = ("SPARK_QUERY", "SPARK_BATCH", "SPARK_PART", "SPARK_SEQ")
    found = read(spark, shared_cluster, "Twice").selectExpr(
        "body", *(f"properties['{name}'] AS {name}" for name in names)
    )
    assert found.count() == 18
    kept = sorted(row.body for row in found.dropDuplicates([*names]).collect())
    assert kept == ["1", "1", "2", "2", "3", "3", "copy of 1", "copy of 2", "copy of 3"]


def test_a_stream_writes_through_an_empty_batch_and_counts_go_on(
    spark: SparkSession, shared_cluster: Brokers, tmp_path: Path
) -> None:
    """Batch numbers continue over restarts; a topic created by the first row causes no failure."""
    copying = Copying(spark, shared_cluster, "Growing", tmp_path)
    copying.topic = "MadeByTheFirstRow"
    copying.run()
    (tmp_path / "in" / "more.txt").write_text("".join(f"{number}\n" for number in range(ROWS, ROWS + 10)))
    copying.run()
    found = copying.found()
    assert sorted(number for number, *_ in found) == list(range(ROWS + 10))
    assert {row[2] for row in found if row[0] >= ROWS} == {"1"}
