"""Copies of messages that are sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import Client, Message, copying
from rmqkit.client.cluster.copying import ORIGINAL, RETRY, Sender, dead_letter_again
from rmqkit.errors import ClientError
from rmqkit.model import properties as props
from rmqkit.model.names import dlq_topic, retry_topic
from rmqkit.testing.broker import running_cluster


async def test_where_a_dead_letter_goes(tmp_path: Path) -> None:
    """To the topic that it was sent to, to its group alone, or elsewhere; with its tag, and without what only
    its first sending had."""
    async with running_cluster(tmp_path) as running, Client(running.namesrv_text) as client:
        topic = dlq_topic("billing")
        await client.admin.create_topic(topic, queues=1)
        async with client.producer("shop") as producer, copying.reader(client) as reader:
            sender = Sender(producer, None)
            origin = {props.DLQ_ORIGIN_TOPIC: "Orders"}
            for properties in (origin, {}):
                await producer.send(Message(topic, b"x", tag="new", properties=properties))
            span = await copying.span(client, topic)
            assert copying.count(span) == 2
            known, unknown = [message async for message in copying.read(reader, span)]
            copy = dead_letter_again(known, "billing", ORIGINAL)
            assert (copy.topic, copy.all_properties()[props.TAGS], copy.body) == ("Orders", "new", b"x")
            assert props.UNIQ_KEY not in copy.all_properties()
            retried = dead_letter_again(known, "billing", RETRY)
            assert (retried.topic, retried.all_properties()[props.RETRY_TOPIC]) == (
                retry_topic("billing"),
                "Orders",
            )
            assert dead_letter_again(unknown, "billing", "Elsewhere").topic == "Elsewhere"
            with pytest.raises(ClientError, match="does not name its topic"):
                dead_letter_again(unknown, "billing", ORIGINAL)
            await client.admin.create_topic("Orders", queues=1)
            await sender.send(copy, known)
            assert copying.count(await copying.span(client, "Orders")) == 1
