"""Runs Apache's broker and rmqkit side by side under the same loads, in turn, and prints tables of ratios.

    python -m benchmarks.compare                       # three rounds
    python -m benchmarks.compare --quick               # does everything work? The figures mean nothing
    python -m benchmarks.compare --quick --only backlog --backlog-mb 200

A round starts both servers as fresh processes with empty stores and warms both up by the same kinds of load.
Then they alternate load by load (A B, A B, ...; the next round begins with B), each while the other is
stopped, so that the figures of a ratio are taken within the same minute. Scenarios that need other broker
settings get a pair of servers of their own. What came out, with the machine and the command, goes to
`benchmarks/results/NAME.json`. How to read it: `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.code import code, tell_code
from benchmarks.load.command import at_least, positive
from benchmarks.measuring import ROOT, measure, rest, warm_up
from benchmarks.other_peers import SENDS
from benchmarks.scenarios import SCENARIOS, Plan, grouped
from benchmarks.summary import summarise, tables

RESULTS = Path(__file__).parent / "results"
DISTURBED_CORES = 0.1
"""When everything but the server and the generator uses more than this many cores, the machine was not
free."""
#: Option -> its default, and that of --quick.
LENGTHS: dict[str, tuple[float, float]] = {
    "rounds": (3, 1),
    "seconds": (10.0, 2.0),
    "warm_up": (20.0, 4.0),
    "pull_messages": (200_000, 20_000),
    "passes": (5, 1),
    "backlog_mb": (2000, 100),
    "rest": (2.0, 0.5),
}

Report = dict[str, Any]


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


# --- rounds -------------------------------------------------------------------------------------------------


@contextmanager
def alone(server: peers.Server, servers: Sequence[peers.Server], rest_s: float) -> Iterator[None]:
    """The server at rest, the others stopped."""
    with ExitStack() as stack:
        for other in servers:
            if other is not server:
                stack.enter_context(other.paused())
        rest(server, rest_s)
        server.check()
        yield


def run_pair(
    names: Sequence[str], settings: Mapping[str, str], chosen: Sequence[str], plan: Plan, data: Path | None
) -> dict[str, Report]:
    """Start the servers, warm them up, and run the chosen scenarios on each in turn; what was found, by
    server."""
    found: dict[str, Report] = {}
    stored: dict[str, dict[str, range]] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(peers.running(name, dict(settings), data)) for name in names]
        for server in servers:
            with alone(server, servers, plan.rest_s):
                own: Report = {"load_average": os.getloadavg()[0], "ready_s": round(server.ready_s, 3)}
                own["idle_rss_mb"] = round(server.rss_mb(), 1)
                own["idle_broker_rss_mb"] = round(server.broker_rss_mb(), 1)
                own["scenarios"] = {}
                own["warm_up_errors"], stored[server.name] = warm_up(server, chosen, plan)
                found[server.name] = own
                say(f"{server.name} ready after {server.ready_s:.2f} s and warm")
        for name in chosen:
            for server in servers:
                with alone(server, servers, plan.rest_s):
                    report = measure(server, name, plan, stored[server.name][name])
                found[server.name]["scenarios"][name] = report
                tell(server.name, name, report)
        for server in servers:
            found[server.name]["loaded_rss_mb"] = round(server.rss_mb(), 1)
    return found


def tell(server: str, name: str, report: Report) -> None:
    """One line about one run, and more if something was wrong with it."""
    p99, cpu = report["latency_ms"].get("p99"), report.get("server_cpu_us_per_message", "-")
    say(
        f"{server} {name}: {report['messages_per_s']:.0f}/s, p99 {p99} ms, {cpu} us CPU per message,"
        f" {report['errors']} errors"
    )
    if "quiet" in report:
        quiet, read = report["quiet"]["latency_ms"].get("p99"), report["reader"]
        say(
            f"    quiet p99 {quiet} ms; read {read['messages']} messages in {read['seconds']:.1f} s,"
            f" {report['resident_before']:.1%} in memory before"
        )
    if report.get("other_cores", 0.0) > DISTURBED_CORES:
        say(f"    something else used {report['other_cores']} cores meanwhile: do not trust this figure")
    for text in report["first_errors"]:
        say(f"    {text}")


def run_rounds(
    count: int,
    names: list[str],
    chosen: list[str],
    settings: Mapping[str, str],
    plan: Plan,
    data: Path | None,
) -> list[Report]:
    """All rounds: a report for each round and server, with all its scenarios. Memory and start-up are
    those of the first pair of the round."""
    rounds = []
    for number in range(1, count + 1):
        order = names if number % 2 else names[::-1]
        merged: dict[str, Report] = {}
        for wanted, members in grouped(chosen, settings):
            say(f"round {number}: {', '.join(members)}")
            for name, found in run_pair(order, wanted, members, plan, data).items():
                if name in merged:
                    merged[name]["scenarios"] |= found["scenarios"]
                    merged[name]["warm_up_errors"] += found["warm_up_errors"]
                else:
                    merged[name] = {"round": number, "server": name, **found}
        rounds += [merged[name] for name in names]
    return rounds


# --- what the figures depend on -----------------------------------------------------------------------------


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
    revision = first_line(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": first_line(["java", "-version"]),
        "apache": peers.apache_version(),
        "revision": revision if revision.isalnum() else "",
        "code": code(),
    }


# --- command line -------------------------------------------------------------------------------------------


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
    parser = argparse.ArgumentParser(
        description="Compare Apache's RocketMQ broker with rmqkit on this machine."
    )
    add, count = parser.add_argument, at_least(1)
    add("--quick", action="store_true", help="one short round, to see that everything works")
    add("--rounds", type=count, help="rounds (default 3; quick 1)")
    add("--seconds", type=positive, help="measured time of each send scenario (default 10; quick 2)")
    warm_up_help = "seconds of the widest load before measuring, half of it of the others"
    add("--warm-up", type=positive, help=f"{warm_up_help} (default 20; quick 4)")
    add("--rest", type=positive, help="seconds a server is idle before each load (default 2; quick 0.5)")
    add("--pull-messages", type=count, help="messages in the pulled topic (default 200000; quick 20000)")
    add("--passes", type=count, help="how often it is pulled (default 5; quick 1)")
    add("--backlog-mb", type=count, help="MB of bodies in the backlog (default 2000; quick 100)")
    add("--backlog-rate", type=positive, default=1000.0, help="sends per second beside it (default 1000)")
    add("--backlog-seconds", type=positive, default=120.0, help="longest time to read it (default 120)")
    add("--size", type=count, default=1024, help="body size in bytes (default 1024)")
    servers = names(sorted(peers.STARTERS))
    add("--servers", type=servers, default=["apache", "rmqkit"], help="default: apache,rmqkit")
    every = list(SCENARIOS)
    add("--only", type=names(every), default=every, help=f"scenarios (default: {','.join(every)})")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="broker setting of both servers")
    add("--data", type=Path, help="where data directories are made (default: as the system does)")
    add("--name", help="results/NAME.json (default: quick, or date and time)")
    args = parser.parse_args(argv)
    for key, lengths in LENGTHS.items():
        if getattr(args, key) is None:
            setattr(args, key, lengths[args.quick])
    args.name = args.name or ("quick" if args.quick else datetime.datetime.now().strftime("%Y-%m-%d-%H%M"))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if no run had an error."""
    args = parse_arguments(argv)
    tell_code()
    peers.unwind_on_sigterm()
    lengths = (args.seconds, args.warm_up, args.pull_messages, args.passes, args.size)
    plan = Plan(*lengths, args.backlog_mb, args.backlog_rate, args.backlog_seconds, args.rest)
    try:
        settings = peers.parse_settings(args.set)
        for name in args.servers:
            unknown = set(args.only) - set(SENDS.get(name, args.only))
            if unknown:
                raise ValueError(f"{name} cannot run {', '.join(sorted(unknown))}")
        if "rmqkit" in args.servers:
            peers.rmqkit_program()
        rounds = run_rounds(args.rounds, args.servers, args.only, settings, plan, args.data)
    except (peers.PeerError, ValueError, subprocess.TimeoutExpired) as error:
        say(f"compare: {error}")
        return 1
    summary = summarise(rounds, args.servers, args.only)
    command = shlex.join(["python", "-m", "benchmarks.compare", *(sys.argv[1:] if argv is None else argv)])
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    chosen = {name: SCENARIOS[name] for name in args.only}
    loads = {
        name: {"arguments": each.arguments(plan.seconds, plan), "settings": dict(each.settings)}
        for name, each in chosen.items()
    }
    result: Report = {
        "command": command,
        "date": date,
        "machine": machine(),
        "settings": settings,
        "loads": loads,
    }
    result |= {"summary": summary, "rounds": rounds}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(tables(summary, args.servers))
    say(f"\n{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 1 if any(report["errors"] for entry in rounds for report in entry["scenarios"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
