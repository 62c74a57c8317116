"""rmqkit's client beside Apache's Java client, against the same broker: rmqkit's, then Apache's.

    python -m benchmarks.client_compare [--quick] [--rounds 3] [--messages 60000]

Sends of 1 KiB by 64 tasks (Java: threads), each one message at a time; the same with automatic batches, by
rmqkit's client alone; and push consumers with an empty handler that read what was sent. Both clients
alternate round by round. Writes `results/NAME.json` and prints the medians: rates on a busy machine say
little, so that the client's processor time for each message is beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from benchmarks import peers
from benchmarks.code import code, tell_code

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TIMEOUT_S = 600
JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
TOPIC = "clients"
TASKS, SIZE = 64, 1024
#: Load -> the client that runs it.
LOADS = {
    "send, java": "java",
    "send, rmqkit": "python",
    "send in batches, rmqkit": "python",
    "consume, java": "java",
    "consume, rmqkit": "python",
}
Row = dict[str, Any]


@frozen
class Plan:
    """How much is done: messages in each load, before it, and rounds."""

    messages: int = 60_000
    warm_up: int = 30_000
    rounds: int = 3


def command(load: str, server: peers.Server, plan: Plan, number: int) -> list[str]:
    """The program of one load."""
    java = LOADS[load] == "java"
    source = str(HERE / "clients" / "JavaLoad.java")
    program = [sys.executable, "-m", "benchmarks.clients.python_load"]
    if java:
        program = ["java", *JVM, f"-Duser.home={server.data}", "-cp", peers.class_path(), source]
    if load.startswith("send"):
        words = [server.namesrv, TOPIC, plan.warm_up, plan.messages, TASKS, SIZE]
        words += [0] if "batches" in load else []
        return [*program, "send", *map(str, words)]
    group = f"{LOADS[load]}-{number}"
    return [*program, "consume", server.namesrv, TOPIC, group, str(plan.messages)]


def run(load: str, server: peers.Server, plan: Plan, number: int) -> Row:
    """One load; raises PeerError when it fails."""
    server.check()
    before_s = server.cpu_s()
    done = subprocess.run(
        command(load, server, plan, number),
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise peers.PeerError(f"{load} against {server.name}: {done.stderr[-2000:]}")
    row: Row = json.loads(lines[-1])
    row |= {"load": load, "server": server.name, "round": number}
    row["messages_per_s"] = round(row["messages"] / row["seconds"])
    row["client_cpu_us"] = round(row["cpu_s"] * 1e6 / row["messages"], 1)
    row["server_cpu_s"] = round(server.cpu_s() - before_s, 2)
    row["load_average"] = round(os.getloadavg()[0], 1)
    return row


def rows_of(server: peers.Server, plan: Plan) -> list[Row]:
    """All rounds against one server; every second one in reverse order."""
    rows = []
    for number in range(plan.rounds):
        sends = [load for load in LOADS if load.startswith("send")]
        reads = [load for load in LOADS if load.startswith("consume")]
        for loads in (sends, reads):
            for load in loads if number % 2 == 0 else reversed(loads):
                rows.append(run(load, server, plan, number))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """The medians of each load against each server, with the ratio to Java's of the same kind."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["server"], row["load"]
        same = [each for each in rows if (each["server"], each["load"]) == key]
        found[key] = {
            "server": key[0],
            "load": key[1],
            "messages_per_s": median(each["messages_per_s"] for each in same),
            "client_cpu_us": round(median(each["client_cpu_us"] for each in same), 1),
            "errors": sum(each["errors"] for each in same),
        }
    for (server, load), each in found.items():
        java = found[server, f"{'send' if load.startswith('send') else 'consume'}, java"]
        each["to_java"] = round(each["messages_per_s"] / java["messages_per_s"], 2)
    return list(found.values())


def table(medians: list[Row]) -> str:
    """The medians as a table in Markdown."""
    head = "| server | load | messages/s | to Java's | client CPU, us/message | errors |"
    lines = [head, "|---|---|---:|---:|---:|---:|"]
    lines += [
        f"| {each['server']} | {each['load']} | {each['messages_per_s']:.0f} | {each['to_java']} |"
        f" {each['client_cpu_us']} | {each['errors']} |"
        for each in medians
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of a tenth")
    parser.add_argument("--rounds", type=int, default=Plan().rounds)
    parser.add_argument("--messages", type=int, default=Plan().messages, help="of each load")
    parser.add_argument("--servers", default="rmqkit,apache")
    parser.add_argument("--name", default="clients", help="results/NAME.json")
    options = parser.parse_args()
    tell_code()
    plan = Plan(options.messages, options.messages // 2, options.rounds)
    if options.quick:
        plan = Plan(6_000, 3_000, 1)
    peers.unwind_on_sigterm()
    rows: list[Row] = []
    for name in options.servers.split(","):
        with peers.running(name, {"defaultTopicQueueNums": "4"}) as server:
            rows += rows_of(server, plan)
    medians = summary(rows)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "apache": peers.apache_version(),
        "code": code(),
    }
    RESULTS.mkdir(exist_ok=True)
    saved = {"machine": machine, "medians": medians, "rows": rows}
    (RESULTS / f"{options.name}.json").write_text(json.dumps(saved, indent=1) + "\n")
    print(table(medians))


if __name__ == "__main__":
    main()
