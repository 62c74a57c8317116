"""Medians over the rounds, ratios within them, and the tables that are printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.scenarios import SCENARIOS

Report = dict[str, Any]


def median(values: Sequence[float | None]) -> float | None:
    """The median of the present values, or None."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def figure(*path: str) -> Callable[[Report], float | None]:
    """Looks up a figure in a report, through dictionaries; None if it is not there."""

    def look(report: Report) -> float | None:
        found: Any = report
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found if found is None else float(found)

    return look


MEDIANS = {
    "messages_per_s": figure("messages_per_s"),
    "p50_ms": figure("latency_ms", "p50"),
    "p99_ms": figure("latency_ms", "p99"),
    "cpu_us": figure("server_cpu_us_per_message"),
    "generator_cpu_us": figure("generator_cpu_us_per_message"),
}
BACKLOG_MEDIANS = {
    "quiet_p99_ms": figure("quiet", "latency_ms", "p99"),
    "p99_growth": figure("p99_growth"),
    "late_p99_ms": figure("late_ms", "p99"),
    "read_mb_per_s": figure("reader", "mb_per_s"),
    "read_s": figure("reader", "seconds"),
    "resident_before": figure("resident_before"),
}
RATIOS = {
    "ratio": "messages_per_s",
    "p99_ratio": "p99_ms",
    "cpu_ratio": "cpu_us",
    "growth_ratio": "p99_growth",
}


def summarise(rounds: Sequence[Report], servers: Sequence[str], chosen: Sequence[str]) -> Report:
    """Medians over the rounds for each server and scenario; with two servers, medians of the ratios second
    / first within each round."""
    summary: Report = {"scenarios": {}, "servers": {}}
    for server in servers:
        own = [entry for entry in rounds if entry["server"] == server]
        keys = ("ready_s", "idle_rss_mb", "idle_broker_rss_mb", "loaded_rss_mb")
        summary["servers"][server] = {key: median([entry[key] for entry in own]) for key in keys}
    for name in chosen:
        reports = {
            server: [entry["scenarios"][name] for entry in rounds if entry["server"] == server]
            for server in servers
        }
        row: Report = {server: one_server(name, reports[server]) for server in servers}
        if len(servers) == 2:
            row |= ratios(name, reports[servers[0]], reports[servers[1]])
        summary["scenarios"][name] = row
    return summary


def one_server(name: str, reports: Sequence[Report]) -> Report:
    """Medians, the worst of what disturbs, and the sum of the errors."""
    wanted = MEDIANS | BACKLOG_MEDIANS if SCENARIOS[name].cold else MEDIANS
    row: Report = {key: median([look(report) for report in reports]) for key, look in wanted.items()}
    for key in ("generator_busy", "other_cores"):
        row[key] = max(report.get(key, 0.0) for report in reports)
    return row | {"errors": sum(report["errors"] for report in reports)}


def ratios(name: str, first: Sequence[Report], second: Sequence[Report]) -> Report:
    """Medians of second / first, round by round; the rate of a paced load is given and has none."""
    row: Report = {}
    for key, of in RATIOS.items():
        look = (MEDIANS | BACKLOG_MEDIANS)[of]
        pairs = [(look(a), look(b)) for a, b in zip(first, second, strict=True)]
        found = median([b / a for a, b in pairs if a and b is not None])
        if found is not None and not (key == "ratio" and SCENARIOS[name].cold):
            row[key] = found
    return row


def number(value: float | None, digits: int = 0) -> str:
    """A figure for the table, with spaces between thousands; a dash for what is missing."""
    return "-" if value is None else f"{value:,.{digits}f}".replace(",", " ")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def tables(summary: Report, servers: Sequence[str]) -> str:
    """One table of the scenarios that go as fast as they can, one of the backlog, one of start-up and
    memory."""
    found = summary["scenarios"]
    parts = [rate_table({name: row for name, row in found.items() if not SCENARIOS[name].cold}, servers)]
    parts += [backlog_table(row, servers) for name, row in found.items() if SCENARIOS[name].cold]
    heads = ["server", "ready after s", "idle RSS MB", "of it broker MB", "RSS after load MB"]
    sizes = ("idle_rss_mb", "idle_broker_rss_mb", "loaded_rss_mb")
    rows = [
        [name, number(own["ready_s"], 2), *(number(own[key]) for key in sizes)]
        for name, own in summary["servers"].items()
    ]
    return "\n\n".join([*(part for part in parts if part), table(heads, rows)])


def rate_table(scenarios: dict[str, Report], servers: Sequence[str]) -> str:
    """A row for each scenario: rates, latency and processor time of each server, ratios second / first,
    and what the generator cost."""
    heads = ["", *(f"{s}, messages/s" for s in servers), "ratio", *(f"{s} p99, ms" for s in servers)]
    heads += [*(f"{s} CPU, µs/message" for s in servers), "CPU ratio", "generator CPU, µs/message"]
    heads += ["generator busy", "other cores", "errors"]
    rows = []
    for name, row in scenarios.items():
        own = [row[server] for server in servers]
        cells = [SCENARIOS[name].title, *(number(each["messages_per_s"]) for each in own)]
        cells += [number(row.get("ratio"), 2), *(number(each["p99_ms"], 2) for each in own)]
        cells += [*(number(each["cpu_us"], 1) for each in own), number(row.get("cpu_ratio"), 2)]
        cells += [" / ".join(number(each["generator_cpu_us"], 1) for each in own)]
        cells += [number(max(each[key] for each in own), 2) for key in ("generator_busy", "other_cores")]
        rows.append([*cells, str(sum(each["errors"] for each in own))])
    return table(heads, rows) if rows else ""


def backlog_table(row: Report, servers: Sequence[str]) -> str:
    """A row for each server: the p99 of a send alone and beside the reading, and how fast the backlog was
    read."""
    #: Key -> heading and digits.
    columns = {
        "quiet_p99_ms": ("quiet p99, ms", 2),
        "p99_ms": ("p99, ms", 2),
        "p99_growth": ("growth", 1),
        "late_p99_ms": ("sent late p99, ms", 2),
        "read_mb_per_s": ("read, MB/s", 0),
        "read_s": ("read in s", 1),
        "resident_before": ("in memory before", 3),
        "generator_busy": ("generator busy", 2),
        "other_cores": ("other cores", 2),
        "errors": ("errors", 0),
    }
    rows = [
        [server, *(number(row[server][key], digits) for key, (_, digits) in columns.items())]
        for server in servers
    ]
    if len(servers) == 2:
        ratio = {"p99_ms": row.get("p99_ratio"), "p99_growth": row.get("growth_ratio")}
        cells = [number(ratio[key], 2) if key in ratio else "" for key in columns]
        rows.append([f"{servers[1]} / {servers[0]}", *cells])
    return table(["sends while a backlog is read", *(heading for heading, _ in columns.values())], rows)
