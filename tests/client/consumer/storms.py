"""Consumption through restarts of the broker and cut connections. One seed replays a run.

    python -m tests.client.consumer.storms --runs 100 --seed 1

The clock of a run jumps when every task waits, so its two minutes take a few seconds. Every acknowledged
message must be handled, no offset may be committed beyond a message that was not, and in the end every offset
is committed.
"""

from __future__ import annotations

import random
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.broker.run.running import RunningBroker
from rmqkit.client import Client, Producer, ReceivedMessage, Retry, RmqError
from rmqkit.testing.broker import dialer, running_broker, running_namesrv
from rmqkit.testing.clock import LoopClock
from tests.client.consumer.groups import Line, until
from tests.seeded_runs import repeat
from tests.threads import at_once

STORM_S = 120
QUEUES = 3
#: Topic and number of each queue that the group reads.
PLACES = [*(("T", number) for number in range(QUEUES)), ("%RETRY%g", 0)]


class Storm:
    """A broker that restarts, members whose connections are cut, and a producer that goes on. The offsets of
    the group are compared with what it has handled all the time."""

    def __init__(self, seed: int, directory: Path, namesrv: str) -> None:
        self.chance = random.Random(seed)
        self.namesrv = namesrv
        self.acknowledged: set[bytes] = set()
        self.handled: set[bytes] = set()
        #: Queues and offsets whose handlers have ended.
        self.ended: set[tuple[str, int, int]] = set()
        self.lives = 0
        self.lines = [Line(dialer("memory")) for _ in range(3)]
        self.clock = LoopClock()
        self.port = 19_000 + 30 * (seed % 100)
        self.directory = directory
        self.calm = trio.Event()
        self.broker: RunningBroker | None = None

    async def restart_now_and_then(self) -> None:
        """Run the broker, with pauses between its lives; the last life lasts."""
        while True:
            async with self._broker() as self.broker:
                self.lives += 1
                with trio.move_on_after(self.chance.uniform(5, 40)) as life:
                    await self.calm.wait()
                if not life.cancelled_caught:
                    await trio.sleep_forever()
            self.broker = None
            await trio.sleep(self.chance.uniform(0, 10))

    def _broker(self) -> AbstractAsyncContextManager[RunningBroker]:
        settings: dict[str, Any] = {"store": "mmap", "listenPort": self.port, "namesrvAddr": self.namesrv}
        return running_broker(self.directory, scheme="memory", clock=self.clock, **settings)

    async def create_topic(self, client: Client) -> None:
        """Create the topic. The clock may jump while the broker waits for its disk, so a time-out means
        nothing."""
        while True:
            try:
                await client.admin.create_topic("T", queues=QUEUES)
            except RmqError:
                await trio.sleep(1)
            else:
                return

    async def cut_now_and_then(self) -> None:
        while not self.calm.is_set():
            await trio.sleep(self.chance.uniform(1, 15))
            await self.chance.choice(self.lines).cut()

    async def handle(self, message: ReceivedMessage) -> None:
        await trio.sleep(self.chance.choice([0, 0.01, 1]))
        self.ended.add((message.queue.topic, message.queue.queue_id, message.queue_offset))
        if self.chance.random() < 0.1:
            raise Retry(after=1)
        self.handled.add(message.body)

    async def watch_commits(self) -> None:
        """No committed offset is beyond a message whose handler has not ended."""
        while True:
            await trio.sleep(0.2)
            if self.broker is not None:
                self.check_commits(self.broker)

    def check_commits(self, broker: RunningBroker) -> None:
        for topic, number in PLACES:
            committed = broker.context.offsets.get("g", topic, number) or 0
            wrong = [at for at in range(committed) if (topic, number, at) not in self.ended]
            assert not wrong, f"offset {committed} of {topic} {number} was committed before {wrong} ended"

    async def consume(self, line: Line, name: str) -> None:
        client_id = f"10.0.0.1@{name}"
        async with (
            Client(self.namesrv, connect=line.connect, client_id=client_id) as client,
            client.push_consumer("g", subscribe="T", max_attempts=100, start="first") as consumer,
        ):
            await consumer.run(self.handle)

    async def produce(self, producer: Producer) -> None:
        """Send until the storm is over; only acknowledged messages count."""
        began_s, number = trio.current_time(), 0
        while trio.current_time() - began_s < STORM_S:
            number += 1
            body = b"%d" % number
            try:
                await producer.send("T", body)
            except RmqError:
                await trio.sleep(1)
            else:
                self.acknowledged.add(body)
            await trio.sleep(self.chance.uniform(0, 0.5))


async def weather(directory: Path, seed: int) -> Storm:
    """One run, under a clock that jumps."""
    async with (
        running_namesrv(directory / "namesrv", scheme="memory") as namesrv,
        trio.open_nursery() as nursery,
    ):
        storm = Storm(seed, directory / "broker", str(namesrv))
        nursery.start_soon(storm.restart_now_and_then)
        await until(lambda: storm.broker is not None)
        async with (
            Client(storm.namesrv, connect=storm.lines[0].connect) as client,
            client.producer("producers", timeout_ms=20_000) as producer,
        ):
            await storm.create_topic(client)
            for number in (1, 2):
                nursery.start_soon(storm.consume, storm.lines[number], f"m{number}")
            nursery.start_soon(storm.cut_now_and_then)
            nursery.start_soon(storm.watch_commits)
            await storm.produce(producer)
            storm.calm.set()
            await until(lambda: storm.acknowledged <= storm.handled, 1)
            await until(lambda: storm.broker is not None and all_committed(storm.broker), 1)
        nursery.cancel_scope.cancel()
    return storm


def all_committed(broker: RunningBroker) -> bool:
    """Whether the group has committed the end of each queue."""
    context = broker.context
    return all(context.offsets.get("g", *place) == context.store.max_offset(*place) for place in PLACES)


def _storm(directory: Path, seed: int) -> dict[str, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", at_once(trio.to_thread.run_sync))
        storm = trio.run(weather, directory, seed, clock=MockClock(autojump_threshold=0))
    return {"lives of brokers": storm.lives, "messages": len(storm.acknowledged)}


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.client.consumer.storms",
            "Restart a broker and cut connections while a group consumes; nothing may be lost.",
            _storm,
        )
    )
