"""A program under asyncio does not pay for the import of trio, which takes longer than that of asyncio."""

from __future__ import annotations

import subprocess
import sys

from rmqkit.testing.rocketmq import ThreadedRocketMQ

PROGRAM = """
import asyncio
import sys

from rmqkit.client import BlockingClient, Client

assert "trio" not in sys.modules, "imported with rmqkit.client"
namesrv = sys.argv[1]


async def main():
    async with Client(namesrv) as client, client.producer("p") as producer:
        await client.admin.create_topic("Orders", queues=1)
        await producer.send("Orders", b"tea")
        assert "trio" not in sys.modules, "imported by a producer"
        async with client.pop_consumer("g", subscribe="Orders", start="first") as consumer:
            (lease,) = await consumer.receive(1, wait_ms=10_000)
            await consumer.ack(lease)
        async with client.push_consumer("h", subscribe="Orders", start="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    return message.body


print(asyncio.run(main()))
assert "trio" not in sys.modules, "imported by a consumer"
with BlockingClient(namesrv) as client, client.producer("p") as producer:
    producer.send("Orders", b"coffee")
assert "trio" not in sys.modules, "imported by a blocking client"
"""


def test_an_asyncio_client_imports_no_trio(rocketmq: ThreadedRocketMQ) -> None:
    """Neither the import, nor producers, pop and push consumers and blocking clients over servers of another
    process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, rocketmq.namesrv_text],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "b'tea'\n"), done.stderr
