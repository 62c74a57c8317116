"""What a push consumer and its broker cost while nothing is sent.

    python -m benchmarks.idle_queues [--queues 1000] [--topics 1] [--seconds 60]

A consumer has this many queues in each topic, whose pulls the broker holds. Printed are the CPU time of the
client, of the server and their threads, as a share of one core, over some seconds after all queues are held.
Times of the wall clock do not matter, so other programs may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import trio

from rmqkit.client import Client

_PROGRAM = Path(sys.executable).with_name("rmqkit")
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 600


def _cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(name_server: str, server: int, queues: int, topics: int, seconds: float) -> str:
    names = [f"Idle{number}" for number in range(topics)]
    async with Client(name_server) as client:
        for name in names:
            await client.admin.create_topic(name, queues=queues)
        threads = threading.active_count()
        async with client.push_consumer("idle", subscribe=names) as consumer:
            with trio.fail_after(_PATIENCE_S):
                while len(consumer.queues) < queues * topics:  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.5)
            # The first pulls are answered and the first rebalances are over.
            await trio.sleep(20)
            before = time.process_time(), _cpu_s(server), time.monotonic()
            await trio.sleep(seconds)
            took_s = time.monotonic() - before[2]
            mine, its = time.process_time() - before[0], _cpu_s(server) - before[1]
            return (
                f"{len(consumer.queues)} idle queues: client {mine / took_s:.2%} of a core and"
                f" {threading.active_count() - threads} threads, server {its / took_s:.2%}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_queues")
    parser.add_argument("--queues", type=int, default=1000, help="of each topic")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqkit-idle-") as directory:
        words = ["serve", "--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0"]
        server = subprocess.Popen(
            [_PROGRAM, *words], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert server.stdout is not None
            where = dict(re.findall(r"(\w+)=(\S+)", server.stdout.readline()))
            figures = arguments.queues, arguments.topics, arguments.seconds
            print(trio.run(measure, where["namesrv"], server.pid, *figures), flush=True)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
