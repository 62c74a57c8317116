"""Filters that Spark hands down: what is read less, and that the answer stays the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as filters

from pyspark_rocketmq import pushdown
from pyspark_rocketmq.batch import BatchReader, PushingBatchReader, batch_reader, plan_batch
from pyspark_rocketmq.opening import close_source, open_source
from pyspark_rocketmq.options import ReadOptions, projection_of
from pyspark_rocketmq.planning import Part
from pyspark_rocketmq.pushdown import Pushed, push
from pyspark_rocketmq.schemas import struct_of
from pyspark_rocketmq.source import QueueKey, QueueRange
from rmqkit.client import Message, MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000
SWITCH = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def shop(shared_cluster: Brokers) -> str:
    """100 messages in each of two queues, key `k<queue>-<offset>`, tag even or odd."""
    shared_cluster.create_topic("Shop", 2)
    with shared_cluster.client.producer("shop-tests") as producer:
        for queue_id in range(2):
            messages = [Message("Shop", b"%d" % at, tag=("even", "odd")[at % 2], keys=[f"k{queue_id}-{at}"]) for at in range(100)]
            producer.send_batch(messages, queue=MessageQueue("Shop", BROKER, queue_id))
    return "Shop"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session with the switch on."""
    spark.conf.set(SWITCH, True)
    yield spark
    spark.conf.unset(SWITCH)


