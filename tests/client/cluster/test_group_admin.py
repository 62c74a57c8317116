"""Administration of consumer groups, against a broker of rmqkit and against answers of RocketMQ 4."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from rmqkit.client import BrokerError, Client, ClientError, MessageQueue, NoRoute
from rmqkit.client.cluster.group_admin import END_MS
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.broker import running_cluster
from tests.client.fake_cluster import FakeBroker, FakeCluster, Override, cluster
from tests.client.fakes import on_both_backends, run

QUEUE = MessageQueue(topic="Orders", broker_name="broker-a", queue_id=0)


@asynccontextmanager
async def consumed(directory: Path) -> AsyncIterator[Client]:
    """A client of a broker on which the group `billing` has committed two of three messages."""
    async with running_cluster(directory) as running, Client(running.namesrv_text) as client:
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            for body in (b"0", b"1", b"2"):
                await producer.send("Orders", body, queue=QUEUE)
        async with client.pull_consumer("billing") as consumer:
            await consumer.pull(QUEUE, 0)
            await consumer.commit(QUEUE, 2)
            # A heartbeat that is still under way would create the group again.
            with trio.fail_after(60):
                while not await subscribed(client):  # noqa: ASYNC110 - another task answers
                    await trio.sleep(0.01)
        yield client


async def subscribed(client: Client) -> bool:
    found = await client.groups.connections("billing")
    return found is not None and "Orders" in found.subscriptions


async def test_progress_of_a_group(tmp_path: Path) -> None:
    """What is committed, pulled and there, and the age of the first message that is not consumed. An unknown
    group has no progress, an unknown topic no route."""
    async with consumed(tmp_path) as client:
        progress = (await client.groups.progress("billing", "Orders"))[QUEUE]
        assert (progress.committed, progress.pulled, progress.end, progress.lag) == (2, 3, 3, 1)
        assert await client.groups.progress("billing") == {QUEUE: progress}
        assert (await client.groups.behind("billing", "Orders"))[QUEUE] >= 0
        assert await client.groups.consuming("Orders") == ["billing"]
        assert await client.groups.progress("nobody") == {}
        with pytest.raises(NoRoute):
            await client.groups.behind("billing", "Missing")


async def test_a_group_and_its_offsets_are_deleted(tmp_path: Path) -> None:
    """On every master, whose names are returned."""
    async with consumed(tmp_path) as client:
        assert (await client.groups.configs())["billing"]["broker-a"].group_name == "billing"
        assert await client.groups.delete("billing") == ["broker-a"]
        assert "billing" not in await client.groups.configs()
        assert await client.groups.progress("billing") == {}


async def test_members_and_what_they_subscribe_to(tmp_path: Path) -> None:
    """A group without members has no connections; a member tells its subscriptions itself."""
    async with consumed(tmp_path) as client:
        assert await client.groups.connections("billing") is None
        async with client.push_consumer("billing", subscribe={"Orders": "new || paid"}):
            found = await client.groups.connections("billing")
            assert found is not None
            (member,) = found.members
            assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
            assert found.subscriptions["Orders"].sub_string == "new || paid"
            own = await client.groups.subscriptions_of("billing", member)
            assert own["Orders"].sub_string == "new || paid"


async def test_offsets_are_reset(tmp_path: Path) -> None:
    """To a time, to an end, or to an offset within the queue; others are refused."""
    async with consumed(tmp_path) as client:
        assert await client.groups.offsets_at("Orders", 0) == {QUEUE: 0}
        assert await client.groups.offsets_at("Orders", END_MS) == {QUEUE: 3}
        for time_ms, offset in ((0, 0), (END_MS, 3)):
            assert await client.groups.reset_to_time("billing", "Orders", time_ms) == {QUEUE: offset}
        await client.groups.reset_to_offset("billing", QUEUE, 1)
        for outside in (-1, 4):
            with pytest.raises(ClientError, match="which has offsets 0 to 3"):
                await client.groups.reset_to_offset("billing", QUEUE, outside)
        async with client.pull_consumer("billing") as consumer:
            assert (await consumer.pull(QUEUE, 2)).next_offset == 1


def refuse(command: Command) -> Command:
    return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, "no member is online")


def one_member(command: Command) -> Command:
    member = b'{"clientId":"c","clientAddr":"10.0.0.1:1","language":"JAVA","version":1}'
    return answer(command, body=b'{"connectionSet":[%s]}' % member)


def as_rocketmq_4(fake: FakeCluster, members: Override) -> FakeBroker:
    """A broker that has only members reset, and those only to a time; with three messages."""
    fake.topics["Orders"] = {"broker-a": 1}
    broker = fake.brokers["broker-a"]
    for body in (b"0", b"1", b"2"):
        broker.put("Orders", 0, body)
    broker.overrides |= {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: refuse,
        RequestCode.GET_BROKER_CONFIG: answer,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: members,
    }
    return broker


@on_both_backends
def test_a_group_without_members_on_rocketmq_4(backend: str) -> None:
    """The client commits the offsets itself."""

    async def body() -> None:
        async with cluster("a") as (fake, client):
            broker = as_rocketmq_4(fake, refuse)
            assert await client.groups.reset_to_time("billing", "Orders", END_MS) == {QUEUE: 3}
            assert broker.offsets == {("billing", "Orders", 0): 3}
            await client.groups.reset_to_offset("billing", QUEUE, 1)
            assert broker.offsets == {("billing", "Orders", 0): 1}

    run(backend, body)


@on_both_backends
def test_a_group_with_members_on_rocketmq_4(backend: str) -> None:
    """Its members would commit their own offsets again, so that nothing is committed."""

    async def body() -> None:
        async with cluster("a") as (fake, client):
            broker = as_rocketmq_4(fake, one_member)
            with pytest.raises(BrokerError, match="no member is online"):
                await client.groups.reset_to_time("billing", "Orders", END_MS)
            with pytest.raises(ClientError, match="reset to a time, or stop the members first"):
                await client.groups.reset_to_offset("billing", QUEUE, 1)
            assert broker.offsets == {}

    run(backend, body)


def connected(*members: tuple[str, str]) -> Override:
    """The answer of a broker with these client ids and addresses."""
    rows = [
        {"clientId": client_id, "clientAddr": address, "language": "JAVA", "version": 1}
        for client_id, address in members
    ]
    return lambda command: answer(command, body=msgspec.json.encode({"connectionSet": rows}))


@on_both_backends
def test_members_with_one_client_id_are_told_apart(backend: str) -> None:
    """A member has one connection to each broker: a second one to the same broker is another process, whether
    on the same host or not."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            fake.brokers["broker-a"].overrides[code] = connected(
                ("same", "10.0.0.2:1"), ("own", "10.0.0.1:1"), ("same", "10.0.0.1:2"), ("same", "10.0.0.1:3")
            )
            fake.brokers["broker-b"].overrides[code] = connected(
                ("same", "10.0.0.1:4"), ("own", "10.0.0.1:5"), ("same", "10.0.0.2:6")
            )
            found = await client.groups.connections("billing")
        both = ("broker-a", "broker-b")
        assert [(each.client_id, each.address, each.brokers) for each in found.members] == [
            ("own", "10.0.0.1:1", both),
            ("same", "10.0.0.1:2", both),
            ("same", "10.0.0.1:3", ("broker-a",)),
            ("same", "10.0.0.2:1", both),
        ]

    run(backend, body)
