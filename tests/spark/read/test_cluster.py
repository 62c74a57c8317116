"""Reading from a running broker, without Spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.cluster import ClusterSource
from pyspark_rocketmq.read.pull_windows import queue_offset
from pyspark_rocketmq.read.pushdown import Pushed
from pyspark_rocketmq.read.ranges import batch_ranges
from pyspark_rocketmq.read.source import (
    Block,
    Bounds,
    DataLoss,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Selection,
    SourceError,
    Unanswered,
)
from rmqkit.client import Message, MessageQueue
from tests.spark.kit_brokers import BROKER, Brokers, brokers
from tests.transports.tls import certs

FOREVER = 1 << 60


def options(name_server: str, **given: str) -> ReadOptions:
    return ReadOptions.parse(
        {"nameServer": name_server, "topic": "T", "fetchOffset.retryIntervalMs": "1"} | given, False
    )


@pytest.fixture(scope="module")
def source(shared_cluster: Brokers) -> Iterator[ClusterSource]:
    made = ClusterSource(options(shared_cluster.name_server))
    yield made
    made.close()


def send(cluster: Brokers, messages: Sequence[Message], queue_id: int = 0) -> None:
    with cluster.client.producer("cluster-tests") as producer:
        producer.send_batch(messages, queue=MessageQueue(messages[0].topic, BROKER, queue_id))


def places(blocks: Iterator[Block] | None) -> list[int]:
    assert blocks is not None
    return [queue_offset(bytes(block.data), at) for block in blocks for at in block.starts.tolist()]


def test_a_pull_takes_more_than_brokers_give_consumers(
    source: ClusterSource, shared_cluster: Brokers
) -> None:
    """rmqkit's broker answers one pull with all that the reader asks for, beyond the 32 messages and 256 KiB
    of ordinary pulls."""
    shared_cluster.create_topic("Wide", 1)
    send(shared_cluster, [Message("Wide", bytes(4_000)) for _ in range(200)])
    part = QueueRange(QueueKey("Wide", BROKER, 0), 0, 200)
    assert [len(block.starts) for block in source.blocks(part, Selection(), 200)] == [200]


def test_queues_and_bounds(source: ClusterSource, shared_cluster: Brokers) -> None:
    """The result has all queues of a topic with their readable offsets; a missing queue is left out."""
    shared_cluster.create_topic("Ends", 2)
    shared_cluster.send("Ends", [b"x"] * 3)
    queues = source.queues("Ends")
    assert queues == [QueueKey("Ends", BROKER, 0), QueueKey("Ends", BROKER, 1)]
    gone = QueueKey("Ends", BROKER, 7)
    assert source.bounds([*queues, gone, QueueKey("Nowhere", BROKER, 0)]) == {
        queues[0]: Bounds(0, 3),
        queues[1]: Bounds(0, 0),
    }


def test_topics(source: ClusterSource, shared_cluster: Brokers) -> None:
    """Topics that brokers create for themselves are left out."""
    shared_cluster.create_topic("Listed", 1)
    names = set(source.topics())
    assert "Listed" in names
    assert not [name for name in names if name.startswith(("%", "rmq_sys", "TBW102", "SCHEDULE"))]
    assert not {BROKER, "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} & names


def test_no_such_topic(source: ClusterSource) -> None:
    """The text explains how to list and how to create topics."""
    with pytest.raises(NoSuchTopic, match=r"has the topic 'Missing'.*rmqkit topic list"):
        source.queues("Missing")


def test_blocks(source: ClusterSource, shared_cluster: Brokers) -> None:
    """A range is read exactly from start to end, and the raw records contain the bodies."""
    shared_cluster.create_topic("Range", 1)
    shared_cluster.send("Range", [b"body-%d" % number for number in range(500)])
    (queue,) = source.queues("Range")
    blocks = list(source.blocks(QueueRange(queue, 37, 411), Selection(), 50))
    assert places(iter(blocks)) == list(range(37, 411))
    assert b"body-37" in bytes(blocks[0].data)
    assert len(blocks[0].starts) <= 50


def test_stopping_early_leaves_the_source_usable(source: ClusterSource, shared_cluster: Brokers) -> None:
    """Closing a generator ends its pulls."""
    shared_cluster.create_topic("Early", 1)
    shared_cluster.send("Early", [b"x" * 100] * 1000)
    (queue,) = source.queues("Early")
    blocks = source.blocks(QueueRange(queue, 0, 1000), Selection(), 10)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert places(source.blocks(QueueRange(queue, 990, 1000), Selection(), 10)) == list(range(990, 1000))


def test_tags_are_left_to_the_broker(source: ClusterSource, shared_cluster: Brokers) -> None:
    """Messages with other tags are not sent, and the gaps are not taken for losses (as the old connector
    did)."""
    shared_cluster.create_topic("Tagged", 1)
    for at in range(0, 600, 100):
        send(
            shared_cluster, [Message("Tagged", b"x", tag=f"t{number % 50}") for number in range(at, at + 100)]
        )
    (queue,) = source.queues("Tagged")
    found = places(source.blocks(QueueRange(queue, 0, 600), Selection(tags=("t3", "t4")), 256))
    assert found == [number for number in range(600) if number % 50 in (3, 4)]
    assert places(source.blocks(QueueRange(queue, 0, 600), Selection(tags=("none",)), 256)) == []


def test_offsets_at(source: ClusterSource, shared_cluster: Brokers) -> None:
    """The result is the first message stored at that time or later, or the end."""
    shared_cluster.create_topic("Times", 1)
    shared_cluster.send("Times", [b"a", b"b"])
    (queue,) = source.queues("Times")
    assert source.offsets_at({queue: 0}) == {queue: 0}
    assert source.offsets_at({queue: FOREVER}) == {queue: 2}


def test_mean_record_bytes(source: ClusterSource, shared_cluster: Brokers) -> None:
    """The mean comes from a sample of complete records; an empty queue has none."""
    shared_cluster.create_topic("Means", 2)
    shared_cluster.send("Means", [b"x" * 1000] * 50)
    full, empty = source.queues("Means")
    assert 1000 < source.mean_record_bytes(full, Bounds(0, 50)) < 1300
    assert source.mean_record_bytes(empty, Bounds(0, 0)) == 1


def test_lookup_by_key(source: ClusterSource, shared_cluster: Brokers) -> None:
    """Messages are found by any of their keys, in all queues, ordered by queue and offset; more than the 64
    of an answer are found by halving the time range."""
    shared_cluster.create_topic("Keyed", 2)
    send(shared_cluster, [Message("Keyed", b"x", keys=["one", f"k{number}"]) for number in range(60)], 0)
    send(shared_cluster, [Message("Keyed", b"y", keys=["one"])], 1)
    blocks = source.with_key("Keyed", [BROKER], "one", 0, FOREVER)
    assert blocks is not None
    found = list(blocks)
    assert [block.queue.queue_id for block in found] == [0, 1]
    assert places(iter(found)) == [*range(60), 0]
    assert places(source.with_key("Keyed", [BROKER], "k7", 0, FOREVER)) == [7]
    assert places(source.with_key("Keyed", [BROKER], "nothing", 0, FOREVER)) == []


def test_a_lookup_that_is_cut_short_is_none(source: ClusterSource, shared_cluster: Brokers) -> None:
    """65 messages with the same time cannot be separated by time, so everything must be read."""
    shared_cluster.create_topic("Crowded", 1)
    send(shared_cluster, [Message("Crowded", b"x", keys=["one"]) for _ in range(200)])
    assert source.with_key("Crowded", [BROKER], "one", 0, FOREVER) is None


def test_wrong_name_server() -> None:
    """The text contains the option, the address and possible causes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        source = ClusterSource(options(address))
        with pytest.raises(SourceError, match=f"Does nameServer = {address} name the name servers"):
            source.queues("T")
        source.close()


