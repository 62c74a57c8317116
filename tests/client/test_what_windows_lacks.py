"""The client needs nothing that Windows does not have: it runs, uncompiled, in a process without the modules
and functions of the system that are missing there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rmqkit.testing.rocketmq import ThreadedRocketMQ

PROGRAM = """
import asyncio, os, sys
import trio  # looks for its own system at its import

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
missing = (
    "O_CLOEXEC chown fchmod fdatasync fork getgid getuid killpg mkfifo posix_fadvise posix_fallocate pread"
    " preadv pwrite pwritev register_at_fork sched_getaffinity sendfile setsid statvfs sysconf"
)
for name in missing.split():
    delattr(os, name)

from rmqkit import speedups
from rmqkit.client import BlockingClient, Client

assert not speedups.IN_USE
with BlockingClient(sys.argv[1]) as client, client.producer("p") as producer:
    client.admin.create_topic("Orders", queues=1)
    producer.send("Orders", b"coffee")


async def main(group):
    async with Client(sys.argv[1]) as client, client.producer("p") as producer:
        await producer.send("Orders", b"tea")
        async with client.push_consumer(group, subscribe="Orders", start="first") as consumer:
            found = set()
            async for delivery in consumer:
                found.add(delivery.message.body)
                if len(found) == 2:
                    return found


print(sorted(asyncio.run(main("a"))))
print(sorted(trio.run(main, "b")))
"""


def test_messages_are_sent_and_received(rocketmq: ThreadedRocketMQ, tmp_path: Path) -> None:
    """By the blocking client, under asyncio and under trio."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), rocketmq.namesrv_text],
        env=os.environ | {"RMQKIT_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "[b'coffee', b'tea']"
    assert second.startswith("[b'coffee', b'tea'")
