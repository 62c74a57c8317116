"""The clients of a simulation: producers that send by topic, and a group of push consumers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import trio
from attrs import define, field

from rmqkit.client import Client
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.send_result import SendStatus
from rmqkit.errors import RmqError
from tests.sim.clusters.journal import Journal
from tests.sim.clusters.machine import Machine, Process
from tests.sim.clusters.network import Network

TOPIC, GROUP = "TopicTest", "readers"
QUEUES = 4
_SEND_MS = 2_000
_PAUSE_S = 0.3
_POLL_MS = 2_000
_RETRY_S = 1.0
#: Chances of a transaction: to commit, and to be left to the next question of the broker.
_COMMITS, _UNDECIDED = 0.6, 0.3


@define(eq=False)
class Clients:
    """What the clients have sent and received.

    acknowledged    bodies that were answered with SEND_OK
    prepared        bodies of half messages that were answered so -> whether their transactions commit
    consumed        bodies that the consumers have handled
    over            set when the producers are to end
    consumers_over  set when the consumers are to end
    """

    network: Network
    namesrv: str
    chance: random.Random
    journal: Journal
    acknowledged: set[bytes] = field(factory=set)
    prepared: dict[bytes, bool] = field(factory=dict)
    consumed: set[bytes] = field(factory=set)
    over: trio.Event = field(factory=trio.Event)
    consumers_over: trio.Event = field(factory=trio.Event)

    def client(self, machine: Machine) -> Client:
        """A client on its own machine."""
        process = Process(machine)
        return Client(
            self.namesrv,
            connect=partial(self.network.connect, process),
            now_ms=machine.now_ms,
            client_id=f"{machine.host}@{machine.name}",
            poll_name_server_interval_ms=_POLL_MS,
            heartbeat_interval_ms=_POLL_MS,
        )

    async def create_topic(self, machine: Machine, groups: Sequence[str]) -> None:
        """Until every group has it; the name servers may not know all of them yet."""
        async with self.client(machine) as client:
            found: list[str] = []
            while sorted(found) != sorted(groups):
                try:
                    found = await client.admin.create_topic(TOPIC, queues=QUEUES)
                except RmqError:
                    await trio.sleep(_RETRY_S)

    async def produce(self, machine: Machine) -> None:
        """Send one message after the other; what is answered with SEND_OK counts."""
        sent = 0
        async with self.client(machine) as client, client.producer(f"of-{machine.name}") as producer:
            while not self.over.is_set():
                sent += 1
                body = b"%s-%d " % (machine.name.encode(), sent) + b"x" * self.chance.randint(0, 2_000)
                try:
                    result = await producer.send(TOPIC, body, timeout_ms=_SEND_MS)
                except RmqError:
                    await trio.sleep(_PAUSE_S)
                    continue
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                await trio.sleep(self.chance.random() * _PAUSE_S)

    async def transact(self, machine: Machine) -> None:
        """Send half messages. Some transactions end at once, others when the broker asks, in one of several
        ways that all mean the same."""
        sent = 0
        outcomes: dict[bytes, bool] = {}

        def check(half: ReceivedMessage) -> bool | None:
            return None if self.chance.random() < _UNDECIDED else outcomes[half.body]

        async with (
            self.client(machine) as client,
            client.producer(f"of-{machine.name}", check=check) as producer,
        ):
            while not self.over.is_set():
                sent += 1
                body = b"%s-%d " % (machine.name.encode(), sent) + b"x" * self.chance.randint(0, 2_000)
                commits = outcomes[body] = self.chance.random() < _COMMITS
                try:
                    async with producer.transaction(TOPIC, body) as tx:
                        self.prepared[body] = commits
                        await trio.sleep(self.chance.choice([0, 0, 0.1, 3.0]) * self.chance.random())
                        if self.chance.random() < _UNDECIDED:
                            await tx.unknown()
                        elif not commits:
                            await tx.rollback()
                except RmqError:
                    # Nobody waits for this message, and nobody may get it.
                    outcomes[body] = False
                    self.prepared.pop(body, None)
                    await trio.sleep(_PAUSE_S)
                    continue
                await trio.sleep(self.chance.random() * _PAUSE_S)
            await self.consumers_over.wait()

    async def consume(self, machine: Machine) -> None:
        """One member of the group, until `consumers_over`."""

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            place = message.queue.broker_name, message.topic, message.queue.queue_id, message.queue_offset
            self.journal.seen(place, message.body)
            self.consumed.add(message.body)

        async with (
            self.client(machine) as client,
            client.push_consumer(GROUP, subscribe=TOPIC, start="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await self.consumers_over.wait()
            nursery.cancel_scope.cancel()
