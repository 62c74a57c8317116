"""Views of groups and of what was done to them, against a broker of rmqkit."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import ClientError, MessageQueue
from rmqkit.client.cluster.group_admin import END_MS, Progress
from rmqkit.client.cluster.group_views import (
    GroupLag,
    OffsetMove,
    delete_group,
    group_lag,
    group_summaries,
    group_view,
    move_to_offset,
    move_to_time,
)
from tests.client.cluster.test_group_admin import QUEUE, consumed


async def test_a_group_is_summed_up(tmp_path: Path) -> None:
    """A list has the groups of applications, or all; a view has the settings and the lag by topic."""
    async with consumed(tmp_path) as client:
        (summary,) = await group_summaries(client.groups)
        assert (summary.group, summary.topics, summary.lag) == ("billing", ("Orders",), 1)
        assert summary.brokers == ("broker-a",)
        assert len(await group_summaries(client.groups, system=True)) > 1
        view = await group_view(client.groups, "billing")
        assert (view.lag, view.lag_by_topic) == (1, {"Orders": 1})
        assert view.settings is not None
        assert view.settings["broker-a"].group_name == "billing"
        with pytest.raises(ClientError, match="no broker knows group 'nobody'"):
            await group_view(client.groups, "nobody")


async def test_the_lag_has_the_ages_of_messages(tmp_path: Path) -> None:
    """The broker tells how old the first message is that was not consumed."""
    async with consumed(tmp_path) as client:
        lag = await group_lag(client.groups, "billing")
        assert (lag.total, lag.queues_beyond_end) == (1, 0)
        assert lag.queues[QUEUE].behind_ms is not None
        with pytest.raises(ClientError, match="'nobody' has no offsets; "):
            await group_lag(client.groups, "nobody")
        with pytest.raises(ClientError, match="no offsets in topic 'Missing'"):
            await group_lag(client.groups, "billing", "Missing")


def test_offsets_beyond_the_end_are_no_lag() -> None:
    """The oldest message counts, and a broker may not tell its age."""

    def progress(committed: int, behind_ms: int | None) -> Progress:
        return Progress(committed=committed, end=5, pulled=5, last_consumed_ms=0, behind_ms=behind_ms)

    queues = {QUEUE: progress(9, None)}
    assert GroupLag(group="g", queues=queues).behind_ms == 0
    other = {MessageQueue("Orders", "broker-a", 1): progress(3, 70)}
    lag = GroupLag(group="g", queues=queues | other)
    assert (lag.total, lag.queues_beyond_end, lag.behind_ms) == (2, 1, 70)


async def test_a_reset_tells_both_offsets(tmp_path: Path) -> None:
    """A dry run tells the same and changes nothing."""
    async with consumed(tmp_path) as client:
        groups = client.groups
        assert await move_to_time(groups, "billing", "Orders", 0, dry_run=True) == [OffsetMove(QUEUE, 2, 0)]
        assert await move_to_time(groups, "billing", "Orders", END_MS) == [OffsetMove(QUEUE, 2, 3)]
        assert await move_to_offset(groups, "billing", QUEUE, 1, dry_run=True) == [OffsetMove(QUEUE, 3, 1)]
        assert await move_to_offset(groups, "billing", QUEUE, 0) == [OffsetMove(QUEUE, 3, 0)]
        (missing,) = await move_to_offset(
            groups, "billing", MessageQueue("Missing", "broker-a", 0), 7, dry_run=True
        )
        assert (missing.before, missing.after) == (None, 7)


async def test_a_deleted_group_tells_its_brokers(tmp_path: Path) -> None:
    """An unknown group is an error."""
    async with consumed(tmp_path) as client:
        done = await delete_group(client.admin, client.groups, "billing")
        assert (done.group, done.brokers) == ("billing", ("broker-a",))
        with pytest.raises(ClientError, match="no broker knows group"):
            await delete_group(client.admin, client.groups, "billing")
