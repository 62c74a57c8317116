"""Offsets that were committed after their topic was deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.broker.run.deleted_topics import forget_deleted_topics
from rmqkit.plugin.role import Role
from rmqkit.testing.store import message
from tests.broker.desk import open_desk

_DAY_S = 24 * 3600


@pytest.mark.row("S265")
@pytest.mark.parametrize("role", [Role.MASTER, Role.SLAVE])
async def test_offsets_of_deleted_topics_are_removed_once_a_day(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, role: Role
) -> None:
    """Those of topics that exist, whose messages are still there, or to which somebody subscribes stay; so do
    all of a slave, whose topics may not have been copied yet."""
    async with open_desk(tmp_path) as desk, trio.open_nursery() as nursery:
        broker = desk.broker
        broker.store.append([message(topic="Stored")])
        await desk.subscribe("reading", topic="Read")
        committed = [("T", "g"), ("Gone", "g"), ("Gone", "h"), ("Read", "reading"), ("Stored", "g")]
        for topic, group in committed:
            broker.offsets.commit(group, topic, 0, 5)
        broker.role.current = role
        nursery.start_soon(forget_deleted_topics, broker)
        await trio.sleep(_DAY_S - 1)
        assert sorted(broker.offsets.pairs()) == sorted(committed)
        await trio.sleep(2)
        left = [pair for pair in committed if role is Role.SLAVE or pair[0] != "Gone"]
        assert sorted(broker.offsets.pairs()) == sorted(left)
        broker.offsets.commit("g", "Gone", 0, 6)
        await trio.sleep(_DAY_S)
        assert sorted(broker.offsets.pairs()) == sorted(left)
        nursery.cancel_scope.cancel()
