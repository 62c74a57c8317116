"""The role of a proxy: clients of gRPC before two brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.config import load as load_config
from rmqkit.errors import ConfigError
from rmqkit.model.sysflag import PERM_RW
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin import loader
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.broker import running_broker, running_cluster, test_config
from rmqkit.testing.server import ServerContract
from rmqkit_grpc.role import Proxy
from rmqkit_grpc.transaction_id import parse
from tests.plugins.grpc.admin.kit import administer, administered
from tests.plugins.grpc.client import (
    CODES,
    CONNECT_TIMEOUT_MS,
    ENUMS,
    PATIENCE_S,
    Client,
    M,
    consuming,
    message,
    producing,
    resource,
    sending,
)

A, B = "broker-a", "broker-b"


class TestProxy(ServerContract):
    """The role keeps the contract of servers."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> Config:
        return test_config(tmp_path, namesrvAddr="127.0.0.1:1")

    def make_server(self) -> Server:
        return Proxy()


Brokers = Mapping[str, RunningBroker]


@asynccontextmanager
async def proxy_of(name_server: str, **keys: Any) -> AsyncIterator[Address]:
    """A proxy before the brokers of a name server."""
    config = load_config(environ={}, flags={"namesrvAddr": name_server, **keys})
    registry = loader.load(config)
    async with trio.open_nursery() as nursery:
        listen = listen_on(registry, [Address.parse("memory://proxy")], "proxy")
        handle: ServerHandle = await nursery.start(Proxy().run, config, registry, listen)
        yield handle.addresses[0]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def dialled(address: Address, client_id: str = "client-1") -> AsyncIterator[Client]:
    config = Config()
    async with await Dialer(config, loader.load(config))(address, CONNECT_TIMEOUT_MS) as stream:
        yield Client(stream, client_id)


@asynccontextmanager
async def proxied(tmp_path: Path) -> AsyncIterator[tuple[Brokers, Client]]:
    """Two brokers with topic T, and a client of a proxy before them."""
    async with (
        running_cluster(tmp_path / A, scheme="tcp", brokerName=A, transactionCheckInterval=50) as cluster,
        running_broker(
            tmp_path / B,
            scheme="tcp",
            brokerName=B,
            namesrvAddr=cluster.namesrv_text,
            transactionCheckInterval=50,
        ) as other,
    ):
        brokers = {A: cluster.broker, B: other}
        for each in brokers.values():
            await each.context.topics.put(_topic("T"))
            await each.context.topics.announced()
        async with proxy_of(cluster.namesrv_text) as address, dialled(address) as client:
            yield brokers, client


def _topic(name: str, **attributes: str) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=2, write_queue_nums=2, perm=PERM_RW, attributes=attributes
    )


async def route(client: Client, topic: str = "T") -> Any:
    return await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource(topic)))


async def receive(client: Client, broker: str, *, topic: str = "T", group: str = "G", size: int = 32) -> Any:
    """The messages of one receive at a broker."""
    asked = M["ReceiveMessageRequest"](group=resource(group), batch_size=size)
    asked.message_queue.topic.name, asked.message_queue.id = topic, -1
    asked.message_queue.broker.name = broker
    asked.filter_expression.type = ENUMS["FilterType"]["TAG"]
    asked.filter_expression.expression = "*"
    asked.invisible_duration.seconds = 30
    asked.long_polling_timeout.seconds = 0
    reply = await client.until_ended(await client.begin("ReceiveMessage", asked))
    assert reply.status == 0, reply.text
    answers = [M["ReceiveMessageResponse"].FromString(each) for each in reply.data]
    return [each.message for each in answers if each.HasField("message")]


async def acknowledge(client: Client, messages: Sequence[Any], *, group: str = "G") -> Any:
    asked = M["AckMessageRequest"](group=resource(group), topic=resource("T"))
    for each in messages:
        system = each.system_properties
        asked.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return await client.call("AckMessage", asked)


