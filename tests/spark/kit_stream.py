"""Streaming queries of tests: started on a topic, written to Parquet with a checkpoint, observed by their
results."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.kit_brokers import Brokers

#: Far more than any condition takes: Spark starts about ten Python processes for a query, each of which takes
#: several seconds on a busy machine.
_DEADLINE_S = 300.0
_LOOK_EVERY_S = 0.05


def bodies(begin: int, end: int) -> list[bytes]:
    """Distinct messages of about 1 KiB each."""
    return [b"%06d" % number + b"." * 1000 for number in range(begin, end)]


@frozen
class Reading:
    """A query that copies the numbers of `bodies` from topics to Parquet files, and can be restarted where it
    stopped. The sink "noop" is faster where they are not read."""

    spark: SparkSession
    place: Path
    options: dict[str, Any]
    format: str = "rocketmq"
    sink: str = "parquet"

    @property
    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format(self.format).options(
            columns="topic,queueId,queueOffset,body", body="string", **self.options
        )
        return reader.load().selectExpr("topic", "queueId", "queueOffset", "int(left(body, 6)) AS number")

    def start(self, frame: DataFrame | None = None, *, available_now: bool = False) -> StreamingQuery:
        """Start, or continue from the checkpoint. `frame` is the frame to write, by default the topics."""
        writer = (
            (self.frame if frame is None else frame)
            .writeStream.format(self.sink)
            .option("checkpointLocation", str(self.place / "checkpoint"))
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.place / "out"))

    def run(self) -> StreamingQuery:
        """Process the existing messages to the end. Raises the error of the query."""
        query = self.start(available_now=True)
        query.awaitTermination()
        return query

    def numbers(self) -> list[int]:
        """The committed numbers, sorted."""
        return [
            row.number
            for row in self.spark.read.parquet(str(self.place / "out"))
            .select("number")
            .orderBy("number")
            .collect()
        ]

    def batches(self) -> list[int]:
        """The batches in the checkpoint."""
        return sorted(
            int(path.name)
            for path in (self.place / "checkpoint" / "offsets").iterdir()
            if path.name.isdigit()
        )

    def logged(self, batch: int) -> str:
        """The end of a batch in the checkpoint."""
        return (self.place / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1]


def sizes(query: StreamingQuery) -> list[int]:
    """Number of messages of each non-empty batch so far."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def until(query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises the error of the query, or AssertionError when it takes too long or the
    query ends before."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert not query.awaitTermination(_LOOK_EVERY_S), f"the query ended before {what}"  # type: ignore[arg-type]
        assert time.monotonic() < deadline, f"it took too long until {what}"


def until_it_waits(query: StreamingQuery) -> None:
    """Wait until Spark has been waiting for the end of the next batch for a second."""
    seen = 0

    def asks() -> bool:
        nonlocal seen
        seen = seen + 1 if query.status["message"].startswith("Getting offsets") else 0
        return seen * _LOOK_EVERY_S >= 1

    until(query, asks, "it waits for an answer")


def read_to(query: StreamingQuery, count: int) -> None:
    """Wait until this number of messages has been committed."""
    until(query, lambda: sum(sizes(query)) >= count, f"{count} messages were read")


def on(cluster: Brokers, topic: str, **options: Any) -> dict[str, Any]:
    """Options of a stream of a topic from its first message, with short retries so that tests of failures are
    fast."""
    return {
        "nameServer": cluster.name_server,
        "topic": topic,
        "startingOffsets": "earliest",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "100",
    } | options
