"""Ratios within a round, medians over the rounds."""

from __future__ import annotations

from typing import Any

from benchmarks.summary import number, summarise, tables

NAMES = ["apache", "rmqkit"]


def sends(rate: float, p99: float, cpu: float, errors: int = 0, busy: float = 0.5) -> dict[str, Any]:
    report: dict[str, Any] = {
        "messages_per_s": rate,
        "latency_ms": {"p50": p99 / 2, "p99": p99},
        "server_cpu_us_per_message": cpu,
    }
    return report | {
        "generator_cpu_us_per_message": 2.5,
        "generator_busy": busy,
        "other_cores": busy / 10,
        "errors": errors,
    }


def backlog(quiet: float, p99: float) -> dict[str, Any]:
    report: dict[str, Any] = {
        "messages_per_s": 1000.0,
        "latency_ms": {"p50": 0.1, "p99": p99},
        "p99_growth": p99 / quiet,
        "errors": 0,
    }
    report |= {"quiet": {"latency_ms": {"p99": quiet}}, "late_ms": {"p99": 0.25}, "resident_before": 0.125}
    return report | {"reader": {"mb_per_s": 321.0, "seconds": 6.25}}


def entry(number: int, server: str, **scenarios: dict[str, Any]) -> dict[str, Any]:
    sizes = {"ready_s": 0.5, "idle_rss_mb": 36.0, "idle_broker_rss_mb": 36.0, "loaded_rss_mb": 1234.5}
    return {"round": number, "server": server, **sizes, "scenarios": scenarios}


ROUNDS = [
    entry(1, "apache", window=sends(100, 10, 40), backlog=backlog(1.0, 4.0)),
    entry(1, "rmqkit", window=sends(200, 20, 10, errors=1), backlog=backlog(0.5, 1.0)),
    entry(2, "apache", window=sends(10, 12, 20), backlog=backlog(1.0, 8.0)),
    entry(2, "rmqkit", window=sends(40, 6, 15, busy=0.9), backlog=backlog(0.5, 3.0)),
    entry(3, "apache", window=sends(1000, 14, 30), backlog=backlog(1.0, 6.0)),
    entry(3, "rmqkit", window=sends(1000, 7, 30, errors=2), backlog=backlog(0.5, 2.0)),
]


def test_a_ratio_is_the_median_of_the_ratios_and_not_the_ratio_of_the_medians() -> None:
    """For ratios of 2, 4 and 1 the result is 2, although the medians of the rates are 200 and 100."""
    row = summarise(ROUNDS, NAMES, ["window"])["scenarios"]["window"]
    assert (row["ratio"], row["p99_ratio"], row["cpu_ratio"]) == (2.0, 0.5, 0.75)
    assert row["apache"] | {"p50_ms": None} == {
        "messages_per_s": 100.0,
        "p50_ms": None,
        "p99_ms": 12.0,
        "cpu_us": 30.0,
        "generator_cpu_us": 2.5,
        "generator_busy": 0.5,
        "other_cores": 0.05,
        "errors": 0,
    }
    assert (row["rmqkit"]["errors"], row["rmqkit"]["generator_busy"]) == (3, 0.9)


def test_a_paced_load_has_no_ratio_of_rates_but_of_latencies() -> None:
    """The rate of a paced load is given; its p99 and the growth of its p99 are compared."""
    row = summarise(ROUNDS, NAMES, ["backlog"])["scenarios"]["backlog"]
    assert "ratio" not in row
    assert (row["p99_ratio"], row["growth_ratio"]) == (1 / 3, 2 / 3)
    assert (row["apache"]["quiet_p99_ms"], row["apache"]["p99_growth"], row["rmqkit"]["p99_growth"]) == (
        1.0,
        6.0,
        4.0,
    )


def test_the_tables_show_rates_latency_and_processor_time_of_both() -> None:
    """There is a row for each scenario, one per server for a backlog with the ratio below, and one for each
    server's memory."""
    first, second, third = tables(summarise(ROUNDS, NAMES, ["window", "backlog"]), NAMES).split("\n\n")
    (row,) = first.splitlines()[2:]
    assert (
        row
        == "| send, 32 in flight on 8 connections | 100 | 200 | 2.00 | 12.00 | 7.00 | 30.0 | 15.0 | 0.75 |"
        " 2.5 / 2.5 | 0.90 | 0.09 | 3 |"
    )
    assert (
        second.splitlines()[2]
        == "| apache | 1.00 | 6.00 | 6.0 | 0.25 | 321 | 6.2 | 0.125 | 0.00 | 0.00 | 0 |"
    )
    assert second.splitlines()[4].startswith("| rmqkit / apache |  | 0.33 | 0.67 |")
    assert third.splitlines()[2:] == [
        "| apache | 0.50 | 36 | 36 | 1 234 |",
        "| rmqkit | 0.50 | 36 | 36 | 1 234 |",
    ]
    for part in (first, second, third):
        assert len({line.count("|") for line in part.splitlines()}) == 1


def test_a_failed_run_leaves_a_gap_and_an_error() -> None:
    """Ratios come from the rounds with both figures."""
    failed = {"messages_per_s": 0.0, "latency_ms": {}, "errors": 1}
    rounds = [*ROUNDS[:2], entry(2, "apache", window=failed), entry(2, "rmqkit", window=sends(40, 6, 15))]
    row = summarise(rounds, NAMES, ["window"])["scenarios"]["window"]
    assert (row["ratio"], row["apache"]["p99_ms"], row["apache"]["errors"]) == (2.0, 10.0, 1)
    alone = summarise([entry(1, "rmqkit", window=failed)], ["rmqkit"], ["window"])
    assert "ratio" not in alone["scenarios"]["window"]
    assert "| - |" in tables(alone, ["rmqkit"])


def test_thousands_are_separated() -> None:
    """Thousands are separated by spaces, and a missing figure is a dash."""
    assert (number(1234567.0), number(None), number(0.126, 2)) == ("1 234 567", "-", "0.13")
