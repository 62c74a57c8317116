"""Rows of a partition reach their topics and queues in order, all acknowledged, across outages, with a real
broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.write import sending
from pyspark_rocketmq.write.checkpoint import BatchId, digest_of
from pyspark_rocketmq.write.packing import Identity
from pyspark_rocketmq.write.sending import Written
from pyspark_rocketmq.write.sink_mark import SinkMark
from pyspark_rocketmq.write.task import WriteJob, connect, cut, write_rows
from rmqkit.client import BlockingClient, ClientError, MessageIllegal, ReceivedMessage, RmqError
from rmqkit.client.producing.queue_choice import by_key
from rmqkit.model.queue import MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers, brokers
from tests.transports.tls import certs

PATIENCE_S = 30
IDENTITY = Identity(query="q", batch=0, partition=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("broker")) as running:
        yield running


def job(cluster: Brokers, *columns: str, **options: Any) -> WriteJob:
    given = {"nameServer": cluster.name_server, **{name: str(value) for name, value in options.items()}}
    return WriteJob(WriteOptions.parse(given), {name: name for name in ("body", *columns)})


def write(job: WriteJob, *batches: dict[str, Any]) -> Any:
    with connect(job.options) as client:
        return write_rows(job, client, [pa.record_batch(columns) for columns in batches], IDENTITY)


def everything(cluster: Brokers, topic: str) -> dict[int, list[ReceivedMessage]]:
    """Messages by queue, in the order of their offsets."""
    found: dict[int, list[ReceivedMessage]] = {}
    with cluster.client.pull_consumer("reader") as consumer:
        for queue in consumer.queues(topic):
            messages: list[ReceivedMessage] = []
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
            found[queue.queue_id] = messages
    return found


def bodies(count: int, begin: int = 0) -> pa.Array:
    return pa.array([b"row %d" % number for number in range(begin, begin + count)])


def test_every_row_is_stored_and_counted(cluster: Brokers) -> None:
    """With small batches over all queues, the tally of each queue matches its messages."""
    cluster.create_topic("Spread", queues=4)
    tally = write(
        job(cluster, topic="Spread", batchBytes=500),
        {"body": bodies(300)},
        {"body": bodies(0)},
        {"body": bodies(10, 300)},
    )
    found = everything(cluster, "Spread")
    assert sorted(message.body for queue in found.values() for message in queue) == sorted(
        bodies(310).to_pylist()
    )
    assert tally.queues == {
        MessageQueue("Spread", BROKER, number): Written(len(each), 0, len(each))
        for number, each in found.items()
    }
    assert (tally.messages, tally.not_settled) == (310, 0)
    assert tally.requests > 40


def test_a_sharding_key_keeps_its_rows_in_order_in_one_queue(cluster: Brokers) -> None:
    """The queue is that of any other producer with this ordering key, and the order is kept across batches
    with many in flight."""
    cluster.create_topic("Ordered", queues=4)
    keys = [f"key-{number % 7}" for number in range(400)]
    first, second = (
        {"body": bodies(200, at), "shardingKey": pa.array(keys[at : at + 200])} for at in (0, 200)
    )
    write(job(cluster, "shardingKey", topic="Ordered", batchBytes=300, maxInFlight=8), first, second)
    queues = [MessageQueue("Ordered", BROKER, number) for number in range(4)]
    expected: dict[int, dict[str, list[bytes]]] = {number: {} for number in range(4)}
    for key, body in zip(keys, bodies(400).to_pylist(), strict=True):
        expected[by_key(queues, key).queue_id].setdefault(key, []).append(body)
    found = {
        number: {
            key: [each.body for each in messages if each.properties["__SHARDINGKEY"] == key]
            for key in expected[number]
        }
        for number, messages in everything(cluster, "Ordered").items()
    }
    assert found == expected
    assert sum(len(messages) for messages in everything(cluster, "Ordered").values()) == 400


def of_brokers(cluster: Brokers, topic: str) -> dict[str, list[tuple[int, bytes]]]:
    """Queue ids and bodies by broker, in the order of the offsets."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    with BlockingClient(cluster.name_server) as client, client.pull_consumer("reader") as consumer:
        for queue in consumer.queues(topic):
            for offset in range(consumer.max_offset(queue)):
                message = consumer.pull(queue, offset).messages[0]
                found.setdefault(queue.broker_name, []).append((queue.queue_id, message.body))
    return found


