"""Topics in Spark beside Parquet files of the same rows, in one session and in turn, as ratios.

    python -m benchmarks.spark                  # 400 000 rows of 1 KiB are written, four times as many are
                                                read, five rounds
    python -m benchmarks.spark --quick          # does everything work? The figures mean nothing
    python -m benchmarks.spark --large          # besides, rows a second from topics of 1 and of 10 GB

A broker of rmqkit runs as a process of its own, Spark is local[2]. Every row is 1024 bytes that cannot be
compressed, with a tag, a key and a property. The loads take turns, round by round, the first rounds
unmeasured, the reading ones into Spark's `noop`. What is written comes from Parquet files. Spark talks to its
Python workers over Unix sockets, as the connector's documentation recommends; Parquet files need none. The
latency is the median `triggerExecution` of micro-batches of twenty rows or so, beside those of a source in
Python that gives twenty rows from memory. What came out goes to `benchmarks/results/NAME.json`.

A ratio is that of two loads of one round: its least, median and greatest are given. Beside the rates there
are processor seconds of all processes of the run (JVM, workers and broker), which other work on the machine
hardly changes, the cores that others used meanwhile, and what a query costs that reads one row. The workers
have to run the same code as the driver, else the run fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import asdict, frozen
from pyspark.sql import DataFrame, SparkSession

from benchmarks import peers
from benchmarks.code import code, tell_code
from benchmarks.compare import RESULTS, machine, say
from benchmarks.load.command import at_least
from benchmarks.measuring import machine_cpu_s
from benchmarks.spark_sources import ROWS, PlainSource
from rmqkit import speedups
from rmqkit.client import BlockingClient, Message

#: The median of the first over that of the second, and what the project asks for.
RATIOS: dict[str, tuple[str, str, float]] = {
    "store files / parquet": ("files", "parquet", 0.9),
    "TCP / parquet": ("tcp", "parquet", 0.6),
    "three columns / all, store files": ("files, three columns", "files", 3.0),
    "three columns / all, TCP": ("tcp, three columns", "tcp", 3.0),
}
WRITTEN_PER_S = 100_000
LATENCY_RATIO = 1.3
SMALL = "keys,queueOffset,storeTimestamp"
TOPIC = "Bench"
#: Rounds that are not measured: the processor time of a row halves while the JVM compiles Spark's code.
WARM_UP = 3
#: A topic of one row, and the directory of its Parquet files.
ONE = "One"
#: The loads whose rows are one.
FIXED = {name: f"{name}, one row" for name in ("parquet", "files", "tcp")}
BATCHES = 30
#: A query costs some tenths of a second before it reads anything, so it is to read as much as takes seconds.
TIMES = 4
_BYTES = "unhex(concat(" + ",".join(f"sha2(concat(id,'/{part}'),512)" for part in range(16)) + "))"
_ROW_BYTES = 1024 + 200


@frozen
class Bench:
    """What a run has at hand. `rows` are in `seed`, TIMES as many in the topic and in `parquet`."""

    spark: SparkSession
    server: peers.Server
    seed: Path
    parquet: Path
    rows: int

    def reader(self, *, files: bool, topic: str = TOPIC, columns: str = "") -> DataFrame:
        """A topic over TCP or from the broker's files."""
        where = (
            {"storePath": str(self.server.data / "store")} if files else {"nameServer": self.server.namesrv}
        )
        return (
            self.spark.read.format("rocketmq")
            .options(**where, **({"columns": columns} if columns else {}))
            .load(topic)
        )

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format("rocketmq").mode("append").options(
            nameServer=self.server.namesrv, topic=topic
        ).save()


