"""Settings, heartbeats and the end of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.subscription import CONSUME_ACTIVELY, CONSUME_PASSIVELY, SQL92
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.testing.broker import running_broker
from rmqkit_grpc.framing import GrpcStatus
from rmqkit_grpc.limits import MAX_SETTINGS_ENTRIES
from tests.plugins.grpc.client import CODES, ENUMS, Client, M, connected, consuming, producing, resource

CLIENTS = ENUMS["ClientType"]


async def test_settings_of_a_producer(tmp_path: Path) -> None:
    """They come back with what the server decides: all of the back-off, the limit of bodies, no metrics."""
    async with running_broker(tmp_path, maxMessageSize=70_000) as running, connected(running) as client:
        given = producing("A", "B")
        given.request_timeout.seconds = 3
        given.access_point.addresses.add(host="h", port=1)
        _, merged = await client.settle(given)
        policy = merged.backoff_policy
        assert (policy.max_attempts, policy.WhichOneof("strategy")) == (3, "exponential_backoff")
        backoff = policy.exponential_backoff
        assert (backoff.initial.nanos, backoff.max.seconds, backoff.multiplier) == (10_000_000, 1, 2.0)
        assert merged.publishing.max_body_size == 70_000
        assert merged.publishing.validate_message_type
        assert merged.HasField("metric")
        assert not merged.metric.on
        assert (merged.request_timeout, merged.access_point) == (given.request_timeout, given.access_point)
        assert [each.name for each in merged.publishing.topics] == ["A", "B"]
        assert set(running.context.clients.producers) == {"A", "B"}


async def test_a_producer_without_topics(tmp_path: Path) -> None:
    """Some clients open Telemetry before they know a topic."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        _, merged = await client.settle(producing())
        assert merged.backoff_policy.max_attempts == 3


@pytest.mark.parametrize(
    ("kind", "consume_type"), [("PUSH_CONSUMER", CONSUME_PASSIVELY), ("SIMPLE_CONSUMER", CONSUME_ACTIVELY)]
)
async def test_settings_of_a_consumer(tmp_path: Path, kind: str, consume_type: str) -> None:
    """The group's settings reach the client, and the group is online with its subscriptions."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.groups.put(
            SubscriptionGroupConfig(group_name="G", retry_max_times=4, consume_message_orderly=True)
        )
        given = consuming("G", "A", tag="x||y", kind=kind)
        sql = given.subscription.subscriptions.add(topic=resource("B"))
        sql.expression.type, sql.expression.expression = ENUMS["FilterType"]["SQL"], "a > 1"
        _, merged = await client.settle(given)
        policy, subscription = merged.backoff_policy, merged.subscription
        assert (policy.max_attempts, policy.WhichOneof("strategy")) == (5, "customized_backoff")
        assert [each.seconds for each in policy.customized_backoff.next][:5] == [1, 5, 10, 30, 60]
        assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
        assert subscription.long_polling_timeout.seconds == 20
        group = running.context.clients.consumers["G"]
        assert group.consume_type == consume_type
        assert group.client_ids() == ["client-1"]
        assert group.subscriptions["A"].tags_set == ["x", "y"]
        assert (group.subscriptions["B"].sub_string, group.subscriptions["B"].expression_type) == (
            "a > 1",
            SQL92,
        )


async def test_settings_again_on_the_same_stream(tmp_path: Path) -> None:
    """Each is answered, with the settings that hold then."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream, first = await client.settle(consuming("G", "A"))
        assert first.backoff_policy.max_attempts == 17
        config = running.context.groups.configs["G"]
        await running.context.groups.put(
            SubscriptionGroupConfig(group_name=config.group_name, retry_max_times=1)
        )
        command = M["TelemetryCommand"](settings=consuming("G", "B"))
        data = command.SerializeToString()
        await client.send_data(stream, b"\0" + len(data).to_bytes(4) + data)
        _, answer = await client.until_messages(stream, 2)
        assert M["TelemetryCommand"].FromString(answer).settings.backoff_policy.max_attempts == 2
        assert set(running.context.clients.consumers["G"].subscriptions) == {"B"}


def _properties(**properties: str) -> Any:
    settings = producing("A")
    for name, value in properties.items():
        settings.client_properties[name] = value
    return settings


def _settings(**fields: Any) -> Any:
    return M["Settings"](**fields)


