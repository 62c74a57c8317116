"""Lite topics: clients subscribe to some of them, and get the messages of each in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.names import dlq_topic, lite_queue
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.testing.broker import running_broker
from rmqkit.testing.clock import LoopClock
from rmqkit.testing.listening import until
from rmqkit_pop.lite.service import LiteService
from tests.plugins.grpc.client import (
    CODES,
    ENUMS,
    Client,
    M,
    connected,
    consuming,
    message,
    resource,
    sending,
)
from tests.plugins.grpc.test_consuming import (
    GROUP,
    TOPIC,
    acking,
    changing,
    handle,
    received,
    receiving,
    some,
)

ACTIONS = ENUMS["LiteSubscriptionAction"]
LITE = ENUMS["MessageType"]["LITE"]


async def prepare(running: RunningBroker, **group: str) -> None:
    """A topic with lite topics, and a group with these attributes, whose dots are written as underscores."""
    config = TopicConfig(topic_name=TOPIC, attributes={"message.type": "LITE"})
    await running.context.topics.put(config)
    attributes = {name.replace("_", "."): value for name, value in group.items()}
    await running.context.groups.put(SubscriptionGroupConfig(group_name=GROUP, attributes=attributes))


def syncing(action: str, *lite_topics: str, **fields: Any) -> Any:
    return M["SyncLiteSubscriptionRequest"](
        action=ACTIONS[action],
        topic=resource(TOPIC),
        group=resource(GROUP),
        lite_topic_set=lite_topics,
        **fields,
    )


async def subscribe(client: Client, *lite_topics: str, action: str = "PARTIAL_ADD", **fields: Any) -> int:
    answer = await client.call("SyncLiteSubscription", syncing(action, *lite_topics, **fields))
    code: int = answer.status.code
    return code


@asynccontextmanager
async def consumer(running: RunningBroker, client_id: str = "client-1") -> AsyncIterator[Client]:
    """A consumer of lite topics that has none yet."""
    async with connected(running, client_id) as client:
        await client.settle(consuming(GROUP, TOPIC, kind="LITE_SIMPLE_CONSUMER"))
        yield client


async def send(client: Client, lite_topic: str, *bodies: str) -> None:
    for body in bodies:
        made = message(TOPIC, body.encode(), message_type=LITE, lite_topic=lite_topic)
        answer = await client.call("SendMessage", sending(made))
        assert answer.status.code == CODES["OK"], answer.status.message


def bodies(messages: Sequence[Any]) -> list[tuple[str, str]]:
    return [(each.system_properties.lite_topic, each.body.decode()) for each in messages]


async def acknowledge(client: Client, messages: Sequence[Any]) -> None:
    answer = await client.call("AckMessage", acking(*map(handle, messages)))
    assert answer.status.code == CODES["OK"], answer.status.message


async def test_a_client_gets_what_it_has_subscribed(tmp_path: Path) -> None:
    """Each lite topic in order, under the topic that has them, and nothing of others."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        await send(client, "chat-1", "a", "b")
        await send(client, "chat-2", "x")
        await send(client, "chat-3", "unwanted")
        assert await subscribe(client, "chat-1", "chat-2") == CODES["OK"]
        found = await some(client, receiving())
        assert sorted(bodies(found)) == [("chat-1", "a"), ("chat-1", "b"), ("chat-2", "x")]
        assert {each.topic.name for each in found} == {TOPIC}
        await send(client, "chat-1", "c")
        # The others of a lite topic wait until those before them are finished.
        assert (await received(client, receiving()))[1] == []
        await acknowledge(client, found)
        found = await some(client, receiving(poll_ms=20_000))
        assert bodies(found) == [("chat-1", "c")]
        await acknowledge(client, found)
        assert running.context.offsets.get(GROUP, lite_queue(TOPIC, "chat-1"), 0) == 3


