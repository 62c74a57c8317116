"""Dead letters of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import Client, Message, MessageQueue
from rmqkit.client.cluster.dead_letter_views import RESEND_GROUP, dead_letters, first_waiting
from rmqkit.model.names import dlq_topic
from rmqkit.testing.broker import running_cluster


async def test_dead_letters_are_counted(tmp_path: Path) -> None:
    """Those before the offset of the group that sends them again do not wait."""
    queue = MessageQueue(dlq_topic("billing"), "broker-a", 0)
    async with running_cluster(tmp_path) as running, Client(running.namesrv_text) as client:
        assert await dead_letters(client.admin, client.groups) == []
        await client.admin.create_topic(queue.topic, queues=1)
        async with client.producer("shop") as producer:
            for body in (b"0", b"1", b"2"):
                await producer.send(Message(queue.topic, body), queue=queue)
        async with client.pull_consumer(RESEND_GROUP) as consumer:
            await consumer.commit(queue, 2)
        (found,) = await dead_letters(client.admin, client.groups)
        assert (found.group, found.messages, found.not_resent) == ("billing", 3, 1)
        assert found.last_ms > 0


@pytest.mark.parametrize(("committed", "first"), [(None, 4), (3, 4), (4, 4), (6, 6), (9, 9), (10, 4)])
def test_where_sending_again_goes_on(committed: int | None, first: int) -> None:
    """An offset outside the queue is that of a former topic."""
    assert first_waiting(committed, 4, 9) == first
