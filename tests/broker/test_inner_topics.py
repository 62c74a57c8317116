"""The topics that a broker creates for itself: retry and dead-letter topics by group, delayed messages by
level (behaviour sheet, B11 and C4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.model import properties as props
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol.headers import SendMessageResponseHeader
from rmqkit_delay.levels import parse_levels
from rmqkit_delay.settings import DelaySettings
from tests.broker.desk import open_desk


def physical_offset(header: SendMessageResponseHeader) -> int:
    return int(header.msg_id[-16:], 16)


@pytest.mark.row("S234", "S247")
async def test_retries_and_dead_letters_belong_to_their_group(tmp_path: Path) -> None:
    """Each group has its own retry and dead-letter topics, whose messages other groups do not see."""
    async with open_desk(tmp_path, disabledServices=("delay",)) as desk:
        at = physical_offset(await desk.sent(body=b"poison"))
        for group in ("g1", "g1", "g2"):
            assert (await desk.send_back(at, group=group)).code == 0
        assert (await desk.send_back(at, group="g1", delay_level=-1)).code == 0
        queues = {topic: list(ids) for topic, ids in desk.broker.store.queues().items()}
        assert queues == {"T": [0], "%RETRY%g1": [0], "%RETRY%g2": [0], "%DLQ%g1": [0]}
        assert [stored.reconsume_times for stored in desk.stored("%RETRY%g1")] == [1, 1]
        assert [stored.reconsume_times for stored in desk.stored("%RETRY%g2")] == [1]
        (first, second) = desk.stored("%RETRY%g1")
        assert (first.queue_offset, second.queue_offset) == (0, 1)
        assert (await desk.send_back(second.physical_offset, group="g1")).code == 0
        assert [stored.reconsume_times for stored in desk.stored("%RETRY%g1")] == [1, 1, 2]
        assert [stored.reconsume_times for stored in desk.stored("%RETRY%g2")] == [1]
        assert [stored.reconsume_times for stored in desk.stored("T")] == [0]


@pytest.mark.row("S247")
async def test_a_group_may_have_several_retry_queues(tmp_path: Path) -> None:
    """The topic has retryQueueNums queues, by default one; each retry goes to a random one."""
    async with open_desk(tmp_path, disabledServices=("delay",)) as desk:
        await desk.broker.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
        at = physical_offset(await desk.sent())
        for _ in range(60):
            assert (await desk.send_back(at)).code == 0
        assert [len(desk.stored("%RETRY%g", queue_id)) > 0 for queue_id in range(4)] == [
            True,
            True,
            True,
            False,
        ]


@pytest.mark.row("S235")
@pytest.mark.parametrize("level", range(1, 19))
async def test_a_delay_level_has_its_queue(tmp_path: Path, level: int) -> None:
    """SCHEDULE_TOPIC_XXXX, queue = level - 1; its entry holds the time of delivery, so levels 3 and 4 wait
    10 and 30 s in queues 2 and 3."""
    levels = parse_levels(DelaySettings().message_delay_level)
    assert len(levels) == 18
    assert levels[2:4] == (10_000, 30_000)
    async with open_desk(tmp_path) as desk:
        await desk.sent(queue_id=1, properties={props.DELAY: str(level)})
        assert {topic: list(ids) for topic, ids in desk.broker.store.queues().items()} == {
            SCHEDULE_TOPIC: [level - 1]
        }
        (unit,) = desk.broker.store.read_units(SCHEDULE_TOPIC, level - 1, 0, 9)
        assert unit.tags_code == desk.clock.now_ms() + levels[level - 1]
        (stored,) = desk.stored(SCHEDULE_TOPIC, level - 1)
        assert (stored.properties[props.REAL_TOPIC], stored.properties[props.REAL_QUEUE_ID]) == ("T", "1")


@pytest.mark.row("S235")
async def test_there_is_no_level_behind_the_last(tmp_path: Path) -> None:
    """A higher level counts as the eighteenth."""
    async with open_desk(tmp_path) as desk:
        await desk.sent(properties={props.DELAY: "19"})
        assert {topic: list(ids) for topic, ids in desk.broker.store.queues().items()} == {
            SCHEDULE_TOPIC: [17]
        }