async def test_a_held_receive_is_woken(tmp_path: Path) -> None:
    """By a message, by a subscription, and by the end of what is before it in its lite topic."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        async with connected(running, "producer") as producer:
            waiting = await client.begin("ReceiveMessage", receiving(poll_ms=20_000))
            await send(producer, "chat", "a")
            assert await subscribe(client, "chat") == CODES["OK"]
            reply = await client.until_ended(waiting)
            assert len(reply.data) == 3
            found = M["ReceiveMessageResponse"].FromString(reply.data[1]).message
            await send(producer, "chat", "b")
            waiting = await client.begin("ReceiveMessage", receiving(poll_ms=20_000))
            await acknowledge(client, [found])
            found = (
                M["ReceiveMessageResponse"].FromString((await client.until_ended(waiting)).data[1]).message
            )
            assert found.body == b"b"
            await acknowledge(client, [found])
            waiting = await client.begin("ReceiveMessage", receiving(poll_ms=20_000))
            await send(producer, "chat", "c")
            reply = await client.until_ended(waiting)
            assert M["ReceiveMessageResponse"].FromString(reply.data[1]).message.body == b"c"


@pytest.mark.parametrize("timed", [True, False])
async def test_unfinished_messages_come_again(tmp_path: Path, autojump_clock: Any, timed: bool) -> None:
    """After their lease, or at once when the client gives them back; each time counted, and in the end they
    are dead letters of the topic."""
    clock = LoopClock()
    async with running_broker(tmp_path, clock=clock) as running, consumer(running) as client:
        await prepare(running)
        config = running.context.groups.configs[GROUP]
        await running.context.groups.put(
            SubscriptionGroupConfig(group_name=GROUP, attributes=config.attributes, retry_max_times=1)
        )
        assert await subscribe(client, "chat") == CODES["OK"]
        await send(client, "chat", "a", "b")
        for attempt in (1, 2):
            found = await some(client, receiving(10_000, poll_ms=15_000))
            assert bodies(found) == [("chat", "a"), ("chat", "b")]
            assert {each.system_properties.delivery_attempt for each in found} == {attempt}
            if timed:
                await trio.sleep(11)
            else:
                for each in found:
                    answer = await client.call("ChangeInvisibleDuration", changing(handle(each), 0))
                    assert answer.status.code == CODES["OK"]
        await until(lambda: running.context.store.max_offset(dlq_topic(GROUP), 0) == 2)
        assert (await received(client, receiving()))[1] == []


async def test_a_client_may_forward_to_the_dead_letters(tmp_path: Path) -> None:
    """The next message of the lite topic follows."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        assert await subscribe(client, "chat") == CODES["OK"]
        await send(client, "chat", "a")
        (found,) = await some(client, receiving())
        request = M["ForwardMessageToDeadLetterQueueRequest"](
            group=resource(GROUP), topic=resource(TOPIC), receipt_handle=handle(found)
        )
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == CODES["OK"]
        await send(client, "chat", "b")
        assert bodies(await some(client, receiving(poll_ms=20_000))) == [("chat", "b")]
        assert running.context.store.max_offset(dlq_topic(GROUP), 0) == 1


async def test_subscriptions_end(tmp_path: Path) -> None:
    """One by one, by a set without them, or all; a client that had messages keeps these until they are
    finished."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        assert await subscribe(client, "a", "b", "c") == CODES["OK"]
        assert await subscribe(client, "a", action="PARTIAL_REMOVE") == CODES["OK"]
        assert await subscribe(client, "c", "d", action="COMPLETE_ADD") == CODES["OK"]
        for name in "abcd":
            await send(client, name, name)
        assert sorted(bodies(await some(client, receiving()))) == [("c", "c"), ("d", "d")]
        assert await subscribe(client, action="COMPLETE_REMOVE") == CODES["OK"]
        await send(client, "e", "e")
        assert (await received(client, receiving()))[1] == []


async def test_a_subscription_may_begin_elsewhere(tmp_path: Path) -> None:
    """At the first message, at the end, at an offset, or some messages before the end."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        wanted = {"first": ("policy", 1, "abc"), "end": ("policy", 2, ""), "at": ("offset", 1, "bc")}
        wanted |= {"tail": ("tail_n", 1, "c"), "since": ("timestamp", 1, "abc")}
        for name, (kind, value, _) in wanted.items():
            await send(client, name, *"abc")
            option = M["OffsetOption"](**{kind: value})
            assert await subscribe(client, name, offset_option=option) == CODES["OK"]
        found = await some(client, receiving())
        assert {name: "".join(body for own, body in bodies(found) if own == name) for name in wanted} == {
            name: text for name, (_, _, text) in wanted.items()
        }


async def test_exclusive_subscriptions(tmp_path: Path) -> None:
    """Whoever comes later has the lite topic, and the one before is told."""
    async with running_broker(tmp_path) as running:
        await prepare(running, lite_sub_model="Exclusive")
        async with connected(running, "first") as first, consumer(running, "second") as second:
            stream, _ = await first.settle(consuming(GROUP, TOPIC, kind="LITE_PUSH_CONSUMER"))
            assert await subscribe(first, "chat", "other") == CODES["OK"]
            assert await subscribe(second, "chat") == CODES["OK"]
            command = M["TelemetryCommand"].FromString((await first.until_messages(stream, 2))[1])
            assert command.notify_unsubscribe_lite_command.lite_topic == "chat"
            await send(second, "chat", "a")
            assert (await received(first, receiving()))[1] == []
            assert bodies(await some(second, receiving())) == [("chat", "a")]


async def test_clients_share_a_lite_topic(tmp_path: Path) -> None:
    """While one has its messages, the others get none of it."""
    async with running_broker(tmp_path) as running:
        await prepare(running)
        async with consumer(running, "first") as first, consumer(running, "second") as second:
            for client in (first, second):
                assert await subscribe(client, "chat") == CODES["OK"]
            await send(first, "chat", "a")
            found = await some(first, receiving())
            await send(first, "chat", "b")
            assert (await received(second, receiving()))[1] == []
            waiting = await second.begin("ReceiveMessage", receiving(poll_ms=20_000))
            await acknowledge(first, found)
            reply = await second.until_ended(waiting)
            assert M["ReceiveMessageResponse"].FromString(reply.data[1]).message.body == b"b"


