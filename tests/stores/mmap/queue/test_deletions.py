"""Deleted topics and queues do not come back from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqkit.model.run import MessageRun
from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from rmqkit.testing.store import bodies, message, running
from tests.stores.crashes import FIRST, make, write_at


async def test_a_topic_made_anew_is_found_as_it_was_last(tmp_path: Path) -> None:
    """Queues built from the log of a topic that was deleted and made anew hold what came after."""
    async with running(make(tmp_path / "live")) as store:
        store.append([message(body=b"old")] * 15)
        store.delete_topic("Orders")
        store.append([message(body=b"new")] * 2)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "crashed" / "consumequeue")
        (tmp_path / "crashed" / "abort").write_text("1")
        async with running(make(tmp_path / "crashed")) as store:
            assert bodies(store) == [b"new"] * 2


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_deleted_topic_stays_deleted_when_queues_are_made_again(
    tmp_path: Path, with_index: bool
) -> None:
    """Neither a deleted topic nor a deleted queue comes back from the log, after a stop, after a kill, and
    when the index is made again as well. What was sent to it later is there."""
    async with running(make(tmp_path / "live")) as store:
        for topic in ("Gone", "Back", "Kept"):
            store.append([message(topic, number % 2, keys="k") for number in range(10)])
        for topic in ("Gone", "Back"):
            store.delete_topic(topic)
        store.delete_queue("Kept", 1)
        assert store.append([message("Back", body=b"new")])[0].queue_offset == 0
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    for name in ("live", "killed"):
        for _ in range(2):
            shutil.rmtree(tmp_path / name / "consumequeue")
            if with_index:
                shutil.rmtree(tmp_path / name / "index")
            async with running(make(tmp_path / name)) as store:
                assert store.queues() == {"Back": [0], "Kept": [0]}
                assert bodies(store, "Back") == [b"new"]
                assert len(bodies(store, "Kept")) == 5
                assert store.append([message("Gone", 1)])[0].queue_offset == 0
                store.delete_topic("Gone")


async def test_a_deletion_counts_for_no_record_behind_a_log_that_was_cut(tmp_path: Path) -> None:
    """When a loss of power took the end of the log, what is sent to the topic then lies before where it
    was deleted, and is not dead."""
    async with running(make(tmp_path / "live")) as store:
        store.append([message("Kept"), message("Gone", body=b"lost")])
        store.delete_topic("Gone")
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log = tmp_path / "crashed" / "commitlog" / FIRST
    write_at(log, int.from_bytes(log.read_bytes()[:4], "big"), bytes(500))
    for _ in range(2):
        async with running(make(tmp_path / "crashed")) as store:
            store.append([message("Gone", body=b"new")])
        shutil.rmtree(tmp_path / "crashed" / "consumequeue")
    async with running(make(tmp_path / "crashed")) as store:
        assert bodies(store, "Gone") == [b"new", b"new"]


async def test_the_file_of_deletions_is_kept_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines of records that retention has deleted are removed; a truncated line is reported, and those before
    it are used."""
    path = tmp_path / "deletedTopics"
    async with running(make(tmp_path)) as store:
        store.append([message("Gone")])
        store.delete_topic("Gone")
        store.delete_topic("NeverThere")
        assert len(path.read_text().splitlines()) == 1
        store.append([message(body=b"x" * 900)] * 200)
        await store._log.flush()
        await store.trim((await store.log_parts())[-1].end)
        assert path.read_text() == ""
        store.append([message("Late")])
        store.delete_topic("Late")
    with path.open("a") as file:
        file.write('{"topic":"Or')
    shutil.rmtree(tmp_path / "consumequeue")
    async with running(make(tmp_path)) as store:
        assert list(store.queues()) == ["Orders"]
    assert "is cut short or damaged in line 2" in caplog.text
    assert len(path.read_text().splitlines()) == 1


async def test_a_deleted_topic_does_not_come_back_with_its_queues(tmp_path: Path) -> None:
    """The store remembers deletions, so a broker whose queues are built again from the log does not put a
    deleted topic back."""
    async with running_broker(tmp_path, store="mmap") as broker:
        for topic in ("Gone", "Kept"):
            await broker.context.topics.put(
                TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
            )
            broker.context.appender.append(MessageRun([message(topic)]))
        await broker.context.topics.delete("Gone")
    shutil.rmtree(tmp_path / "consumequeue")
    async with running_broker(tmp_path, store="mmap") as broker:
        assert broker.context.topics.get("Gone") is None
        assert broker.context.store.queues() == {"Kept": [0]}
