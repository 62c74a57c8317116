"""Creation, change and deletion of topics and groups on a broker that is killed, and the comparison with
acknowledged changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio
from attrs import define, field, frozen

from rmqkit.client import Client
from rmqkit.client.producing.producer import Producer
from rmqkit.errors import RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfigAndMappingTable
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from tests.faults.kit import read_queue

_MADE_PER_RUN = 12
_PULLED = 24


@frozen
class _First:
    """The first message of a topic, whose send created the topic."""

    queue: MessageQueue
    queue_offset: int
    body: bytes


@define
class ChangingTables:
    """The requested changes of the tables. The value of a change that was not acknowledged is allowed beside
    the previous one.

    topics   by name, the permitted numbers of queues; None for no topic
    groups   by name, the permitted numbers of retries; None for no group
    first    by name, the message that created a topic
    being_changed  topics that must not be deleted at present
    """

    topics: dict[str, set[int | None]] = field(factory=dict)
    groups: dict[str, set[int | None]] = field(factory=dict)
    first: dict[str, _First] = field(factory=dict)
    being_changed: set[str] = field(factory=set)
    changes: int = 0

    async def load(
        self,
        client: Client,
        producer: Producer,
        run: int,
        rng: random.Random,
        acknowledged: Callable[[], None],
    ) -> None:
        """Change the tables until the broker is dead or enough has been changed."""
        async with trio.open_nursery() as nursery:
            for task in (self._by_admin, self._by_send, self._delete, self._groups):
                nursery.start_soon(
                    self._until_gone, task, client, producer, run, random.Random(rng.random()), acknowledged
                )

    async def _until_gone(self, task: Callable[..., object], *args: object) -> None:
        *rest, acknowledged = args
        assert callable(acknowledged)
        client, producer, run, rng = rest
        try:
            for number in range(_MADE_PER_RUN):
                await task(client, producer, f"{run}-{number}", rng)  # type: ignore[misc]
                self.changes += 1
                acknowledged()
        except RmqError:
            pass

    async def _by_admin(self, client: Client, producer: Producer, name: str, rng: random.Random) -> None:
        topic = f"Admin{name}"
        first, second = rng.randint(1, 3), rng.randint(4, 6)
        self.topics[topic] = {None, first}
        await client.admin.create_topic(topic, queues=first, route_wait_ms=0)
        self.topics[topic] = {first, second}
        self.being_changed.add(topic)
        await client.admin.create_topic(topic, queues=second, route_wait_ms=0)
        self.topics[topic] = {second}
        self.being_changed.discard(topic)

    async def _by_send(self, client: Client, producer: Producer, name: str, rng: random.Random) -> None:
        topic, body = f"Sent{name}", f"first of {name}".encode()
        self.topics[topic] = {None, 4, 8}
        sent = await producer.send(topic, body)
        assert sent.is_ok, sent
        self.topics[topic] = {4, 8}
        self.first[topic] = _First(sent.queue, sent.queue_offset, body)

    async def _delete(self, client: Client, producer: Producer, name: str, rng: random.Random) -> None:
        """Delete an acknowledged topic or group of this or an earlier run."""
        there = [
            topic
            for topic, allowed in self.topics.items()
            if None not in allowed and topic not in self.being_changed
        ]
        if not there:
            await trio.lowlevel.checkpoint()
            return
        topic = rng.choice(there)
        self.topics[topic] |= {None}
        await client.admin.delete_topic(topic)
        self.topics[topic] = {None}

    async def _groups(self, client: Client, producer: Producer, name: str, rng: random.Random) -> None:
        group, retries = f"group{rng.randrange(40)}", rng.randrange(1_000)
        before = self.groups.get(group, {None})
        self.groups[group] = before | {retries}
        (address,) = (await client.admin.masters()).values()
        config = SubscriptionGroupConfig(group_name=group, retry_max_times=retries)
        body = loose_json.dumps(config)
        await client.admin._call(
            address, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body), "change a group"
        )
        self.groups[group] = {retries}

    async def check(self, client: Client, rng: random.Random) -> None:
        """Raises AssertionError for changes that were lost, reverted, or differ from the acknowledged
        settings."""
        (address,) = (await client.admin.masters()).values()
        self.being_changed.clear()
        answer = await client.admin._call(address, request(RequestCode.GET_ALL_TOPIC_CONFIG), "list topics")
        found = answer.decode_body(TopicConfigAndMappingTable).topic_config_table
        served = set(await client.admin.topics())
        for topic, allowed in self.topics.items():
            queues = found[topic].write_queue_nums if topic in found else None
            assert queues in allowed, (
                f"topic {topic} has {queues} queues, {allowed} were acknowledged or asked for"
            )
            assert (topic in served) is (topic in found), (
                f"topic {topic}: the name server and the broker do not agree"
            )
            # A topic found once must stay.
            self.topics[topic] = {queues}
        answer = await client.admin._call(
            address, request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), "list groups"
        )
        groups = answer.decode_body(SubscriptionGroupTable).subscription_group_table
        for group, allowed in self.groups.items():
            retries = groups[group].retry_max_times if group in groups else None
            assert retries in allowed, (
                f"group {group} has {retries} retries, {allowed} were acknowledged or asked for"
            )
            self.groups[group] = {retries}
        there = [topic for topic in self.first if topic in found]
        async with client.pull_consumer("checker") as consumer:
            for topic in {*there[-_PULLED // 2 :], *rng.sample(there, min(len(there), _PULLED // 2))}:
                first = self.first[topic]
                assert first.queue in await consumer.queues(topic), f"{first.queue} is not in the route"
                (message,) = await read_queue(
                    consumer, first.queue, first.queue_offset, first.queue_offset + 1
                )
                assert message.body == first.body, f"{first.queue} holds {message.body!r}"
