"""The evaluation of figures by benchmarks.spark."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.spark import FIXED, RATIOS, Measured, parse_arguments, run_cpu_s, summary


def measured(*rates: float, cpu_us: float = 10.0, elapsed_s: float = 1.0) -> list[Measured]:
    return [Measured(rate, elapsed_s, cpu_us, 0.5) for rate in rates]


def test_ratios_are_those_within_a_round() -> None:
    """The result has the least, the median and the greatest of the rounds' ratios, not the ratio of medians,
    beside the ratio of processor times, the rates, and what they depend on."""
    names = {name for first, second, _ in RATIOS.values() for name in (first, second)}
    found = {name: measured(100.0, 100.0, 100.0) for name in (*names, "write", "write, all columns")}
    found |= {name: measured(1.0, elapsed_s=0.25) for name in FIXED.values()}
    found |= {
        "parquet": measured(100.0, 200.0, 400.0),
        "files": measured(90.0, 200.0, 200.0, cpu_us=20.0),
        "write": measured(5.0, 7.0, 9.0),
    }
    lines = {what: rest for what, *rest in summary(found, {"plain": 200.0, "rocketmq": 250.0})}
    assert lines["store files / parquet"] == [0.5, 0.9, 1.0, ">= 0.9"]
    assert lines["store files / parquet, by processor time"] == [0.5, 0.5, 0.5, "nothing"]
    assert lines["written bodies/s"] == [5, 7, 9, ">= 100000"]
    assert lines["parquet, rows/s"] == [100, 200, 400, "nothing"]
    assert lines["files, seconds for one row"] == [0.25, 0.25, 0.25, "nothing"]
    assert lines["cores used by others"] == [0.5, 0.5, 0.5, "0"]
    assert lines["latency of a micro-batch / plain source"] == [1.25, 1.25, 1.25, "<= 1.3"]
    assert len(summary(found, {})) == len(lines) - 1


def test_processor_time_is_that_of_everything_started() -> None:
    """Work of a process that has ended is included."""
    before = run_cpu_s()
    subprocess.run([sys.executable, "-c", "sum(range(8_000_000))"], check=True)
    assert run_cpu_s() - before >= 0.05


def test_a_quick_run_is_small() -> None:
    """A quick run is small, unless sizes are given."""
    assert (parse_arguments(["--quick"]).rows, parse_arguments([]).rounds) == (20_000, 5)
    assert parse_arguments(["--quick", "--rows", "7", "--large-gb", "0.5,2"]).large_gb == [0.5, 2.0]
    assert parse_arguments(["--quick"]).name == "spark-quick"
