"""The clients of a simulation: producers that send by topic, at once or for later, a group of push consumers,
and a group that pops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import trio
from attrs import define, field

from rmqkit.client import Client
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.pop_consumer import PopConsumer
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.send_result import SendStatus
from rmqkit.errors import RmqError
from rmqkit.model import properties as props
from tests.sim.clusters.journal import Journal, Place
from tests.sim.clusters.machine import Machine, Process
from tests.sim.clusters.network import Network

TOPIC, GROUP, POPPERS = "TopicTest", "readers", "poppers"
QUEUES = 4
_SEND_MS = 2_000
_PAUSE_S = 0.3
_POLL_MS = 2_000
_RETRY_S = 1.0
#: Chances of a transaction: to commit, and to be left to the next question of the broker.
_COMMITS, _UNDECIDED = 0.6, 0.3
#: Messages for later come after at most this time.
LATEST_MS = 30_000
_LEASE_MS = 10_000
#: Chances of a lease: below the first it is forgotten, below the second given back, below the third renewed.
_FORGETS, _GIVES_BACK, _RENEWS = 0.05, 0.15, 0.35


@define(eq=False)
class Clients:
    """What the clients have sent and received.

    acknowledged    bodies that were answered with SEND_OK
    prepared        bodies of half messages that were answered so -> whether their transactions commit
    timed           those among them that were sent for later
    consumed        bodies that the push consumers have handled
    popped          bodies whose leases were to be acknowledged; one whose answer is lost may be finished
    over            set when the producers are to end
    consumers_over  set when the consumers are to end
    """

    network: Network
    namesrv: str
    chance: random.Random
    journal: Journal
    acknowledged: set[bytes] = field(factory=set)
    prepared: dict[bytes, bool] = field(factory=dict)
    timed: set[bytes] = field(factory=set)
    consumed: set[bytes] = field(factory=set)
    popped: set[bytes] = field(factory=set)
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

    async def produce(self, machine: Machine, *, latest_ms: int = 0) -> None:
        """Send one message after the other, each for a time within `latest_ms`; what is answered with SEND_OK
        counts."""
        sent = 0
        async with self.client(machine) as client, client.producer(f"of-{machine.name}") as producer:
            while not self.over.is_set():
                sent += 1
                body = b"%s-%d " % (machine.name.encode(), sent) + b"x" * self.chance.randint(0, 2_000)
                try:
                    later = (
                        {props.TIMER_DELAY_MS: str(self.chance.randint(1, latest_ms))} if latest_ms else {}
                    )
                    result = await producer.send(TOPIC, body, properties=later, timeout_ms=_SEND_MS)
                except RmqError:
                    await trio.sleep(_PAUSE_S)
                    continue
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                    if latest_ms:
                        self.timed.add(body)
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

    async def pop(self, machine: Machine) -> None:
        """One member of the group that pops, until `consumers_over`. It acknowledges most of what it gets,
        some of it late, gives some back, and forgets some."""
        async with (
            self.client(machine) as client,
            client.pop_consumer(POPPERS, subscribe=TOPIC, start="first", lease_ms=_LEASE_MS) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._leases, consumer, nursery)
            await self.consumers_over.wait()
            nursery.cancel_scope.cancel()

    async def _leases(self, consumer: PopConsumer, nursery: trio.Nursery) -> None:
        while True:
            try:
                found = await consumer.receive(8, wait_ms=_POLL_MS)
            except RmqError:
                await trio.sleep(_PAUSE_S)
                continue
            for lease in found:
                self.journal.leased(_place(lease), lease.message.body)
                nursery.start_soon(self._settle, consumer, lease)

    async def _settle(self, consumer: PopConsumer, lease: Lease) -> None:
        await trio.sleep(self.chance.choice([0.01, 0.5, 0.5, 15.0]) * self.chance.random())
        luck = self.chance.random()
        try:
            if luck < _FORGETS:
                return
            if luck < _GIVES_BACK:
                await consumer.release(lease, after_ms=self.chance.randint(0, 3_000))
                return
            if luck < _RENEWS:
                await consumer.extend(lease)
                await trio.sleep(self.chance.random() * 2)
            self.popped.add(lease.message.body)
            await consumer.ack(lease)
        except RmqError:
            return
        self.journal.popped(_place(lease))


def _place(lease: Lease) -> Place:
    """Where a message was read, which may be a retry topic."""
    receipt = lease.receipt
    return receipt.broker_name, receipt.topic(lease.topic, POPPERS), receipt.queue_id, lease.offset
