"""What queues whose pulls a broker holds cost it for each message of other queues.

    python -m benchmarks.held_pulls [--queues 10000] [--seconds 10]

Sends of 1 KiB to 4 queues, 32 in flight on 8 connections, without held pulls, with one for each of the other
queues, and without them again. Printed are rates and the server's processor
time for each message, which is the better measure on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator

import trio

from benchmarks.code import tell_code
from benchmarks.load.asking import connect
from benchmarks.load.frames import PULL, SendShape, encode
from benchmarks.load.sending import send
from benchmarks.one_server import OneServer, serving
from rmqkit.client import Client

_FEW = "Few"
#: A topic has at most 4096 queues.
_MANY = ("Many0", "Many1", "Many2", "Many3")
_HOLDERS = 10
_SUSPEND, _SUBSCRIPTION = 2, 4


async def _create(name_server: str, queues: int) -> None:
    async with Client(name_server) as client:
        await client.admin.create_topic(_FEW, queues=4)
        for topic in _MANY:
            await client.admin.create_topic(topic, queues=queues // len(_MANY))


@contextlib.contextmanager
def _held(broker: str, queues: int) -> Iterator[None]:
    """One pull of each queue, held over a few connections."""
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket] = [connect(broker) for _ in range(_HOLDERS)]
        for sock in socks:
            stack.callback(sock.close)
        for number in range(queues):
            queue, topic = divmod(number, len(_MANY))
            fields = {"consumerGroup": "holders", "topic": _MANY[topic], "queueId": str(queue)}
            fields["queueOffset"] = "0"
            fields |= {"maxMsgNums": "32", "sysFlag": str(_SUSPEND | _SUBSCRIPTION), "commitOffset": "0"}
            fields |= {"suspendTimeoutMillis": "600000", "subscription": "*", "subVersion": "0"}
            socks[number % _HOLDERS].sendall(encode(PULL, 1_000_000_001 + number, fields))
        yield
        for sock in socks:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                raise SystemExit(f"a pull was answered: {sock.recv(200)!r}")


def _measured(title: str, server: OneServer, seconds: float) -> float:
    """Print one row; returns the processor time in us for each message."""
    shape = SendShape(_FEW, 1024, 1, 4)
    send([server.broker], shape, 8, 32, 20_000, 0.0)
    before_s = server.cpu_s()
    report = send([server.broker], shape, 8, 32, 0, seconds)
    cpu_us: float = (server.cpu_s() - before_s) * 1e6 / report["messages"]
    print(
        f"{title:20} {report['messages_per_s']:9.0f}/s {cpu_us:7.1f} us  errors {report['errors']}",
        flush=True,
    )
    return cpu_us


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_pulls")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    tell_code()
    queues, seconds = arguments.queues, arguments.seconds
    with tempfile.TemporaryDirectory(prefix="rmqkit-queues-") as directory, serving(directory) as server:
        trio.run(_create, server.namesrv, queues)
        before = _measured("no held pulls", server, seconds)
        with _held(server.broker, queues):
            held = _measured(f"{queues} held pulls", server, seconds)
        after = _measured("no held pulls", server, seconds)
        print(f"without to with them: {(before + after) / 2 / held:.2f} by processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
