"""The evaluation of figures by benchmarks.spark."""

from __future__ import annotations

from benchmarks.spark import RATIOS, parse_arguments, summary


def test_ratios_are_those_within_a_round() -> None:
    """The result is the median of the rounds' ratios, not the ratio of medians, with one line per
    requirement."""
    names = {name for first, second, _ in RATIOS.values() for name in (first, second)} | {
        "write",
        "write, all columns",
    }
    found = {name: [100.0, 100.0, 100.0] for name in names}
    found |= {"parquet": [100.0, 200.0, 400.0], "files": [90.0, 200.0, 200.0], "write": [5.0, 7.0, 9.0]}
    lines = {
        what: (measured, wanted)
        for what, measured, wanted in summary(found, {"plain": 200.0, "rocketmq": 250.0})
    }
    assert lines["store files / parquet"] == (0.9, ">= 0.9")
    assert lines["written bodies/s"] == (7.0, ">= 100000")
    assert lines["latency of a micro-batch / plain source"] == (1.25, "<= 1.3")
    assert len(lines) == len(RATIOS) + 3
    assert len(summary(found, {})) == len(RATIOS) + 2


def test_a_quick_run_is_small() -> None:
    """A quick run is small, unless sizes are given."""
    assert (parse_arguments(["--quick"]).rows, parse_arguments([]).rounds) == (20_000, 3)
    assert parse_arguments(["--quick", "--rows", "7", "--large-gb", "0.5,2"]).large_gb == [0.5, 2.0]
    assert parse_arguments(["--quick"]).name == "spark-quick"
