"""Committed offsets of groups."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.testing.clock import FakeClock


@pytest.fixture
def table(tmp_path: Path) -> OffsetTable:
    return OffsetTable(FakeClock(), tmp_path)


@pytest.mark.row("S056", "S007")
def test_a_commit_is_read_back(table: OffsetTable) -> None:
    """Offsets are kept by group, topic and queue; one that was never committed is None."""
    table.commit("g", "T", 0, 7)
    assert table.get("g", "T", 0) == 7
    assert (table.get("g", "T", 1), table.get("g", "U", 0), table.get("h", "T", 0)) == (None, None, None)


def test_going_backwards_is_allowed(table: OffsetTable) -> None:
    """A reset, or an ordered consumer's retry, commits a smaller offset."""
    table.commit("g", "T", 0, 7)
    table.commit("g", "T", 0, 3)
    assert table.get("g", "T", 0) == 3


@pytest.mark.row("S077", "S230")
async def test_offsets_survive_a_restart(table: OffsetTable, tmp_path: Path) -> None:
    """consumerOffset.json maps topic@group to queue and offset."""
    table.commit("g", "T", 0, 7)
    table.commit("g", "%RETRY%g", 0, 1)
    await table.persist()
    written = msgspec.json.decode((tmp_path / "consumerOffset.json").read_bytes())
    assert written["offsetTable"] == {"T@g": {"0": 7}, "%RETRY%g@g": {"0": 1}}
    again = OffsetTable(FakeClock(), tmp_path)
    again.load()
    assert again.queues("g", "T") == {0: 7}
    assert again.get("g", "%RETRY%g", 0) == 1


async def test_an_unchanged_table_is_not_written(table: OffsetTable, tmp_path: Path) -> None:
    """The periodic write costs nothing without commits."""
    await table.persist()
    assert os.listdir(tmp_path) == []
    table.commit("g", "T", 0, 7)
    await table.persist()
    os.unlink(tmp_path / "consumerOffset.json")
    await table.persist()
    assert os.listdir(tmp_path) == []


async def test_a_write_that_failed_is_tried_again(
    table: OffsetTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk the next round writes the offsets."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    table.commit("g", "T", 0, 7)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            await table.persist()
    await table.persist()
    again = OffsetTable(FakeClock(), tmp_path)
    again.load()
    assert again.get("g", "T", 0) == 7


def test_the_version_moves_every_500_commits(table: OffsetTable) -> None:
    """The version follows Java's consumerOffsetUpdateVersionStep."""
    for offset in range(499):
        table.commit("g", "T", 0, offset)
    assert table.table().data_version.counter == 0
    table.commit("g", "T", 0, 499)
    assert table.table().data_version.counter == 1


def test_topics_and_groups_of_each_other(table: OffsetTable) -> None:
    """Names with common beginnings or ends are distinguished."""
    for group, topic in (("g", "T"), ("g", "T2"), ("gg", "T"), ("g", "TT")):
        table.commit(group, topic, 0, 1)
    assert table.topics_of("g") == ["T", "T2", "TT"]
    assert table.groups_of("T") == ["g", "gg"]


async def test_forgetting_a_topic_or_a_group(table: OffsetTable, tmp_path: Path) -> None:
    """Only its own offsets are removed, also from the file."""
    for group, topic in (("g", "T"), ("gg", "T"), ("g", "TT"), ("h", "TT")):
        table.commit(group, topic, 0, 1)
    await table.persist()
    table.forget_topic("T")
    table.forget_group("g")
    assert table.groups_of("TT") == ["h"]
    assert table.groups_of("T") == []
    await table.persist()
    assert list(msgspec.json.decode((tmp_path / "consumerOffset.json").read_bytes())["offsetTable"]) == [
        "TT@h"
    ]


def test_reading_the_queues_gives_a_copy(table: OffsetTable) -> None:
    """Changing the result does not change the table."""
    table.commit("g", "T", 0, 7)
    table.queues("g", "T")[0] = 99
    assert table.get("g", "T", 0) == 7


def test_offsets_end_where_their_queues_do(table: OffsetTable) -> None:
    """Offsets beyond the end of a queue that was cut become its end; the others stay."""
    for queue_id, offset in ((0, 7), (1, 3)):
        table.commit("g", "T", queue_id, offset)
    table.commit("h", "U", 0, 2)
    ends = {("T", 0): 5, ("T", 1): 3}
    assert table.limit(lambda topic, queue_id: ends.get((topic, queue_id), 0)) == 2
    assert (table.queues("g", "T"), table.queues("h", "U")) == ({0: 5, 1: 3}, {0: 0})
    assert table.limit(lambda topic, queue_id: ends.get((topic, queue_id), 0)) == 0
