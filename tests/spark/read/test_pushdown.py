"""Filters pushed by Spark: less is read, and the result is the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as filters

from pyspark_rocketmq.decode.schemas import struct_of
from pyspark_rocketmq.options.read import ReadOptions, projection_of
from pyspark_rocketmq.read import pushdown
from pyspark_rocketmq.read.batch import BatchReader, PushingBatchReader, batch_reader, plan_batch
from pyspark_rocketmq.read.planning import Part
from pyspark_rocketmq.read.pushdown import Pushed, push
from pyspark_rocketmq.read.source import QueueKey, QueueRange
from pyspark_rocketmq.read.source_cache import close_source, open_source
from pyspark_rocketmq.write.packing import Packer
from pyspark_rocketmq.write.task import cut
from rmqkit.client import Message, MessageQueue, PackedBatch
from rmqkit.protocol.message_id import UniqueKeys
from tests.spark.kit_brokers import BROKER, Brokers

#: Tags that producers may set. Brokers and Spark interpret the first six differently in an expression.
TAGS = ["a||b", " sp", "sp ", "a|", "*", "\u00a0x", "a", "b", "sp", "x", "ä", "Aa", "BB"]
KEYS = ["k", "k l", "l", "#", None]
_TEXTS = {"tags": TAGS, "keys": ["k", "l", "k l", "#", "none"], "brokerName": ["broker-a", "b"]}
_EQUAL = [
    st.builds(kind, st.just((column,)), st.sampled_from([*values, *blank]))
    for kind in (filters.EqualTo, filters.EqualNullSafe)
    for column, values in _TEXTS.items()
    for blank in ([""] if kind is filters.EqualTo else ["", None],)
]
_AMONG = [
    st.builds(
        filters.In,
        st.just((column,)),
        st.lists(st.sampled_from([*values, None]), min_size=1, max_size=3).map(tuple),
    )
    for column, values in _TEXTS.items()
]
_NUMBERS = [
    st.builds(kind, st.just((column,)), st.integers(-1, 41))
    for kind in (filters.EqualTo, filters.GreaterThan, filters.LessThanOrEqual)
    for column in ("queueId", "queueOffset")
]
_OTHERS = [
    st.builds(filters.IsNotNull, st.sampled_from([("tags",), ("queueId",)])),
    st.builds(filters.GreaterThan, st.just(("storeTimestamp",)), st.just(datetime(2020, 1, 1, tzinfo=UTC))),
    st.builds(
        filters.LessThanOrEqual, st.just(("storeTimestamp",)), st.just(datetime(2020, 1, 1, tzinfo=UTC))
    ),
]
CONDITION = st.one_of(*_EQUAL, *_AMONG, *_NUMBERS, *_OTHERS)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000
SWITCH = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def shop(shared_cluster: Brokers) -> str:
    """100 messages in each of two queues, key `k<queue>-<offset>`, tag even or odd."""
    shared_cluster.create_topic("Shop", 2)
    with shared_cluster.client.producer("shop-tests") as producer:
        for queue_id in range(2):
            messages = [
                Message("Shop", b"%d" % at, tag=("even", "odd")[at % 2], keys=[f"k{queue_id}-{at}"])
                for at in range(100)
            ]
            producer.send_batch(messages, queue=MessageQueue("Shop", BROKER, queue_id))
    return "Shop"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with filter pushdown enabled."""
    spark.conf.set(SWITCH, True)
    yield spark
    spark.conf.unset(SWITCH)


def frame(spark: SparkSession, cluster: Brokers, topic: str, **options: str) -> DataFrame:
    mapping = {"nameServer": cluster.name_server, "filterPushdown": "true"} | options
    return spark.read.format("rocketmq").options(**mapping).load(topic)


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
def test_the_answer_is_the_same(
    pushing: SparkSession, shared_cluster: Brokers, shop: str, condition: str, count: int
) -> None:
    """With pushdown, every kind of filter gives the same rows as Spark alone."""
    assert frame(pushing, shared_cluster, shop).filter(condition).count() == count