async def test_messages_of_all_brokers(tmp_path: Path) -> None:
    """The route has the queues of both brokers; sends are shared among them; receives name their broker, and
    what they bring is acknowledged there."""
    async with proxied(tmp_path) as (brokers, client):
        found = await route(client)
        assert [(each.broker.name, each.id) for each in found.message_queues] == [
            (A, 0), (A, 1), (B, 0), (B, 1),
        ]  # fmt: skip
        assert {each.broker.endpoints.addresses[0].port for each in found.message_queues} == {8081}
        await client.settle(producing("T"))
        for number in range(8):
            sent = await client.call("SendMessage", sending(message("T", b"%d" % number, f"01{number}")))
            assert sent.status.code == CODES["OK"], sent.status
        offsets = {
            name: [brokers[name].context.store.max_offset("T", at) for at in range(2)] for name in (A, B)
        }
        assert offsets == {A: [2, 2], B: [2, 2]}
        await client.settle(consuming("G", "T"))
        assigned = await client.call(
            "QueryAssignment", M["QueryAssignmentRequest"](group=resource("G"), topic=resource("T"))
        )
        queues = [each.message_queue for each in assigned.assignments]
        assert [(each.broker.name, each.id) for each in queues] == [(A, -1), (B, -1)]
        for name in (A, B):
            messages = [each for _ in range(2) for each in await receive(client, name)]
            assert len(messages) == 4
            acked = await acknowledge(client, messages)
            assert acked.status.code == CODES["OK"], acked
            context = brokers[name].context
            assert [context.offsets.get("G", "T", at) for at in range(2)] == [2, 2]


async def test_a_group_of_messages_stays_in_its_queue(tmp_path: Path) -> None:
    """Of whatever broker; a group in order gets each queue by itself."""
    async with proxied(tmp_path) as (brokers, client):
        for name in brokers:
            ordered = SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)
            await brokers[name].context.groups.put_all([ordered])
        await client.settle(producing("T"))
        for number in range(4):
            for group in ("one", "two", "three"):
                sent = message("T", b"m", f"{group}{number}", message_group=group)
                assert (await client.call("SendMessage", sending(sent))).status.code == CODES["OK"]
        sizes = [brokers[name].context.store.max_offset("T", at) for name in (A, B) for at in range(2)]
        assert sum(sizes) == 12
        assert all(size % 4 == 0 for size in sizes)
        assigned = await client.call(
            "QueryAssignment", M["QueryAssignmentRequest"](group=resource("G"), topic=resource("T"))
        )
        assert len(assigned.assignments) == 4


async def test_a_transaction_is_ended_at_its_broker(tmp_path: Path) -> None:
    """Its id names the broker, and a broker's question reaches a producer through the proxy."""
    async with proxied(tmp_path) as (brokers, client):
        stream, _ = await client.settle(producing("T"))
        await _joined(brokers, "T")
        for number in range(2):
            half = message("T", b"half", f"0{number}", message_type=ENUMS["MessageType"]["TRANSACTION"])
            sent = await client.call("SendMessage", sending(half))
            asked = M["EndTransactionRequest"](
                topic=resource("T"),
                message_id=f"0{number}",
                transaction_id=sent.entries[0].transaction_id,
                resolution=ENUMS["TransactionResolution"]["COMMIT"],
            )
            assert (await client.call("EndTransaction", asked)).status.code == CODES["OK"]
        stored = [brokers[name].context.store.max_offset("T", at) for name in (A, B) for at in range(2)]
        assert sum(stored) == 2
        half = message("T", b"open", "07", message_type=ENUMS["MessageType"]["TRANSACTION"])
        half.system_properties.orphaned_transaction_recovery_duration.seconds = 0
        sent = (await client.call("SendMessage", sending(half))).entries[0]
        with trio.fail_after(PATIENCE_S):
            _, question = await client.until_messages(stream, 2)
        orphan = M["TelemetryCommand"].FromString(question).recover_orphaned_transaction_command
        assert orphan.message.body == b"open"
        # A broker stores the half message again when it asks for it.
        asked_for, began = parse(orphan.transaction_id), parse(sent.transaction_id)
        assert (asked_for.broker_name, asked_for.message_id) == (began.broker_name, "07")


