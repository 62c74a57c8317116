"""Runs Apache's broker and rmqkit one after the other under the same load and prints a table of ratios.

    python -m benchmarks.compare                       # three rounds, about twelve minutes
    python -m benchmarks.compare --quick               # does everything work? The figures mean nothing
    python -m benchmarks.compare --set flushDiskType=SYNC_FLUSH --name sync

The servers alternate (A B A B ...), each time as fresh processes with an empty store, so that a machine that slows down slows both.
Within a round each server is warmed up by the same kinds of load before anything counts. What came out, with the machine and the command,
goes to `benchmarks/results/NAME.json`. How to read it: `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers

LOAD = Path(__file__).parent / "load.py"
RESULTS = Path(__file__).parent / "results"
PULL_TOPIC = "bench-pull"
SETTLE_S = 2.0
"""Idle time after start-up before memory is read, and between two loads."""
LOAD_GRACE_S = 120.0
DISTURBED_CORES = 0.1
"""When everything but the server and the generator uses more than this many cores, the machine was not free."""

Report = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much load: seconds per scenario and of warm-up, messages in the topic that is pulled, and how often it is pulled."""

    seconds: float
    warm_up_s: float
    pull_messages: int
    pull_passes: int
    size: int


@dataclass(frozen=True)
class Scenario:
    """One kind of load: a title for the table and the arguments of load.py for a given time and plan."""

    title: str
    arguments: Callable[[float, Plan], list[str]]


def _send(topic: str, connections: int, in_flight: int, batch: int = 1) -> Callable[[float, Plan], list[str]]:
    def arguments(seconds: float, plan: Plan) -> list[str]:
        shape = ["--connections", str(connections), "--in-flight", str(in_flight), "--batch", str(batch), "--size", str(plan.size)]
        return ["send", "--topic", topic, *shape, "--seconds", str(seconds)]

    return arguments


def _pull(_seconds: float, plan: Plan) -> list[str]:
    return ["pull", "--topic", PULL_TOPIC, "--passes", str(plan.pull_passes)]


SCENARIOS = {
    "window": Scenario("send, 32 in flight on 8 connections", _send("bench-window", 8, 32)),
    "single": Scenario("send one at a time, 1 connection", _send("bench-single", 1, 1)),
    "batch": Scenario("send batches of 32, 4 in flight on 4 connections", _send("bench-batch", 4, 4, 32)),
    "pull": Scenario("pull from the start, 4 queues", _pull),
}


# --- one server, one round --------------------------------------------------------------------------------------------------------------


