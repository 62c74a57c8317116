"""The steps of the demo and the check of its result."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from rmqkit.demos.served import served
from rmqkit.demos.spark.events import Day, Sums, send
from rmqkit.demos.spark.jobs import SUMS_TOPIC, Jobs, session
from rmqkit.demos.spark.picture import draw
from rmqkit.errors import how_to_install
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

_NEEDED = {"pyspark": "spark", "pyarrow": "spark", "numpy": "spark", "matplotlib": "demo"}


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--orders", type=int, default=200_000, metavar="N", help="orders of the day (default 200000)")
    add("--seed", type=int, default=5, metavar="N", help="seed of the generated day (default 5)")
    add("--picture", default="demo-spark.png", metavar="FILE", help="file to draw (default demo-spark.png)")


def _run(arguments: Namespace) -> int:
    missing = sorted({extra for module, extra in _NEEDED.items() if find_spec(module) is None})
    if missing:
        output.error(f"the demo needs more than is installed: {how_to_install(*missing)}")
        return 2
    if arguments.orders < 1:
        output.error("--orders must be at least 1")
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="rmqkit-demo-") as directory,
        served(Path(directory) / "broker") as where,
    ):
        return _demo(
            where["namesrv"], Day(arguments.orders, arguments.seed), Path(directory), Path(arguments.picture)
        )


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
        say("both have been read")
    draw(found["Parquet files"], picture)
    say(f"the picture is {picture}")
    output.line()
    rows = [("sent", day.sums), *found.items()]
    output.table(("SUMS OF", "WINDOWS", "ORDERS", "CENTS"), [(what, *_totals(sums)) for what, sums in rows])
    output.line()
    wrong = [fault for what, sums in found.items() if (fault := difference(what, day.sums, sums))]
    output.line(
        f"FAILED: {'; '.join(wrong)}" if wrong else f"all {len(day.sums)} sums agree with what was sent"
    )
    return 1 if wrong else 0


def _totals(sums: Sums) -> tuple[int, int, int]:
    return len(sums), sum(each.orders for each in sums.values()), sum(each.cents for each in sums.values())


def difference(what: str, sent: Sums, found: Sums) -> str:
    """Describe how the read sums differ from the expected ones; empty when they agree."""
    wrong = [key for key in sent.keys() | found.keys() if sent.get(key) != found.get(key)]
    if not wrong:
        return ""
    return f"{len(wrong)} windows of the {what} differ from what was sent, such as {min(wrong)}"


DEMO_SPARK = Verb(
    "stream orders through a broker into Spark and back, compare all sums, draw a picture", _arguments, _run
)
