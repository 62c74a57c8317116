"""Reads, streams and writes on two executors, and kills an executor in the middle of a task of each; counts
lost and duplicate rows.

    python -m tests.spark.executors local-cluster    a master, two workers and their executors on this
                                                     machine, in a Spark of its own
    python -m tests.spark.executors standalone       the same with a standalone master and two workers as
                                                     processes

Prints a line of JSON, and exits with 1 unless all counts are right. It starts several JVMs, so it is run
manually.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from tests.spark.kit_brokers import Brokers, brokers

ROWS = 4000
QUEUES = 4
IDENTITY = ["SPARK_QUERY", "SPARK_BATCH", "SPARK_PART", "SPARK_SEQ"]
_HOME = str(Path(pyspark.__file__).parent)
_STARTED_S = 60


def killing(mark: Path, at: int) -> Callable[[Column], Column]:
    """Pass a column of numbers on; the executor that reaches the number `at` is killed once."""

    def look(number: int) -> int:
        if number == at and not mark.exists():
            mark.touch()
            # This process is a fork of Spark's daemon, which was started by the executor.
            status = Path(f"/proc/{os.getppid()}/status").read_text()
            os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
        return number

    return f.udf(look, LongType())


def session(master: str, work: Path) -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .appName("rmqkit-executors")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", 1)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )


def numbers(spark: SparkSession, cluster: Brokers, topic: str) -> DataFrame:
    """The numbers in the bodies of a topic, with at least one partition per queue, and the identities of the
    messages."""
    given = {"nameServer": cluster.name_server, "body": "string", "minPartitions": str(QUEUES)}
    identity = [f"properties['{name}'] AS {name}" for name in IDENTITY]
    return (
        spark.read.format("rocketmq")
        .options(**given)
        .load(topic)
        .selectExpr("bigint(body) AS number", *identity)
    )


def run(spark: SparkSession, cluster: Brokers, work: Path) -> dict[str, Any]:
    """The result of each step: [rows, distinct rows]."""
    found: dict[str, Any] = {}
    deadline = time.monotonic() + _STARTED_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    cluster.create_topic("In", QUEUES)
    cluster.send("In", [b"%d" % number for number in range(ROWS)], QUEUES)
    source = numbers(spark, cluster, "In")

    found["read"] = _counted(source)
    look = killing(work / "killed-reading", ROWS // 2)
    found["read, executor killed"] = _counted(source.select(look(f.col("number")).alias("number")))

    cluster.create_topic("Out", QUEUES)
    look = killing(work / "killed-writing", ROWS // 2 + 1)
    rows = source.select(look(f.col("number")).cast("string").alias("body"))
    for _ in range(2):
        rows.write.format("rocketmq").mode("append").option("nameServer", cluster.name_server).save("Out")
    written: dict[str, set[int]] = {}
    messages = numbers(spark, cluster, "Out").collect()
    for row in messages:
        written.setdefault(row.SPARK_QUERY, set()).add(row.number)
    found["write, executor killed, and once more"] = [
        len(messages),
        *(len(each) for each in written.values()),
    ]
    found["identities"] = len({tuple(row[name] for name in IDENTITY) for row in messages})

    look = killing(work / "killed-streaming", ROWS // 2 + 2)
    given = {
        "nameServer": cluster.name_server,
        "body": "string",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS // 2),
    }
    stream = (
        spark.readStream.format("rocketmq")
        .options(**given)
        .load("In")
        .select(look(f.col("body").cast("bigint")).alias("number"))
    )
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start(str(work / "out")).awaitTermination()
    found["stream, executor killed"] = _counted(spark.read.parquet(str(work / "out")))
    found["killed"] = len(list(work.glob("killed-*")))
    return found


def _counted(frame: DataFrame) -> list[int]:
    """Number of rows, and of distinct numbers in them."""
    read = [row.number for row in frame.select("number").collect()]
    return [len(read), len(set(read))]


def is_right(found: dict[str, Any]) -> bool:
    """Whether all rows exist, without duplicates except where a write task ran again."""
    exact = all(
        found[step] == [ROWS, ROWS] for step in ("read", "read, executor killed", "stream, executor killed")
    )
    sent, *jobs = found["write, executor killed, and once more"]
    written = jobs == [ROWS, ROWS] and sent >= 2 * ROWS == found["identities"]
    return exact and written and found["executors"] == 2 and found["killed"] == 3


@contextmanager
def standalone(work: Path) -> Iterator[str]:
    """A master and two workers on free loopback ports; yields the master's address."""
    with ExitStack() as stack:
        port = _free_port()
        address = f"spark://127.0.0.1:{port}"

        def begin(kind: str, *arguments: str) -> None:
            with open(work / f"{kind}-{len(arguments)}.log", "a") as log:
                command = [
                    f"{_HOME}/bin/spark-class",
                    f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                    "--host",
                    "127.0.0.1",
                    *arguments,
                ]
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=os.environ | {"SPARK_HOME": _HOME}
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        begin("Master", "--port", str(port), "--webui-port", "0")
        _until_it_listens(port)
        for number in range(2):
            begin(
                "Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(work / f"worker-{number}"),
                address,
            )
        yield address


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def _until_it_listens(port: int) -> None:
    deadline = time.monotonic() + _STARTED_S
    while time.monotonic() < deadline:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the master does not listen on port {port}")


def main(kind: str) -> int:
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        work = Path(directory)
        master = stack.enter_context(standalone(work)) if kind == "standalone" else "local-cluster[2,1,512]"
        cluster = stack.enter_context(brokers(work / "store"))
        begun = time.monotonic()
        spark = session(master, work)
        spark.sparkContext.setLogLevel("OFF")
        try:
            found = run(spark, cluster, work)
        finally:
            spark.stop()
        found["seconds"] = round(time.monotonic() - begun)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if is_right(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
