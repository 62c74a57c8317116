"""How fast a broker creates topics, and how long others wait meanwhile.

    python -m benchmarks.topic_creation [--existing 10 10000 60000] [--seconds 5]

For each number of topics that exist already: clients create topics by their first send for some seconds,
while another client sends one message after the other to a topic of its own. Printed are the topics created
per second, and the other client's p50 and longest wait before and during that. The table is prepared as a
file, and the name server runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import trio

from benchmarks.code import tell_code
from rmqkit.client import Client
from rmqkit.client.producing.producer import Producer
from rmqkit.errors import RmqError
from rmqkit.model.queue import MessageQueue

_CREATORS = 8
_QUIET_S = 2.0
_PROGRAM = Path(sys.executable).with_name("rmqkit")


def prepare(directory: Path, topics: int) -> None:
    entries = ",".join(
        f'"Old{number:06}":{{"topicName":"Old{number:06}","readQueueNums":4,"writeQueueNums":4,"perm":6,"topicFilterType":"SINGLE_TAG",'
        '"topicSysFlag":0,"order":false,"attributes":{}}'
        for number in range(topics)
    )
    config = directory / "data" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(f'{{"dataVersion":{{"counter":1}},"topicConfigTable":{{{entries}}}}}')


def _start(*words: str, directory: Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [_PROGRAM, *words], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, dict(re.findall(r"(\w+)=(\S+)", line))


async def _watch(producer: Producer, queue: MessageQueue, waits_ms: list[float]) -> None:
    while True:
        began_s = time.perf_counter()
        await producer.send(queue.topic, b"x" * 100, queue=queue)
        waits_ms.append((time.perf_counter() - began_s) * 1000)


async def _create(producer: Producer, name: str, broker: str, done: list[int]) -> None:
    while True:
        done[0] += 1
        topic = f"New{name}{done[0]}"
        try:
            await producer.send(topic, b"first", queue=MessageQueue(topic, broker, 0))
            done[1] += 1
        except RmqError:
            done[2] += 1


async def measure(name_server: str, seconds: float) -> str:
    async with Client(name_server) as client, Client(name_server) as others:
        await client.admin.create_topic("Watched", queues=1)
        (broker,) = await client.admin.masters()
        async with (
            client.producer("watching") as watching,
            others.producer("creating", retries=0, timeout_ms=60_000) as creating,
        ):
            quiet_ms: list[float] = []
            busy_ms: list[float] = []
            queue = MessageQueue("Watched", broker, 0)
            with trio.move_on_after(_QUIET_S):
                await _watch(watching, queue, quiet_ms)
            done = [0, 0, 0]
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch, watching, queue, busy_ms)
                    for number in range(_CREATORS):
                        nursery.start_soon(_create, creating, f"{number}x", broker, done)
    return (
        f"{done[1] / seconds:8.0f} topics/s{f' ({done[2]} failed)' if done[2] else ''}   another client's"
        f" send: p50 {median(busy_ms):6.2f} ms, longest {max(busy_ms):7.1f} ms (without creations"
        f" {median(quiet_ms):5.2f} and {max(quiet_ms):6.1f})"
    )


def run(topics: int, seconds: float) -> str:
    """One line of figures."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prepare(directory, topics)
        started: list[subprocess.Popen[str]] = []
        try:
            namesrv, where = _start("namesrv", "--listen", "127.0.0.1:0", directory=directory)
            started.append(namesrv)
            address = where["namesrv"]
            words = ("broker", "--data", "data", "--broker", "127.0.0.1:0", "--namesrv", address)
            broker, _ = _start(*words, directory=directory)
            started.append(broker)
            return trio.run(measure, address, seconds)
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.topic_creation", description="Create topics while another client sends."
    )
    parser.add_argument("--existing", type=int, nargs="+", default=[10, 10_000, 60_000])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    tell_code()
    os.environ.pop("NAMESRV_ADDR", None)
    for topics in arguments.existing:
        print(f"{topics:6} topics: {run(topics, arguments.seconds)}", flush=True)


if __name__ == "__main__":
    main()
