"""Distinguishing outages and losses with a broker that stops and returns, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.read.cluster import ClusterSource
from pyspark_rocketmq.read.source import DataLoss, QueueKey, QueueRange, Selection, SourceError, Unanswered
from pyspark_rocketmq.stream.offset_tracker import Follower
from pyspark_rocketmq.stream.reader import rules_of
from tests.spark.kit_brokers import BROKER, Brokers, brokers

QUEUE = QueueKey("T", BROKER, 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path) as running:
        running.create_topic("T", 1)
        running.send("T", [b"x"] * 10)
        yield running


def following(
    cluster: Brokers, sleeps: list[float], after: dict[int, Any], **given: str
) -> tuple[Follower, ClusterSource]:
    """A strict stream from the first message. Each sleep calls the function in `after` for its number
    instead."""
    mapping = {
        "nameServer": cluster.name_server,
        "topic": "T",
        "startingOffsets": "earliest",
        "pullTimeoutMs": "2000",
    } | given
    options = ReadOptions.parse(mapping, True)
    source = ClusterSource(options)

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        after.get(len(sleeps), lambda: None)()

    return Follower(source, rules_of(options), sleep=sleep), source


def begun(follower: Follower) -> dict[str, Any]:
    """The stream has read the existing messages."""
    end: dict[str, Any] = json.loads(json.dumps(follower.latest(follower.initial(), limited=True)))
    return end


def test_a_stream_waits_for_a_broker_that_stopped(cluster: Brokers) -> None:
    """A stopping broker removes its topic from the routes, as a deletion does: the stream retries until it is
    back, and continues."""
    sleeps: list[float] = []
    follower, source = following(cluster, sleeps, {6: cluster.start}, pollIntervalMs="0")
    end = begun(follower)
    cluster.stop()
    follower._queues = None
    assert follower.latest(end, limited=True) is end
    assert len(sleeps) >= 6
    cluster.send("T", [b"y"] * 5)
    assert follower.latest(end, limited=True)["q"] == {"T": {BROKER: {"0": 15}}}
    source.close()


def test_a_stream_that_waits_in_vain_calls_it_an_outage(cluster: Brokers) -> None:
    """The error names the broker, is not a loss, and does not suggest giving up messages."""
    follower, source = following(cluster, [], {}, outageTimeout="0")
    end = begun(follower)
    cluster.stop()
    follower._queues = None
    with pytest.raises(Unanswered, match="No message is lost") as caught:
        follower.latest(end, limited=True)
    assert BROKER in str(caught.value)
    assert "failOnDataLoss" not in str(caught.value)
    source.close()


def test_a_deleted_topic_is_a_loss_at_once(cluster: Brokers) -> None:
    """The broker answers that it does not have the topic, so the error comes without waiting, with a
    remedy."""
    sleeps: list[float] = []
    follower, source = following(cluster, sleeps, {}, pollIntervalMs="0")
    end = begun(follower)
    cluster.delete_topic("T")
    follower._queues = None
    with pytest.raises(DataLoss, match=r"queue 0 of topic T .* is gone.*failOnDataLoss=false"):
        follower.latest(end, limited=True)
    assert sleeps == []
    source.close()


def test_gone(cluster: Brokers) -> None:
    """Queues that a broker reports as missing are gone; those of an unregistered broker may return."""
    _, source = following(cluster, [], {})
    more, elsewhere = QUEUE._replace(queue_id=9), QUEUE._replace(broker="broker-z")
    deleted = QUEUE._replace(topic="Nowhere")
    assert set(source.gone([QUEUE, more, elsewhere, deleted])) == {more, deleted}
    cluster.stop()
    assert set(source.gone([QUEUE, more, deleted])) == set()
    source.close()


def test_a_task_of_a_stream_waits_for_its_broker(cluster: Brokers) -> None:
    """A pull of a stream survives an outage longer than a batch's retries; at the limit the error says that
    nothing answers."""
    part = QueueRange(QUEUE, 0, 10)
    given = {"fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "10"}
    _, patient = following(cluster, [], {}, **given)
    cluster.stop()
    _, source = following(cluster, [], {}, outageTimeout="0", **given)
    with pytest.raises(SourceError, match="T"):
        list(source.blocks(part, Selection(), 10))
    source.close()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            lambda: sum(len(block.starts) for block in patient.blocks(part, Selection(), 10))
        )
        cluster.start()
        assert reading.result(30) == 10
    patient.close()
