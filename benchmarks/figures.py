"""Every figure of docs/benchmarks.md in one run: calls the other benchmarks, prints tables, draws a plot.

    python -m benchmarks.figures                       # about twenty minutes; nothing else should run
    python -m benchmarks.figures --only nats,kafka     # some parts
    python -m benchmarks.figures --list                # the command of each part, to run it alone
    python -m benchmarks.figures --quick               # does everything work? The figures mean nothing
    python -m benchmarks.figures --docs                # write the last figures into docs/benchmarks.md again

The rows that compare servers go into one table of ratios, those of the other benchmarks are printed as they
come. A run keeps the figures of parts that it leaves out; it writes tables and plot into docs/benchmarks.md,
between two marks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.compare import RESULTS, machine, names, say
from benchmarks.scenarios import SCENARIOS
from benchmarks.summary import number, table

FIGURES = RESULTS / "figures.json"
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "benchmarks.md"
PLOT = DOCS.with_suffix(".svg")
#: What lies between these lines of docs/benchmarks.md comes from the last run.
BEGIN, END = "<!-- figures: written by benchmarks.figures -->", "<!-- end of figures -->"
_SHORT = "--rounds 1 --seconds 6 --warm-up 10 --rest 1"


@frozen
class Part:
    """One command of the run. `goals`, for a comparison of servers: scenario -> the ratio that is wanted."""

    title: str
    command: str
    quick: str
    goals: dict[str, float] | None = None

    def words(self, quick: bool) -> list[str]:
        return ["python", "-m", *(self.quick if quick else self.command).split()]


def _compared(title: str, servers: str, goals: dict[str, float], more: str = "") -> Part:
    only = f"benchmarks.compare --servers {servers} --only {','.join(goals)}"
    only += f" --name figures-{servers.partition(',')[0]}"
    return Part(title, f"{only} {_SHORT} {more}".strip(), f"{only} --quick", goals)


PARTS = {
    "apache": _compared(
        "Apache 5.5.0",
        "apache,rmqkit",
        {"window": 3.0, "single": 2.0, "sync": 2.0, "batch": 3.0, "pull": 3.0},
        "--passes 3",
    ),
    "nats": _compared("NATS JetStream", "nats,rmqkit", {"window": 1.0, "single": 0.9, "sync": 1.0}),
    "kafka": _compared("Kafka", "kafka,rmqkit", {"batch": 1.0}),
    "bound": _compared(
        "the loop in C", "bound,rmqkit", {"window": 0.0, "single": 0.0, "batch": 0.0, "sync": 0.0}
    ),
    "pure": _compared("pure Python", "rmqkit-pure,rmqkit", {"window": 0.0, "single": 0.0, "batch": 0.0}),
    "backlog": Part(
        "p99 of sends beside a cold backlog of 2 GB (goal: growth <= 1.5)",
        f"benchmarks.compare --servers rmqkit --only backlog --name figures-backlog {_SHORT}",
        "benchmarks.compare --servers rmqkit --only backlog --name figures-backlog --quick",
    ),
    "hooks": Part(
        "hooks audit and metrics (goal: >= 0.95 of none)",
        "benchmarks.hooks_cost --only both --rounds 3",
        "benchmarks.hooks_cost --only both --quick",
    ),
    "stores": Part(
        "LMDB beside mmap (goal: >= 0.7)", "benchmarks.stores --rounds 3", "benchmarks.stores --rounds 1"
    ),
    "transports": Part(
        "TCP, TLS and QUIC on loopback (goals: TLS/TCP >= 0.7, QUIC/TLS >= 0.3)",
        "benchmarks.quic_loss --loopback",
        "benchmarks.quic_loss --loopback --quick",
    ),
    "loss": Part(
        "QUIC beside TLS with lost packets (goal: > 1.0 at p99)",
        "benchmarks.quic_loss --quick",
        "benchmarks.quic_loss --quick",
    ),
    "spark": Part(
        "Spark beside Parquet (goals: files >= 1.0, TCP >= 0.7, three columns >= 3)",
        "benchmarks.spark --name figures-spark",
        "benchmarks.spark --quick --name figures-spark",
    ),
    "queues": Part(
        "10 000 held pulls",
        "benchmarks.idle --consumers 10 --queues 1000 --seconds 20",
        "benchmarks.idle --consumers 1 --queues 100 --seconds 2",
    ),
}


def run(name: str, quick: bool) -> dict[str, Any]:
    """One part: its output, its exit status and, for a comparison of servers, the summary of its results."""
    part = PARTS[name]
    words = part.words(quick)
    say(f"{name}: {' '.join(words)}")
    command = [sys.executable, *words[1:]]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = {"command": " ".join(words), "status": done.returncode, "output": done.stdout}
    file = words[words.index("--name") + 1] if "--name" in words else ""
    path = RESULTS / f"{file}.json"
    if path.exists():
        if part.goals:
            found["summary"] = json.loads(path.read_text())["summary"]
        path.unlink()
    return found | {"machine": machine(), "date": datetime.now(UTC).date().isoformat()}


def rows(name: str, found: dict[str, Any]) -> list[list[str]]:
    """The rows of one comparison of servers for the table of ratios."""
    part = PARTS[name]
    made = []
    for scenario, goal in (part.goals or {}).items():
        row = found["summary"]["scenarios"].get(scenario)
        if row is None or row.get("ratio") is None:
            made.append([SCENARIOS[scenario].title, part.title, "-", "-", "-", "-", "-", "no figure"])
            continue
        first, second = (row[server] for server in found["summary"]["servers"])
        cells = [number(first["messages_per_s"]), number(second["messages_per_s"]), number(row["ratio"], 2)]
        cells += [
            f"{number(first['cpu_us'], 1)} / {number(second['cpu_us'], 1)}",
            number(goal, 1) if goal else "",
        ]
        disturbed = max(each["other_cores"] for each in (first, second))
        errors = first["errors"] + second["errors"]
        notes = [f"{errors} errors"] if errors else []
        notes += [f"{disturbed:.1f} cores busy with something else"] if disturbed > 0.1 else []
        made.append([SCENARIOS[scenario].title, part.title, *cells, ", ".join(notes)])
    return made


def report(found: dict[str, dict[str, Any]]) -> str:
    """The table of ratios, and below it the output of the other parts."""
    compared = [row for name, each in found.items() if "summary" in each for row in rows(name, each)]
    parts = []
    if compared:
        heads = ["load", "beside", "its messages/s", "rmqkit's", "ratio", "CPU, µs/message", "goal", "notes"]
        parts.append(table(heads, compared))
    for name, each in found.items():
        if "summary" not in each:
            failed = f" (exit status {each['status']})" if each["status"] else ""
            parts.append(f"{PARTS[name].title}{failed}\n\n```text\n{each['output'].strip()}\n```")
    return "\n\n".join(parts)


def written(text: str, found: dict[str, dict[str, Any]]) -> str:
    """The text of docs/benchmarks.md with the figures of all parts between its marks. Raises ValueError for a
    text without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCS} has no lines {BEGIN} and {END}")
    ran: dict[str, list[str]] = {}
    for name, each in found.items():
        on = each["machine"]
        where = f"{on['cores']} cores ({on['cpu']}), {on['memory_gb']} GB, Linux {on['kernel']}, Python"
        ran.setdefault(f"{each['date']}, {where} {on['python']}", []).append(name)
    lines = [f"{where}: {', '.join(names)}." for where, names in ran.items()]
    picture = [f"![Messages a second beside others]({PLOT.name})"] if bars_of(found) else []
    return "\n\n".join([before + begin, *lines, *picture, report(found), end]) + after


