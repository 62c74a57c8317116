"""Many lite topics in one broker: time, memory and disk.

    python -m benchmarks.lite_topics [--stores mmap,lmdb] [--topics 100000]

Each lite topic gets a first message, then a second one. After that the server is started again, and one
group subscribes to all of them in steps of 2 000 and pops everything. Printed are messages a second and
processor time per message, memory and disk of the server, and the seconds until it is ready again."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path

import msgspec
import trio

from benchmarks.code import tell_code
from benchmarks.one_server import OneServer, serving
from rmqkit.client import Client
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    LiteSubscriptionCtlRequestHeader,
    PopLiteMessageRequestHeader,
)
from rmqkit.protocol.lite import LiteSubscription, LiteSubscriptionCtlRequestBody
from rmqkit.protocol.receipt import parse_receipt
from rmqkit.protocol.record import unpack

_TOPIC, _GROUP = "Chats", "servers"
_SENDERS = 64
_STEP = 2_000
_TIMEOUT_MS = 60_000
_KB = 1_024


async def send_all(client: Client, topics: int) -> None:
    """One message to each lite topic."""
    numbers = iter(range(topics))
    async with client.producer("p") as producer, trio.open_nursery() as nursery:

        async def some() -> None:
            for number in numbers:
                properties = {"__LITE_TOPIC": f"chat-{number}"}
                await producer.send(_TOPIC, b"x" * 100, properties=properties)

        for _ in range(_SENDERS):
            nursery.start_soon(some)


async def pop_all(client: Client, topics: int) -> int:
    """Subscribe and pop until everything is acknowledged; returns the number of messages."""
    (broker,) = await client.admin.masters()
    popped = 0

    async def call(command: Command) -> Command:
        answer = await client.relay.call(broker, command, _TIMEOUT_MS)
        if answer.code:
            raise SystemExit(f"{answer.code} {answer.remark}")
        return answer

    for start in range(0, topics, _STEP):
        names = [f"chat-{number}" for number in range(start, min(topics, start + _STEP))]
        change = LiteSubscription(
            action="COMPLETE_ADD", client_id="c", group=_GROUP, topic=_TOPIC, lite_topic_set=names
        )
        body = msgspec.json.encode(LiteSubscriptionCtlRequestBody(subscription_set=[change]))
        await call(request(RequestCode.LITE_SUBSCRIPTION_CTL, LiteSubscriptionCtlRequestHeader(), body))
        left = 2 * len(names)
        while left:
            header = PopLiteMessageRequestHeader(
                client_id="c",
                consumer_group=_GROUP,
                topic=_TOPIC,
                max_msg_num=32,
                invisible_time=600_000,
                poll_time=10_000,
            )
            found = (await call(request(RequestCode.POP_LITE_MESSAGE, header))).body
            async with trio.open_nursery() as nursery:
                while found:
                    size = int.from_bytes(found[:4], "big")
                    stored, found = unpack(found[:size]), found[size:]
                    handle = parse_receipt(stored.properties["POP_CK"])
                    ack = AckMessageRequestHeader(
                        consumer_group=_GROUP,
                        topic=_TOPIC,
                        queue_id=0,
                        extra_info=handle.text,
                        offset=stored.queue_offset,
                        lite_topic=stored.properties["__LITE_TOPIC"],
                    )
                    nursery.start_soon(call, request(RequestCode.ACK_MESSAGE, ack))
                    left -= 1
                    popped += 1
    return popped


def rss_mb(server: OneServer) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // _KB
    raise SystemExit("the server is gone")


def measure(store: str, topics: int) -> None:
    """The lines of one store."""
    with tempfile.TemporaryDirectory() as name:
        more = ("--set", f"store={store}", "--grpc", "none")
        with serving(name, *more) as server:

            async def fill() -> None:
                async with Client(server.namesrv) as client:
                    await client.admin.create_topic(_TOPIC, queues=4, message_type="LITE")
                    for what in ("first messages", "second messages"):
                        tell(what, topics, *await timed(server, send_all(client, topics)))

            before = rss_mb(server)
            trio.run(fill)
            used = subprocess.run(["du", "-sm", name], capture_output=True, text=True, check=True).stdout
            print(f"{store:5} memory {before} MB before, {rss_mb(server)} MB; disk {used.split()[0]} MB")
        began_s = time.perf_counter()
        with serving(name, *more) as server:
            ready_s = time.perf_counter() - began_s
            print(f"{store:5} ready again after {ready_s:.1f} s with {rss_mb(server)} MB")

            async def drain() -> None:
                async with Client(server.namesrv) as client:
                    await client.groups.config(_GROUP)
                    found = await timed(server, pop_all(client, topics))
                    tell("popped and acknowledged", 2 * topics, *found)

            trio.run(drain)
            print(f"{store:5} memory {rss_mb(server)} MB", flush=True)


async def timed(server: OneServer, work: Awaitable[object]) -> tuple[float, float]:
    """Seconds, and processor seconds of the server, that something takes."""
    began_s, cpu_s = time.perf_counter(), server.cpu_s()
    await work
    return time.perf_counter() - began_s, server.cpu_s() - cpu_s


def tell(what: str, count: int, seconds: float, cpu_s: float) -> None:
    print(f"      {what}: {count / seconds:,.0f} a second, {cpu_s / count * 1e6:.0f} us", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lite_topics")
    parser.add_argument("--stores", default="mmap,lmdb")
    parser.add_argument("--topics", type=int, default=100_000)
    given = parser.parse_args(argv)
    tell_code()
    for store in given.stores.split(","):
        measure(store, given.topics)
    return 0


if __name__ == "__main__":
    sys.exit(main())
