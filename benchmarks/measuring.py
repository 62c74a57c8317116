"""One load against one server: what it takes before, what is read from the system around it, and what is
checked after."""

from __future__ import annotations

import json
import mmap
import os
import resource
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cold, peers
from benchmarks.scenarios import SCENARIOS, WARM_UP_ORDER, Plan

ROOT = Path(__file__).parent.parent
LOAD_GRACE_S = 120.0
IDLE_CORES = 0.15
"""A server that uses less than this is at rest: what it has put off (an index, a flush, a compilation) is
done."""
MAX_REST_S = 30.0
TOUCHED_BYTES_PER_S = 700_000_000
"""More than a load adds to the page cache in a second."""

Report = dict[str, Any]


def machine_cpu_s() -> float:
    """Processor seconds that the whole machine has been busy (user, nice, system, interrupts), from
    /proc/stat."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / peers.TICKS_PER_S


def children_cpu_s() -> float:
    """Processor seconds of the load generators that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_load(server: peers.Server, arguments: Sequence[str], timeout_s: float) -> Report:
    """One run of the load generator against the server, with the server's processor time per message added,
    and `other_cores`: what everything else on the machine used meanwhile. A failed run is a report with
    errors.

    Raises subprocess.TimeoutExpired after `timeout_s`, and PeerError when the server is gone.
    """
    server.check()
    before, start = [server.cpu_s(), children_cpu_s(), machine_cpu_s()], time.perf_counter()
    command = server.load_command(arguments)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    server.check()
    elapsed = time.perf_counter() - start
    after = [server.cpu_s(), children_cpu_s(), machine_cpu_s()]
    cpu, generator, machine_cpu = (now - then for now, then in zip(after, before, strict=True))
    if not done.stdout.strip():
        failed: Report = {"messages": 0, "messages_per_s": 0.0, "latency_ms": {}}
        return failed | {"errors": 1, "first_errors": [done.stderr.strip()]}
    report: Report = json.loads(done.stdout)
    report["other_cores"] = round(max(0.0, machine_cpu - cpu - generator) / elapsed, 2)
    if report["messages"] and report["mode"] != "backlog":
        report["server_cpu_us_per_message"] = round(cpu * 1e6 / report["messages"], 2)
    return report


def rest(server: peers.Server, rest_s: float) -> None:
    """Write back what is dirty and wait until the server has been idle for `rest_s`: what it has put off must
    not fall into the next load.

    Goes on after MAX_REST_S in any case: a server that never rests is so while it is measured, too.
    """
    os.sync()
    deadline = time.perf_counter() + MAX_REST_S
    while True:
        start, before = time.perf_counter(), server.cpu_s()
        time.sleep(rest_s)
        now = time.perf_counter()
        # Processor time comes in ticks: the one that began before does not count.
        if server.cpu_s() - before - 1 / peers.TICKS_PER_S <= IDLE_CORES * (now - start) or now >= deadline:
            return


def touch_memory(seconds: float) -> None:
    """Let the host of a virtual machine supply the pages that a load of this length needs, at most half of
    the free memory.

    The first use of a page that the host has not supplied, or has taken back because it was free for some
    seconds, costs some 10 µs, which the server would pay that uses it first."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_bytes = int(fields["MemFree"].split()[0]) * 1024
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(free_bytes // 2, int(seconds * TOUCHED_BYTES_PER_S)), flags=flags).close()


def fill(server: peers.Server, name: str, plan: Plan) -> range:
    """Put the messages that a scenario reads into their topic; returns how many may be there.

    At least what was acknowledged, and those of the requests that created the topic; what was refused may be
    there or not.
    """
    wanted = SCENARIOS[name].fill
    if wanted is None:
        return range(0)
    topic, messages, batch = wanted(plan)
    words = f"send --topic {topic} --size {plan.size} --messages {messages} --batch {batch} --connections 4"
    words += f" --in-flight {4 if batch > 1 else 8}"
    report = run_load(server, words.split(), LOAD_GRACE_S + messages / 1000)
    if not report["messages"]:
        raise peers.PeerError(f"{server.name}: filling {topic} failed: {report['first_errors']}")
    least = report["messages"] + batch * server.brokers
    return range(least, least + report["errors"] * batch + 1)


def warm_up(server: peers.Server, chosen: Sequence[str], plan: Plan) -> tuple[int, dict[str, range]]:
    """Run every chosen kind of load once; returns the errors (a cold JVM refuses sends that wait 200 ms) and,
    for each scenario that reads, how many messages may be there."""
    errors, stored = 0, {}
    for name in (name for name in WARM_UP_ORDER if name in chosen):
        stored[name] = fill(server, name, plan)
        errors += _run(server, name, plan, plan.warm_up_s * SCENARIOS[name].warm_up_share)["errors"]
    return errors, stored


def measure(server: peers.Server, name: str, plan: Plan, stored: range) -> Report:
    """One scenario, with its files made cold before if it says so; what was read must be what was stored."""
    scenario, found = SCENARIOS[name], {}
    if scenario.cold:
        pids = [pid for process in server.processes for pid in process.pids()]
        found["resident_before"] = round(cold.make_cold(server.data, pids), 4)
    touch_memory(plan.seconds)
    report = _run(server, name, plan, plan.seconds)
    read = report.get("reader", report)
    passes = plan.pull_passes if name == "pull" else 1
    if read.get("whole") and read["messages"] / passes not in stored:
        report["errors"] += 1
        text = f"{stored[0]} were acknowledged, but {passes} passes read {read['messages']}"
        report["first_errors"].append(text)
    return report | found


def _run(server: peers.Server, name: str, plan: Plan, seconds: float) -> Report:
    return run_load(
        server, SCENARIOS[name].arguments(seconds, plan), seconds + plan.backlog_max_s + LOAD_GRACE_S
    )
