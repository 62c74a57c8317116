"""Topics and the server, over the Admin service."""

from __future__ import annotations

import json
from pathlib import Path

from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.admin.kit import administer, administered
from tests.plugins.grpc.client import CODES, ENUMS, connected, consuming, resource
from tests.plugins.grpc.test_consuming import GROUP, TOPIC, acking, begun, handle, receiving, send, some


async def test_a_topic_is_described(tmp_path: Path) -> None:
    """By its type and its attributes, without a client id; an unknown one is refused."""
    async with running_broker(tmp_path) as running, connected(running, "") as client:
        attributes = {"message.type": "FIFO"}
        await running.context.topics.put(TopicConfig(topic_name=TOPIC, attributes=attributes))
        answer = await administered(client, "DescribeTopicStatus", topic=resource(TOPIC))
        assert answer.topic_message_type == ENUMS["MessageType"]["FIFO"]
        assert dict(answer.tags) == attributes
        answer = await administer(client, "DescribeTopicStatus", topic=resource("Unknown"))
        assert answer.status.code == CODES["TOPIC_NOT_FOUND"]


async def test_the_route_is_that_of_remoting(tmp_path: Path) -> None:
    """As JSON."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await running.context.topics.put(TopicConfig(topic_name=TOPIC))
        answer = await administered(client, "GetTopicRoute", topic=resource(TOPIC))
        route = json.loads(answer.topic_route_data)
        assert [each["brokerName"] for each in route["queueDatas"]] == [running.context.config.broker_name]


async def test_the_age_of_messages(tmp_path: Path) -> None:
    """Of each queue, and of what the group consumes."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        await send(client, "a")
        found = await some(client, receiving())
        await client.call("AckMessage", acking(*map(handle, found)))
        answer = await administered(client, "QueryTimeSpan", group=resource(GROUP), topics=[resource(TOPIC)])
        (span,) = answer.queue_time_span_list
        assert span.message_queue.topic.name == TOPIC
        assert 0 < span.min_timestamp <= span.max_timestamp
        answer = await administer(client, "QueryTimeSpan", group=resource(GROUP))
        assert answer.status.code == CODES["BAD_REQUEST"]


async def test_the_figures_of_the_server(tmp_path: Path) -> None:
    """Its clients and its name."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.settle(consuming(GROUP, TOPIC))
        answer = await administered(client, "GetProxyRuntimeStats")
        assert answer.proxy_name == running.context.config.broker_name
        assert (answer.connections, answer.producers, answer.consumers) == (1, 0, 1)


async def test_the_log_level_is_set_at_the_start(tmp_path: Path) -> None:
    """The remark says how."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        answer = await administer(client, "ChangeLogLevel", level=1)
        assert "--log-level" in answer.remark
