"""Timed messages beside Apache's broker.

    python -m benchmarks.timers [--servers apache,rmqkit] [--messages 100000] [--name timers]

Three loads, each on a fresh server that got some messages before:

put      messages of 1 KiB that are due in an hour, beside as many plain ones: rate and processor time
flow     messages that are due 5 s after their sending: how long after the last one was due all are delivered,
         and processor time from the first send to the last delivery
second   messages that are all due at one time: how long after it all are delivered
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from benchmarks import peers
from benchmarks.code import code, tell_code
from benchmarks.measuring import Report, run_load
from rmqkit.client import Client

_RESULTS = Path(__file__).parent / "results"
_TIMEOUT_S = 300.0
_WARM_UP = 20_000
_HOUR_S = 3_600
_DELAY_S = 5
#: Time in which the messages of `second` are sent before they are due.
_AHEAD_S = 30


def load(server: peers.Server, topic: str, messages: int, *properties: str) -> Report:
    """Send with the window of the benchmarks."""
    words = ["send", "--topic", topic, "--messages", str(messages), "--connections", "8"]
    words += [word for each in properties for word in ("--property", each)]
    found = run_load(server, words, _TIMEOUT_S)
    if found.get("errors") or found["messages"] < messages:
        raise SystemExit(f"{server.name}: {found}")
    return found


async def delivered_at(namesrv: str, topic: str, messages: int) -> float:
    """The time at which the topic reaches this number of messages."""
    async with Client(namesrv) as client, client.pull_consumer("counters") as consumer:
        with trio.fail_after(_TIMEOUT_S):
            while True:
                ends = [await consumer.max_offset(queue) for queue in await consumer.queues(topic)]
                if sum(ends) >= messages:
                    return time.time()
                await trio.sleep(0.02)


def until_delivered(server: peers.Server, topic: str, messages: int) -> float:
    return trio.run(delivered_at, server.namesrv, topic, messages)


def measure(name: str, messages: int) -> dict[str, Any]:
    """All loads on one server."""
    found: dict[str, Any] = {}
    with peers.running(name, {}) as server:
        load(server, "warm", _WARM_UP)
        load(server, "warm", _WARM_UP, f"TIMER_DELAY_SEC={_DELAY_S}")
        until_delivered(server, "warm", 2 * _WARM_UP)
        plain = load(server, "plain", messages)
        timed = load(server, "put", messages, f"TIMER_DELAY_SEC={_HOUR_S}")
        for each, report in (("plain", plain), ("put", timed)):
            found[each] = {
                "per_s": round(report["messages_per_s"]),
                "cpu_us": round(report["server_cpu_us_per_message"], 1),
            }
    with peers.running(name, {}) as server:
        load(server, "warm", _WARM_UP, f"TIMER_DELAY_SEC={_DELAY_S}")
        until_delivered(server, "warm", _WARM_UP)
        before_s = server.cpu_s()
        report = load(server, "flow", messages, f"TIMER_DELAY_SEC={_DELAY_S}")
        due_s = time.time() + _DELAY_S
        late_s = until_delivered(server, "flow", messages) - due_s
        found["flow"] = {
            "per_s": round(report["messages_per_s"]),
            "late_s": round(late_s, 2),
            "cpu_us": round((server.cpu_s() - before_s) / messages * 1e6, 1),
        }
        due_ms = (int(time.time()) + _AHEAD_S) * 1_000
        load(server, "second", messages, f"TIMER_DELIVER_MS={due_ms}")
        if time.time() * 1_000 > due_ms:
            raise SystemExit(f"{name}: sending took longer than {_AHEAD_S} s")
        late_s = until_delivered(server, "second", messages) - due_ms / 1_000
        found["second"] = {"late_s": round(late_s, 2), "memory_mb": round(server.broker_rss_mb())}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timers")
    parser.add_argument("--servers", default="apache,rmqkit")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--name", default="timers", help="of the file in results")
    given = parser.parse_args(argv)
    tell_code()
    found = {name: measure(name, given.messages) for name in given.servers.split(",")}
    for name, loads in found.items():
        for each, figures in loads.items():
            print(f"{name:8} {each:7} {figures}")
    result = {"messages": given.messages, "code": code(), "servers": found}
    (_RESULTS / f"{given.name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
