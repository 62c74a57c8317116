"""The Spark jobs of the demo: two streams with the same sums, one to a topic and one to Parquet, and reading
both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rmqkit.demos.spark.events import TOPIC, WINDOW_MINUTES, Sum, Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SUMS_TOPIC = "OrderSums"
#: Orders of different queues arrive out of order. Orders later than this are dropped.
_LATE = "2 hours"
_LOOK_EVERY_S = 1
_EVENT = "`order` string, time timestamp, country string, cents long"
_SUMMED = "start long, country string, orders long, cents long"


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """A local Spark session with two parallel tasks, on loopback. Its workers use this interpreter."""
    from pyspark.sql import SparkSession

    # Without this, workers are started with the `python3` of the path, which may be another one.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("rmqkit-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@frozen
class Jobs:
    """The streams of one run. `per_batch` limits the orders of a micro-batch; `told` is called with a line
    per batch."""

    spark: SparkSession
    name_server: str
    directory: Path
    per_batch: int
    told: Callable[[str], None]

    @property
    def parquet(self) -> Path:
        return self.directory / "order-sums"

    def sums(self) -> DataFrame:
        """The stream of finished windows: start, country, orders, cents."""
        from pyspark.sql import functions as f

        bodies = (
            self.spark.readStream.format("rocketmq")
            .option("nameServer", self.name_server)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.per_batch)
            .option("columns", "body")
            .option("body", "string")
            .load(TOPIC)
        )
        orders = (
            bodies.select(f.from_json("body", _EVENT).alias("order"))
            .select("order.*")
            .withWatermark("time", _LATE)
        )
        summed = orders.groupBy(f.window("time", f"{WINDOW_MINUTES} minutes").alias("span"), "country").agg(
            f.count("*").alias("orders"), f.sum("cents").alias("cents")
        )
        # The window of the closing order never ends, so it does not appear.
        return summed.selectExpr("unix_timestamp(span.start) AS start", "country", "orders", "cents")

    def to_topic(self) -> None:
        """Write each finished window as a message: JSON in the body, the country as tag, country and start as
        key."""
        messages = self.sums().selectExpr(
            "to_json(struct(*)) AS body",
            "country AS tags",
            "concat(country, '-', start) AS keys",
            "country AS shardingKey",
        )
        self._run(messages, "rocketmq", {"nameServer": self.name_server, "topic": SUMS_TOPIC})

    def to_parquet(self) -> None:
        """Write each finished window as a row."""
        self._run(self.sums(), "parquet", {"path": str(self.parquet)})

    def read_topic(self) -> Sums:
        from pyspark.sql import functions as f

        reader = (
            self.spark.read.format("rocketmq")
            .option("nameServer", self.name_server)
            .option("columns", "body")
            .option("body", "string")
        )
        return _collected(
            reader.load(SUMS_TOPIC).select(f.from_json("body", _SUMMED).alias("sum")).select("sum.*")
        )

    def read_parquet(self) -> Sums:
        return _collected(self.spark.read.parquet(str(self.parquet)))

    def _run(self, frame: DataFrame, kind: str, options: dict[str, str]) -> None:
        """Process all available data in micro-batches. Raises StreamingQueryException."""
        writer = (
            frame.writeStream.format(kind)
            .options(**options)
            .option("checkpointLocation", str(self.directory / f"checkpoint-{kind}"))
        )
        query = writer.outputMode("append").trigger(availableNow=True).start()
        told = 0
        try:
            ended = False
            while not ended:
                ended = bool(query.awaitTermination(_LOOK_EVERY_S))
                news = query.recentProgress[told:]
                told += len(news)
                for progress in news:
                    self.told(_described(progress))
        finally:
            query.stop()


def _described(progress: StreamingQueryProgress) -> str:
    seconds = progress.durationMs.get("triggerExecution", 0) / 1000
    return f"  batch {progress.batchId}: {progress.numInputRows} orders in {seconds:.1f} s"


def _collected(frame: DataFrame) -> Sums:
    """The rows as sums. Raises ValueError when a window occurs twice."""
    return as_sums(row.asDict() for row in frame.collect())


def as_sums(rows: Iterable[dict[str, Any]]) -> Sums:
    """The rows as sums. Raises ValueError when a window occurs twice."""
    found: Sums = {}
    for row in rows:
        key = row["start"], row["country"]
        if key in found:
            raise ValueError(f"the window {key} occurs twice")
        found[key] = Sum(row["orders"], row["cents"])
    return found
