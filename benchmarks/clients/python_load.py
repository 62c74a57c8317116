"""Loads of rmqkit's client. Prints one line of JSON with messages, seconds, processor seconds and errors of
the measured part.

    python -m benchmarks.clients.python_load send NAMESRV TOPIC WARM_UP MESSAGES TASKS SIZE [LINGER_MS]
    python -m benchmarks.clients.python_load consume NAMESRV TOPIC GROUP MESSAGES
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import anyio

from rmqkit.client import Client, Producer, ReceivedMessage
from rmqkit.errors import ClientError


def report(messages: int, began_s: float, cpu_s: float, errors: int) -> None:
    """Print the line; `began_s` and `cpu_s` are the clocks at the start of the measured part."""
    seconds, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    line = {"messages": messages, "seconds": round(seconds, 3), "cpu_s": round(used_s, 3), "errors": errors}
    print(json.dumps(line), flush=True)


async def send_all(producer: Producer, topic: str, messages: int, tasks: int, size: int) -> int:
    """Send by this many tasks, each one message at a time; returns the number of errors."""
    body, left, errors = b"x" * size, messages, 0

    async def send() -> None:
        nonlocal left, errors
        while left > 0:
            left -= 1
            try:
                await producer.send(topic, body)
            except ClientError:
                errors += 1

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(send)
    return errors


async def send(
    namesrv: str, topic: str, warm_up: int, messages: int, tasks: int, size: int, linger_ms: float | None
) -> None:
    """Measure sends, after some to warm up."""
    async with (
        Client(namesrv) as client,
        client.producer("python-load", timeout_ms=30_000, linger_ms=linger_ms) as producer,
    ):
        await send_all(producer, topic, warm_up, tasks, size)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        errors = await send_all(producer, topic, messages, tasks, size)
        report(messages, began_s, cpu_s, errors)


async def consume(namesrv: str, topic: str, group: str, messages: int) -> None:
    """Measure a push consumer with an empty handler, from the first message on."""
    seen, began_s, cpu_s = 0, 0.0, 0.0
    async with (
        Client(namesrv) as client,
        client.push_consumer(group, subscribe=topic, start="first") as consumer,
    ):

        async def handle(message: ReceivedMessage) -> None:
            nonlocal seen, began_s, cpu_s
            if not seen:
                began_s, cpu_s = time.perf_counter(), time.process_time()
            seen += 1
            if seen >= messages:
                consumer.stop()

        await consumer.run(handle)
        report(seen, began_s, cpu_s, 0)


def main(words: list[str]) -> None:
    """Run one load."""
    if words[0] == "send":
        namesrv, topic, *numbers = words[1:]
        warm_up, messages, tasks, size = map(int, numbers[:4])
        linger_ms = float(numbers[4]) if len(numbers) > 4 else None
        asyncio.run(send(namesrv, topic, warm_up, messages, tasks, size, linger_ms))
    else:
        namesrv, topic, group, messages_text = words[1:]
        asyncio.run(consume(namesrv, topic, group, int(messages_text)))


if __name__ == "__main__":
    main(sys.argv[1:])