def session(directory: Path) -> SparkSession:
    """Workers use this interpreter; nothing is kept from run to run."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ |= python | {"SPARK_LOCAL_IP": "127.0.0.1"}
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", False)
        .config("spark.driver.memory", "2g")
    )
    builder = builder.config("spark.ui.showConsoleProgress", False).config(
        "spark.local.dir", str(directory / "local")
    )
    builder = builder.config("spark.python.unix.domain.socket.enabled", True)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    # A query that is stopped says so at length.
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PlainSource)
    return spark


def _code_of_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark_rocketmq.decode import records
    from rmqkit import speedups

    for _ in batches:
        found = {
            "code": [speedups.description()],
            "decoder": [vars(records)["regular_records"].__module__],
            "file": [speedups.__file__],
        }
        yield pa.record_batch(found)


def code_of_workers(spark: SparkSession) -> dict[str, str]:
    """Which code Spark's workers run. Raises ValueError when it is not that of this process."""
    rows = spark.range(0, 2, 1, 2).mapInArrow(_code_of_worker, "code string, decoder string, file string")
    from pyspark_rocketmq.decode import records

    own = (speedups.description(), vars(records)["regular_records"].__module__, speedups.__file__)
    for row in rows.distinct().collect():
        if tuple(row) != own:
            raise ValueError(
                f"Spark's workers run other code than this process: {', '.join(row)} instead of"
                f" {', '.join(own)}; run the benchmark in the environment where rmqkit is installed from this"
                " directory"
            )
    return {"Spark's workers": own[0], "decoder": own[1]}


def prepare(spark: SparkSession, server: peers.Server, directory: Path, rows: int) -> Bench:
    """The rows as Parquet to write from, in a topic, and as Parquet files of what is read from the topic."""
    bench = Bench(spark, server, directory / "seed", directory / "parquet", rows)
    made = spark.range(0, rows, 1, 4).selectExpr(
        f"{_BYTES} AS body",
        "concat('tag-', id % 10) AS tags",
        "concat('key-', id) AS keys",
        "map('number', string(id)) AS properties",
    )
    made.write.parquet(str(bench.seed))
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic(TOPIC)
    for _ in range(TIMES):
        bench.write(spark.read.parquet(str(bench.seed)), TOPIC)
    bench.reader(files=False).write.parquet(str(bench.parquet))
    one = spark.read.parquet(str(bench.seed)).where("keys = 'key-0'")
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic(ONE)
    bench.write(one, ONE)
    bench.reader(files=False, topic=ONE).write.parquet(str(directory / ONE))
    assert spark.read.parquet(str(bench.parquet)).count() == rows * TIMES
    return bench


def drain(frame: DataFrame) -> None:
    """Make every row and forget it."""
    frame.write.format("noop").mode("overwrite").save()


def loads(bench: Bench) -> Mapping[str, Callable[[], None]]:
    """Name -> what reads all that is there once, or writes the seed once."""
    return {
        "parquet": lambda: drain(bench.spark.read.parquet(str(bench.parquet))),
        "files": lambda: drain(bench.reader(files=True)),
        "tcp": lambda: drain(bench.reader(files=False)),
        "files, three columns": lambda: drain(bench.reader(files=True, columns=SMALL)),
        "tcp, three columns": lambda: drain(bench.reader(files=False, columns=SMALL)),
        "write": lambda: bench.write(bench.spark.read.parquet(str(bench.seed)).select("body"), "Written"),
        "write, all columns": lambda: bench.write(bench.spark.read.parquet(str(bench.seed)), "Written"),
        FIXED["parquet"]: lambda: drain(bench.spark.read.parquet(str(bench.parquet.parent / ONE))),
        FIXED["files"]: lambda: drain(bench.reader(files=True, topic=ONE)),
        FIXED["tcp"]: lambda: drain(bench.reader(files=False, topic=ONE)),
    }


