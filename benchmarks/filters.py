"""What SQL92 pulls cost a broker, beside Apache's, and how long a filter that matches nothing holds the loop.

    python -m benchmarks.filters                        # both parts
    python -m benchmarks.filters --messages 100000 --passes 5 --servers rmqkit,apache
    python -m benchmarks.filters --hold 1000000         # messages of the second part; 0: without it

First part: one queue of small messages whose property `amount` is 0 to 99 in turn is read from end to end
with `amount < 1` and `amount < 50`, pull by pull over one connection. Figures are messages scanned, not
found, and processor time of the whole server for each of them, which is the better measure on a busy machine.
The servers run one after the other.

Second part: a broker in this process, a client in another that pulls with a condition that no message meets.
Printed are the longest steps of the event loop in processor time of its thread; a step is what a task does
between two checkpoints.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks import peers
from benchmarks.code import tell_code
from benchmarks.load.asking import connect
from benchmarks.load.frames import (
    FIRST_OPAQUE,
    FRAME_HEAD,
    HEADER_LENGTH,
    PULL,
    SUCCESS,
    LoadError,
    decode_header,
    encode,
)
from benchmarks.loop_steps import Steps
from rmqkit.cli import running as tuning
from rmqkit.client import Client, Message
from rmqkit.testing.broker import running_cluster

TOPIC = "Filtered"
CONDITIONS = {"1 %": "amount < 1", "50 %": "amount < 50"}
NOTHING = "amount > 100"
_RETRY_IMMEDIATELY = 20
_BATCH = 32
_BODY = bytes(100)
_SIZE = struct.Struct(">i")


class Pass(NamedTuple):
    """One reading of the queue."""

    scanned: int
    found: int
    seconds: float


async def fill(name_server: str, messages: int) -> None:
    """Send the messages to the only queue of the topic."""
    async with Client(name_server) as client:
        await client.admin.create_topic(TOPIC, queues=1)
        async with client.producer("filling") as producer:
            for start in range(0, messages, _BATCH):
                batch = [
                    Message(TOPIC, _BODY, properties={"amount": str(number % 100), "region": "eu"})
                    for number in range(start, min(start + _BATCH, messages))
                ]
                await producer.send_batch(batch)


def answers(sock: socket.socket, condition: str) -> Iterator[tuple[int, int]]:
    """Pull from the first message to the last: number of records and next offset of each answer. Raises
    LoadError."""
    file, offset, opaque = sock.makefile("rb"), 0, FIRST_OPAQUE
    while True:
        opaque += 1
        fields = {"consumerGroup": "filtering", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset)}
        fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        fields |= {"subscription": condition, "subVersion": "1", "expressionType": "SQL92"}
        sock.sendall(encode(PULL, opaque, fields))
        total, word = FRAME_HEAD.unpack(file.read(FRAME_HEAD.size))
        length = word & HEADER_LENGTH
        header = decode_header(word, file.read(length))
        body = file.read(total - 4 - length)
        if header["code"] not in (SUCCESS, _RETRY_IMMEDIATELY):
            raise LoadError(f"code {header['code']}: {header.get('remark')}")
        following = int(header["extFields"]["nextBeginOffset"])
        yield sum(1 for _ in _records(body)) if header["code"] == SUCCESS else 0, following
        offset = following
        if offset >= int(header["extFields"]["maxOffset"]):
            return


def _records(body: bytes) -> Iterator[int]:
    at = 0
    while at < len(body):
        yield at
        at += _SIZE.unpack_from(body, at)[0]


def read(broker: str, condition: str) -> Pass:
    """Read the queue once."""
    with connect(broker) as sock:
        began = time.perf_counter()
        counts, offsets = zip(*answers(sock, condition), strict=True)
        return Pass(offsets[-1], sum(counts), time.perf_counter() - began)


def beside(names: Sequence[str], messages: int, passes: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Per server and condition: messages scanned per second, and us of processor time for each."""
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    for name in names:
        with peers.running(name, {"enablePropertyFilter": "true"}) as server:
            trio.run(fill, server.namesrv, messages)
            figures[name] = {}
            for title, condition in CONDITIONS.items():
                for _ in range(passes):
                    read(server.broker, condition)
                before_s, done = server.cpu_s(), [read(server.broker, condition) for _ in range(passes)]
                scanned = sum(each.scanned for each in done)
                cpu_us = (server.cpu_s() - before_s) * 1e6 / scanned
                rate = max(each.scanned / each.seconds for each in done)
                figures[name][title] = rate, cpu_us
                print(
                    f"{name:12} {title:5} {rate:9.0f} scanned/s {cpu_us:6.2f} us CPU,"
                    f" {done[0].found} of {done[0].scanned} found",
                    flush=True,
                )
    return figures


def _client(connection: Connection) -> None:
    namesrv, broker, messages = connection.recv()
    trio.run(fill, namesrv, messages)
    connection.send("filled")
    connection.recv()
    connection.send(read(broker, NOTHING))


async def _hold(messages: int, steps: Steps, client: Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="rmqkit-filters-") as name:
        keys: dict[str, Any] = {
            "enablePropertyFilter": True,
            "mappedFileSizeCommitLog": 1024**3,
            "store": "mmap",
        }
        keys |= {"mappedFileSizeConsumeQueue": 6_000_000, "messageIndexEnable": False}
        async with running_cluster(Path(name), scheme="tcp", **keys) as cluster:
            client.send((cluster.namesrv_text, str(cluster.broker.address), messages))
            await trio.to_thread.run_sync(client.recv)
            steps.report("fill", 0)
            client.send("go")
            done = await trio.to_thread.run_sync(client.recv)
            print(f"{done.scanned} messages without a match in {done.seconds:.1f} s", flush=True)
            print(steps.report("pulls", 4), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filters")
    parser.add_argument("--messages", type=int, default=100_000, help="messages of the first part")
    parser.add_argument("--passes", type=int, default=3, help="readings for each figure, after as many more")
    parser.add_argument("--servers", default="apache,rmqkit", help="default: apache,rmqkit")
    parser.add_argument("--hold", type=int, default=1_000_000, help="messages of the second part; 0: none")
    arguments = parser.parse_args()
    tell_code()
    peers.unwind_on_sigterm()
    names = [name for name in arguments.servers.split(",") if name]
    figures = beside(names, arguments.messages, arguments.passes)
    if {"apache", "rmqkit"} <= set(figures):
        for title, (rate, cpu_us) in figures["rmqkit"].items():
            apache_rate, apache_us = figures["apache"][title]
            print(f"{title:5} rmqkit to apache: {rate / apache_rate:.2f}, CPU {apache_us / cpu_us:.2f}")
    if arguments.hold:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_client, args=(there,))
        process.start()
        steps = Steps()
        tuning.tune()
        trio.run(_hold, arguments.hold, steps, here, instruments=[steps])
        process.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
