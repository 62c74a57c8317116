"""Records that brokers have set aside, counted."""

from __future__ import annotations

from typing import cast

from rmqkit.client import MessageQueue, NoRoute, Progress, QueueStats
from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.client.cluster.set_aside_views import RESEND_GROUP, records_aside
from rmqkit.model.names import SET_ASIDE_TOPIC

FIRST, SECOND, THIRD = (MessageQueue(SET_ASIDE_TOPIC, f"broker-{name}", 0) for name in "abc")


class Brokers:
    """Admin and group admin of brokers with records aside: 2 to 7, 0 to 4 and 0 to 3."""

    def __init__(self, *, there: bool = True) -> None:
        self._there = there

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        assert topic == SET_ASIDE_TOPIC
        if not self._there:
            raise NoRoute("none", "a test")
        ends = {FIRST: (2, 7), SECOND: (0, 4), THIRD: (0, 3)}
        return {
            queue: QueueStats(min_offset=low, max_offset=high, last_update_timestamp_ms=0)
            for queue, (low, high) in ends.items()
        }

    async def progress(self, group: str, topic: str) -> dict[MessageQueue, Progress]:
        assert (group, topic) == (RESEND_GROUP, SET_ASIDE_TOPIC)
        committed = {SECOND: 1, THIRD: 3}
        return {
            queue: Progress(committed=offset, end=9, pulled=offset, last_consumed_ms=0)
            for queue, offset in committed.items()
        }


async def test_records_that_wait_are_counted() -> None:
    """Those before the offset of the group that sends them again do not wait, and a broker without some is
    left out."""
    brokers = Brokers()
    found = await records_aside(cast(Admin, brokers), cast(GroupAdmin, brokers))
    assert found == {"broker-a": 5, "broker-b": 3}


async def test_no_broker_has_the_topic() -> None:
    """Brokers of others have none."""
    brokers = Brokers(there=False)
    assert await records_aside(cast(Admin, brokers), cast(GroupAdmin, brokers)) == {}
