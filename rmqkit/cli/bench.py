"""`rmqkit bench produce|consume`: load for a cluster, and what it achieves."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from bisect import bisect_left
from math import ceil
from typing import Any

import anyio

from rmqkit.cli import copying, options, shown
from rmqkit.client import Client, Message, ReceivedMessage, RmqError
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

_GROUP = "rmqkit_cli_bench"
_PERCENTILES = (50, 90, 99, 99.9)
#: Latencies are counted in buckets, each 2 % wider than the one before, from 1 microsecond on.
_STEP = 1.02
_BASE_US = 1.0


class Latencies:
    """Counts of latencies in buckets of growing width, so that a run of any length takes little memory."""

    def __init__(self) -> None:
        self.count = 0
        self.max_us = 0.0
        self._bounds = [_BASE_US]
        self._counts: dict[int, int] = {}

    def add(self, latency_s: float) -> None:
        """Count one latency."""
        latency_us = latency_s * 1e6
        self.count += 1
        self.max_us = max(self.max_us, latency_us)
        while self._bounds[-1] < latency_us:
            self._bounds.append(self._bounds[-1] * _STEP)
        at = bisect_left(self._bounds, latency_us)
        self._counts[at] = self._counts.get(at, 0) + 1

    def percentile_ms(self, percent: float) -> float:
        """The latency within which that part of the calls ended, at most 2 % too large; 0 without calls."""
        wanted = ceil(self.count * percent / 100)
        seen = 0
        for at in sorted(self._counts):
            seen += self._counts[at]
            if seen >= wanted:
                return round(min(self._bounds[at], self.max_us) / 1000, 3)
        return 0.0

    def as_dict(self) -> dict[str, float]:
        """Percentiles and the maximum in ms."""
        found = {f"p{percent:g}": self.percentile_ms(percent) for percent in _PERCENTILES}
        return found | {"max": round(self.max_us / 1000, 3)}


def _arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    produce = actions.add_parser("produce", help="send messages")
    produce.add_argument("--size", type=int, default=1024, metavar="BYTES", help="of a body (default 1024)")
    produce.add_argument("--batch", type=int, default=1, metavar="N", help="messages in a send (default 1)")
    options.add_rate(produce)
    consume = actions.add_parser("consume", help="consume messages as a member of a group")
    consume.add_argument("--group", default=_GROUP, help=f"consumer group (default {_GROUP})")
    for action in actions.choices.values():
        action.add_argument("topic", help="an existing topic")
        action.add_argument("--messages", type=int, metavar="N", help="stop after N messages")
        duration = "stop after that many seconds (default 10 without --messages)"
        action.add_argument("--seconds", type=options.positive, metavar="S", help=duration)
        action.add_argument(
            "--concurrency",
            type=int,
            default=64,
            metavar="N",
            help="sends or handlers at a time (default 64)",
        )
        options.add_client(action)
        options.add_json(action)


def _run(arguments: Namespace) -> int:
    for name in ("messages", "concurrency", "size", "batch"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1")
    if arguments.messages is None and arguments.seconds is None:
        arguments.seconds = 10.0
    return anyio.run(_bench, arguments, backend="trio")


async def _bench(arguments: Namespace) -> int:
    """The exit code is 1 when a send failed, or when nothing was sent or consumed."""
    async with options.client_of(arguments) as client:
        await client.admin.topic_stats(arguments.topic)
        run = _Run(client, arguments)
        try:
            await (run.produce() if arguments.action == "produce" else run.consume())
        finally:
            run.bar.end()
    result = run.result()
    if arguments.json:
        output.as_json(result)
    else:
        run.show(result)
    return 1 if run.failed or not run.done else 0


class _Run:
    def __init__(self, client: Client, arguments: Namespace) -> None:
        self.done = self.failed = self.size_bytes = 0
        self.bar = output.ProgressBar(" messages")
        self._client = client
        self._arguments = arguments
        self._latencies = Latencies()
        self._began_s = self._ended_s = time.perf_counter()
        self._left: int | None = arguments.messages
        self._first_error = ""

    async def produce(self) -> None:
        """Sends of all tasks share the number of messages and the rate."""
        arguments = self._arguments
        batch = [Message(arguments.topic, bytes(arguments.size))] * arguments.batch
        pace = copying.Pace(None if arguments.rate is None else arguments.rate / arguments.batch)
        self._began_s = time.perf_counter()
        async with self._client.producer(_GROUP) as producer:

            async def send() -> None:
                while (count := self._take(len(batch))) > 0:
                    await pace.turn()
                    began_s = time.perf_counter()
                    try:
                        if len(batch) == 1:
                            await producer.send(batch[0])
                        else:
                            await producer.send_batch(batch[:count])
                    except RmqError as error:
                        self.failed += count
                        self._first_error = self._first_error or str(error)
                    else:
                        self._count(count, count * arguments.size, time.perf_counter() - began_s)

            with anyio.move_on_after(arguments.seconds):
                async with anyio.create_task_group() as tasks:
                    for _ in range(arguments.concurrency):
                        tasks.start_soon(send)

    async def consume(self) -> None:
        """The latency is the age of a message when it is handled, by the clocks of this machine and of the
        broker."""
        arguments = self._arguments
        consumer = self._client.push_consumer(
            arguments.group, subscribe=[arguments.topic], start="first", concurrency=arguments.concurrency
        )

        async def handle(message: ReceivedMessage) -> None:
            if self.done == 0:
                self._began_s = time.perf_counter()
            age_s = max(time.time() - message.store_timestamp_ms / 1000, 0)
            if self._take(1):
                self._count(1, len(message.body), age_s)
            if self._left == 0:
                consumer.stop()

        async with consumer:
            with anyio.move_on_after(arguments.seconds):
                await consumer.run(handle)

    def _take(self, count: int) -> int:
        """How many of the messages that are left are the caller's."""
        if self._left is None:
            return count
        taken = min(count, self._left)
        self._left -= taken
        return taken

    def _count(self, count: int, size_bytes: int, latency_s: float) -> None:
        self.done += count
        self.size_bytes += size_bytes
        self._latencies.add(latency_s)
        self._ended_s = time.perf_counter()
        self.bar(self.done, self._arguments.messages)

    def result(self) -> dict[str, Any]:
        """The figures; rates per second."""
        took_s = max(self._ended_s - self._began_s, 1e-9)
        return {
            "messages": self.done,
            "failed": self.failed,
            "seconds": round(took_s, 3),
            "messagesPerSecond": round(self.done / took_s, 1) if self.done else 0.0,
            "bytesPerSecond": round(self.size_bytes / took_s) if self.done else 0,
            "latencyMs": self._latencies.as_dict(),
        }

    def show(self, result: dict[str, Any]) -> None:
        """Print the report as text lines."""
        took = shown.span_text(int(result["seconds"] * 1000))
        output.line(f"{result['messages']} messages in {took}, {result['failed']} failed")
        output.line(
            f"{result['messagesPerSecond']:.0f} messages/s, {result['bytesPerSecond'] / 1e6:.2f} MB/s"
        )
        kind = "send" if self._arguments.action == "produce" else "age when handled"
        texts = (f"{name} {value:g} ms" for name, value in result["latencyMs"].items())
        output.line(f"{kind}: {', '.join(texts)}")
        if self._first_error:
            output.error(f"first failure: {self._first_error}")


BENCH = Verb("send or consume under load, and measure rate and latency", _arguments, _run)