@pytest.mark.parametrize(
    "wrong",
    [
        _settings(client_type=1),
        producing("a b"),
        producing("RMQ_SYS_TRANS_HALF_TOPIC"),
        producing(*map(str, range(MAX_SETTINGS_ENTRIES + 1))),
        consuming("", "A"),
        consuming("CID_RMQ_SYS_TRANS", "A"),
        consuming("G", ""),
        consuming("G", "A", tag="||"),
        _properties(**{"1a": "x"}),
        _properties(**{"rocketmq.a": "x"}),
        _properties(a="x" * 257),
        _properties(**{f"a{number}": "x" for number in range(33)}),
    ],
)
async def test_wrong_settings_end_the_stream(tmp_path: Path, wrong: Any) -> None:
    """With INVALID_ARGUMENT, and a text that says why; nothing is registered."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream = await client.begin("Telemetry", M["TelemetryCommand"](settings=wrong), end=False)
        reply = await client.until_ended(stream)
        assert reply.status == GrpcStatus.INVALID_ARGUMENT
        assert reply.text
        assert not running.context.clients.producers
        assert not running.context.clients.consumers


async def test_settings_come_first(tmp_path: Path) -> None:
    """Another command before them ends the stream."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        command = M["TelemetryCommand"](thread_stack_trace=M["ThreadStackTrace"](nonce="1"))
        stream = await client.begin("Telemetry", command, end=False)
        assert (await client.until_ended(stream)).status == GrpcStatus.INVALID_ARGUMENT


async def test_a_client_ends_its_stream(tmp_path: Path) -> None:
    """The server ends it as well, with success; the client stays registered."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        stream, _ = await client.settle(producing("A"))
        client.h2.end_stream(stream)
        await client.flush()
        assert (await client.until_ended(stream)).status == 0
        assert set(running.context.clients.producers) == {"A"}


async def test_heartbeats_register_again(tmp_path: Path) -> None:
    """What the settings say; so a client that was forgotten is there again."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.settle(consuming("G", "A"))
        running.context.clients.unregister("client-1", None, "G", notify=False)
        assert "G" not in running.context.clients.consumers
        answer = await client.call("Heartbeat", M["HeartbeatRequest"](client_type=CLIENTS["SIMPLE_CONSUMER"]))
        assert answer.status.code == CODES["OK"]
        assert set(running.context.clients.consumers["G"].subscriptions) == {"A"}


async def test_heartbeats_without_settings(tmp_path: Path) -> None:
    """After a restart of the server the group and the type are enough; without them the client is told to
    send settings."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        beat = M["HeartbeatRequest"](client_type=CLIENTS["PUSH_CONSUMER"], group=resource("G"))
        assert (await client.call("Heartbeat", beat)).status.code == CODES["OK"]
        assert running.context.clients.consumers["G"].client_ids() == ["client-1"]
        producer = M["HeartbeatRequest"](client_type=CLIENTS["PRODUCER"])
        assert (await client.call("Heartbeat", producer)).status.code == CODES["OK"]
        for unknown in (M["HeartbeatRequest"](), M["HeartbeatRequest"](group=resource("G"))):
            answer = await client.call("Heartbeat", unknown)
            assert answer.status.code == CODES["UNRECOGNIZED_CLIENT_TYPE"]


async def _terminated(client: Client, group: str = "") -> int:
    request = M["NotifyClientTerminationRequest"]()
    if group:
        request.group.name = group
    answer = await client.call("NotifyClientTermination", request)
    code: int = answer.status.code
    return code


async def test_the_end_of_clients(tmp_path: Path) -> None:
    """A client that says that it ends leaves its groups at once, and others stay."""
    async with (
        running_broker(tmp_path) as running,
        connected(running) as one,
        connected(running, "client-2") as other,
        connected(running, "client-3") as producer,
    ):
        for client in (one, other):
            await client.settle(consuming("G", "A"))
        await producer.settle(producing("A", "B"))
        assert await _terminated(one, "G") == CODES["OK"]
        assert running.context.clients.consumers["G"].client_ids() == ["client-2"]
        assert await _terminated(other) == CODES["OK"]
        assert "G" not in running.context.clients.consumers
        assert set(running.context.clients.producers) == {"A", "B"}
        assert await _terminated(producer) == CODES["OK"]
        assert not running.context.clients.producers
        assert await _terminated(producer) == CODES["OK"]