def test_a_topic_on_several_brokers(tmp_path: Path) -> None:
    """Rows are spread over all brokers, rows of a sharding key stay together, a column selects the broker; a
    queue id alone is ambiguous."""
    with brokers(tmp_path) as cluster, cluster.another("broker-b"):
        for topic in ("Spread", "Ordered", "Chosen"):
            cluster.create_topic(topic, queues=2)
        tally = write(job(cluster, topic="Spread", batchBytes=300), {"body": bodies(100)})
        assert {(queue.broker_name, queue.queue_id) for queue in tally.queues} == {
            (name, at) for name in (BROKER, "broker-b") for at in (0, 1)
        }
        assert sorted(body for rows in of_brokers(cluster, "Spread").values() for _, body in rows) == sorted(
            bodies(100).to_pylist()
        )

        keys = [f"key-{number % 5}" for number in range(60)]
        write(
            job(cluster, "shardingKey", topic="Ordered", batchBytes=300),
            {"body": bodies(60), "shardingKey": pa.array(keys)},
        )
        rows = [
            (broker, at, body)
            for broker, found in of_brokers(cluster, "Ordered").items()
            for at, body in found
        ]
        for key in range(5):
            own = [row for row in rows if int(row[2].split()[1]) % 5 == key]
            assert [body for *_, body in own] == [b"row %d" % number for number in range(key, 60, 5)]
            assert len({row[:2] for row in own}) == 1

        chosen = {
            "body": bodies(2),
            "brokerName": pa.array(["broker-b", BROKER]),
            "queueId": pa.array([1, 1], pa.int32()),
        }
        write(job(cluster, "brokerName", "queueId", topic="Chosen"), chosen)
        assert of_brokers(cluster, "Chosen") == {"broker-b": [(1, b"row 0")], BROKER: [(1, b"row 1")]}
        with pytest.raises(ClientError, match="queue 1 of topic 'Chosen' is on several brokers"):
            write(
                job(cluster, "queueId", topic="Chosen"),
                {"body": bodies(1), "queueId": pa.array([1], pa.int32())},
            )


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tls=true rows are sent only to a trusted server."""
    trusted = certs.trust(tmp_path)
    with brokers(tmp_path, **certs.write(tmp_path), **{"tls.server.mode": "permissive"}) as cluster:
        cluster.create_topic("Secret", 1)
        secret = job(cluster, topic="Secret", tls="true", **{"send.numRetries": 0})
        with pytest.raises(RmqError, match="certificate"):
            write(secret, {"body": bodies(10)})
        assert everything(cluster, "Secret") == {0: []}
        monkeypatch.setenv("RMQKIT_TLS_CLIENT_TRUST_CERT_PATH", trusted["tls.client.trustCertPath"])
        assert write(secret, {"body": bodies(10)}).messages == 10
        assert [each.body for each in everything(cluster, "Secret")[0]] == bodies(10).to_pylist()


def test_columns_choose_topic_and_queue(cluster: Brokers) -> None:
    """Each row goes to the topic and queue of its columns; with nulls, to any queue of its topic. The option
    topic takes precedence over the column."""
    for topic in ("Left", "Right", "Both"):
        cluster.create_topic(topic, queues=2)
    columns = {
        "body": bodies(6),
        "topic": pa.array(["Left", "Right"] * 3),
        "queueId": pa.array([0, 1, 1, 1, None, None], pa.int32()),
        "brokerName": pa.array([None, BROKER, BROKER, None, None, BROKER]),
    }
    write(job(cluster, "topic", "queueId", "brokerName"), columns)
    left, right = everything(cluster, "Left"), everything(cluster, "Right")
    assert b"row 0" in [each.body for each in left[0]]
    assert b"row 2" in [each.body for each in left[1]]
    assert {b"row 1", b"row 3"} <= {each.body for each in right[1]}
    assert {each.body for each in (*left[0], *left[1])} == {b"row 0", b"row 2", b"row 4"}
    assert {each.body for each in (*right[0], *right[1])} == {b"row 1", b"row 3", b"row 5"}
    write(job(cluster, "topic", topic="Both"), {name: columns[name] for name in ("body", "topic")})
    assert sum(map(len, everything(cluster, "Both").values())) == 6


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"topic": ["Faults"], "queueId": [9]},
            r"has no queue 9, only broker-a:0, broker-a:1; drop the columns",
        ),
        (
            {"topic": ["Faults"], "brokerName": ["elsewhere"]},
            r"is not on broker 'elsewhere', only on broker-a",
        ),
        ({"topic": [None]}, r"a row has no topic; fill the column"),
        ({"topic": ["not a topic"]}, r"not a topic"),
        ({"topic": ["Faults"], "delayLevel": [1], "deliverAt": [1]}, r"both delayLevel and deliverAt"),
        *(
            (
                {"topic": ["Faults"], "delayLevel": [level]},
                rf"delayLevel: {level} is not a delay level; there are 1 to 18",
            )
            for level in (19, -1)
        ),
        ({"topic": ["Faults"], "deliverAt": [-1]}, r"deliverAt: -1 ms is before 1970"),
    ],
)
def test_rows_that_have_no_place_say_why(cluster: Brokers, columns: dict[str, list[Any]], text: str) -> None:
    """The text names the existing queues and a remedy."""
    cluster.create_topic("Faults", queues=2)
    types = {"queueId": pa.int32(), "delayLevel": pa.int32(), "deliverAt": pa.int64()}
    rows = {
        "body": bodies(1),
        **{name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()},
    }
    with pytest.raises((ClientError, MessageIllegal), match=text):
        write(job(cluster, *columns), rows)


def test_delayed_rows_are_delivered_later(cluster: Brokers) -> None:
    """A row with a delay level is delivered later, others at once. A delivery time that is too far away
    is refused with the reason."""
    cluster.create_topic("Later", queues=1)
    rows = {"body": bodies(4), "delayLevel": pa.array([None, 18, 0, 3], pa.int32())}
    assert write(job(cluster, "delayLevel", topic="Later"), rows).messages == 4
    assert [each.body for each in everything(cluster, "Later")[0]] == [b"row 0", b"row 2"]
    at = pa.array([4_102_444_800_000_000], pa.timestamp("us", "UTC"))
    with pytest.raises(RmqError, match=r"timerMaxDelaySec"):
        write(
            job(cluster, "deliverAt", topic="Later", **{"send.numRetries": 0}),
            {"body": bodies(1), "deliverAt": at},
        )


def test_a_namespace_goes_before_the_topic(cluster: Brokers) -> None:
    """The namespace is prefixed to the topic of option and column, unless it is there already."""
    cluster.create_topic("space%Inside", queues=1)
    write(job(cluster, topic="Inside", namespace="space"), {"body": bodies(1)})
    write(
        job(cluster, "topic", namespace="space"),
        {"body": bodies(2), "topic": pa.array(["Inside", "space%Inside"])},
    )
    assert len(everything(cluster, "space%Inside")[0]) == 3


def test_a_broker_that_restarts_costs_no_row(cluster: Brokers) -> None:
    """During the outage sends are retried; all messages acknowledged before and after are stored, in order
    within their queue."""
    cluster.create_topic("Outage", queues=1)
    refused = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            refused.set()

    def restart() -> None:
        if refused.wait(PATIENCE_S):
            cluster.start()

    restarting, watch = threading.Thread(target=restart), Watch()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            if number == 10:
                cluster.stop()
                sending.log.addHandler(watch)
                restarting.start()
            yield pa.record_batch(
                {"body": bodies(50, number * 50), "queueId": pa.array([0] * 50, pa.int32())}
            )

    writing = job(cluster, "queueId", topic="Outage", **{"send.numRetries": 100, "send.retryIntervalMs": 50})
    with connect(writing.options) as client:
        tally = write_rows(writing, client, batches(), IDENTITY)
    sending.log.removeHandler(watch)
    restarting.join()
    assert refused.is_set()
    found = [each.body for each in everything(cluster, "Outage")[0]]
    assert tally.messages == 1000
    # A request whose answer was lost is sent again: its rows are stored twice, but in order.
    assert list(dict.fromkeys(found)) == bodies(1000).to_pylist()


def test_what_fails_for_good_fails_with_the_brokers_reason(cluster: Brokers, tmp_path: Path) -> None:
    """Without a route the write fails, and later rows are not sent."""
    with brokers(tmp_path, autoCreateTopicEnable=False) as strict:
        with pytest.raises(RmqError, match="Nowhere"):
            write(job(strict, topic="Nowhere"), {"body": bodies(1)})
        strict.create_topic("Small", queues=1)
        with pytest.raises(MessageIllegal, match="has 4194"):
            write(job(strict, topic="Small"), {"body": pa.array([b"x" * 4_194_304])})
        assert everything(strict, "Small")[0] == []


def test_an_error_of_the_rows_passes_through(cluster: Brokers) -> None:
    """An error raised by Spark while it produces rows is raised by the task."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": bodies(10)})
        raise ZeroDivisionError

    cluster.create_topic("Broken", queues=1)
    writing = job(cluster, topic="Broken")
    with connect(writing.options) as client, pytest.raises(ZeroDivisionError):
        write_rows(writing, client, broken(), IDENTITY)