def test_the_four_cases_of_the_switch(spark: SparkSession, shared_cluster: Brokers, shop: str) -> None:
    """With the setting off or on, with filters or without, there is no error, and filters are pushed exactly
    when possible."""
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
    ("handed", "expected", "stays"),
    [
        (filters.EqualTo(("topic",), "T"), Pushed(topics=frozenset(["T"])), False),
        (filters.In(("brokerName",), ("a", None, "b")), Pushed(brokers=frozenset(["a", "b"])), False),
        (filters.EqualNullSafe(("queueId",), 3), Pushed(queue_ids=frozenset([3])), False),
        (filters.EqualNullSafe(("tags",), None), Pushed(), True),
        (filters.EqualTo(("tags",), "a"), Pushed(tags=frozenset(["a"])), True),
        (filters.EqualTo(("tags",), "a||b"), Pushed(), True),
        (filters.EqualTo(("tags",), "a|"), Pushed(), True),
        (filters.EqualTo(("tags",), " a"), Pushed(), True),
        (filters.EqualTo(("tags",), "a\u00a0"), Pushed(), True),
        (filters.EqualTo(("tags",), ""), Pushed(), True),
        (filters.EqualTo(("tags",), "*"), Pushed(), True),
        (filters.In(("tags",), ("a", "b ")), Pushed(), True),
        (filters.In(("tags",), tuple(f"tag-{number}" for number in range(1000))), Pushed(), True),
        (filters.GreaterThan(("queueOffset",), 4), Pushed(first=5), False),
        (filters.GreaterThanOrEqual(("queueOffset",), 4), Pushed(first=4), False),
        (filters.LessThan(("queueOffset",), 4), Pushed(stop=4), False),
        (filters.LessThanOrEqual(("queueOffset",), 4), Pushed(stop=5), False),
        (filters.EqualTo(("queueOffset",), 4), Pushed(first=4, stop=5), False),
        (filters.In(("queueOffset",), (1, 2)), Pushed(), True),
        (filters.GreaterThan(("storeTimestamp",), NOON), Pushed(start_ms=NOON_MS), True),
        (
            filters.LessThanOrEqual(("storeTimestamp",), NOON + timedelta(microseconds=1)),
            Pushed(stop_ms=NOON_MS + 1),
            True,
        ),
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
def test_what_a_filter_becomes(handed: filters.Filter, expected: Pushed, stays: bool) -> None:
    """Only exact filters are withheld from Spark; unknown ones are left to it."""
    assert push([handed]) == (expected, [handed] if stays else [])


def test_filters_meet() -> None:
    """Several filters are combined by AND."""
    tags = [filters.In(("tags",), ("a", "b")), filters.EqualTo(("tags",), "b")]
    pushed, left = push(
        [
            *tags,
            filters.GreaterThan(("queueOffset",), 3),
            filters.GreaterThan(("queueOffset",), 1),
            filters.LessThan(("queueOffset",), 9),
        ]
    )
    assert (pushed, left) == (Pushed(tags=frozenset(["b"]), first=4, stop=9), tags)


def test_less_is_read(shared_cluster: Brokers, shop: str) -> None:
    """Filtered queues and offsets are in no part; a key is looked up through the index."""
    options = ReadOptions.parse({"nameServer": shared_cluster.name_server, "topic": shop}, False)
    source = open_source(options)
    queue = QueueKey(shop, BROKER, 1)
    assert plan_batch(source, options, Pushed(queue_ids=frozenset([1]), first=10, stop=20)) == [
        Part((QueueRange(queue, 10, 20),))
    ]
    assert plan_batch(source, options, Pushed(stop_ms=NOON_MS - 10**12)) == []
    assert plan_batch(source, options, Pushed(topics=frozenset(["Other"]))) == []
    (part,) = plan_batch(source, options, Pushed(key="k1-42"))
    assert part.key == "k1-42"
    assert part.stored is not None
    close_source(options)


def test_a_filter_does_not_change_what_options_must_name(shared_cluster: Brokers, shop: str) -> None:
    """startingOffsets must list all queues; a filter on one of them causes no error about the others."""
    offsets = f'{{"{shop}":{{"{BROKER}":{{"0":1,"1":2}}}}}}'
    options = ReadOptions.parse(
        {"nameServer": shared_cluster.name_server, "topic": shop, "startingOffsets": offsets}, False
    )
    (part,) = plan_batch(open_source(options), options, Pushed(queue_ids=frozenset([1])))
    assert part.ranges == (QueueRange(QueueKey(shop, BROKER, 1), 2, 100),)
    close_source(options)


def test_the_reader_is_chosen_by_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with `pushFilters` is created only where Spark has loaded the module that calls it, and with
    the option."""
    mapping = {"nameServer": "a:1", "topic": "T", "filterPushdown": "true"}
    options, schema = ReadOptions.parse(mapping, False), struct_of(projection_of(mapping))
    assert type(batch_reader(options, schema)) is BatchReader
    monkeypatch.setitem(sys.modules, pushdown.FILTERING_MODULE, pushdown)
    assert type(batch_reader(options, schema)) is PushingBatchReader
    assert type(batch_reader(evolve(options, filter_pushdown=False), schema)) is BatchReader


def test_a_frame_may_be_used_more_than_once(
    pushing: SparkSession, shared_cluster: Brokers, shop: str
) -> None:
    """Spark keeps one plan for all uses of a frame; without filterPushdown, no use is read with the
    conditions of another."""
    shared = frame(pushing, shared_cluster, shop, filterPushdown="false")
    assert shared.where("queueId = 1").count() == 100
    assert shared.count() == 200
    both = shared.where("queueId = 0 AND queueOffset < 3").union(
        shared.where("queueId = 1 AND queueOffset < 5")
    )
    assert both.count() == 8


def test_explain_tells_what_is_pushed(
    pushing: SparkSession, shared_cluster: Brokers, shop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The formatted plan lists the conditions left to the source and the decoded columns; conditions that
    Spark checks again are in its filter."""
    chosen = frame(pushing, shared_cluster, shop, columns="queueId,tags").where(
        "queueId = 1 AND tags = 'even'"
    )
    chosen.explain("formatted")
    plan = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(queueId), EqualTo(queueId,1)]" in plan
    assert "ReadSchema: struct<queueId:int,tags:string>" in plan
    assert "(tags#" in plan.split("Condition :", 1)[1]


