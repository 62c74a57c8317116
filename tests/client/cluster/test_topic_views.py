"""What changes of topics did, on which brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import BrokerError, Client, NoRoute
from rmqkit.client.cluster.topic_views import (
    TopicChange,
    delete_topic,
    put_topic,
    topic_route,
    topic_settings,
)
from rmqkit.testing.broker import running_cluster


async def test_a_change_tells_what_it_did(tmp_path: Path) -> None:
    """A topic is created, changed, left as it is, and deleted; then no broker has it."""
    on = ("broker-a",)
    async with running_cluster(tmp_path) as running, Client(running.namesrv_text) as client:
        admin = client.admin
        assert await put_topic(admin, "New", queues=2) == TopicChange(topic="New", created=on)
        assert await put_topic(admin, "New", queues=2) == TopicChange(topic="New", unchanged=on)
        assert await put_topic(admin, "New", queues=3) == TopicChange(topic="New", updated=on)
        (queues,) = (await topic_route(admin, "New")).queue_datas
        assert (queues.broker_name, queues.read_queue_nums) == ("broker-a", 3)
        assert await delete_topic(admin, "New") == TopicChange(topic="New", deleted=on)
        with pytest.raises(NoRoute, match="the topic does not exist"):
            await delete_topic(admin, "New")
        with pytest.raises(NoRoute, match="rmqkit topic create New"):
            await topic_route(admin, "New")


async def test_the_settings_of_a_topic(tmp_path: Path) -> None:
    """They are told for each broker, with the attributes; another type replaces the one before, and no type
    leaves it."""
    async with running_cluster(tmp_path) as running, Client(running.namesrv_text) as client:
        admin = client.admin
        await put_topic(admin, "Typed", queues=2, message_type="FIFO")
        assert await put_topic(admin, "Typed", queues=2, message_type="DELAY") == TopicChange(
            topic="Typed", updated=("broker-a",)
        )
        assert await put_topic(admin, "Typed", queues=2) == TopicChange(
            topic="Typed", unchanged=("broker-a",)
        )
        settings = await topic_settings(admin, "Typed")
        assert {name: config.attributes for name, config in settings.items()} == {
            "broker-a": {"message.type": "DELAY"}
        }
        with pytest.raises(BrokerError, match="value is not in set"):
            await put_topic(admin, "Typed", queues=2, message_type="Delay")
        with pytest.raises(NoRoute, match="rmqkit topic create Nowhere"):
            await topic_settings(admin, "Nowhere")