def bars_of(found: dict[str, dict[str, Any]]) -> list[tuple[str, float]]:
    """Title and ratio of each comparison of servers with another program."""
    return [
        (
            f"{scenario}, {PARTS[name].title}",
            each["summary"]["scenarios"].get(scenario, {}).get("ratio") or 0.0,
        )
        for name, each in found.items()
        if "summary" in each and name != "pure"
        for scenario in PARTS[name].goals or {}
    ]


def write_docs(found: dict[str, dict[str, Any]]) -> None:
    """Write the figures into docs/benchmarks.md, and draw the plot beside it."""
    DOCS.write_text(written(DOCS.read_text(), found))
    if bars_of(found):
        plot(found, PLOT)


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Bars of the ratios to each peer, with a line at 1. The suffix of the path decides the format."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    bars = bars_of(found)
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(bars) + 1))
    axes.barh([name for name, _ in bars][::-1], [ratio for _, ratio in bars][::-1], color="#4878a8")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("messages a second: rmqkit / the other")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if every part ran without an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures")
    parser.add_argument("--only", type=names(list(PARTS)), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="short runs: the figures mean nothing")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument(
        "--docs", action="store_true", help="write the last figures into the documentation and run nothing"
    )
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(f"{name:12}{' '.join(PARTS[name].words(args.quick))}" for name in args.only))
        return 0
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if args.docs:
        write_docs(kept)
        return 0
    found = {name: run(name, args.quick) for name in args.only}
    if not args.quick:
        together = kept | found
        together = {name: together[name] for name in PARTS if name in together}
        FIGURES.write_text(json.dumps(together, indent=1) + "\n")
        write_docs(together)
    print(report(found))
    return 1 if any(each["status"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