def frame(spark: SparkSession, cluster: Brokers, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").option("nameServer", cluster.name_server).load(topic)


CONDITIONS = [
    ("queueId = 1", 100),
    ("queueId IN (0, 5)", 100),
    ("brokerName = 'broker-a' AND topic = 'Shop'", 200),
    ("brokerName = 'other'", 0),
    ("queueOffset >= 90 AND queueOffset < 95", 10),
    ("queueOffset = 7", 2),
    ("queueOffset IN (1, 99)", 4),
    ("tags = 'even'", 100),
    ("tags IN ('odd', 'none') AND queueOffset <= 9", 10),
    ("tags = 'even' AND tags = 'odd'", 0),
    ("tags != 'even'", 100),
    ("keys = 'k1-42'", 1),
    ("keys = 'nothing'", 0),
    ("storeTimestamp > timestamp '2000-01-01 00:00:00'", 200),
    ("storeTimestamp < timestamp '2000-01-01 00:00:00'", 0),
    ("tags = 'even' OR queueId = 0", 150),
    ("properties['KEYS'] = 'k0-3'", 1),
]


@pytest.mark.parametrize(("condition", "count"), CONDITIONS)
def test_the_answer_is_the_same(pushing: SparkSession, shared_cluster: Brokers, shop: str, condition: str, count: int) -> None:
    """With the switch on, every kind of filter gives what Spark alone would give."""
    assert frame(pushing, shared_cluster, shop).filter(condition).count() == count


def test_the_four_cases_of_the_switch(spark: SparkSession, shared_cluster: Brokers, shop: str) -> None:
    """Switch off or on, filters or none: no error, and filters are handed down exactly when they can be."""
    for switched in (False, True):
        spark.conf.set(SWITCH, switched)
        try:
            whole = frame(spark, shared_cluster, shop)
            assert whole.count() == 200
            chosen = whole.filter("queueId = 1 AND queueOffset < 10")
            assert chosen.count() == 10
            planned = chosen._jdf.queryExecution().executedPlan().toString()
            assert ("Filter" not in planned.replace("RuntimeFilters", "")) is switched
        finally:
            spark.conf.unset(SWITCH)


@pytest.mark.parametrize(
    ("given", "expected", "stays"),
    [
        (filters.EqualTo(("topic",), "T"), Pushed(topics=frozenset(["T"])), False),
        (filters.In(("brokerName",), ("a", None, "b")), Pushed(brokers=frozenset(["a", "b"])), False),
        (filters.EqualNullSafe(("queueId",), 3), Pushed(queue_ids=frozenset([3])), False),
        (filters.EqualNullSafe(("tags",), None), Pushed(), True),
        (filters.EqualTo(("tags",), "a"), Pushed(tags=frozenset(["a"])), False),
        (filters.GreaterThan(("queueOffset",), 4), Pushed(first=5), False),
        (filters.GreaterThanOrEqual(("queueOffset",), 4), Pushed(first=4), False),
        (filters.LessThan(("queueOffset",), 4), Pushed(stop=4), False),
        (filters.LessThanOrEqual(("queueOffset",), 4), Pushed(stop=5), False),
        (filters.EqualTo(("queueOffset",), 4), Pushed(first=4, stop=5), False),
        (filters.In(("queueOffset",), (1, 2)), Pushed(), True),
        (filters.GreaterThan(("storeTimestamp",), NOON), Pushed(start_ms=NOON_MS), True),
        (filters.LessThanOrEqual(("storeTimestamp",), NOON + timedelta(microseconds=1)), Pushed(stop_ms=NOON_MS + 1), True),
        (filters.EqualTo(("storeTimestamp",), NOON), Pushed(start_ms=NOON_MS, stop_ms=NOON_MS), True),
        (filters.EqualTo(("keys",), "k"), Pushed(key="k"), True),
        (filters.EqualTo(("keys",), "k l"), Pushed(), True),
        (filters.In(("keys",), ("k", "l")), Pushed(), True),
        (filters.EqualTo(("body",), b"x"), Pushed(), True),
        (filters.IsNotNull(("tags",)), Pushed(), True),
        (filters.IsNotNull(("queueId",)), Pushed(), False),
        (filters.Not(filters.EqualTo(("tags",), "a")), Pushed(), True),
        (filters.StringStartsWith(("topic",), "T"), Pushed(), True),
    ],
)
def test_what_a_filter_becomes(given: filters.Filter, expected: Pushed, stays: bool) -> None:
    """Only what is exact is kept from Spark; what it does not know it leaves alone."""
    assert push([given]) == (expected, [given] if stays else [])


def test_filters_meet() -> None:
    """All of them hold."""
    pushed, left = push(
        [
            filters.In(("tags",), ("a", "b")),
            filters.EqualTo(("tags",), "b"),
            filters.GreaterThan(("queueOffset",), 3),
            filters.GreaterThan(("queueOffset",), 1),
            filters.LessThan(("queueOffset",), 9),
        ]
    )
    assert (pushed, left) == (Pushed(tags=frozenset(["b"]), first=4, stop=9), [])


def test_less_is_read(shared_cluster: Brokers, shop: str) -> None:
    """Queues and offsets that the filters leave out are in no part; a key is looked up through the index."""
    options = ReadOptions.parse({"nameServer": shared_cluster.name_server, "topic": shop}, False)
    source = open_source(options)
    queue = QueueKey(shop, BROKER, 1)
    assert plan_batch(source, options, Pushed(queue_ids=frozenset([1]), first=10, stop=20)) == [Part((QueueRange(queue, 10, 20),))]
    assert plan_batch(source, options, Pushed(stop_ms=NOON_MS - 10**12)) == []
    assert plan_batch(source, options, Pushed(topics=frozenset(["Other"]))) == []
    (part,) = plan_batch(source, options, Pushed(key="k1-42"))
    assert part.key == "k1-42"
    assert part.stored is not None
    close_source(options)


def test_a_filter_does_not_change_what_options_must_name(shared_cluster: Brokers, shop: str) -> None:
    """startingOffsets names all queues; a filter that leaves one of them is no reason to complain about the others."""
    offsets = f'{{"{shop}":{{"{BROKER}":{{"0":1,"1":2}}}}}}'
    options = ReadOptions.parse({"nameServer": shared_cluster.name_server, "topic": shop, "startingOffsets": offsets}, False)
    (part,) = plan_batch(open_source(options), options, Pushed(queue_ids=frozenset([1])))
    assert part.ranges == (QueueRange(QueueKey(shop, BROKER, 1), 2, 100),)
    close_source(options)


def test_the_reader_is_chosen_by_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with `pushFilters` exists only where Spark has loaded the module that calls it; without that module there is none, and no error."""
    mapping = {"nameServer": "a:1", "topic": "T"}
    options, schema = ReadOptions.parse(mapping, False), struct_of(projection_of(mapping))
    assert type(batch_reader(options, schema)) is BatchReader
    monkeypatch.setitem(sys.modules, pushdown.FILTERING_MODULE, pushdown)
    assert type(batch_reader(options, schema)) is PushingBatchReader