def test_a_broker_in_place_of_a_name_server(shared_cluster: Brokers) -> None:
    """A broker does not serve these requests, and the text names the wrong option."""
    source = ClusterSource(options(f"127.0.0.1:{shared_cluster.config.listen_port}"))
    with pytest.raises(SourceError, match="a broker where a name server was meant"):
        source.topics()
    source.close()


def test_a_broker_that_is_down_and_comes_back(tmp_path: Path) -> None:
    """Reading fails with a hint after the retries, and continues with the same source when the broker is
    back."""
    with brokers(tmp_path) as cluster:
        cluster.create_topic("Comes", 1)
        cluster.send("Comes", [b"x"] * 5000)
        source = ClusterSource(options(cluster.name_server, pullTimeoutMs="2000"))
        (queue,) = source.queues("Comes")
        part = QueueRange(queue, 0, 5000)
        blocks = source.blocks(part, Selection(), 10)
        next(blocks)
        cluster.stop()
        with pytest.raises(SourceError, match="Is the broker up"):
            list(blocks)
        cluster.start()
        assert places(source.blocks(part, Selection(), 10)) == list(range(5000))
        source.close()


def test_expired_messages(tmp_path: Path) -> None:
    """Messages removed by retention are reported as loss with the first remaining offset."""
    with brokers(tmp_path, mappedFileSizeCommitLog=131_072, maxMessageSize=65_536) as cluster:
        cluster.create_topic("Old", 1)
        cluster.send("Old", [b"x" * 1000] * 400)
        source = ClusterSource(options(cluster.name_server))
        cluster.forget_old_messages()
        (queue,) = source.queues("Old")
        first = source.bounds([queue])[queue].first
        assert first > 0
        with pytest.raises(DataLoss, match="fileReservedTime") as caught:
            list(source.blocks(QueueRange(queue, 0, 400), Selection(), 10))
        assert caught.value.first == first
        source.close()