@pytest.fixture(scope="module")
def bazaar(shared_cluster: Brokers) -> Iterator[str]:
    """Messages with tags and keys of every unusual form that a producer can send."""
    shared_cluster.create_topic("Bazaar", 3)
    chooser = random.Random(7)
    packer = Packer({name: name for name in ("body", "keys", "properties")}, None, UniqueKeys())
    of_tag = pa.map_(pa.string(), pa.string())
    with shared_cluster.client.producer("bazaar-tests") as producer:
        for queue_id in range(3):
            tags = [chooser.choice([*TAGS, None]) for _ in range(40)]
            # The column tags refuses what nobody can subscribe to; other producers do not.
            columns = {
                "body": [b"x"] * 40,
                "keys": [chooser.choice(KEYS) for _ in tags],
                "properties": pa.array([[("TAGS", tag)] if tag else [] for tag in tags], of_tag),
            }
            records, _ = zip(*cut(packer.pack(pa.record_batch(columns), 0), 1 << 20), strict=True)
            producer.send_packed(
                PackedBatch(topic="Bazaar", body=b"".join(records), count=40),
                queue=MessageQueue("Bazaar", BROKER, queue_id),
            )
    yield "Bazaar"
    for place in places(shared_cluster):
        close_source(ReadOptions.parse(place | {"topic": "Bazaar"}, False))


def places(cluster: Brokers) -> list[dict[str, str]]:
    """The two sources of the same messages: over the network and from files."""
    return [{"nameServer": cluster.name_server}, {"storePath": str(cluster.directory)}]


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(CONDITION, min_size=1, max_size=4))
def test_pushed_and_plain_are_the_same_rows(
    shared_cluster: Brokers, bazaar: str, conditions: list[filters.Filter]
) -> None:
    """For any conditions, on a cluster and on files, reading with pushed conditions and filtering by the
    remaining ones gives the same rows as filtering everything."""
    for place in places(shared_cluster):
        mapping = place | {
            "topic": bazaar,
            "columns": "brokerName,queueId,queueOffset,tags,keys,storeTimestamp",
        }
        options = ReadOptions.parse(mapping, False)
        schema = struct_of(projection_of(mapping))
        reader = PushingBatchReader(options, schema)
        left = list(reader.pushFilters(conditions))
        assert rows(reader, left) == rows(BatchReader(options, schema), conditions), place


def rows(reader: BatchReader, conditions: Sequence[filters.Filter]) -> list[tuple[int, int]]:
    """Queue and offset of the rows from a reader that satisfy the conditions as Spark evaluates them."""
    read = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(
        (row["queueId"], row["queueOffset"]) for row in read if all(holds(each, row) for each in conditions)
    )


def holds(condition: filters.Filter, row: dict[str, Any]) -> bool:
    """SQL's comparison of a column with a value; unknown counts as false."""
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    match condition:
        case filters.In():
            return value is not None and value in [each for each in condition.value if each is not None]
        case filters.EqualNullSafe():
            return bool(value == condition.value)
        case filters.EqualTo():
            return value is not None and bool(value == condition.value)
        case filters.GreaterThan():
            return bool(value > condition.value)
        case filters.LessThanOrEqual():
            return bool(value <= condition.value)
        case filters.IsNotNull():
            return value is not None
    raise AssertionError(condition)
