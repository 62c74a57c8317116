"""A message and who consumed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import ClientError
from rmqkit.client.cluster.message_views import ConsumedState, message_view, messages_by_id
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
