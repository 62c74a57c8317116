"""The run of the demo, step by step, and its verdict."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from rmqkit.cli import output
from rmqkit.cli.spark_demo.events import Day, Sums, send
from rmqkit.cli.spark_demo.jobs import SUMS_TOPIC, Jobs, session
from rmqkit.cli.spark_demo.picture import draw
from rmqkit.cli.verbs import Verb

_NEEDED = {"pyspark": "spark", "pyarrow": "spark", "numpy": "spark", "matplotlib": "demo"}
_STOP_S = 20


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--orders", type=int, default=200_000, metavar="N", help="how many orders the day has (default 200000)")
    parser.add_argument("--seed", type=int, default=5, metavar="N", help="another number makes another day (default 5)")
    parser.add_argument("--picture", default="demo-spark.png", metavar="FILE", help="where the picture goes (default demo-spark.png)")


def _run(arguments: Namespace) -> int:
    missing = sorted({extra for module, extra in _NEEDED.items() if find_spec(module) is None})
    if missing:
        output.error(f"the demo needs more than is installed: pip install 'rmqkit[{','.join(missing)}]'")
        return 2
    if arguments.orders < 1:
        output.error("--orders takes a number from 1 on")
        return 2
    with tempfile.TemporaryDirectory(prefix="rmqkit-demo-") as directory, served(Path(directory) / "broker") as name_server:
        return _demo(name_server, Day(arguments.orders, arguments.seed), Path(directory), Path(arguments.picture))


@contextmanager
def served(data: Path) -> Iterator[str]:
    """A name server and a broker in a process of their own on free ports of loopback; where the name server is. Raises RuntimeError."""
    words = [sys.executable, "-m", "rmqkit.cli", "serve", "--data", str(data), "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0"]
    with subprocess.Popen([*words, "--log-level", "WARNING"], text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready.startswith("rmqkit ready "):
                raise RuntimeError("the broker did not start; what it says is above")
            yield dict(word.split("=", 1) for word in ready.split() if "=" in word)["namesrv"]
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _demo(name_server: str, day: Day, directory: Path, picture: Path) -> int:
    began = perf_counter()

    def say(text: str) -> None:
        output.line(f"{perf_counter() - began:5.1f} s  {text}")

    say(f"a broker is up behind the name server {name_server}")
    sent = send(name_server, day)
    say(f"{sent} events are sent, a day of orders as JSON")
    with session(directory) as spark:
        say(f"Spark {spark.version} is up")
        jobs = Jobs(spark, name_server, directory, max(1, day.orders // 4), say)
        jobs.to_topic()
        say(f"the sums of each window are in the topic {SUMS_TOPIC}")
        jobs.to_parquet()
        say("and in Parquet files")
        found = {f"topic {SUMS_TOPIC}": jobs.read_topic(), "Parquet files": jobs.read_parquet()}
        say("both are read again")
    draw(found["Parquet files"], picture)
    say(f"the picture is {picture}")
    output.line()
    rows = [("sent", day.sums), *found.items()]
    output.table(("SUMS OF", "WINDOWS", "ORDERS", "CENTS"), [(what, *_totals(sums)) for what, sums in rows])
    output.line()
    wrong = [fault for what, sums in found.items() if (fault := difference(what, day.sums, sums))]
    output.line(f"FAILED: {'; '.join(wrong)}" if wrong else f"all {len(day.sums)} sums agree with what was sent")
    return 1 if wrong else 0


def _totals(sums: Sums) -> tuple[int, int, int]:
    return len(sums), sum(each.orders for each in sums.values()), sum(each.cents for each in sums.values())


def difference(what: str, sent: Sums, found: Sums) -> str:
    """What is wrong with sums that were read, empty when nothing is."""
    wrong = [key for key in sent.keys() | found.keys() if sent.get(key) != found.get(key)]
    return f"{len(wrong)} windows of the {what} differ from what was sent, such as {min(wrong)}" if wrong else ""


DEMO_SPARK = Verb("stream orders through a broker into Spark and back, compare all sums, draw a picture", _arguments, _run)
