"""`rmqkit demo` starts a broker and a name server, sends and receives messages, checks each one, and prints a
table of the results."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, time

import trio
from attrs import Factory, define

from rmqkit import MessageQueue
from rmqkit.client import Client, PullConsumer
from rmqkit.demos.served import served
from rmqkit.errors import BrokerError, ConnectionLost
from rmqkit.model import properties as props
from rmqkit.plugin.command import Verb
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.toolkit import output

TOPIC = "DemoTopic"
GROUP = "demo"
_QUEUES = 8
_CONNECTIONS = 8
_IN_FLIGHT = 32
_BODY_BYTES = 1024
_READ_BYTES = 65_536


def _arguments(parser: ArgumentParser) -> None:
    number = "number of messages of 1 KiB (default 50000)"
    parser.add_argument("--messages", type=int, default=50_000, metavar="N", help=number)
    directory = "directory for them (default: a temporary directory, removed at the end)"
    parser.add_argument("--data", metavar="DIR", help=directory)
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", default="WARNING", choices=levels, help="log level of the broker")


def _run(arguments: Namespace) -> int:
    if arguments.messages < 1:
        output.error("--messages must be at least 1")
        return 2
    with tempfile.TemporaryDirectory(prefix="rmqkit-demo-") as temporary:
        return _demo(arguments.messages, Path(arguments.data or temporary), arguments.log_level)


def _demo(messages: int, directory: Path, log_level: str) -> int:
    began = perf_counter()
    with served(directory, log_level) as where:
        output.line(
            f"a name server at {where['namesrv']} and a broker at {where['broker']} are up after"
            f" {perf_counter() - began:.1f} s"
        )
        bodies = Bodies(messages)
        sending_s, receiving_s = trio.run(_flow, where, bodies)
    output.line()
    steps = [
        (f"sent, {_IN_FLIGHT} in flight on {_CONNECTIONS} connections", messages, sending_s),
        ("received and checked", bodies.received.total(), receiving_s),
    ]
    rows = [(step, number, f"{seconds:.2f}", f"{number / seconds:.0f}") for step, number, seconds in steps]
    output.table(("STEP", "MESSAGES", "SECONDS", "MESSAGES/S"), rows)
    output.line()
    output.table(("ON DISK", "BYTES TAKEN"), _on_disk(directory))
    output.line()
    faults = bodies.faults()
    output.line(
        f"FAILED: {', '.join(faults)}" if faults else f"all {messages} messages arrived once and unchanged"
    )
    return 1 if faults else 0


@define
class Bodies:
    """The message bodies, each with its number and random bytes, and how often each was received."""

    messages: int
    received: Counter[int] = Factory(Counter)
    changed: int = 0
    _noise: bytes = Factory(lambda: os.urandom(2 * _BODY_BYTES))

    def body(self, number: int) -> bytes:
        head = b"message %d " % number
        at = number % _BODY_BYTES
        return head + self._noise[at : at + _BODY_BYTES - len(head)]

    def receive(self, body: bytes) -> None:
        """Count a received body; a body that differs from what was sent is counted as changed."""
        number = body.split(b" ", 2)[1] if body.startswith(b"message ") else b""
        if number.isdigit() and int(number) < self.messages and body == self.body(int(number)):
            self.received[int(number)] += 1
        else:
            self.changed += 1

    def faults(self) -> list[str]:
        twice = sum(1 for times in self.received.values() if times > 1)
        named = (
            (self.messages - len(self.received), "lost"),
            (self.changed, "changed"),
            (twice, "received twice"),
        )
        return [f"{number} messages {what}" for number, what in named if number]


async def _flow(where: dict[str, str], bodies: Bodies) -> tuple[float, float]:
    """Send all messages, then receive all. Returns the seconds of both. Raises client errors, and BrokerError
    for a send that was not answered with SEND_OK."""
    async with Client(where["namesrv"]) as client:
        await client.admin.create_topic(TOPIC, queues=_QUEUES)
        began = perf_counter()
        numbers = iter(range(bodies.messages))
        async with trio.open_nursery() as nursery:
            for _ in range(_CONNECTIONS):
                nursery.start_soon(_send, where["broker"], numbers, bodies)
        sent = perf_counter()
        async with client.pull_consumer(GROUP) as consumer, trio.open_nursery() as nursery:
            for queue in await consumer.queues(TOPIC):
                nursery.start_soon(_receive, consumer, queue, bodies)
        return sent - began, perf_counter() - sent


async def _send(address: str, numbers: Iterator[int], bodies: Bodies) -> None:
    """Send messages over one connection, keeping `_IN_FLIGHT` requests unanswered."""
    host, port = address.rsplit(":", 1)
    decoder = FrameDecoder()
    waiting: set[int] = set()
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        while True:
            frames = [
                _frame(number, bodies.body(number), waiting)
                for _, number in zip(range(_IN_FLIGHT - len(waiting)), numbers, strict=False)
            ]
            if frames:
                await stream.send_all(b"".join(frames))
            if not waiting:
                return
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise ConnectionLost(address)
            for answer in decoder.feed(data):
                if answer.code:
                    raise BrokerError(answer.code, answer.remark or "", address)
                waiting.remove(answer.opaque)


def _frame(number: int, body: bytes, waiting: set[int]) -> bytes:
    now_ms = int(time() * 1000)
    properties = props.encode({props.UNIQ_KEY: f"{now_ms:016X}{number:016X}", props.TAGS: "demo"})
    header = SendMessageRequestHeaderV2(producer_group=GROUP, topic=TOPIC, queue_id=number % _QUEUES)
    header.born_timestamp, header.properties = now_ms, properties
    command = request(RequestCode.SEND_MESSAGE_V2, header, body)
    command.opaque = number
    waiting.add(number)
    return encode(command)


async def _receive(consumer: PullConsumer, queue: MessageQueue, bodies: Bodies) -> None:
    offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    while offset < end:
        result = await consumer.pull(queue, offset, expression="demo")
        for message in result.messages:
            bodies.receive(message.body)
        offset = result.next_offset
        await consumer.commit(queue, offset)


def _on_disk(directory: Path) -> Iterator[tuple[str, int]]:
    """Number of entries in the data directory and their allocated bytes; the files are sparse, so their
    lengths are larger."""
    for entry in sorted(directory.iterdir()):
        files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
        yield entry.name + ("/" if entry.is_dir() else ""), sum(path.stat().st_blocks * 512 for path in files)


DEMO = Verb("start a broker, send messages, receive them and check every one", _arguments, _run)
