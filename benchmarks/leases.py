"""What waiting pops and leased messages cost a broker.

    python -m benchmarks.leases [--pops 10000] [--leases 1000000] [--seconds 20]

held    pops that wait, each for a topic of 100: processor time of the idle server, as a share of a core
leased  messages that are popped and not acknowledged, 32 and 1 at a time: resident memory per lease
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from benchmarks.code import tell_code
from benchmarks.load.asking import ask, connect
from benchmarks.load.frames import SendShape, encode
from benchmarks.load.popping import POP, found_in
from benchmarks.load.sending import send
from benchmarks.one_server import OneServer, serving
from rmqkit.client import Client

_TOPICS = 100
_HOLDERS = 10
_BODY_BYTES = 100
#: A round of a filling: memory is told after each.
_ROUNDS = 4


async def _create(name_server: str, topics: list[str], queues: int) -> None:
    async with Client(name_server) as client:
        for topic in topics:
            await client.admin.create_topic(topic, queues=queues)


def _fields(topic: str, most: int, poll_ms: int, lease_ms: int) -> dict[str, str]:
    now_ms = str(time.time_ns() // 1_000_000)
    return {
        "consumerGroup": f"of-{topic}", "topic": topic, "queueId": "-1", "maxMsgNums": str(most),
        "invisibleTime": str(lease_ms), "pollTime": str(poll_ms), "bornTime": now_ms,
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip


@contextlib.contextmanager
def _held(server: OneServer, pops: int, topics: list[str]) -> Iterator[None]:
    """Pops over a few connections, none of which is answered."""
    with contextlib.ExitStack() as stack:
        socks = [connect(server.broker) for _ in range(_HOLDERS)]
        for sock in socks:
            stack.callback(sock.close)
        for number in range(pops):
            fields = _fields(topics[number % len(topics)], 32, 600_000, 60_000)
            socks[number % _HOLDERS].sendall(encode(POP, 1_000_000_001 + number, fields))
        time.sleep(3)
        yield
        for sock in socks:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                raise SystemExit(f"a pop was answered: {sock.recv(200)!r}")


def _idle(server: OneServer, seconds: float) -> float:
    """Processor time as percent of a core."""
    before_s = server.cpu_s()
    time.sleep(seconds)
    return (server.cpu_s() - before_s) / seconds * 100


def _rss_mb(server: OneServer) -> float:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:"))


def _lease(server: OneServer, topic: str, leases: int, most: int) -> None:
    """Print the memory per lease while a topic is popped."""
    send([server.broker], SendShape(topic, _BODY_BYTES, 32, 4), 4, 8, leases, 0.0)
    time.sleep(2)
    before_mb, got = _rss_mb(server), 0
    sock = connect(server.broker)
    for at in range(1, _ROUNDS + 1):
        while got < leases * at // _ROUNDS:
            header, _ = ask(sock, encode(POP, 1_000_000_001, _fields(topic, most, 0, 3_600_000)))
            if header["code"] != 0:
                raise SystemExit(f"code {header['code']}: {header.get('remark')}")
            got += sum(len(each.offsets) for each in found_in(header["extFields"]))
        more_mb = _rss_mb(server) - before_mb
        print(
            f"{most:2} at a time: {got:8} leased, {more_mb:6.0f} MB, {more_mb * 1e6 / got:5.0f} bytes each",
            flush=True,
        )
    sock.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leases")
    parser.add_argument("--pops", type=int, default=10_000)
    parser.add_argument("--leases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    tell_code()
    topics = [f"Held{number}" for number in range(_TOPICS)]
    with tempfile.TemporaryDirectory(prefix="rmqkit-leases-") as directory, serving(directory) as server:
        trio.run(_create, server.namesrv, [*topics, "Batched", "Single"], 4)
        alone = _idle(server, given.seconds)
        with _held(server, given.pops, topics):
            held = _idle(server, given.seconds)
        print(f"idle: {alone:.2f} % of a core; with {given.pops} held pops {held:.2f} %")
        _lease(server, "Batched", given.leases, 32)
        _lease(server, "Single", given.leases // 4, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
