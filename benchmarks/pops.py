"""Pops and their acknowledgements beside Apache's broker.

    python -m benchmarks.pops [--servers apache,rmqkit] [--messages 200000] [--seconds 8] [--name pops]

Two loads over a topic that was filled before, with bodies of 1 KiB: batches of 32 by 4 connections, and one
message at a time by one. A pop and its acknowledgement are two requests; a message counts when it is
acknowledged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.code import code, tell_code
from benchmarks.measuring import Report, run_load

_RESULTS = Path(__file__).parent / "results"
_TIMEOUT_S = 300.0
_BROKER = "bench"
#: Name -> connections, and messages of a pop.
_LOADS = {"batches": (4, 32), "single": (1, 1)}


def _load(server: peers.Server, *words: str) -> Report:
    found = run_load(server, words, _TIMEOUT_S)
    if found.get("errors") or not found["messages"]:
        raise SystemExit(f"{server.name}: {found}")
    return found


def measure(name: str, messages: int, seconds: float) -> dict[str, Any]:
    """Both loads on one server."""
    found: dict[str, Any] = {}
    with peers.running(name, {"brokerName": _BROKER}) as server:
        for each, (connections, most) in _LOADS.items():
            for topic, count in ((f"warm-{each}", messages // 4), (each, messages)):
                _load(server, "send", "--topic", topic, "--messages", str(count), "--connections", "8")
                shape = [
                    "--broker-name",
                    _BROKER,
                    "--connections",
                    str(connections),
                    "--max-messages",
                    str(most),
                ]
                report = _load(server, "pop", "--topic", topic, *shape, "--seconds", str(seconds))
            found[each] = {
                "per_s": round(report["messages_per_s"]),
                "p99_ms": report["latency_ms"]["p99"],
                "cpu_us": round(report["server_cpu_us_per_message"], 1),
                "generator_busy": report["generator_busy"],
            }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pops")
    parser.add_argument("--servers", default="apache,rmqkit")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="longest time of a load (default 8)")
    parser.add_argument("--name", default="pops", help="of the file in results")
    given = parser.parse_args(argv)
    tell_code()
    found = {name: measure(name, given.messages, given.seconds) for name in given.servers.split(",")}
    for name, loads in found.items():
        for each, figures in loads.items():
            print(f"{name:8} {each:8} {figures}")
    result = {"messages": given.messages, "code": code(), "servers": found}
    (_RESULTS / f"{given.name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
