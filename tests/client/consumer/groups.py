"""Push consumers against a broker in the same trio loop, over memory transport. The clock jumps when every
task waits, so minutes cost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from anyio.abc import ByteStream
from attrs import define

from rmqkit.client import Client, Producer
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.address import Connect
from rmqkit.plugin.transport import Address
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.testing.clock import LoopClock

#: Bound of patience, on the clock of the test.
PATIENCE_S = 600


@define
class Group:
    """A broker with its name server, and the client of a producer."""

    cluster: Cluster
    client: Client
    producer: Producer

    def open_client(self, name: str) -> Client:
        """A client of the cluster with its own connections."""
        return Client(self.cluster.namesrv_text, connect=self.cluster.connect, client_id=f"10.0.0.1@{name}")

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The offset of the group that the broker has."""
        return self.cluster.broker.context.offsets.get(group, queue.topic, queue.queue_id)


@asynccontextmanager
async def group_of(directory: Path, *, queues: int = 4, **keys: Any) -> AsyncIterator[Group]:
    """A cluster with topic T."""
    async with (
        running_cluster(directory, scheme="memory", clock=LoopClock(), **keys) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
        client.producer("producers") as producer,
    ):
        await client.admin.create_topic("T", queues=queues)
        yield Group(cluster, client, producer)


async def until(condition: Callable[[], bool], step_s: float = 0.05) -> None:
    """Wait for a condition; on a jumping clock each step costs one round of the loop."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if condition():
                return
            await trio.sleep(step_s)


class Line:
    """The network of one client, which can be cut."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._streams: list[ByteStream] = []
        self.dead = False

    async def connect(self, where: Address, timeout_ms: int) -> ByteStream:
        if self.dead:
            raise ConnectionRefusedError("this client is dead")
        stream = await self._connect(where, timeout_ms)
        self._streams.append(stream)
        return stream

    async def cut(self) -> None:
        """Close all connections; new ones are possible."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.aclose()
