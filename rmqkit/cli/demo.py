"""`rmqkit demo`: the main job on embedded defaults. Broker and name server come up, messages flow, every one is checked, a table says what happened."""

from __future__ import annotations

import hashlib
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import trio
from attrs import Factory, define

from rmqkit import Message, MessageQueue, plugins
from rmqkit import config as settings
from rmqkit.cli import options, output
from rmqkit.cli.verbs import Verb
from rmqkit.client import Client, Producer, PullConsumer
from rmqkit.config import Config
from rmqkit.testing.broker import cluster_of

TOPIC = "DemoTopic"
GROUP = "demo"
_SENDERS = 64
_BODY_BYTES = 1024


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=10_000, metavar="N", help="how many messages flow (default 10000)")
    parser.add_argument("--data", metavar="DIR", help="where to keep them (default: a temporary folder, removed at the end)")
    parser.add_argument("--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="what goes to standard error")


def _run(arguments: Namespace) -> int:
    options.start_logging(arguments)
    if arguments.messages < 1:
        output.error("--messages takes a number from 1 on")
        return 2
    if arguments.data:
        return trio.run(_demo, arguments.messages, Path(arguments.data))
    with tempfile.TemporaryDirectory(prefix="rmqkit-demo-") as directory:
        return trio.run(_demo, arguments.messages, Path(directory))


@define
class _Count:
    """What was sent and what came back, by digest of the body."""

    sent: dict[str, int] = Factory(dict)
    received: dict[str, int] = Factory(dict)

    def faults(self) -> list[str]:
        lost = sum(1 for digest in self.sent if digest not in self.received)
        strange = sum(1 for digest in self.received if digest not in self.sent)
        twice = sum(1 for times in self.received.values() if times > 1)
        named = ((lost, "lost"), (strange, "never sent"), (twice, "received twice"))
        return [f"{number} messages {what}" for number, what in named if number]


async def _demo(messages: int, directory: Path) -> int:
    count = _Count()
    began = perf_counter()
    config = _config(directory)
    async with cluster_of(config, plugins.load(config)) as cluster:
        ready = perf_counter()
        output.line(f"name server {cluster.namesrv} and broker {cluster.broker.address} are up after {ready - began:.2f} s")
        async with Client(cluster.namesrv_text) as client:
            await client.admin.create_topic(TOPIC, queues=4)
            async with client.producer(GROUP) as producer:
                await _send_all(producer, messages, count)
            sent = perf_counter()
            async with client.pull_consumer(GROUP) as consumer:
                await _receive_all(consumer, count)
            received = perf_counter()
    output.line()
    output.table(
        ("STEP", "MESSAGES", "SECONDS", "MESSAGES/S"),
        [
            ("sent", len(count.sent), f"{sent - ready:.2f}", f"{messages / (sent - ready):.0f}"),
            ("received", sum(count.received.values()), f"{received - sent:.2f}", f"{messages / (received - sent):.0f}"),
        ],
    )
    output.line()
    output.table(("ON DISK", "BYTES TAKEN"), _on_disk(directory))
    output.line()
    faults = count.faults()
    output.line(f"FAILED: {', '.join(faults)}" if faults else f"all {messages} messages arrived once and unchanged")
    return 1 if faults else 0


def _config(directory: Path) -> Config:
    """Free ports, and everything else as it comes."""
    return settings.load(
        flags={"storePathRootDir": str(directory), "listenPort": 0, "namesrvListen": "127.0.0.1:0", "brokerName": "demo-broker"}
    )


async def _send_all(producer: Producer, messages: int, count: _Count) -> None:
    numbers = iter(range(messages))

    async def sender() -> None:
        for number in numbers:
            body = f"message {number} ".encode() + os.urandom(_BODY_BYTES // 2).hex().encode()
            await producer.send(Message(TOPIC, body[:_BODY_BYTES], tag="demo", keys=[f"number-{number}"]))
            count.sent[hashlib.sha256(body[:_BODY_BYTES]).hexdigest()] = number

    async with trio.open_nursery() as nursery:
        for _ in range(min(_SENDERS, messages)):
            nursery.start_soon(sender)


async def _receive_all(consumer: PullConsumer, count: _Count) -> None:
    async def receive(queue: MessageQueue) -> None:
        offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset, expression="demo")
            for message in result.messages:
                digest = hashlib.sha256(message.body).hexdigest()
                count.received[digest] = count.received.get(digest, 0) + 1
            offset = result.next_offset
            await consumer.commit(queue, offset)

    async with trio.open_nursery() as nursery:
        for queue in await consumer.queues(TOPIC):
            nursery.start_soon(receive, queue)


def _on_disk(directory: Path) -> Iterator[tuple[str, int]]:
    """Entries of the data folder and the bytes they really take; files are longer than that, for they are sparse."""
    for entry in sorted(directory.iterdir()):
        files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
        yield entry.name + ("/" if entry.is_dir() else ""), sum(path.stat().st_blocks * 512 for path in files)


DEMO = Verb("bring up a broker and a name server, send and receive messages, check every one", _arguments, _run)
