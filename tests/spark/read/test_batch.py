"""Batch reading through Spark."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_rocketmq import DefaultSource
from pyspark_rocketmq.decode.columns import DEFAULT_COLUMNS, METADATA_COLUMNS, Projection
from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.batch import plan_batch
from pyspark_rocketmq.read.partition_reader import rows_of_part
from pyspark_rocketmq.read.planning import Part
from pyspark_rocketmq.read.pushdown import Pushed
from pyspark_rocketmq.read.ranges import again
from pyspark_rocketmq.read.source import DataLoss, QueueKey, QueueRange, Selection, SourceError
from pyspark_rocketmq.read.source_cache import close_source, open_source
from rmqkit.client import Message, MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers, brokers


@pytest.fixture(scope="module")
def orders(shared_cluster: Brokers) -> str:
    """A topic of two queues with 300 messages each: tag a, b or c, key `k<queue>-<offset>`, body
    `<queue>-<offset>`, a property."""
    topic = "Orders"
    shared_cluster.create_topic(topic, 2)
    with shared_cluster.client.producer("orders-tests") as producer:
        for queue_id in range(2):
            messages = [
                Message(
                    topic,
                    b"%d-%d" % (queue_id, at),
                    tag="abc"[at % 3],
                    keys=[f"k{queue_id}-{at}", "all"],
                    properties={"shop": "north"},
                )
                for at in range(300)
            ]
            for at in range(0, 300, 100):
                producer.send_batch(messages[at : at + 100], queue=MessageQueue(topic, BROKER, queue_id))
    return topic


def read(spark: SparkSession, cluster: Brokers, topic: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.name_server).options(**options)
    return reader.load(topic) if topic else reader.load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def numbered(queue_id: int, offsets: range) -> list[str]:
    return [f"{queue_id}-{at}" for at in offsets]


def options_for(cluster: Brokers, topic: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"nameServer": cluster.name_server, "topic": topic} | given, False)


def test_a_topic_is_read(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """`spark.read.format("rocketmq")` needs no import and no registration, has the documented schema, and
    returns every message once."""
    frame = read(spark, shared_cluster, orders)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == DEFAULT_COLUMNS
    rows = {(row.queueId, row.queueOffset): row for row in frame.collect()}
    assert len(rows) == 600
    row = rows[1, 7]
    assert (row.topic, row.brokerName, row.keys, row.tags, bytes(row.body)) == (
        orders,
        BROKER,
        "k1-7 all",
        "b",
        b"1-7",
    )
    assert row.properties["shop"] == "north"
    assert row.msgId == row.properties["UNIQ_KEY"]


def test_a_view_in_sql(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """CREATE TEMPORARY VIEW keeps its options."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq OPTIONS (nameServer"
        f" '{shared_cluster.name_server}', topic '{orders}')"
    )
    assert spark.sql("SELECT count(*) FROM orders WHERE tags = 'a'").collect()[0][0] == 200


