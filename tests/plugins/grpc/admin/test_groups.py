"""Groups over the Admin service."""

from __future__ import annotations

from pathlib import Path

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.admin.kit import administer, administered
from tests.plugins.grpc.client import CODES, ENUMS, connected, consuming, resource
from tests.plugins.grpc.test_consuming import (
    GROUP,
    TOPIC,
    acking,
    begun,
    handle,
    received,
    receiving,
    send,
    some,
)
from tests.plugins.grpc.test_lite import consumer, prepare, subscribe
from tests.plugins.grpc.test_lite import send as send_lite

MODELS = ENUMS["MessageModel"]


async def make_topic(running: RunningBroker) -> None:
    await running.context.topics.put(TopicConfig(topic_name=TOPIC))


async def test_subscriptions_of_a_group_and_of_a_topic(tmp_path: Path) -> None:
    """The same, by either; by client as well. A question without both is refused."""
    async with running_broker(tmp_path) as running, connected(running, "first") as client:
        await make_topic(running)
        await client.settle(consuming(GROUP, TOPIC, tag="a || b"))
        for fields in ({"group": resource(GROUP)}, {"topic": resource(TOPIC)}):
            answer = await administered(client, "ListSubscription", **fields)
            (info,) = answer.subscription_info
            assert (info.group.name, info.topic.name, info.online) == (GROUP, TOPIC, True)
            assert info.expression.expression == "a || b"
            assert info.message_model == MODELS["CLUSTERING"]
            answer = await administered(client, "DescribeSubscription", **fields)
            (each,) = answer.client_subscription_info
            assert (each.client_info.client_id, each.client_info.language) == ("first", "PYTHON")
            assert each.client_info.egress_ip
            assert each.subscription_info == info
        answer = await administer(client, "ListSubscription")
        assert answer.status.code == CODES["BAD_REQUEST"]


async def test_offline_groups_of_a_topic(tmp_path: Path) -> None:
    """Those that have consumed it."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await make_topic(running)
        running.context.offsets.commit("offline", TOPIC, 0, 0)
        answer = await administered(client, "ListSubscription", topic=resource(TOPIC))
        assert [(each.group.name, each.online) for each in answer.subscription_info] == [("offline", False)]


async def test_connections(tmp_path: Path) -> None:
    """The online members of a group, those that have a topic; none of a group that is not there."""
    async with running_broker(tmp_path) as running, connected(running, "first") as client:
        await make_topic(running)
        await client.settle(consuming(GROUP, TOPIC))
        for topic, expected in ((None, ["first"]), (TOPIC, ["first"]), ("Other", [])):
            fields = {} if topic is None else {"topic": resource(topic)}
            answer = await administered(client, "ListConsumerConnection", group=resource(GROUP), **fields)
            assert [each.client_id for each in answer.client_info] == expected
        answer = await administered(client, "ListConsumerConnection", group=resource("nobody"))
        assert not answer.client_info


async def test_the_accumulation_of_a_group(tmp_path: Path) -> None:
    """What is in flight and what is ready, of the group and by topic."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        await send(client, "a", "b", "c")
        request = receiving()
        request.batch_size = 1
        _, (first,) = await received(client, request)
        answer = await administered(
            client, "DescribeGroupAccumulation", group=resource(GROUP), topics=[resource(TOPIC)]
        )
        for found in (answer.accumulation, answer.topic_accumulation[TOPIC]):
            counts = found.inflight_messages, found.ready_messages, found.accumulation
            assert counts == (1, 2, 3)
        await client.call("AckMessage", acking(handle(first)))
        answer = await administered(client, "DescribeGroupAccumulation", group=resource(GROUP))
        assert answer.accumulation.accumulation == 2
        assert not answer.topic_accumulation


async def test_the_accumulation_of_a_lite_topic(tmp_path: Path) -> None:
    """By its name."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running, lite_bind_topic=TOPIC)
        await send_lite(client, "chat", "a", "b")
        assert await subscribe(client, "chat") == CODES["OK"]
        answer = await administered(
            client, "DescribeGroupAccumulation", group=resource(GROUP), lite_topic="chat"
        )
        assert answer.lite_topic_accumulation["chat"].accumulation == 2
        answer = await administered(client, "DescribeGroupAccumulation", group=resource(GROUP))
        assert answer.accumulation.accumulation == 2
        assert answer.lite_topic_accumulation["chat"].accumulation == 2
        found = await administered(client, "ListConsumerConnection", group=resource(GROUP))
        assert [each.message_model for each in found.client_info] == [MODELS["LITE_SELECTIVE"]]


async def test_a_group_is_set_back(tmp_path: Path) -> None:
    """It gets what was stored since the time once more."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await begun(running, client)
        await send(client, "a")
        await client.call("AckMessage", acking(*map(handle, await some(client, receiving()))))
        assert (await received(client, receiving()))[1] == []
        fields = {"group": resource(GROUP), "topic": resource(TOPIC)}
        await administered(client, "ResetGroupOffset", **fields)
        assert [each.body for each in await some(client, receiving())] == [b"a"]


async def test_a_subscription_is_not_deleted(tmp_path: Path) -> None:
    """The answer says what can be done."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        answer = await administer(client, "DeleteSubscription", group=resource(GROUP))
        assert answer.status.code == CODES["NOT_IMPLEMENTED"]
        assert "rmqkit group delete" in answer.status.message
