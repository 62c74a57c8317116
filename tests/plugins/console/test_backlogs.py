"""The page of what waits inside the brokers."""

from __future__ import annotations

from pathlib import Path

from rmqkit.client import Message
from tests.plugins.console.asking import asking


async def test_what_waits(tmp_path: Path) -> None:
    """Messages with a time of delivery are counted, in HTML and in JSON; a quiet cluster has none."""
    async with asking(tmp_path) as ask:
        quiet = await ask.values("/backlogs")
        assert quiet["leased"] == {}
        assert quiet["brokers"][0]["timersWaiting"] == 0
        client = ask.console.client
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            await producer.send(Message("Orders", b"x", delay_level=18))
        values = await ask.values("/backlogs")
        assert [each["broker"] for each in values["brokers"]] == ["broker-a"]
        assert values["stored"]["delayLevels"] == 1
        assert (values["brokers"][0]["delayed"], values["brokers"][0]["delayedByLevel"]) == (1, {"18": 1})
        assert values["brokers"][0]["transactionsOpen"] == 0
        html = await ask.page("/backlogs")
        assert "<td>18: 1</td>" in html
        assert "Stored for delay levels</dt><dd>1</dd>" in html


async def test_popped_messages(tmp_path: Path) -> None:
    """A group that has popped a message and not finished it is named."""
    async with asking(tmp_path) as ask:
        client = ask.console.client
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            await producer.send(Message("Orders", b"x"))
        async with client.pop_consumer("billing", subscribe="Orders") as consumer:
            async for delivery in consumer:
                async with delivery:
                    values = await ask.values("/backlogs")
                    html = await ask.page("/backlogs")
                    consumer.stop()
        assert values["leased"] == {"billing": 1}
        assert '<a href="/group?group=billing">billing</a>' in html