def test_batches_are_cut_by_size() -> None:
    """Batches are as large as possible, a larger record is sent alone, and none is lost; also for a slice."""
    records = pa.array([b"a" * size for size in (10, 10, 10, 50, 5, 30)], pa.large_binary())
    assert [(len(body), count) for body, count in cut(records, 30)] == [(30, 3), (50, 1), (5, 1), (30, 1)]
    assert [(len(body), count) for body, count in cut(records.slice(1, 2), 10)] == [(10, 1), (10, 1)]
    assert list(cut(records.slice(0, 0), 10)) == []


def test_a_mark_that_is_refused_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where brokers create no groups, the rows are written nevertheless: the warning names the group and the
    option. A group that exists is marked."""
    with brokers(tmp_path, autoCreateSubscriptionGroup=False) as cluster:
        cluster.create_topic("Unmarked", queues=1)
        batch = BatchId(3, digest_of(b"a"))
        refused = SinkMark("query-1", "Unmarked", "spark-sink-query-1")
        with connect(job(cluster, topic="Unmarked").options) as client:
            refused.put(client, batch)
            assert not refused.is_on(client, batch)
    assert "batch 3 cannot be marked as written" in caplog.text
    assert "group spark-sink-query-1" in caplog.text
    assert "option sinkGroup" in caplog.text


def test_a_mark_is_on_one_batch_alone(cluster: Brokers) -> None:
    """The mark survives the client, and does not match another query's batch, an earlier one, or another
    batch with the same number."""
    cluster.create_topic("Marked", queues=2)
    mine, other = SinkMark("query-1", "Marked", "sink"), SinkMark("query-2", "Marked", "sink")
    first, second = BatchId(0, digest_of(b"a")), BatchId(1, digest_of(b"b"))
    with connect(job(cluster, topic="Marked").options) as client:
        assert not mine.is_on(client, first)
        mine.put(client, first)
        assert mine.is_on(client, first)
        assert not other.is_on(client, first)
        mine.put(client, second)
    with connect(job(cluster, topic="Marked").options) as client:
        assert mine.is_on(client, second)
        assert not mine.is_on(client, first)
        assert not mine.is_on(client, BatchId(1, digest_of(b"planned anew")))