def test_sql92_is_left_to_the_broker(source: ClusterSource, shared_cluster: Brokers) -> None:
    """The condition is sent; a broker without enablePropertyFilter refuses it."""
    shared_cluster.create_topic("NoSql", 1)
    shared_cluster.send("NoSql", [b"x"])
    part = QueueRange(QueueKey("NoSql", BROKER, 0), 0, 1)
    with pytest.raises(SourceError, match="does not support consumer to filter message by SQL92"):
        list(source.blocks(part, Selection(sql92="price = 1"), 256))


def test_sql92_is_evaluated_by_the_broker(tmp_path: Path) -> None:
    """Only the messages that match travel, with their own offsets; the reader does not evaluate the
    condition."""
    with brokers(tmp_path, enablePropertyFilter=True) as cluster:
        cluster.create_topic("Priced", 1)
        send(cluster, [Message("Priced", b"x", properties={"price": str(at)}) for at in range(100)])
        source = ClusterSource(options(cluster.name_server))
        part = QueueRange(QueueKey("Priced", BROKER, 0), 0, 100)
        for condition, expected in (
            ("price BETWEEN 5 AND 7", [5, 6, 7]),
            ("price >= 98 OR price = 50", [50, 98, 99]),
            ("price > 1000", []),
        ):
            assert places(source.blocks(part, Selection(sql92=condition), 256)) == expected
        source.close()


def test_a_broker_without_master_is_an_outage(tmp_path: Path) -> None:
    """A broker of which only a slave is registered is in the route. Its queues have no bounds, it does not
    answer for keys, and nobody reports its queues as gone: neither a batch nor a look-up lacks its rows
    silently."""
    with brokers(tmp_path) as cluster:
        with cluster.another("broker-b"):
            cluster.create_topic("Halved", 1)
        chosen = options(cluster.name_server, topic="Halved")
        source = ClusterSource(chosen)
        here, there = QueueKey("Halved", BROKER, 0), QueueKey("Halved", "broker-b", 0)
        assert source.queues("Halved") == [here]
        with pytest.raises(Unanswered, match="broker-b: no answer for queue 0 of topic Halved"):
            batch_ranges(source, evolve(chosen, brokers=(BROKER, "broker-b")), Pushed())
        with cluster.another("broker-b", brokerRole="SLAVE", brokerId=1):
            assert source.queues("Halved") == [here, there]
            assert source.bounds([here, there]) == {here: Bounds(0, 0)}
            with pytest.raises(Unanswered, match="broker-b: no answer for queue 0 of topic Halved"):
                batch_ranges(source, chosen, Pushed())
            with pytest.raises(Unanswered, match="broker-b: no answer for key 'k'"):
                source.with_key("Halved", [BROKER, "broker-b"], "k", 0, FOREVER)
        source.close()


def test_a_broker_without_index(tmp_path: Path) -> None:
    """Without an index, finding nothing is not an answer, so everything must be read."""
    with brokers(tmp_path, messageIndexEnable=False) as cluster:
        cluster.create_topic("Plain", 1)
        send(cluster, [Message("Plain", b"x", keys=["one"])])
        source = ClusterSource(options(cluster.name_server))
        assert source.with_key("Plain", [BROKER], "one", 0, FOREVER) is None
        source.close()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tls=true, name server and broker are reached by TLS with the trust settings of the environment; an
    untrusted server is not read."""
    trusted = certs.trust(tmp_path)
    with brokers(tmp_path, **certs.write(tmp_path), **{"tls.server.mode": "permissive"}) as cluster:
        cluster.create_topic("Secret", 1)
        cluster.send("Secret", [b"one", b"two"])
        queue = QueueKey("Secret", BROKER, 0)
        source = ClusterSource(options(cluster.name_server, tls="true"))
        with pytest.raises(SourceError, match="certificate"):
            source.queues("Secret")
        source.close()
        monkeypatch.setenv("RMQKIT_TLS_CLIENT_TRUST_CERT_PATH", trusted["tls.client.trustCertPath"])
        source = ClusterSource(options(cluster.name_server, tls="true"))
        assert source.queues("Secret") == [queue]
        assert (
            sum(len(block.starts) for block in source.blocks(QueueRange(queue, 0, 2), Selection(), 100)) == 2
        )
        source.close()


def test_tls_where_there_is_none(shared_cluster: Brokers) -> None:
    """With tls=true and a name server without TLS, the text contains the cause."""
    source = ClusterSource(options(shared_cluster.name_server, tls="true"))
    try:
        with pytest.raises(SourceError, match="closed the connection in the TLS handshake"):
            source.queues("T")
    finally:
        source.close()