async def test_all_lite_topics(tmp_path: Path) -> None:
    """`*` stands for those that are there, and those that come."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        await send(client, "a", "1")
        assert await subscribe(client, "*", action="COMPLETE_ADD") == CODES["OK"]
        await send(client, "b", "2")
        assert sorted(bodies(await some(client, receiving()))) == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (syncing("PARTIAL_ADD", "with space"), "ILLEGAL_LITE_TOPIC"),
        (syncing("PARTIAL_ADD", "x" * 65), "ILLEGAL_LITE_TOPIC"),
        (syncing("PARTIAL_ADD", *(f"t{at}" for at in range(4))), "LITE_SUBSCRIPTION_QUOTA_EXCEEDED"),
        (
            M["SyncLiteSubscriptionRequest"](
                action=0, topic=resource("Plain"), group=resource(GROUP), lite_topic_set=["a"]
            ),
            "BAD_REQUEST",
        ),
    ],
)
async def test_what_cannot_be_subscribed(tmp_path: Path, asked: Any, code: str) -> None:
    """Illegal names, more than the group permits, a topic without lite topics."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running, lite_sub_client_quota="3")
        await running.context.topics.put(TopicConfig(topic_name="Plain"))
        answer = await client.call("SyncLiteSubscription", asked)
        assert answer.status.code == CODES[code], answer.status.message


async def test_only_consumers_of_lite_topics_have_them(tmp_path: Path) -> None:
    """A client without settings is refused, and a group that is bound to another topic."""
    async with running_broker(tmp_path) as running:
        await prepare(running, lite_bind_topic="Another")
        async with connected(running, "stranger") as stranger, consumer(running) as client:
            assert await subscribe(stranger, "a") == CODES["BAD_REQUEST"]
            assert await subscribe(client, "a") == CODES["BAD_REQUEST"]


@pytest.mark.parametrize(
    ("topic", "system", "code"),
    [
        (TOPIC, {"message_type": LITE, "lite_topic": "a b"}, "ILLEGAL_LITE_TOPIC"),
        (TOPIC, {}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (TOPIC, {"message_type": LITE, "lite_topic": "third"}, "LITE_TOPIC_QUOTA_EXCEEDED"),
    ],
)
async def test_what_cannot_be_sent(tmp_path: Path, topic: str, system: dict[str, Any], code: str) -> None:
    """Illegal names, messages of another type, and one lite topic more than the broker permits."""
    async with running_broker(tmp_path, maxLmqConsumeQueueNum="2") as running:
        await prepare(running)
        async with connected(running) as client:
            for name in ("first", "second"):
                await send(client, name, "a")
            answer = await client.call("SendMessage", sending(message(topic, b"x", **system)))
            assert answer.status.code == CODES[code], answer.status.message


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_lite_topics_are_there_after_a_restart(tmp_path: Path, store: str) -> None:
    """With what is not consumed, and none of them is a topic."""
    async with running_broker(tmp_path, store=store) as running, consumer(running) as client:
        await prepare(running)
        await send(client, "chat", "a", "b")
        assert await subscribe(client, "chat") == CODES["OK"]
        found = await some(client, receiving())
        await acknowledge(client, found[:1])
    async with running_broker(tmp_path, store=store) as running, consumer(running) as client:
        assert not [name for name in running.context.topics.configs if "chat" in name]
        service = running.context.registry.services["lite"]
        assert isinstance(service, LiteService)
        assert service.figures() == {"liteTopics": 1, "liteSubscriptions": 0}
        assert await subscribe(client, "chat") == CODES["OK"]
        (unfinished,) = found[1:]
        answer = await client.call("ChangeInvisibleDuration", changing(handle(unfinished), 0))
        assert answer.status.code == CODES["OK"]
        await send(client, "chat", "c")
        assert bodies(await some(client, receiving(poll_ms=20_000)))[:1] == [("chat", "b")]


async def test_a_deleted_topic_takes_its_lite_topics_along(tmp_path: Path) -> None:
    """A new one with its name has none of them."""
    async with running_broker(tmp_path) as running, consumer(running) as client:
        await prepare(running)
        await send(client, "chat", "a")
        assert await subscribe(client, "chat") == CODES["OK"]
        await acknowledge(client, await some(client, receiving()))
        await running.context.topics.delete(TOPIC)
        assert running.context.store.max_offset(lite_queue(TOPIC, "chat"), 0) == 0
        await prepare(running)
        assert await subscribe(client, "chat") == CODES["OK"]
        await send(client, "chat", "b")
        assert bodies(await some(client, receiving(poll_ms=20_000))) == [("chat", "b")]
