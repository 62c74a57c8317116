"""What idle consumers cost a broker and their own process.

    python -m benchmarks.idle [--consumers 1 10] [--queues 1000] [--seconds 30]

One process with push consumers of different groups, each with all queues of a topic without messages: every
queue is a pull that the broker holds. Printed are the share of a core and the threads of both processes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from benchmarks import peers
from benchmarks.code import tell_code
from rmqkit.client import Client

TOPIC = "idle"
#: Time after the last consumer has its queues, for the first pulls of all.
SETTLE_S = 20.0


async def idle(namesrv: str, consumers: int, queues: int) -> None:
    """Hold the pulls until standard input ends. Prints a line when all consumers have their queues."""
    async with Client(namesrv) as client, AsyncExitStack() as stack:
        await client.admin.create_topic(TOPIC, queues=queues)
        for number in range(consumers):
            consumer = client.push_consumer(f"idle-{number}", subscribe=TOPIC)
            await stack.enter_async_context(consumer)
            while True:
                if sum(queue.topic == TOPIC for queue in consumer.queues) == queues:
                    break
                await anyio.sleep(0.1)
        print("idle", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


def threads(pid: int) -> int:
    """The threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def measure(server: peers.Server, consumers: int, queues: int, seconds: float) -> str:
    """One line of the table."""
    command = [sys.executable, "-m", "benchmarks.idle", "--hold", server.namesrv]
    command += ["--consumers", str(consumers), "--queues", str(queues)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise peers.PeerError("the consumers ended")
        client = peers.Process(child, Path("/dev/null"))  # type: ignore[arg-type]
        time.sleep(SETTLE_S)
        began_s, before = time.perf_counter(), (server.cpu_s(), client.cpu_s())
        time.sleep(seconds)
        elapsed_s = time.perf_counter() - began_s
        broker_share = (server.cpu_s() - before[0]) / elapsed_s
        client_share = (client.cpu_s() - before[1]) / elapsed_s
        counts = threads(server.processes[-1].child.pid), threads(child.pid)
        child.communicate("")
    return (
        f"| {consumers * queues} | {consumers} | {broker_share:.1%} | {counts[0]} | {client_share:.1%} |"
        f" {counts[1]} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hold", metavar="NAMESRV", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        asyncio.run(idle(options.hold, options.consumers[0], options.queues))
        return
    tell_code()
    peers.unwind_on_sigterm()
    print("| held pulls | consumers | broker CPU | broker threads | client CPU | client threads |")
    print("|---:|---:|---:|---:|---:|---:|")
    for consumers in options.consumers:
        with peers.running("rmqkit", {}) as server:
            print(measure(server, consumers, options.queues, options.seconds), flush=True)


if __name__ == "__main__":
    main()
