"""A broker without sockets whose service of windows runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.model.topic import TopicConfig
from rmqkit_dedup.service import DedupService
from tests.broker.desk import BrokerHarness, open_desk

Opened = Callable[..., AbstractAsyncContextManager[BrokerHarness]]


@asynccontextmanager
async def at_work(desk: BrokerHarness) -> AsyncIterator[DedupService]:
    """The service runs as on a master."""
    service = desk.broker.registry.services["dedup"]
    assert isinstance(service, DedupService)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run, desk.broker)
        yield service
        nursery.cancel_scope.cancel()


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens a broker with settings; its topic T has a window of a minute."""

    @asynccontextmanager
    async def open_(**keys: Any) -> AsyncIterator[BrokerHarness]:
        async with open_desk(tmp_path, **keys) as desk, at_work(desk):
            await put_topic(desk)
            yield desk

    return open_


@pytest.fixture
async def desk(opened: Opened) -> AsyncIterator[BrokerHarness]:
    async with opened() as desk:
        yield desk


async def put_topic(desk: BrokerHarness, topic: str = "T", **attributes: str) -> None:
    """Give a topic a window of a minute, and wait until it is complete."""
    given = {"dedup.window": "1m"} | {name.replace("_", "."): value for name, value in attributes.items()}
    await desk.broker.topics.put(
        TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, attributes=given)
    )
    await trio.testing.wait_all_tasks_blocked()
