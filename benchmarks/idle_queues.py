"""What a push consumer and its broker cost while nothing is sent.

    python -m benchmarks.idle_queues [--queues 1000] [--topics 1] [--seconds 60]

A consumer has this many queues in each topic, whose pulls the broker holds. Printed are the CPU time of the
client, of the server and their threads, as a share of one core, over some seconds after all queues are held.
Times of the wall clock do not matter, so other programs may run meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time

import trio

from benchmarks.code import tell_code
from benchmarks.one_server import OneServer, serving
from rmqkit.client import Client

_PATIENCE_S = 600


async def measure(server: OneServer, queues: int, topics: int, seconds: float) -> str:
    names = [f"Idle{number}" for number in range(topics)]
    async with Client(server.namesrv) as client:
        for name in names:
            await client.admin.create_topic(name, queues=queues)
        threads = threading.active_count()
        async with client.push_consumer("idle", subscribe=names) as consumer:
            with trio.fail_after(_PATIENCE_S):
                while len(consumer.queues) < queues * topics:  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.5)
            # The first pulls are answered and the first rebalances are over.
            await trio.sleep(20)
            before = time.process_time(), server.cpu_s(), time.monotonic()
            await trio.sleep(seconds)
            took_s = time.monotonic() - before[2]
            mine, its = time.process_time() - before[0], server.cpu_s() - before[1]
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
    tell_code()
    with tempfile.TemporaryDirectory(prefix="rmqkit-idle-") as directory, serving(directory) as server:
        print(trio.run(measure, server, arguments.queues, arguments.topics, arguments.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
