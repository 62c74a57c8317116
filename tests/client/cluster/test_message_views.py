"""A message and who consumed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import Client, ClientError, DeadLetter, Retry
from rmqkit.client.cluster.message_views import ConsumedState, Kept, message_view, messages_by_id, view_dict
from rmqkit.client.cluster.reasons import Reason
from rmqkit.testing.broker import running_cluster
from tests.client.cluster.test_group_admin import QUEUE, consumed


async def test_a_message_and_its_consumers(tmp_path: Path) -> None:
    """The offset of a group tells whether it has consumed a message; without a trace topic there are no
    events."""
    async with consumed(tmp_path) as client:
        async with client.pull_consumer("billing") as consumer:
            messages = (await consumer.pull(QUEUE, 0)).messages
        states = []
        for message in (messages[0], messages[2]):
            (found,) = await messages_by_id(client.admin, message.offset_message_id)
            assert found.body == message.body
            view = await message_view(client.admin, client.groups, found)
            (group,) = view.consumers
            assert (group.group, group.committed, view.events) == ("billing", 2, ())
            states.append(group.state)
        assert states == [ConsumedState.CONSUMED, ConsumedState.WAITING]


async def test_a_message_that_was_sent_back(tmp_path: Path) -> None:
    """What a group that could not consume it has of it is there by time, a dead letter with its reason; both
    can be looked at themselves."""
    async with (
        running_cluster(tmp_path, messageDelayLevel="1s") as running,
        Client(running.namesrv_text, connect=running.connect) as client,
    ):
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            sent = await producer.send("Orders", b"3")
        (found,) = await messages_by_id(client.admin, sent.message_id, "Orders")
        async with client.push_consumer("billing", subscribe="Orders", start="first") as consumer:
            async for delivery in consumer:
                async with delivery:
                    view = await message_view(client.admin, client.groups, found)
                    if delivery.message.reconsume_times == 0:
                        assert view.copies == ()
                        raise Retry(1)
                    assert [each.kept for each in view.copies] == [Kept.RETRY]
                    consumer.stop()
                    raise DeadLetter("no use")
        view = await message_view(client.admin, client.groups, found)
        retry, dead = view.copies
        assert (retry.group, retry.kept, retry.deliveries, retry.reason) == ("billing", Kept.RETRY, 1, None)
        assert (dead.kept, dead.reason) == (
            Kept.DEAD_LETTER,
            Reason(cause="asked", attempts=2, error="no use"),
        )
        assert [each["kept"] for each in view_dict(view)["copies"]] == ["retry", "dead letter"]
        (stored,) = await messages_by_id(client.admin, dead.offset_message_id, dead.topic)
        assert stored.body == b"3"


async def test_ids_of_producers_need_a_topic(tmp_path: Path) -> None:
    """The errors tell whether the topic is missing or the message."""
    async with consumed(tmp_path) as client:
        async with client.producer("shop") as producer:
            sent = await producer.send("Orders", b"3", queue=QUEUE)
        (found,) = await messages_by_id(client.admin, sent.message_id, "Orders")
        assert found.body == b"3"
        with pytest.raises(ClientError, match="try --topic"):
            await messages_by_id(client.admin, sent.message_id)
        with pytest.raises(ClientError, match="topic 'Orders' has no message"):
            await messages_by_id(client.admin, "0" * 32, "Orders")