def run_cpu_s() -> float:
    """Processor seconds of this process and everything that it started, those that have ended included."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used.get(pid, 0) for pid in own) / peers.TICKS_PER_S


@frozen
class Measured:
    """One load of one round: rows a second, seconds, processor microseconds for a row of all processes of the
    run, and the cores that everything else on the machine used meanwhile."""

    rows_per_s: float
    elapsed_s: float
    cpu_us: float
    other_cores: float


def rates(bench: Bench, rounds: int) -> dict[str, list[Measured]]:
    """Each load by round. Every other round goes through them the other way."""
    found: dict[str, list[Measured]] = {name: [] for name in loads(bench)}
    for number in range(1 - WARM_UP, rounds + 1):
        order = list(loads(bench).items())
        for name, load in order if number % 2 else reversed(order):
            os.sync()
            began, own, all_of_it = time.perf_counter(), run_cpu_s(), machine_cpu_s()
            load()
            elapsed = time.perf_counter() - began
            own, all_of_it = run_cpu_s() - own, machine_cpu_s() - all_of_it
            rows = 1 if name in FIXED.values() else bench.rows * (1 if name.startswith("write") else TIMES)
            if number > 0:
                others = max(0.0, all_of_it - own) / elapsed
                each = Measured(round(rows / elapsed, 2), elapsed, own * 1e6 / rows, others)
                found[name].append(each)
                shown = f"{each.elapsed_s:.2f} s" if rows == 1 else f"{each.rows_per_s:,.0f} rows/s"
                say(f"round {number} {name}: {shown}, {others:.2f} cores used by others")
    return found


def latency_ms(bench: Bench, kind: str, directory: Path) -> float:
    """Median of a micro-batch with rows, in ms, after five of them."""
    reader = bench.spark.readStream.format(kind)
    if kind == "rocketmq":
        reader = reader.options(nameServer=bench.server.namesrv, topic="Trickle", columns="body")
    frame = reader.load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(directory / kind)).start()
    durations: list[int] = []
    stop = threading.Event()
    sender = threading.Thread(target=_trickle, args=(bench.server.namesrv, stop))
    if kind == "rocketmq":
        sender.start()
    try:
        while len(durations) < BATCHES + 5:
            if query.awaitTermination(1):
                raise RuntimeError("the query ended")
            durations = [
                each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows
            ]
    finally:
        stop.set()
        query.stop()
        if sender.ident is not None:
            sender.join()
    return statistics.median(durations[5 : 5 + BATCHES])


def _trickle(namesrv: str, stop: threading.Event) -> None:
    """Twenty messages fifty times a second."""
    with BlockingClient(namesrv) as client, client.producer("bench") as producer:
        while not stop.wait(0.02):
            producer.send_batch([Message("Trickle", b"x" * 100)] * ROWS)


def large(bench: Bench, sizes: Sequence[float]) -> dict[str, dict[str, int]]:
    """Rows a second by size of the topic in GB, from files and over TCP. The topic grows from size to
    size."""
    found: dict[str, dict[str, int]] = {}
    seed = bench.spark.read.parquet(str(bench.seed))
    rows = 0
    with BlockingClient(bench.server.namesrv) as client:
        client.admin.create_topic("Large")
    for size in sizes:
        while rows * _ROW_BYTES < size * 1e9:
            bench.write(seed, "Large")
            rows += bench.rows
        found[f"{size:g}"] = {}
        for name, files in (("files", True), ("tcp", False)):
            began = time.perf_counter()
            drain(bench.reader(files=files, topic="Large"))
            found[f"{size:g}"][name] = round(rows / (time.perf_counter() - began))
            say(f"{size:g} GB {name}: {found[f'{size:g}'][name]:,} rows/s")
    return found


Line = tuple[str, float, float, float, str]


def _line(what: str, values: Sequence[float], wanted: str, digits: int | None) -> Line:
    middle = (min(values), statistics.median(values), max(values))
    least, median, most = (round(each, digits) if digits else round(each) for each in middle)
    return what, least, median, most, wanted


def summary(found: Mapping[str, Sequence[Measured]], latencies: Mapping[str, float]) -> list[Line]:
    """(what, least, median, greatest, asked for), a line for each demand and for what they depend on."""
    lines = []
    for what, (first, second, wanted) in RATIOS.items():
        pairs = list(zip(found[first], found[second], strict=True))
        lines.append(_line(what, [a.rows_per_s / b.rows_per_s for a, b in pairs], f">= {wanted}", 2))
        by_time = [b.cpu_us / a.cpu_us for a, b in pairs]
        lines.append(_line(f"{what}, by processor time", by_time, "nothing", 2))
    writes = {"write": "written bodies/s", "write, all columns": "written rows/s with tags, keys, properties"}
    for name, what in writes.items():
        asked = f">= {WRITTEN_PER_S}" if name == "write" else "nothing"
        lines.append(_line(what, [each.rows_per_s for each in found[name]], asked, None))
    for name in ("parquet", "files", "tcp"):
        lines.append(_line(f"{name}, rows/s", [each.rows_per_s for each in found[name]], "nothing", None))
        fixed = [each.elapsed_s for each in found[FIXED[name]]]
        lines.append(_line(f"{name}, seconds for one row", fixed, "nothing", 2))
    others = [each.other_cores for name in found for each in found[name]]
    lines.append(_line("cores used by others", others, "0", 2))
    if latencies:
        ratio = latencies["rocketmq"] / latencies["plain"]
        lines.append(_line("latency of a micro-batch / plain source", [ratio], f"<= {LATENCY_RATIO}", 2))
    return lines


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description="Topics in Spark beside Parquet files of the same rows.",
    )
    add, count = parser.add_argument, at_least(1)
    add("--quick", action="store_true", help="few rows and one round, to see that everything works")
    add("--rows", type=count, help="rows of 1 KiB that are written at a time (default 400000; quick 20000)")
    add("--rounds", type=count, help="default 5; quick 1")
    add("--large", action="store_true", help="also topics of 1 and 10 GB; needs 25 GB of disk")
    add(
        "--large-gb",
        type=lambda text: [float(each) for each in text.split(",")],
        default=[1.0, 10.0],
        help="their sizes (default 1,10)",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="broker setting")
    add(
        "--data",
        type=Path,
        help="where data directories are made (default: the system's temporary directory)",
    )
    add("--name", help="results/NAME.json (default: spark, quick: spark-quick)")
    args = parser.parse_args(argv)
    args.rows = args.rows or (20_000 if args.quick else 400_000)
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.name = args.name or ("spark-quick" if args.quick else "spark")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 when everything could be measured, whatever came out."""
    args = parse_arguments(argv)
    tell_code()
    peers.unwind_on_sigterm()
    try:
        settings = peers.parse_settings(args.set)
        with (
            peers.running("rmqkit", settings, args.data) as server,
            tempfile.TemporaryDirectory(dir=args.data) as directory,
        ):
            spark = session(Path(directory))
            try:
                report = measure(spark, server, Path(directory), args)
            finally:
                spark.stop()
    except (peers.PeerError, ValueError, subprocess.SubprocessError) as error:
        say(f"spark: {error}")
        return 1
    report["command"] = shlex.join(
        ["python", "-m", "benchmarks.spark", *(sys.argv[1:] if argv is None else argv)]
    )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{args.name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'figure':58}{'least':>12}{'median':>12}{'most':>12}")
    for what, *measured, wanted in report["summary"]:
        print(f"{what:58}{''.join(f'{each:>12,}' for each in measured)}   wanted {wanted}")
    say(f"\n{path}")
    return 0


def measure(
    spark: SparkSession, server: peers.Server, directory: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """All loads of a run, and what the figures depend on."""
    workers = code_of_workers(spark)
    say(f"Spark's workers: {workers}")
    bench = prepare(spark, server, directory, args.rows)
    say(f"{args.rows * TIMES} rows are in the topic and in Parquet files")
    found = rates(bench, args.rounds)
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic("Trickle")
    latencies = {kind: latency_ms(bench, kind, directory) for kind in ("plain", "rocketmq")}
    say(f"median micro-batch in ms: {latencies}")
    by_size = large(bench, args.large_gb) if args.large else {}
    versions = {"pyspark": spark.version, "pyarrow": pa.__version__, "code": code() | workers}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine() | versions,
        "rows_written": args.rows,
        "rows_read": args.rows * TIMES,
        "summary": summary(found, latencies),
        "rounds": {name: [asdict(each) for each in measured] for name, measured in found.items()},
        "micro_batch_ms": latencies,
        "rows_per_s_by_gb": by_size,
    }


if __name__ == "__main__":
    sys.exit(main())