async def _joined(brokers: Brokers, group: str) -> None:
    """Wait until both brokers know a producer group."""
    with trio.fail_after(PATIENCE_S):
        for name in brokers:
            while group not in brokers[name].context.clients.producers:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_brokers_know_the_groups_of_clients(tmp_path: Path) -> None:
    """As groups of the proxy, until the last client has gone."""
    async with proxied(tmp_path) as (brokers, client):
        await client.settle(producing("T"))
        await _joined(brokers, "T")
        ended = await client.call("NotifyClientTermination", M["NotifyClientTerminationRequest"]())
        assert ended.status.code == CODES["OK"]
        with trio.fail_after(PATIENCE_S):
            for name in brokers:
                while "T" in brokers[name].context.clients.producers:
                    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_broker_that_has_stopped(tmp_path: Path) -> None:
    """Sends to it fail with a status, and those to others go on."""
    async with proxied(tmp_path) as (brokers, client):
        await client.settle(producing("T"))
        brokers[B].stop.set()
        statuses: set[int] = set()
        with trio.fail_after(PATIENCE_S):
            while len(statuses) < 2:
                statuses.add((await client.call("SendMessage", sending(message("T")))).status.code)
        assert CODES["OK"] in statuses
        for _ in range(4):
            statuses.add((await client.call("SendMessage", sending(message("T")))).status.code)
        assert len(statuses) == 2


async def test_a_topic_that_nobody_has(tmp_path: Path) -> None:
    """It is created by its first message where brokers create topics."""
    async with proxied(tmp_path) as (brokers, client):
        assert len((await route(client, "New")).message_queues) == 8
        sent = await client.call("SendMessage", sending(message("New")))
        assert sent.status.code == CODES["OK"]
        assert any("New" in brokers[name].context.topics.configs for name in (A, B))


async def test_a_proxy_without_name_servers(tmp_path: Path) -> None:
    """It does not start."""
    config = load_config(environ={}, flags={})
    registry = loader.load(config)
    listen = listen_on(registry, [Address.parse("memory://proxy")], "proxy")
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConfigError, match="no name server"):
            await nursery.start(Proxy().run, config, registry, listen)


async def test_lite_topics_of_all_brokers(tmp_path: Path) -> None:
    """Every broker has the subscription; each message is acknowledged where it is."""
    async with proxied(tmp_path) as (brokers, client):
        for each in brokers.values():
            await each.context.topics.put(_topic("L", **{"message.type": "LITE"}))
            await each.context.topics.announced()
        await client.settle(consuming("G", "L", kind="LITE_SIMPLE_CONSUMER"))
        names = [f"chat-{number}" for number in range(8)]
        request = M["SyncLiteSubscriptionRequest"](
            topic=resource("L"), group=resource("G"), lite_topic_set=names
        )
        answer = await client.call("SyncLiteSubscription", request)
        assert answer.status.code == CODES["OK"], answer.status
        for name in names:
            lite = {"message_type": ENUMS["MessageType"]["LITE"], "lite_topic": name}
            sent = await client.call("SendMessage", sending(message("L", b"m", name, **lite)))
            assert sent.status.code == CODES["OK"], sent.status
        found = [each for name in (A, B) for each in await receive(client, name, topic="L")]
        assert sorted(each.system_properties.lite_topic for each in found) == names
        acked = M["AckMessageRequest"](group=resource("G"), topic=resource("L"))
        for each in found:
            acked.entries.add(receipt_handle=each.system_properties.receipt_handle)
        answer = await client.call("AckMessage", acked)
        assert answer.status.code == CODES["OK"], answer


async def test_administration_of_all_brokers(tmp_path: Path) -> None:
    """What is asked of a group is asked of every broker."""
    async with proxied(tmp_path) as (_, client):
        await client.settle(consuming("G", "T"))
        with trio.fail_after(60):
            while (await administer(client, "GetProxyRuntimeStats")).status.code != CODES["OK"]:
                await trio.lowlevel.checkpoint()
        stats = await administered(client, "GetProxyRuntimeStats")
        assert (stats.connections, stats.consumers) == (1, 1)
        for name in (A, B):
            assert await receive(client, name) == []
        for number in range(8):
            await client.call("SendMessage", sending(message("T", b"m", f"01{number}", keys=["k"])))
        answer = await administered(
            client, "DescribeGroupAccumulation", group=resource("G"), topics=[resource("T")]
        )
        assert answer.topic_accumulation["T"].accumulation == 8
        found = await administered(client, "QueryMessage", topic=resource("T"), message_key="k")
        assert len(found.messages) == 8
        answer = await administered(client, "DescribeTopicStatus", topic=resource("T"))
        assert answer.topic_message_type == 0
