"""The pages of topics."""

from __future__ import annotations

from pathlib import Path

from rmqkit.client import Message
from tests.plugins.console.asking import asking


async def test_topics_with_their_messages(tmp_path: Path) -> None:
    """Topics are listed with the number of their messages; those of RocketMQ itself on demand."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        for topic in ("Orders", "Payments"):
            await client.admin.create_topic(topic, queues=2)
        async with client.producer("shop") as producer:
            for _ in range(3):
                await producer.send(Message("Orders", b"x"))
        values = await ask.values("/topics")
        rows = {each["topic"]: each for each in values["topics"]}
        assert list(rows) == ["Orders", "Payments"]
        assert (rows["Orders"]["queues"], rows["Orders"]["messages"]) == (2, 3)
        assert rows["Orders"]["lastUpdateTimestamp"] > 0
        assert rows["Payments"]["messages"] == 0
        html = await ask.page("/topics")
        assert '<a href="/topic?topic=Orders">Orders</a>' in html
        everything = await ask.values("/topics", all="yes")
        assert {each["topic"] for each in everything["topics"]} > set(rows)
        found = await ask.values("/topics", find="pay")
        assert [each["topic"] for each in found["topics"]] == ["Payments"]


async def test_no_topics(tmp_path: Path) -> None:
    """An empty list says so, and what was searched for is escaped."""
    async with asking(tmp_path) as ask:
        assert "No topics." in await ask.page("/topics")
        html = await ask.page("/topics", find="<script>alert(1)</script>")
        assert "<script" not in html
        assert "&lt;script&gt;" in html


async def test_one_topic(tmp_path: Path) -> None:
    """Its settings, its queues and its groups."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        await client.admin.create_topic("Orders", queues=2, message_type="NORMAL")
        async with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
            result = await producer.send(Message("Orders", b"x"))
            await consumer.commit(result.queue, 1)
        values = await ask.values("/topic", topic="Orders")
        assert [each["maxOffset"] for each in values["queues"]].count(1) == 1
        assert values["settings"][0]["messageType"] == "NORMAL"
        assert values["groups"] == ["billing"]
        html = await ask.page("/topic", topic="Orders")
        assert '<a href="/group?group=billing">billing</a>' in html
        assert '<a href="/messages?topic=Orders">' in html


async def test_a_topic_that_no_broker_has(tmp_path: Path) -> None:
    """The answer is 404 and says so; a name that is missing is 400."""
    async with asking(tmp_path) as ask:
        html = await ask.page("/topic", 404, topic="<b>x</b>")
        assert "no broker has it" in html
        assert "<b>x" not in html
        assert "topic is missing" in await ask.page("/topic", 400)


async def test_long_lists(tmp_path: Path) -> None:
    """They have pages, which refer to each other."""
    async with asking(tmp_path) as ask:
        for number in range(52):
            await ask.console.client.admin.create_topic(f"T{number:02}", queues=1, route_wait_ms=0)
        await ask.console.client.admin.create_topic("Z", queues=1)
        html = await ask.page("/topics", find="T")
        assert "52 topics, page 1 of 2" in html.replace("\N{NO-BREAK SPACE}", " ")
        assert 'rel="next" href="/topics?page=2&amp;find=T"' in html
        second = await ask.values("/topics", find="T", page=2)
        assert [each["topic"] for each in second["topics"]] == ["T50", "T51"]
        assert (await ask.values("/topics", page=9))["page"] == 2