def test_columns_are_chosen(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """Columns are selected by the option, with other types on request, and by a user's schema, which may
    declare columns not nullable; Spark gets only these."""
    frame = read(
        spark, shared_cluster, orders, columns="queueOffset,body,properties", body="string", properties="json"
    )
    assert frame.dtypes == [("queueOffset", "bigint"), ("body", "string"), ("properties", "string")]
    assert '"shop":"north"' in frame.filter("body = '0-5'").collect()[0].properties
    reader = spark.read.format("rocketmq").option("nameServer", shared_cluster.name_server)
    mine = reader.schema("body STRING, queueId INT NOT NULL").load(orders)
    assert mine.filter("queueId = 1").count() == 300
    assert set(mine.limit(1).collect()[0].asDict()) == {"body", "queueId"}
    everything = read(spark, shared_cluster, orders, includeMetadata="true")
    assert everything.columns == [*DEFAULT_COLUMNS, *METADATA_COLUMNS]
    assert everything.agg({"storeSize": "min"}).collect()[0][0] > 91
    with pytest.raises(
        PySparkException,
        match="the schema has a column bodi, messages have none of that name; did you mean 'body'",
    ):
        reader.schema("bodi STRING").load(orders).collect()
    with pytest.raises(PySparkException, match="column queueId as string, it is int"):
        reader.schema("queueId STRING").load(orders).collect()


def test_offsets_and_assigned_queues(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """Start and end offsets apply to each queue, and queues can be assigned."""
    offsets = f'{{"{orders}":{{"{BROKER}":{{"0":290,"1":-1}}}}}}'
    assert bodies(read(spark, shared_cluster, orders, startingOffsets=offsets)) == numbered(
        0, range(290, 300)
    )
    ends = f'{{"{orders}":{{"{BROKER}":{{"0":2,"1":-2}}}}}}'
    assert bodies(read(spark, shared_cluster, orders, endingOffsets=ends)) == numbered(0, range(2))
    assigned = read(spark, shared_cluster, assign=f'{{"{orders}":{{"{BROKER}":[1]}}}}')
    assert assigned.count() == 300


def test_tags_and_key(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """Tags and keys are compared exactly, also if their columns are not requested; a key may be any key of a
    message, or its unique key."""
    assert read(spark, shared_cluster, orders, tags="a || c", columns="queueId").count() == 400
    assert bodies(read(spark, shared_cluster, orders, key="k1-17", columns="body")) == ["1-17"]
    unique = read(spark, shared_cluster, orders).filter("queueOffset = 9 AND queueId = 0").collect()[0].msgId
    assert bodies(read(spark, shared_cluster, orders, key=unique)) == ["0-9"]
    assert read(spark, shared_cluster, orders, key="all").count() == 600
    assert read(spark, shared_cluster, orders, key="k1").count() == 0


def test_partitions(spark: SparkSession, shared_cluster: Brokers, orders: str) -> None:
    """Two small queues share a task unless more are requested; nothing to read gives no partitions."""
    assert read(spark, shared_cluster, orders).rdd.getNumPartitions() == 1
    many = read(spark, shared_cluster, orders, minPartitions="6")
    assert many.rdd.getNumPartitions() == 6
    assert many.count() == 600
    assert read(spark, shared_cluster, orders, startingOffsets="latest").count() == 0


def test_show_is_cheap(shared_cluster: Brokers) -> None:
    """The first batch of a part is small, so that showing 10 rows does not read 50,000."""
    topic = "Long"
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, [b"x" * 50] * 20_000)
    options = options_for(shared_cluster, topic)
    source = open_source(options)
    (part,) = plan_batch(source, options, Pushed())
    rows = rows_of_part(source, options, Projection(("body",)), part, Selection())
    assert next(rows).num_rows <= 256
    assert 256 < max(batch.num_rows for batch in rows) <= 10_000
    close_source(options)


def test_a_hundred_topics_by_pattern(spark: SparkSession, shared_cluster: Brokers) -> None:
    """All matching topics are read in few tasks."""
    for number in range(100):
        shared_cluster.create_topic(f"Many-{number:02}", 1)
        shared_cluster.send(f"Many-{number:02}", [b"%d" % number, b"more"])
    frame = read(spark, shared_cluster, topicPattern="Many-[0-9]+", columns="topic")
    assert frame.rdd.getNumPartitions() == 1
    assert frame.groupBy("topic").count().filter("count = 2").count() == 100


def test_wrong_places(spark: SparkSession, shared_cluster: Brokers) -> None:
    """A missing topic, no topic, and an unknown option each raise an error with a remedy."""
    with pytest.raises(PySparkException, match="has the topic 'Misspelt'"):
        read(spark, shared_cluster, "Misspelt").collect()
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        read(spark, shared_cluster).collect()
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read(spark, shared_cluster, "T", startingOffset="earliest")
    with pytest.raises(PySparkException, match=r"Does nameServer = 127\.0\.0\.1:9 name the name servers"):
        spark.read.format("rocketmq").options(
            nameServer="127.0.0.1:9", **{"fetchOffset.numRetries": "0"}
        ).load("T").collect()


#: This is what Spark's own worker does for the first unknown format: it prints the names of the formats that
#: it found.
LOOK_UP = """
import io
from pyspark.sql.worker.lookup_data_sources import _main
found = io.BytesIO()
_main(None, found)
print(found.getvalue())
"""


def test_a_broken_neighbour(
    spark: SparkSession, shared_cluster: Brokers, orders: str, tmp_path: Path
) -> None:
    """An import error in another package pyspark_* breaks Spark's search for all sources; registering this
    source manually is the remedy."""

    def look_up(*path: Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
        return subprocess.run(
            [sys.executable, "-c", LOOK_UP],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert "rocketmq" in look_up().stdout
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('a broken neighbour')\n")
    broken = look_up(tmp_path)
    assert broken.returncode != 0
    assert "a broken neighbour" in broken.stderr
    spark.dataSource.register(DefaultSource)
    assert read(spark, shared_cluster, orders).count() == 600


def test_what_stays_wrong_is_not_tried_again(shared_cluster: Brokers, tmp_path: Path) -> None:
    """A place that is not a source, whatever time passes, is an error at once."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "topics.json").write_text("{")
    broker = f"127.0.0.1:{shared_cluster.config.listen_port}"
    for place, said in (
        ({"storePath": str(tmp_path / "nowhere")}, "is not a directory"),
        ({"storePath": str(tmp_path / "store")}, r"topics\.json is damaged"),
        ({"nameServer": broker}, "a broker where a name server was meant"),
    ):
        options = ReadOptions.parse({"topic": "T"} | place, False)
        waited: list[float] = []

        def planned(options: ReadOptions = options) -> list[Part]:
            return plan_batch(open_source(options), options, Pushed())

        with pytest.raises(SourceError, match=said):
            again(planned, options, waited.append)
        assert waited == [], place
        close_source(options)


def test_sql92_and_key_are_both_evaluated(tmp_path: Path) -> None:
    """The index does not know the condition, so the brokers evaluate it and the reader compares the key: as
    an option, and as a pushed filter."""
    with brokers(tmp_path, enablePropertyFilter=True) as cluster:
        cluster.create_topic("Both", 1)
        with cluster.client.producer("both") as producer:
            for number in range(100):
                properties = {"n": str(number)}
                producer.send(
                    Message("Both", b"%d" % number, keys=[f"k{number % 60}"], properties=properties)
                )

        def found(pushed: Pushed, **given: str) -> list[bytes]:
            options = options_for(cluster, "Both", columns="body", **given)
            source = open_source(options)
            selection = Selection(sql92=options.sql92 or "")
            return [
                body
                for part in plan_batch(source, options, pushed)
                for batch in rows_of_part(source, options, Projection(("body",)), part, selection)
                for body in batch.column("body").to_pylist()
            ]

        assert found(Pushed(), key="k50") == [b"50"]
        assert found(Pushed(), key="k30") == [b"30", b"90"]
        assert found(Pushed(), key="k50", sql92="n > 60") == []
        assert found(Pushed(), key="k30", sql92="n > 60") == [b"90"]
        assert found(Pushed(key="k30"), sql92="n > 60") == [b"90"]
        close_source(options_for(cluster, "Both", columns="body", key="k50"))


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker that has deleted the first of the 400 messages of topic Old."""
    with brokers(
        tmp_path_factory.mktemp("forgetful"), mappedFileSizeCommitLog=131_072, maxMessageSize=65_536
    ) as cluster:
        cluster.create_topic("Old", 1)
        cluster.send("Old", [b"x" * 1000] * 400)
        cluster.forget_old_messages()
        yield cluster


FROM_ZERO = f'{{"Old":{{"{BROKER}":{{"0":0}}}}}}'


def test_data_loss_fails(spark: SparkSession, forgetful: Brokers) -> None:
    """Requested offsets that have expired raise an error with range, retention and remedy; `earliest`
    requests none of them."""
    first = forgetful.min_offset("Old")
    assert first > 0
    said = rf"messages \[0, {first}\) no longer exist.*fileReservedTime \(72 hours.*failOnDataLoss=false"
    with pytest.raises(PySparkException, match=said):
        read(spark, forgetful, "Old", startingOffsets=FROM_ZERO).collect()
    assert read(spark, forgetful, "Old").count() == 400 - first
    assert read(spark, forgetful, "Old", startingTimestamp="0").count() == 400 - first


def test_data_loss_can_be_a_warning(spark: SparkSession, forgetful: Brokers) -> None:
    """failOnDataLoss=false reads the remaining messages."""
    left = 400 - forgetful.min_offset("Old")
    assert read(spark, forgetful, "Old", startingOffsets=FROM_ZERO, failOnDataLoss="false").count() == left


def test_loss_between_planning_and_reading(forgetful: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    """If part of the messages expired after planning, the option decides between error and warning; the rest
    is read."""
    queue = QueueKey("Old", BROKER, 0)
    first = forgetful.min_offset("Old")
    part = Part((QueueRange(queue, 3, 400),))
    for fail, expected in (("true", 0), ("false", 400 - first)):
        options = options_for(forgetful, "Old", failOnDataLoss=fail)
        source = open_source(options)
        rows = rows_of_part(source, options, Projection(("queueOffset",)), part, Selection())
        if fail == "true":
            with pytest.raises(DataLoss, match=rf"messages \[3, {first}\)"):
                list(rows)
            continue
        with caplog.at_level(logging.WARNING):
            assert sum(batch.num_rows for batch in rows) == expected
        assert "continuing without" in caplog.text
        close_source(options)


def test_an_end_before_the_start(shared_cluster: Brokers, orders: str) -> None:
    """An end before the start is refused when both are offsets."""
    options = options_for(
        shared_cluster,
        orders,
        startingOffsets=f'{{"{orders}":{{"{BROKER}":{{"0":9,"1":0}}}}}}',
        endingOffsets=f'{{"{orders}":{{"{BROKER}":{{"0":5,"1":5}}}}}}',
    )
    with pytest.raises(OptionError, match="the end 5 is before the start 9"):
        plan_batch(open_source(options), options, Pushed())
    close_source(options)


def test_offsets_must_name_every_queue(shared_cluster: Brokers, orders: str) -> None:
    """Neither a missing queue nor an unknown one is accepted silently."""
    for text, said in (
        ('{"0":9}', "it does not list queue 1"),
        ('{"0":1,"1":1,"2":1}', "there is no queue 2"),
    ):
        options = options_for(shared_cluster, orders, endingOffsets=f'{{"{orders}":{{"{BROKER}":{text}}}}}')
        with pytest.raises(OptionError, match=said):
            plan_batch(open_source(options), options, Pushed())
    close_source(options)


def test_moments(shared_cluster: Brokers, orders: str) -> None:
    """Messages stored since a time, and before one, are read; a start after the last message begins at the
    end, or is refused."""
    options = options_for(
        shared_cluster,
        orders,
        startingTimestamp="2000-01-01T00:00:00Z",
        endingTimestamp="2001-01-01T00:00:00Z",
    )
    source = open_source(options)
    assert plan_batch(source, options, Pushed()) == []
    late = "2200-01-01T00:00:00Z"
    options = options_for(shared_cluster, orders, startingTimestamp="0", endingTimestamp=late)
    (part,) = plan_batch(source, options, Pushed())
    assert [(each.start, each.stop) for each in part.ranges] == [(0, 300), (0, 300)]
    assert plan_batch(source, options_for(shared_cluster, orders, startingTimestamp=late), Pushed()) == []
    strict = options_for(shared_cluster, orders, startingTimestamp=late, offsetsByTimestampStrategy="error")
    with pytest.raises(OptionError, match="offsetsByTimestampStrategy=latest"):
        plan_batch(source, strict, Pushed())
    close_source(options)


def test_create_table_is_the_trap_it_is_said_to_be(
    spark: SparkSession, shared_cluster: Brokers, orders: str
) -> None:
    """Spark passes the options of a catalog table to no Python source, which the error explains."""
    spark.sql("DROP TABLE IF EXISTS kept")
    spark.sql(
        f"CREATE TABLE kept USING rocketmq OPTIONS (nameServer '{shared_cluster.name_server}', topic"
        f" '{orders}')"
    )
    with pytest.raises((PySparkException, AnalysisException), match="CREATE TEMPORARY VIEW"):
        spark.sql("SELECT * FROM kept").collect()
    spark.sql("DROP TABLE kept")
