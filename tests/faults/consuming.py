"""Kills a broker repeatedly with SIGKILL while a group consumes. One seed replays the choices of a run.

    python -m tests.faults.consuming --runs 100 --seed 1

Two members of a group and a producer go on while the broker's process is killed and started again on the same
ports. Every acknowledged message must be handled, no offset may be committed beyond a message whose handler
has not ended, and in the end the group has committed every queue. The seed determines the handlers and when
the broker is killed, counted in messages; the interleaving of the processes is random.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client, MessageQueue, Producer, RawReader, ReceivedMessage, Retry, RmqError
from tests.faults.kit import SMALL_FILES, Server, spawn, until
from tests.ports import free_port
from tests.seeded_runs import repeat

KILLS = 3
QUEUES = 3
GROUP = "g"
BROKER = "broker-a"
PLACES = [
    *(MessageQueue("T", BROKER, number) for number in range(QUEUES)),
    MessageQueue(f"%RETRY%{GROUP}", BROKER, 0),
]
_POLL_S = 0.05


@define
class Survival:
    """One run: what was acknowledged, what was handled, and the places (queue and offset) whose handlers have
    ended."""

    directory: Path
    chance: random.Random
    ports: tuple[int, int]
    server: Server
    acknowledged: set[bytes] = field(factory=set)
    handled: set[bytes] = field(factory=set)
    ended: set[tuple[MessageQueue, int]] = field(factory=set)
    deliveries: int = 0
    kills: int = 0
    over: trio.Event = field(factory=trio.Event)

    @classmethod
    def begin(cls, directory: Path, seed: int) -> Survival:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_port(), free_port()
        return cls(directory, random.Random(seed), ports, spawn(directory, SMALL_FILES, ports=ports))

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    async def handle(self, message: ReceivedMessage) -> None:
        self.deliveries += 1
        await trio.sleep(self.chance.choice([0, 0, 0.01]))
        self.ended.add((message.queue, message.queue_offset))
        if self.chance.random() < 0.03:
            raise Retry(after=1)
        self.handled.add(message.body)

    async def consume(self, name: str) -> None:
        async with (
            Client(self.namesrv, client_id=f"127.0.0.1@{name}") as client,
            client.push_consumer(GROUP, subscribe="T", max_attempts=100, start="first") as consumer,
        ):
            await consumer.run(self.handle)

    async def produce(self, producer: Producer) -> None:
        """Send until the kills are over; only acknowledged messages count."""
        number = 0
        while not self.over.is_set():
            number += 1
            body = b"%d" % number
            try:
                await producer.send("T", body)
            except RmqError:
                continue
            self.acknowledged.add(body)

    async def kill_now_and_then(self) -> None:
        """Kill the broker each time after a number of handled messages, and start it again."""
        for _ in range(KILLS):
            wanted = self.deliveries + self.chance.randint(20, 200)
            await until(lambda wanted=wanted: self.deliveries >= wanted)  # type: ignore[misc]
            await trio.to_thread.run_sync(self.server.kill)
            self.kills += 1
            self.server = spawn(self.directory, SMALL_FILES, ports=self.ports)
            assert await trio.to_thread.run_sync(self.server.await_ready)
        self.over.set()

    async def watch_commits(self, reader: RawReader) -> None:
        """No committed offset is beyond a message whose handler has not ended."""
        while True:
            await trio.sleep(_POLL_S)
            for place in PLACES:
                self.check(place, await self.committed(reader, place) or 0)

    def check(self, place: MessageQueue, offset: int) -> None:
        wrong = [at for at in range(offset) if (place, at) not in self.ended]
        assert not wrong, f"offset {offset} of {place} was committed before {wrong} ended"

    async def committed(self, reader: RawReader, place: MessageQueue) -> int | None:
        """The committed offset; None while the broker is away."""
        try:
            return await reader.offsets.committed(GROUP, place)
        except RmqError:
            return None

    async def has_committed_all(self, reader: RawReader) -> bool:
        for place in PLACES:
            if await self.committed(reader, place) != await reader.offsets.max_offset(place):
                return False
        return True


async def survive(directory: Path, seed: int) -> Survival:
    """One run. Raises AssertionError at the first broken promise."""
    survival = Survival.begin(directory, seed)
    try:
        assert await trio.to_thread.run_sync(survival.server.await_ready)
        async with (
            Client(survival.namesrv) as client,
            client.producer("producers", timeout_ms=60_000) as producer,
            trio.open_nursery() as nursery,
        ):
            await client.admin.create_topic("T", queues=QUEUES)
            reader = client.raw_reader("checker")
            for number in range(2):
                nursery.start_soon(survival.consume, f"m{number}")
            nursery.start_soon(survival.watch_commits, reader)
            nursery.start_soon(survival.kill_now_and_then)
            await survival.produce(producer)
            await until(lambda: survival.acknowledged <= survival.handled)
            await until(partial(survival.has_committed_all, reader))
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(survival.server.kill)
    return survival


def _kills(directory: Path, seed: int) -> dict[str, int]:
    survival = trio.run(survive, directory, seed)
    return {
        "kills": survival.kills,
        "messages acknowledged and handled": len(survival.acknowledged),
        "deliveries": survival.deliveries,
    }


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.faults.consuming",
            "Kill a broker again and again while a group consumes; nothing may be lost.",
            _kills,
        )
    )
