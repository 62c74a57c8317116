"""A member of a group in a process of its own: `member_program.py NAMESRV GROUP TOPIC PATH`. Appends a line
with the body to the file PATH for each handled message, until SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import trio

from rmqkit.client import Client, ReceivedMessage

HANDLING_S = 0.01


async def main(*words: str) -> None:
    namesrv, group, topic, path = words

    def handle(message: ReceivedMessage) -> None:
        time.sleep(HANDLING_S)
        with Path(path).open("ab") as file:
            file.write(message.body + b"\n")

    async with (
        Client(namesrv) as client,
        client.push_consumer(group, subscribe=topic, start="first", concurrency=4) as consumer,
    ):
        await consumer.run(handle, stop_on=[signal.SIGTERM])


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