def machine_cpu_s() -> float:
    """Processor seconds that the whole machine has been busy (user, nice, system, interrupts), from /proc/stat."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / peers.TICKS_PER_S


def children_cpu_s() -> float:
    """Processor seconds of the load generators that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_load(server: peers.Server, arguments: Sequence[str], timeout_s: float) -> Report:
    """One run of load.py against the server, with the server's processor time per message added, and `other_cores`: what
    everything else on the machine used meanwhile. A failed run is a report with errors."""
    server.check()
    cpu, generator, machine_cpu, start = server.cpu_s(), children_cpu_s(), machine_cpu_s(), time.perf_counter()
    command = [sys.executable, str(LOAD), *arguments, "--namesrv", server.namesrv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    server.check()
    elapsed = time.perf_counter() - start
    cpu, generator, machine_cpu = server.cpu_s() - cpu, children_cpu_s() - generator, machine_cpu_s() - machine_cpu
    if not done.stdout.strip():
        return {"messages": 0, "messages_per_s": 0.0, "latency_ms": {}, "errors": 1, "first_errors": [done.stderr.strip()]}
    report: Report = json.loads(done.stdout)
    report["other_cores"] = round(max(0.0, machine_cpu - cpu - generator) / elapsed, 2)
    if report["messages"]:
        report["server_cpu_us_per_message"] = round(cpu * 1e6 / report["messages"], 2)
    return report


def fill(server: peers.Server, plan: Plan) -> range:
    """Put the messages that will be pulled into their topic, through a small window; returns how many may be there.

    At least what was acknowledged; a message that was refused may be there or not. One more created the topic.
    """
    arguments = ["send", "--topic", PULL_TOPIC, "--size", str(plan.size), "--messages", str(plan.pull_messages)]
    arguments += ["--connections", "4", "--in-flight", "8"]
    report = run_load(server, arguments, LOAD_GRACE_S + plan.pull_messages / 1000)
    if not report["messages"]:
        raise peers.PeerError(f"{server.name}: filling {PULL_TOPIC} failed: {report['first_errors']}")
    least = report["messages"] + 1
    return range(least, least + report["errors"] + 1)


def warm_up(server: peers.Server, chosen: Sequence[str], plan: Plan) -> tuple[int, range]:
    """Run every kind of load once; returns the errors (a cold JVM refuses sends that wait 200 ms) and how many messages there are to pull.

    The gentlest load comes first, the widest takes the whole warm-up time and the others half: Apache's rate under `window` went
    19 000, 38 000, 47 000, 46 000 a second in the first four spans of 8 s while the JVM compiled.
    """
    errors, stored = 0, range(0)
    for name in ("single", "window", "batch", "pull"):
        if name == "pull" and name in chosen:
            stored = fill(server, plan)
        if name in chosen:
            seconds = plan.warm_up_s if name == "window" else plan.warm_up_s / 2
            errors += run_load(server, SCENARIOS[name].arguments(seconds, plan), seconds + LOAD_GRACE_S)["errors"]
    return errors, stored


def measure(server: peers.Server, chosen: Sequence[str], plan: Plan, say: Callable[[str], None]) -> Report:
    """Idle memory, warm-up, then every chosen scenario."""
    time.sleep(SETTLE_S)
    server.check()
    found: Report = {"server": server.name, "load_average": os.getloadavg()[0], "ready_s": round(server.ready_s, 3)}
    found |= {"idle_rss_mb": round(server.rss_mb(), 1), "idle_broker_rss_mb": round(server.broker_rss_mb(), 1), "scenarios": {}}
    found["warm_up_errors"], stored = warm_up(server, chosen, plan)
    for name in chosen:
        time.sleep(SETTLE_S)
        report = run_load(server, SCENARIOS[name].arguments(plan.seconds, plan), plan.seconds + LOAD_GRACE_S)
        if name == "pull" and report["messages"] / plan.pull_passes not in stored:
            report["errors"] += 1
            report["first_errors"].append(f"{stored[0]} were acknowledged, but {plan.pull_passes} passes read {report['messages']}")
        found["scenarios"][name] = report
        p99, cpu = report["latency_ms"].get("p99"), report.get("server_cpu_us_per_message")
        say(f"{server.name} {name}: {report['messages_per_s']:.0f}/s, p99 {p99} ms, {cpu} us CPU per message, {report['errors']} errors")
        if report.get("other_cores", 0.0) > DISTURBED_CORES:
            say(f"    something else used {report['other_cores']} cores meanwhile: this figure is not to be trusted")
        for text in report["first_errors"]:
            say(f"    {text}")
    found["loaded_rss_mb"] = round(server.rss_mb(), 1)
    return found


def run_rounds(args: argparse.Namespace, plan: Plan, settings: dict[str, str]) -> list[Report]:
    """All rounds, the servers in turn; progress goes to standard error."""
    rounds = []

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for number in range(1, args.rounds + 1):
        for name in args.servers:
            with peers.running(name, settings, args.data) as server:
                say(f"round {number}: {name} ready after {server.ready_s:.2f} s")
                rounds.append({"round": number, **measure(server, args.only, plan, say)})
    return rounds


# --- what came out ------------------------------------------------------------------------------------------------------------------------


def first_line(command: Sequence[str]) -> str:
    """The first line a command prints on either stream, or an empty string if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return next(iter((done.stdout + done.stderr).splitlines()), "")


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    described = {"cpu": models[0] if models else platform.machine(), "cores": len(os.sched_getaffinity(0)), "memory_gb": round(memory, 1)}
    described |= {"kernel": platform.release(), "python": platform.python_version(), "java": first_line(["java", "-version"])}
    revision = first_line(["git", "-C", str(LOAD.parent), "rev-parse", "--short", "HEAD"])
    return described | {"apache": peers.apache_version(), "revision": revision if revision.isalnum() else ""}


def median(values: Sequence[float | None]) -> float | None:
    """The median of what is there, or None."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def summarise(rounds: Sequence[Report], servers: Sequence[str], chosen: Sequence[str]) -> Report:
    """Medians over the rounds, and of the per-round ratios second server / first server."""
    summary: Report = {"scenarios": {}, "servers": {}}
    for server in servers:
        own = [entry for entry in rounds if entry["server"] == server]
        keys = ("ready_s", "idle_rss_mb", "idle_broker_rss_mb", "loaded_rss_mb")
        summary["servers"][server] = {key: median([entry[key] for entry in own]) for key in keys}
    for name in chosen:
        row: Report = {}
        rates: dict[str, list[float]] = {}
        for server in servers:
            reports = [entry["scenarios"][name] for entry in rounds if entry["server"] == server]
            rates[server] = [report["messages_per_s"] for report in reports]
            row[server] = {
                "messages_per_s": median(rates[server]),
                "p50_ms": median([report["latency_ms"].get("p50") for report in reports]),
                "p99_ms": median([report["latency_ms"].get("p99") for report in reports]),
                "cpu_us": median([report.get("server_cpu_us_per_message") for report in reports]),
                "generator_busy": max(report.get("generator_busy", 0.0) for report in reports),
                "other_cores": max(report.get("other_cores", 0.0) for report in reports),
                "errors": sum(report["errors"] for report in reports),
            }
        if len(servers) == 2:
            base, other = (rates[server] for server in servers)
            row["ratio"] = median([b / a for a, b in zip(base, other, strict=True) if a])
        summary["scenarios"][name] = row
    return summary


def number(value: float | None, digits: int = 0) -> str:
    """A figure for the table, with spaces between thousands; a dash for what is missing."""
    return "-" if value is None else f"{value:,.{digits}f}".replace(",", " ")


def tables(summary: Report, servers: Sequence[str]) -> str:
    """The Markdown tables: one row per scenario, and one per server for start-up and memory."""
    heads = ["scenario", *(f"{s} msg/s" for s in servers), "ratio", *(f"{s} p99 ms" for s in servers)]
    heads += [*(f"{s} CPU µs/msg" for s in servers), "generator busy", *(f"{s} other cores" for s in servers), "errors"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, row in summary["scenarios"].items():
        cells = [SCENARIOS[name].title, *(number(row[s]["messages_per_s"]) for s in servers), number(row.get("ratio"), 2)]
        cells += [*(number(row[s]["p99_ms"], 2) for s in servers), *(number(row[s]["cpu_us"], 1) for s in servers)]
        cells += [number(max(row[s]["generator_busy"] for s in servers), 2), *(number(row[s]["other_cores"], 2) for s in servers)]
        lines.append("| " + " | ".join([*cells, str(sum(row[s]["errors"] for s in servers))]) + " |")
    lines += ["", "| server | ready after s | idle RSS MB | of it broker MB | RSS after load MB |", "|---|---:|---:|---:|---:|"]
    for name, own in summary["servers"].items():
        cells = [name, number(own["ready_s"], 2)]
        cells += [number(own[key]) for key in ("idle_rss_mb", "idle_broker_rss_mb", "loaded_rss_mb")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- command line -------------------------------------------------------------------------------------------------------------------------


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: a comma list of known names."""

    def parse(text: str) -> list[str]:
        items = text.split(",")
        for item in items:
            if item not in known:
                raise argparse.ArgumentTypeError(f"{item!r} is none of {', '.join(known)}")
        return items

    return parse


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; --quick changes the defaults of what sets the length of the run."""
    parser = argparse.ArgumentParser(description="Compare Apache's RocketMQ broker with rmqkit on this machine.")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    parser.add_argument("--rounds", type=int, help="rounds of A B (default 3; quick 1)")
    parser.add_argument("--seconds", type=float, help="measured time of each send scenario (default 10; quick 2)")
    parser.add_argument(
        "--warm-up", type=float, help="seconds of the widest load before measuring, half of it of the others (default 20; quick 4)"
    )
    parser.add_argument("--pull-messages", type=int, help="messages in the pulled topic (default 200000; quick 20000)")
    parser.add_argument("--size", type=int, default=1024, help="body size in bytes (default 1024)")
    parser.add_argument("--servers", type=names(sorted(peers.STARTERS)), default=["apache", "rmqkit"], help="default: apache,rmqkit")
    parser.add_argument("--only", type=names(list(SCENARIOS)), default=list(SCENARIOS), help="comma list of scenarios (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="broker setting given to both servers")
    parser.add_argument("--data", type=Path, help="where data directories are made (default: the system's temporary directory)")
    parser.add_argument("--name", help="results/NAME.json (default: quick, or date and time)")
    args = parser.parse_args(argv)
    defaults = {"rounds": 1, "seconds": 2.0, "warm_up": 4.0, "pull_messages": 20_000, "name": "quick"}
    if not args.quick:
        defaults = {"rounds": 3, "seconds": 10.0, "warm_up": 20.0, "pull_messages": 200_000}
        defaults["name"] = datetime.datetime.now().strftime("%Y-%m-%d-%H%M")
    for key, value in defaults.items():
        if getattr(args, key) is None:
            setattr(args, key, value)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if no run had an error."""
    args = parse_arguments(argv)
    peers.unwind_on_sigterm()
    plan = Plan(args.seconds, args.warm_up, args.pull_messages, 1 if args.quick else 5, args.size)
    try:
        settings = peers.parse_settings(args.set)
        if "rmqkit" in args.servers:
            peers.rmqkit_program()
        rounds = run_rounds(args, plan, settings)
    except (peers.PeerError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    summary = summarise(rounds, args.servers, args.only)
    command = shlex.join(["python", "-m", "benchmarks.compare", *(sys.argv[1:] if argv is None else argv)])
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    result = {"command": command, "date": date, "machine": machine(), "settings": settings, "summary": summary, "rounds": rounds}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(tables(summary, args.servers))
    print(f"\n{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}", file=sys.stderr)
    return 1 if any(report["errors"] for entry in rounds for report in entry["scenarios"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
