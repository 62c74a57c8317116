"""Calls of gRPC beside Apache's proxy in local mode, with RocketMQ's Go client of version 5.

    python -m benchmarks.grpc_calls [--servers apache,rmqkit] [--messages 40000] [--calls 64] [--name NAME]

Sends of 1 KiB, then receives of up to 32 messages whose acknowledgements are one call each. The figures are
of the second of two equal loads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.code import code, tell_code
from rmqkit.client import BlockingClient
from rmqkit.model.topic import SubscriptionGroupConfig
from tests.interop import builds, peers

_RESULTS = Path(__file__).parent / "results"
_PROGRAM = Path(__file__).parent / "clients" / "grpc_load.go"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARTS = ("send", "receive")


@contextmanager
def _serving(name: str) -> Iterator[peers.Server]:
    with tempfile.TemporaryDirectory(prefix=f"bench-grpc-{name}-", ignore_cleanup_errors=True) as folder:
        if name == "apache":
            with peers.apache_proxy(Path(folder)) as server:
                yield server
        else:
            with peers.rmqkit_serve(Path(folder), arguments=["--grpc", "127.0.0.1:0"]) as server:
                yield server


def _cpu_s(server: peers.Server) -> float:
    """Processor time of all processes of a server."""
    ticks = 0
    for program in server.programs:
        fields = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def measure(name: str, messages: int, calls: int) -> dict[str, dict[str, float]]:
    """Rates, and processor time of the server for each message."""
    binary = builds.grpc_go(_PROGRAM.read_text())
    found: dict[str, dict[str, float]] = {}
    with _serving(name) as server:
        for topic in ("Warm", "Load"):
            with BlockingClient(server.namesrv) as client:
                client.admin.create_topic(topic, queues=8, message_type="NORMAL")
                group = f"{topic}-group"
                client.groups.put(group, SubscriptionGroupConfig(group_name=group))
            words = [str(binary), server.grpc, topic, str(messages), str(calls)]
            with subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as load:
                assert load.stdin is not None
                assert load.stdout is not None
                _next(load)
                for part in _PARTS:
                    before = _cpu_s(server)
                    load.stdin.write("\n")
                    load.stdin.flush()
                    report = _next(load)
                    done = report["messages"]
                    found[part] = {
                        "per_s": round(done / report["seconds"]),
                        "cpu_us": round((_cpu_s(server) - before) / done * 1e6, 1),
                    }
    return found


def _next(load: subprocess.Popen[str]) -> dict[str, Any]:
    """The next report of the program, which also prints lines of its client's log."""
    assert load.stdout is not None
    for line in load.stdout:
        if line.startswith("{"):
            report: dict[str, Any] = json.loads(line)
            return report
    assert load.stderr is not None
    raise SystemExit(f"the load ended early: {load.stderr.read()[-2_000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_calls")
    parser.add_argument("--servers", default="apache,rmqkit")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument("--name", default="grpc_calls", help="of the file in results")
    given = parser.parse_args(argv)
    tell_code()
    found = {name: measure(name, given.messages, given.calls) for name in given.servers.split(",")}
    for name, parts in found.items():
        for part, figures in parts.items():
            print(f"{name:8} {part:8} {figures}")
    result = {"messages": given.messages, "calls": given.calls, "code": code(), "servers": found}
    (_RESULTS / f"{given.name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
