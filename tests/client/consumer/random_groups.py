"""Groups whose members join, leave and die at random, under a clock that jumps. One seed replays a run.

    python -m tests.client.consumer.random_groups --runs 100 --seed 1

Two brokers lose heartbeats, so that they have two views of the group. At rest each queue has exactly one
owner, every message was handled, and no commit was beyond an unfinished message.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import anyio
import trio

from rmqkit.client import Client, MessageQueue, PushConsumer, ReceivedMessage
from rmqkit.model.subscription import HeartbeatData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import PullMessageRequestHeader, UpdateConsumerOffsetRequestHeader
from tests.client.consumer.groups import Line
from tests.client.fake_cluster import NAMESRV, FakeBroker, FakeCluster
from tests.client.fakes import Network, run
from tests.seeded_runs import repeat

QUEUES = {"broker-a": 3, "broker-b": 4}
CHAOS_S = 150
PATIENCE_S = 600
#: Virtual time in which nothing may change once the group is at rest.
REST_S = 90


class GroupBroker:
    """The part of a scripted broker that knows the members of a group. It loses some heartbeats, so that two
    brokers have two views of the group, and checks every commit against the messages finished so far."""

    def __init__(
        self, broker: FakeBroker, chance: random.Random, finished: set[tuple[MessageQueue, int]]
    ) -> None:
        self.broker = broker
        self.members: set[str] = set()
        self.losing = 0.0
        self._chance = chance
        self._finished = finished
        broker.overrides |= {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.PULL_MESSAGE: self._pull,
        }

    def _heartbeat(self, command: Command) -> Command:
        if self._chance.random() < self.losing:
            return answer(command, ResponseCode.SYSTEM_BUSY, "lost")
        beat = command.decode_body(HeartbeatData)
        if beat.consumer_data_set:
            self.members.add(beat.client_id)
        return answer(command)

    def _unregister(self, command: Command) -> Command:
        self.members.discard(command.fields()["clientID"])
        return answer(command)

    def _list(self, command: Command) -> Command:
        return answer(command, body=loose_json.dumps({"consumerIdList": sorted(self.members)}))

    def _commit(self, command: Command) -> Command:
        header = command.header(UpdateConsumerOffsetRequestHeader)
        self._check(header.topic, header.queue_id, header.commit_offset)
        return self.broker.update_offset(command)

    async def _pull(self, command: Command) -> Command:
        header = command.header(PullMessageRequestHeader)
        self._check(header.topic, header.queue_id, header.commit_offset)
        if header.commit_offset > 0:
            self.broker.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return await self.broker.pull(command)

    def _check(self, topic: str, queue_id: int, offset: int) -> None:
        queue = MessageQueue(topic, self.broker.name, queue_id)
        unfinished = [at for at in range(offset) if (queue, at) not in self._finished]
        assert not unfinished, f"offset {offset} of {queue} is committed before {unfinished} are finished"


class Simulation:
    """One run: members of a group of two brokers, and what they handled."""

    def __init__(self, seed: int, network: Network) -> None:
        self.chance = random.Random(seed)
        self.fake = FakeCluster(network, "ab")
        self.fake.topics = {"T": QUEUES, "%RETRY%cg": dict.fromkeys(QUEUES, 1)}
        self.network = network
        self.finished: set[tuple[MessageQueue, int]] = set()
        self.brokers = [
            GroupBroker(broker, self.chance, self.finished) for broker in self.fake.brokers.values()
        ]
        self.living: dict[str, PushConsumer] = {}
        self.lasting: set[str] = set()
        self.stored: set[tuple[MessageQueue, int]] = set()

    def store(self, count: int) -> None:
        for _ in range(count):
            broker = self.chance.choice(self.brokers).broker
            number = self.chance.randrange(QUEUES[broker.name])
            offset = broker.put("T", number, b"x")
            self.stored.add((MessageQueue("T", broker.name, number), offset))

    async def handle(self, message: ReceivedMessage) -> None:
        await anyio.sleep(self.chance.choice([0, 0, 0.1, 3]))
        self.finished.add((message.queue, message.queue_offset))

    async def member(self, name: str, life_s: float, dies: bool) -> None:
        """Consume for some time, then leave, or die without a word: the brokers notice it later, one after
        the other."""
        line = Line(self.network.connect)
        client_id = f"10.0.0.1@{name}"
        drain_s = self.chance.choice([0, 5])
        async with (
            Client(NAMESRV, connect=line.connect, client_id=client_id) as client,
            client.push_consumer("cg", subscribe="T", start="first", drain_s=drain_s) as consumer,
        ):
            self.living[name] = consumer
            with trio.move_on_after(life_s):
                await consumer.run(self.handle, concurrency=4)
            del self.living[name]
            if dies:
                line.dead = True
                await line.cut()
        for broker in self.brokers:
            await trio.sleep(self.chance.uniform(0, 15))
            broker.members.discard(client_id)

    async def chaos(self, nursery: trio.Nursery) -> None:
        """Members come and go while messages arrive and heartbeats are lost."""
        for broker in self.brokers:
            broker.losing = 0.3
        began_s, number = trio.current_time(), 0
        while trio.current_time() - began_s < CHAOS_S:
            number += 1
            nursery.start_soon(
                self.member, f"m{number}", self.chance.uniform(1, 80), self.chance.random() < 0.5
            )
            self.store(self.chance.randrange(30))
            await trio.sleep(self.chance.uniform(1, 30))
        self.lasting = {"x", "y", "z"} if self.chance.random() < 0.5 else {"x"}
        for name in sorted(self.lasting):
            nursery.start_soon(self.member, name, float("inf"), False)
        for broker in self.brokers:
            broker.losing = 0

    @property
    def is_shared(self) -> bool:
        """Whether the lasting members alone are left and each queue has exactly one owner."""
        if self.living.keys() != self.lasting:
            return False
        owned = [queue for consumer in self.living.values() for queue in consumer.queues]
        wanted = [
            MessageQueue(topic, broker, number)
            for topic, queues in self.fake.topics.items()
            for broker, count in queues.items()
            for number in range(count)
        ]
        return sorted(owned) == sorted(wanted)

    @property
    def has_all(self) -> bool:
        return self.stored <= self.finished


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            if condition():
                return
            await trio.sleep(0.5)


def simulate(seed: int) -> Simulation:
    """One run. Raises AssertionError at the first broken rule."""

    async def body() -> Simulation:
        async with Network() as network, trio.open_nursery() as nursery:
            simulation = Simulation(seed, network)
            await simulation.chaos(nursery)
            await until(lambda: simulation.is_shared and simulation.has_all)
            shares = {name: consumer.queues for name, consumer in simulation.living.items()}
            simulation.store(20)
            await trio.sleep(REST_S)
            assert {name: consumer.queues for name, consumer in simulation.living.items()} == shares
            assert simulation.has_all
            for consumer in simulation.living.values():
                consumer.stop()
        return simulation

    return run("trio", body)


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.client.consumer.random_groups",
            "Let members join, leave and die; at rest each queue has exactly one owner.",
            lambda _, seed: {"messages": len(simulate(seed).stored)},
        )
    )
