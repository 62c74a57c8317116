"""The topic table: built-in topics, creation, and the effects of changes."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from rmqkit.broker.tables import topics as module
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.errors import ConfigError, RequestRefused, StoreNotWritable
from rmqkit.limits import MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.sysflag import PERM_INHERIT, PERM_READ, PERM_RW
from rmqkit.model.topic import DataVersion, TopicConfig, TopicConfigTable
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.listening import until
from rmqkit.toolkit.unsaved import Unsaved
from tests.broker.kit import config_of


def loaded(directory: Path, **keys: object) -> TopicTable:
    """The table as after the start of a broker, read only."""
    table = TopicTable(config_of(**keys), FakeClock(), directory)
    table.load()
    return table


@asynccontextmanager
async def at_work(directory: Path, **keys: object) -> AsyncIterator[TopicTable]:
    """A table that can be changed; left as by a stopping broker."""
    table = loaded(directory, **keys)
    async with trio.open_nursery() as nursery:
        await nursery.start(table.run)
        yield table
        nursery.cancel_scope.cancel()
    await table.close()


async def auto_create(table: TopicTable, topic: str, template: str, client_queues: int) -> TopicConfig | None:
    """Create a topic as a first send does."""
    with suppress(Unsaved):
        table.auto_create(topic, template, client_queues)
        return None
    await table.pending[topic].done()
    return table.get(topic)


def test_built_in_topics(tmp_path: Path) -> None:
    """A new broker has its system topics with the queue counts and permissions of the sheet, and writes no
    file for them."""
    table = loaded(tmp_path, brokerName="b", brokerClusterName="c")
    found = {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for name, topic in table.configs.items()
    }
    assert found == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "c": (16, 16, 7),
        "b": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "c_REPLY_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
    }
    assert not any(tmp_path.iterdir())


def test_built_in_topics_follow_the_settings(tmp_path: Path) -> None:
    """The template exists with automatic creation, the trace topic by setting; cluster and broker topic may
    lose their permissions."""
    table = loaded(
        tmp_path,
        autoCreateTopicEnable=False,
        traceTopicEnable=True,
        clusterTopicEnable=False,
        brokerTopicEnable=False,
        brokerName="b",
        brokerClusterName="c",
    )
    assert names.TEMPLATE_TOPIC not in table.configs
    assert table.configs[names.TRACE_TOPIC].perm == PERM_RW
    assert (table.configs["c"].perm, table.configs["b"].perm) == (PERM_INHERIT, PERM_INHERIT)


@pytest.mark.row("S016", "S057", "S227")
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_topic_survives_a_restart(tmp_path: Path, stopped: bool) -> None:
    """An acknowledged change is on the disk with the data version, whether the broker stops or dies
    afterwards."""
    topic = TopicConfig(
        topic_name="T",
        read_queue_nums=3,
        write_queue_nums=4,
        perm=PERM_READ,
        order=True,
        attributes={"a": "b"},
    )
    async with at_work(tmp_path) as table:
        assert await table.put(topic)
        again = loaded(tmp_path)
    if stopped:
        again = loaded(tmp_path)
        assert set(os.listdir(tmp_path)) <= {"topics.json", "topics.json.bak"}
    assert again.get("T") == topic
    assert again.data_version.same(table.data_version)
    assert again.data_version.counter == 1


async def test_every_change_moves_the_version_and_is_announced_once(tmp_path: Path) -> None:
    """Creating, changing and deleting increment the version; requests without effect do not."""
    announced: list[int] = []
    async with at_work(tmp_path) as table:
        table.on_change.append(lambda: announced.append(table.data_version.counter))
        assert await table.put(TopicConfig(topic_name="T"))
        assert not await table.put(TopicConfig(topic_name="T"))
        assert await table.put(TopicConfig(topic_name="T", perm=PERM_READ))
        assert await table.delete("T")
        assert not await table.delete("T")
        assert announced == [1, 2, 3]
        assert table.get("T") is None
    assert loaded(tmp_path).get("T") is None


@pytest.mark.parametrize(
    "name", ["", "  ", "../x", "a/b", "a\\b", "a\0b", ".", "a.b", "x" * 128, "%RETRY%" + "x" * 249, "zwölf"]
)
async def test_names_that_could_become_paths_are_refused(tmp_path: Path, name: str) -> None:
    """Separators, dots, NUL, spaces and overlong names are refused."""
    async with at_work(tmp_path) as table:
        before = dict(table.configs)
        with pytest.raises(RequestRefused) as refusal:
            await table.put(TopicConfig(topic_name=name))
        assert refusal.value.code == ResponseCode.INVALID_PARAMETER
        assert table.configs == before


@pytest.mark.parametrize(("read", "write"), [(-1, 1), (1, -1), (MAX_QUEUES_PER_TOPIC + 1, 1), (1, 2**31 - 1)])
async def test_queue_counts_have_limits(tmp_path: Path, read: int, write: int) -> None:
    """A topic has 0 to MAX_QUEUES_PER_TOPIC queues."""
    async with at_work(tmp_path) as table:
        with pytest.raises(RequestRefused, match=f"0 to {MAX_QUEUES_PER_TOPIC} queues") as refusal:
            await table.put(TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write))
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (100, 8), (-3, 0)])
async def test_auto_creation_inherits_from_the_template(tmp_path: Path, asked: int, given: int) -> None:
    """The number of queues is the client's, at most the template's, never negative; permissions are the
    template's without the inherit bit."""
    async with at_work(tmp_path) as table:
        created = await auto_create(table, "T", names.TEMPLATE_TOPIC, asked)
        assert created == TopicConfig(
            topic_name="T", read_queue_nums=given, write_queue_nums=given, perm=PERM_RW
        )
    assert loaded(tmp_path).get("T") == created


