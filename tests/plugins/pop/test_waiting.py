"""What pops and notifications have in common."""

from __future__ import annotations

from typing import Any

import pytest

from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.headers import PopMessageRequestHeader
from rmqkit_pop.limits import MAX_POLL_MS
from rmqkit_pop.waiting import check_wait, held_keys, held_offsets, own_sources
from tests.plugins.pop.pop_desk import PopDesk

NOW_MS = 1_000_000


def header(**fields: int) -> PopMessageRequestHeader:
    given: dict[str, Any] = {
        "queue_id": -1,
        "max_msg_nums": 1,
        "invisible_time": 1,
        "poll_time": 15_000,
    } | fields
    return PopMessageRequestHeader(consumer_group="g", topic="T", **given)


@pytest.mark.parametrize(
    ("fields", "until_ms"),
    [
        ({}, NOW_MS + 15_000),
        ({"born_time": NOW_MS - 5_000}, NOW_MS + 15_000),
        ({"born_time": NOW_MS - 3_600_000}, NOW_MS + 15_000),
        ({"born_time": NOW_MS + 3_600_000}, NOW_MS + 15_000),
        ({"born_time": -(2**63)}, NOW_MS + 15_000),
        ({"poll_time": 2**62}, NOW_MS + MAX_POLL_MS),
        ({"poll_time": 0}, NOW_MS),
        ({"poll_time": -100}, NOW_MS),
    ],
)
def test_how_long_a_request_waits(fields: dict[str, int], until_ms: int) -> None:
    """As long as it says, within limits, from its arrival on: the clock of a client may be wrong."""
    assert check_wait(header(**fields), NOW_MS) == until_ms


def test_the_queues_of_a_request() -> None:
    """All, each time beginning with another, or one."""
    config = TopicConfig(topic_name="T", read_queue_nums=3)
    ids = [[source.key.queue_id for source in own_sources(header(), config, first)] for first in range(3)]
    assert ids == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert [source.key.queue_id for source in own_sources(header(queue_id=1), config, 7)] == [1]


async def test_what_a_request_waits_for(pops: PopDesk) -> None:
    """Its queues where it has read them, the retry topic, which need not exist, and the end of leases; each
    once."""
    assert pops.service.engine is not None
    await pops.desk.sent(body=b"a", queue_id=1)
    await pops.pop()
    config = pops.desk.broker.topics.configs["T"]
    keys = held_keys(pops.service.engine, header(), config)
    assert len(set(keys)) == len(keys) == 6
    assert ("%RETRY%g_T", 0) in keys
    assert list(held_offsets(pops.service.engine, header(), keys)) == [0, 1, 0, 0, 0, 0]
