"""What expires: lite topics after their last message, and subscriptions of clients that are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.model.names import lite_queue
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.testing.store import message
from rmqkit_pop.lite.service import EXPIRATION, LiteService, clean_topics
from rmqkit_pop.lite.topics import LiteTopics
from tests.plugins.pop.pop_desk import GROUP, TOPIC, PopDesk, open_pop_desk

MINUTE_MS = 60_000
ONE = lite_queue(TOPIC, "one")


@pytest.fixture
async def pops(tmp_path: Path) -> AsyncIterator[PopDesk]:
    """A broker with a topic whose lite topics expire after twenty minutes."""
    async with open_pop_desk(tmp_path) as pops, trio.open_nursery() as nursery:
        await nursery.start(service_of(pops).run, pops.desk.broker)
        await pops.desk.broker.topics.put(
            TopicConfig(topic_name=TOPIC, attributes={"message.type": "LITE", EXPIRATION: "20"})
        )
        await pops.desk.broker.groups.put(SubscriptionGroupConfig(group_name=GROUP))
        yield pops
        nursery.cancel_scope.cancel()


def service_of(pops: PopDesk) -> LiteService:
    service = pops.desk.broker.registry.services["lite"]
    assert isinstance(service, LiteService)
    return service


def lites_of(pops: PopDesk) -> LiteTopics:
    lites = service_of(pops).lites
    assert lites is not None
    return lites


def store(pops: PopDesk, lite_topic: str = "one") -> None:
    made = message(TOPIC, 0, b"x")
    made.set_properties({"__LITE_TOPIC": lite_topic})
    pops.desk.broker.appender.append(MessageRun([made]))


async def clean(pops: PopDesk) -> int:
    return await clean_topics(lites_of(pops), pops.desk.clock.now_ms())


async def test_a_lite_topic_expires_after_its_last_message(pops: PopDesk) -> None:
    """And then it is gone with its offsets; a new one begins at 0."""
    store(pops)
    pops.desk.broker.offsets.commit("another", ONE, 0, 1)
    pops.desk.clock.advance(19 * MINUTE_MS)
    store(pops)
    pops.desk.clock.advance(19 * MINUTE_MS)
    assert await clean(pops) == 0
    pops.desk.clock.advance(2 * MINUTE_MS)
    assert await clean(pops) == 1
    assert pops.desk.broker.store.max_offset(ONE, 0) == 0
    assert pops.desk.broker.offsets.get("another", ONE, 0) is None
    assert lites_of(pops).count == 0
    store(pops)
    assert pops.desk.broker.store.max_offset(ONE, 0) == 1


async def test_it_waits_for_groups_that_subscribe(pops: PopDesk) -> None:
    """Until they have consumed it; the client is no longer subscribed then."""
    store(pops)
    lites = lites_of(pops)
    client = lites.subscriptions.said(GROUP, "c", TOPIC, 0)
    lites.subscriptions.add(client, [ONE])
    pops.desk.clock.advance(21 * MINUTE_MS)
    assert await clean(pops) == 0
    pops.desk.broker.offsets.commit(GROUP, ONE, 0, 1)
    assert await clean(pops) == 1
    assert not client.queues


@pytest.mark.parametrize("text", ["-1", "1"])
async def test_no_lite_topic_expires_early(pops: PopDesk, text: str) -> None:
    """Never without an expiration, and not before minLiteTTl."""
    await pops.desk.broker.topics.put(
        TopicConfig(topic_name=TOPIC, attributes={"message.type": "LITE", EXPIRATION: text})
    )
    store(pops)
    pops.desk.clock.advance(10 * MINUTE_MS)
    assert await clean(pops) == 0
    pops.desk.clock.advance(10 * MINUTE_MS)
    assert await clean(pops) == (text == "1")


async def test_the_service_knows_what_is_stored(pops: PopDesk) -> None:
    """Its figures say it, also those of a service that begins later."""
    for name in ("one", "two"):
        store(pops, name)
    assert service_of(pops).figures() == {"liteTopics": 2, "liteSubscriptions": 0}
    lites = lites_of(pops)
    lites.load()
    assert lites.queues == {TOPIC: dict.fromkeys([ONE, lite_queue(TOPIC, "two")])}
    assert LiteService().figures() == {}
