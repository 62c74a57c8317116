"""Streaming queries of tests: started on a topic, written to Parquet with a checkpoint, waited for by what they did."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.kit_brokers import Brokers

_DEADLINE_S = 60.0
_LOOK_EVERY_S = 0.05


def bodies(begin: int, end: int) -> list[bytes]:
    """Messages that can be told apart, about 1 KiB each."""
    return [b"%06d" % number + b"." * 1000 for number in range(begin, end)]


@frozen
class Reading:
    """A query that copies the numbers of `bodies` from topics to Parquet files, and can be started again where it stopped. The sink "noop" is quicker
    where nobody looks at them."""

    spark: SparkSession
    place: Path
    options: dict[str, Any]
    format: str = "rocketmq"
    sink: str = "parquet"

    @property
    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format(self.format).options(columns="topic,queueId,queueOffset,body", body="string", **self.options)
        return reader.load().selectExpr("topic", "queueId", "queueOffset", "int(left(body, 6)) AS number")

    def start(self, frame: DataFrame | None = None, *, available_now: bool = False) -> StreamingQuery:
        """Start, or go on from the checkpoint. `frame` is what to write if it is not the topics as they are."""
        writer = (
            (self.frame if frame is None else frame)
            .writeStream.format(self.sink)
            .option("checkpointLocation", str(self.place / "checkpoint"))
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.place / "out"))

    def run(self) -> StreamingQuery:
        """What is there now, to its end. Raises what the query failed with."""
        query = self.start(available_now=True)
        query.awaitTermination()
        return query

    def numbers(self) -> list[int]:
        """What was written and committed, sorted."""
        return [row.number for row in self.spark.read.parquet(str(self.place / "out")).select("number").orderBy("number").collect()]

    def batches(self) -> list[int]:
        """The batches that are in the checkpoint."""
        return sorted(int(path.name) for path in (self.place / "checkpoint" / "offsets").iterdir() if path.name.isdigit())

    def logged(self, batch: int) -> str:
        """What the checkpoint holds as the end of a batch."""
        return (self.place / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1]


def sizes(query: StreamingQuery) -> list[int]:
    """Messages of each batch so far that had any."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def until(query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so. Raises what the query failed with, or AssertionError when it takes too long or the query ends before."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert not query.awaitTermination(_LOOK_EVERY_S), f"the query ended before {what}"  # type: ignore[arg-type]
        assert time.monotonic() < deadline, f"it took too long until {what}"


def until_it_waits(query: StreamingQuery) -> None:
    """Wait until Spark is held up by the question how far the next batch goes: it is seen asking a second long."""
    seen = 0

    def asks() -> bool:
        nonlocal seen
        seen = seen + 1 if query.status["message"].startswith("Getting offsets") else 0
        return seen * _LOOK_EVERY_S >= 1

    until(query, asks, "it waits for an answer")


def read_to(query: StreamingQuery, count: int) -> None:
    """Wait until so many messages are written and committed."""
    until(query, lambda: sum(sizes(query)) >= count, f"{count} messages were read")


def on(cluster: Brokers, topic: str, **options: Any) -> dict[str, Any]:
    """Options of a stream of a topic from its first message; quick to give up, so that a test of failure is."""
    return {
        "nameServer": cluster.name_server,
        "topic": topic,
        "startingOffsets": "earliest",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "100",
    } | options