async def test_auto_creation_needs_a_template_that_may_be_inherited(tmp_path: Path) -> None:
    """An unknown template, and one without the inherit permission, create nothing."""
    async with at_work(tmp_path) as table:
        await table.put(TopicConfig(topic_name="Plain"))
        assert await auto_create(table, "T", "Nothing", 4) is None
        assert await auto_create(table, "T", "Plain", 4) is None
        assert table.get("T") is None


async def test_auto_creation_can_be_switched_off(tmp_path: Path) -> None:
    """A TBW102 in the file from an earlier start does not enable it."""
    async with at_work(tmp_path) as table:
        await table.put(TopicConfig(topic_name=names.TEMPLATE_TOPIC, perm=PERM_RW | PERM_INHERIT))
    table = loaded(tmp_path, autoCreateTopicEnable=False)
    assert table.get(names.TEMPLATE_TOPIC) is not None
    assert await auto_create(table, "T", names.TEMPLATE_TOPIC, 4) is None


@pytest.mark.row("S228")
async def test_ensure_creates_once(tmp_path: Path) -> None:
    """A retry topic is created with its queues; an existing one is unchanged."""
    async with at_work(tmp_path) as table:
        created = await table.ensure("%RETRY%g", 1)
        assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (1, 1, PERM_RW)
        assert await table.ensure("%RETRY%g", 5) is created


async def test_clients_create_so_many_topics_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile client cannot fill the disk with names; topics created by administrators are not counted."""
    monkeypatch.setattr(module, "MAX_AUTO_CREATED_TOPICS", 2)
    async with at_work(tmp_path) as table:
        await auto_create(table, "T1", names.TEMPLATE_TOPIC, 1)
        await table.ensure("%RETRY%g", 1)
        with pytest.raises(RequestRefused) as refusal:
            table.auto_create("T2", names.TEMPLATE_TOPIC, 1)
        assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST
        assert re.search("create topics by hand", str(refusal.value))
        assert await table.put(TopicConfig(topic_name="T3"))


async def test_the_table_for_registration_is_a_copy(tmp_path: Path) -> None:
    """The copy does not change while it is being sent."""
    async with at_work(tmp_path) as table:
        copy = table.table()
        await table.put(TopicConfig(topic_name="T"))
        assert "T" not in copy.topic_config_table
        assert copy.data_version.counter == 0


async def test_broken_files_stop_the_start(tmp_path: Path) -> None:
    """A broker does not start with an empty table in place of a damaged one."""
    async with at_work(tmp_path) as table:
        await table.put(TopicConfig(topic_name="T"))
    (tmp_path / "topics.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        loaded(tmp_path)


def test_topics_of_the_store_that_the_table_lacks_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic gets the store's number of queues and default permissions, and a limited log line names it.
    System topics are left to their owners, and illegal names are not served."""
    table = loaded(tmp_path)
    assert table.recover({"TBW102": [0], "SCHEDULE_TOPIC_XXXX": [3], "rmq_sys_wheel_timer": [0]}) == []
    assert not caplog.records
    assert table.recover({"Lost": [0, 5], "Empty": [], "a.b": [0]}) == []
    assert table.get("Lost") == TopicConfig(
        topic_name="Lost", read_queue_nums=6, write_queue_nums=6, perm=PERM_RW
    )
    assert table.get("Empty") == TopicConfig(
        topic_name="Empty", read_queue_nums=1, write_queue_nums=1, perm=PERM_RW
    )
    assert table.get("a.b") is None
    assert (
        "the store has 2 topics that were not in topics.json; they are put back with default permissions:"
        " Empty, Lost. " in caplog.text
    )
    assert "1 topics whose names are not allowed; they are not served: a.b" in caplog.text
    table.recover({f"T{number:02}": [0] for number in range(30)})
    assert "30 topics" in caplog.text
    assert "T18, T19, ..." in caplog.text
    assert "T20" not in caplog.text


