"""The pages of groups."""

from __future__ import annotations

from pathlib import Path

from rmqkit.client import Message, group_views, tag
from tests.plugins.console.asking import asking


async def test_groups_with_their_lag(tmp_path: Path) -> None:
    """How far each is behind, in messages and in time."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
            for _ in range(3):
                result = await producer.send(Message("Orders", b"x"))
            await consumer.commit(result.queue, 1)
        (row,) = (await ask.values("/groups"))["groups"]
        assert (row["group"], row["lag"], row["members"], row["topics"]) == ("billing", 2, 0, ["Orders"])
        assert row["behindMs"] >= 0
        html = await ask.page("/groups")
        assert '<a href="/group?group=billing">billing</a>' in html
        assert '<a href="/topic?topic=Orders">Orders</a>' in html
        everything = await ask.values("/groups", all="yes")
        assert len(everything["groups"]) > 1
        assert (await ask.values("/groups", find="none"))["groups"] == []


async def test_no_groups(tmp_path: Path) -> None:
    """An empty list says so."""
    async with asking(tmp_path) as ask:
        assert "No groups." in await ask.page("/groups")


async def test_one_group(tmp_path: Path) -> None:
    """Its queues, its settings, and its members with what each subscribes to."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer, client.pull_consumer("billing") as reader:
            result = await producer.send(Message("Orders", b"x", tag="new"))
            await reader.commit(result.queue, 0)
        async with client.push_consumer("billing", subscribe={"Orders": tag("new || <b>")}) as consumer:
            async for delivery in consumer:
                async with delivery:
                    values = await ask.values("/group", group="billing")
                    html = await ask.page("/group", group="billing")
                    consumer.stop()
        (member,) = values["members"]
        assert member["clientId"] == client.client_id
        assert values["subscriptionsOf"][client.client_id]["Orders"] == "new || <b>"
        assert "new || &lt;b&gt;" in html
        assert values["messageModel"] == "CLUSTERING"
        orders = next(each for each in values["queues"] if each["topic"] == "Orders")
        assert (orders["end"], orders["lag"]) == (1, 1)
        assert values["settings"]["broker-a"]["consumeEnable"] is True


async def test_a_group_that_nobody_knows(tmp_path: Path) -> None:
    """The answer is 404."""
    async with asking(tmp_path) as ask:
        html = await ask.page("/group", 404, group="<i>")
        assert "no broker knows group &#39;&lt;i&gt;&#39;" in html
        assert "group is missing" in await ask.page("/group", 400)


async def test_a_group_without_offsets(tmp_path: Path) -> None:
    """It has settings, and no queues."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        await group_views.change_group(client.groups, "idle", retries=3)
        html = await ask.page("/group", group="idle")
        assert "The group has no offsets." in html
        assert "No members are online." in html
        (row,) = (await ask.values("/groups"))["groups"]
        assert (row["group"], row["lag"], row["behindMs"]) == ("idle", 0, None)
