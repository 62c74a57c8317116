"""Messages over the Admin service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.admin.kit import administer, administered
from tests.plugins.grpc.client import CODES, connected, message, resource, sending
from tests.plugins.grpc.test_consuming import TOPIC
from tests.plugins.grpc.test_producing import stored


def bodies(answer: Any) -> list[bytes]:
    return [each.body for each in answer.messages]


async def test_messages_are_found(tmp_path: Path) -> None:
    """By the id of their client, by a key, by a tag; from one queue, and not more than wanted."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
        await running.context.topics.put(config)
        for number in range(3):
            made = message(TOPIC, f"{number}".encode(), f"01F{number}", tag="t", keys=["k", f"k{number}"])
            await client.call("SendMessage", sending(made))
        topic = resource(TOPIC)
        assert bodies(await administered(client, "QueryMessage", topic=topic, message_id="01F1")) == [b"1"]
        assert bodies(await administered(client, "QueryMessage", topic=topic, message_key="k2")) == [b"2"]
        found = await administered(client, "QueryMessage", topic=topic, message_key="k")
        assert bodies(found) == [b"0", b"1", b"2"]
        found = await administered(client, "QueryMessage", topic=topic, subscription="t", max_message_nums=2)
        assert bodies(found) == [b"1", b"2"]
        for fields in ({"queue_id": 7}, {"broker_name": "other"}):
            found = await administered(client, "QueryMessage", topic=topic, message_key="k", **fields)
            assert bodies(found) == []
        assert bodies(await administered(client, "QueryMessage", topic=topic, message_key="none")) == []
        answer = await administer(client, "QueryMessage", topic=topic)
        assert answer.status.code == CODES["NOT_IMPLEMENTED"]


async def test_a_message_is_sent(tmp_path: Path) -> None:
    """With tag, key and properties; its id is new each time."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
        await running.context.topics.put(config)
        ids = set()
        for _ in range(2):
            fields = {"tag": "t", "key": "k", "user_properties": {"p": "v"}}
            answer = await administered(
                client, "AdminSendMessage", topic=resource(TOPIC), body=b"x", **fields
            )
            ids.add(answer.message_id)
        found = stored(running, TOPIC)
        assert {each.properties["UNIQ_KEY"] for each in found} == ids
        assert len(ids) == 2
        assert {(each.properties["TAGS"], each.properties["p"]) for each in found} == {("t", "v")}
        answer = await administer(client, "AdminSendMessage", topic=resource("rmq_sys_x"), body=b"x")
        assert answer.status.code == CODES["ILLEGAL_TOPIC"]