@pytest.mark.parametrize("stopped", [True, False])
async def test_topics_that_came_back_are_saved(tmp_path: Path, stopped: bool) -> None:
    """They are written by the running table, at the latest at its stop."""
    table = loaded(tmp_path)
    table.recover({"Lost": [1]})
    if stopped:
        await table.close()
    else:
        async with trio.open_nursery() as nursery:
            await nursery.start(table.run)
            await until(lambda: loaded(tmp_path).get("Lost") is not None)
            nursery.cancel_scope.cancel()
    found = loaded(tmp_path)
    assert found.get("Lost") == table.get("Lost")
    assert found.data_version.same(table.data_version)


async def test_a_deletion_in_the_journal_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """After a crash the queues of deleted topics are named that the store still has, but not those of a topic
    that was created again; nothing is deleted while the journal is read. Once the file is written, the
    deletion is the store's to remember."""
    removed: list[str] = []
    async with at_work(tmp_path) as table:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TopicTable, "fold", never)
            for name in ("Gone", "Again"):
                await table.put(TopicConfig(topic_name=name))
                await table.delete(name)
            await table.put(TopicConfig(topic_name="Again"))
            found = TopicTable(config_of(), FakeClock(), tmp_path)
            found.on_delete.append(removed.append)
            found.load()
    assert found.recover({"Gone": [0], "Again": [0]}) == ["Gone"]
    assert (found.get("Gone"), set(found.deleted), removed) == (None, {"Gone"}, [])
    after_stop = loaded(tmp_path)
    assert set(after_stop.deleted) == set()
    assert {"topics.json", "topics.json.bak"} >= set(os.listdir(tmp_path)) >= {"topics.json"}


async def never(_: TopicTable) -> None:
    """A fold that does not happen before the crash."""


async def test_a_deletion_stays_in_the_journal_until_everything_has_recorded_it(tmp_path: Path) -> None:
    """While the store cannot delete the queues, the file is not written; then it is, after the offsets."""
    steps: list[str] = []
    fails = True

    def delete(name: str) -> None:
        if fails:
            raise StoreNotWritable("the disk is full")
        steps.append(f"{name} is removed")

    async def persist() -> None:
        await trio.lowlevel.checkpoint()
        steps.append("offsets are written")

    async with at_work(tmp_path) as table:
        table.on_delete.append(delete)
        table.on_forget.append(persist)
        await table.put(TopicConfig(topic_name="T"))
        await table.delete("T")
        with pytest.raises(OSError, match="cannot be removed: T"):
            await table.fold()
        assert set(loaded(tmp_path).deleted) == {"T"}
        assert steps == []
        fails = False
        await table.fold()
    assert steps == ["T is removed", "offsets are written"]
    assert set(loaded(tmp_path).deleted) == set()


async def test_what_a_deleted_topic_left_goes_before_its_name_is_free(tmp_path: Path) -> None:
    """A send that waits for the deletion creates the topic after its queues and offsets are removed."""
    steps: list[str] = []
    async with at_work(tmp_path) as table:
        await table.put(TopicConfig(topic_name="T"))
        table.on_delete.append(lambda name: steps.append(f"{name} is removed"))
        change = table.submit("T", None)
        assert change is not None
        with pytest.raises(Unsaved) as unsaved:
            table.settled("T")
        assert unsaved.value.change is change
        assert table.get("T") is not None
        change.when_settled(lambda _: steps.append(f"T is {table.settled('T')}"))
        await change.done()
    assert steps == ["T is removed", "T is None"]


@pytest.mark.parametrize("stopped", [True, False])
async def test_deletions_are_remembered_with_the_end_of_the_log(tmp_path: Path, stopped: bool) -> None:
    """The journal and the file have them until the topic is created again; replicas get them."""
    async with at_work(tmp_path) as table:
        for number, name in enumerate(("Gone", "Again")):
            table.log_end = lambda end=1_000 + number: end  # type: ignore[misc]
            await table.put(TopicConfig(topic_name=name))
            await table.delete(name)
        await table.put(TopicConfig(topic_name="Again"))
        found = loaded(tmp_path)
    if stopped:
        found = loaded(tmp_path)
        assert set(os.listdir(tmp_path)) <= {"topics.json", "topics.json.bak"}
    assert found.deletions == found.table().deletions == {"Gone": 1_000}
    assert found.is_dead("Gone")
    found.last_record = {"Gone": 1_000}.__getitem__
    assert not found.is_dead("Gone")
    assert found.recover({"Gone": [0]}) == []
    assert (found.get("Gone") is not None, found.is_dead("Again")) == (True, False)


async def test_the_newest_deletions_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are created and deleted again and again do not let the table grow."""
    monkeypatch.setattr("rmqkit.broker.tables.saved_table.MAX_REMEMBERED_DELETIONS", 3)
    async with at_work(tmp_path) as table:
        for name in ("A", "B", "C", "A", "D"):
            await table.put(TopicConfig(topic_name=name))
            await table.delete(name)
        assert [*table.deletions] == ["C", "A", "D"]


async def test_a_copy_deletes_what_the_other_broker_has_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that the other table lacks stays, unless the table has its deletion and the topic no later
    record; what is kept is named, once. The version is the other one's, and the deletions are passed on."""
    last = {"Late": 900, "Dead": 499, "Kept": 100, "Empty": -1}
    removed: list[str] = []
    async with at_work(tmp_path) as table:
        table.last_record = lambda name: last.get(name, -1)
        table.on_delete.append(removed.append)
        for name in (*last, "Same"):
            await table.put(TopicConfig(topic_name=name))
        other = TopicConfigTable(
            data_version=DataVersion(counter=77, timestamp=5),
            topic_config_table={"Same": TopicConfig(topic_name="Same", perm=PERM_READ)},
            deletions={"Dead": 500, "Late": 500, "Empty": 500, "Unknown": 3, "Same": 9},
        )
        for _ in range(2):
            await table.replace(other)
        assert set(removed) == {"Dead", "Empty"}
        assert {"Late", "Kept", "Same"} <= table.configs.keys()
        assert table.data_version.same(other.data_version)
        assert table.configs["Same"].perm == PERM_READ
        assert table.deletions == {"Dead": 500, "Empty": 500, "Unknown": 3}
        kept = [each for each in caplog.messages if "are kept" in each]
        assert len(kept) == 1
        assert "lacks 2 entries" in kept[0]
        assert "Kept, Late." in kept[0]
        found = loaded(tmp_path)
        assert found.configs.keys() == table.configs.keys()


async def test_an_empty_table_deletes_nothing(tmp_path: Path) -> None:
    """Nothing follows from what is absent: neither topics nor the built-in ones are gone."""
    async with at_work(tmp_path) as table:
        await table.put(TopicConfig(topic_name="T"))
        before = dict(table.configs)
        await table.replace(TopicConfigTable())
        assert table.configs == before


async def test_topics_of_copied_messages_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Queues of messages can be read: of a new topic, with the default number of queues at least, and of a
    known one; retry topics have no more than they need. What is deleted, the system's or illegal is left
    out, and what can be read already is not changed."""
    caplog.set_level(logging.INFO)
    async with at_work(tmp_path) as table:
        await table.put(
            TopicConfig(topic_name="Known", read_queue_nums=4, write_queue_nums=9, perm=PERM_READ)
        )
        await table.put(TopicConfig(topic_name="Dead"))
        await table.delete("Dead")
        table.deletions["Dead"] = 1
        await table.know(
            [
                ("New", 0),
                ("Wide", 40),
                ("Wide", 2),
                ("%RETRY%g", 0),
                ("Known", 5),
                ("SELF_TEST_TOPIC", 0),
                ("Dead", 0),
                ("SCHEDULE_TOPIC_XXXX", 3),
                ("a.b", 0),
                ("Far", 1 << 30),
            ]
        )
        counts = {
            name: (found.read_queue_nums, found.write_queue_nums)
            for name in ("New", "Wide", "%RETRY%g", "Known", "Far")
            for found in (table.configs[name],)
        }
        assert counts == {
            "New": (8, 8),
            "Wide": (41, 41),
            "%RETRY%g": (1, 1),
            "Known": (6, 9),
            "Far": (MAX_QUEUES_PER_TOPIC, MAX_QUEUES_PER_TOPIC),
        }
        assert table.configs["Known"].perm == PERM_READ
        assert not {"Dead", "SCHEDULE_TOPIC_XXXX", "a.b"} & table.configs.keys()
        assert [each for each in caplog.messages if "5 topics have messages in queues" in each]
        version = table.data_version.counter
        await table.know([("New", 7), ("Wide", 40), ("Known", 0)])
        assert table.data_version.counter == version
