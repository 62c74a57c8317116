"""The topic table: what is there from the start, what may be created, and what every change does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmqkit.broker import topics as module
from rmqkit.broker.topics import TopicTable
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.limits import MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.sysflag import PERM_INHERIT, PERM_READ, PERM_RW
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from tests.broker.kit import config_of


def loaded(directory: Path, **keys: object) -> TopicTable:
    table = TopicTable(config_of(**keys), FakeClock(), directory)
    table.load()
    return table


def test_built_in_topics(tmp_path: Path) -> None:
    """A new broker has its system topics, with the queue counts and permissions of the sheet, and writes no file for them."""
    table = loaded(tmp_path, brokerName="b", brokerClusterName="c")
    found = {name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm) for name, topic in table.configs.items()}
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
    """The template comes with auto-creation, the trace topic by setting, cluster and broker topic may lose their permissions."""
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
def test_a_topic_survives_a_restart(tmp_path: Path) -> None:
    """A change is written at once, with the data version."""
    table = loaded(tmp_path)
    topic = TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=4, perm=PERM_READ, order=True, attributes={"a": "b"})
    assert table.put(topic)
    again = loaded(tmp_path)
    assert again.get("T") == topic
    assert again.data_version.same(table.data_version)
    assert again.data_version.counter == 1


def test_every_change_moves_the_version_and_tells_once(tmp_path: Path) -> None:
    """Create, change and delete count; what stands so already does not."""
    clock = FakeClock()
    table = TopicTable(config_of(), clock, tmp_path)
    table.load()
    told: list[int] = []
    table.on_change.append(lambda: told.append(table.data_version.counter))
    assert table.put(TopicConfig(topic_name="T"))
    assert not table.put(TopicConfig(topic_name="T"))
    clock.advance(5)
    assert table.put(TopicConfig(topic_name="T", perm=PERM_READ))
    assert table.delete("T")
    assert not table.delete("T")
    assert told == [1, 2, 3]
    assert table.data_version.timestamp == clock.now_ms()
    assert table.get("T") is None
    assert loaded(tmp_path).get("T") is None


@pytest.mark.parametrize("name", ["", "  ", "../x", "a/b", "a\\b", "a\0b", ".", "a.b", "x" * 128, "%RETRY%" + "x" * 249, "zwölf"])
def test_names_that_could_become_paths_are_refused(tmp_path: Path, name: str) -> None:
    """Separators, dots, NUL, blanks and overlong names never enter the table."""
    table = loaded(tmp_path)
    before = dict(table.configs)
    with pytest.raises(RequestRefused) as refusal:
        table.put(TopicConfig(topic_name=name))
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert table.configs == before


@pytest.mark.parametrize(("read", "write"), [(-1, 1), (1, -1), (MAX_QUEUES_PER_TOPIC + 1, 1), (1, 2**31 - 1)])
def test_queue_counts_have_limits(tmp_path: Path, read: int, write: int) -> None:
    """A topic has 0 to MAX_QUEUES_PER_TOPIC queues."""
    with pytest.raises(RequestRefused, match=f"0 to {MAX_QUEUES_PER_TOPIC} queues") as refusal:
        loaded(tmp_path).put(TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write))
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (100, 8), (-3, 0)])
def test_auto_creation_inherits_from_the_template(tmp_path: Path, asked: int, given: int) -> None:
    """Queues: what the client asks, at most the template's, never negative. Permissions: the template's without the inherit bit."""
    table = loaded(tmp_path)
    created = table.auto_create("T", names.TEMPLATE_TOPIC, asked)
    assert created == TopicConfig(topic_name="T", read_queue_nums=given, write_queue_nums=given, perm=PERM_RW)
    assert loaded(tmp_path).get("T") == created


def test_auto_creation_needs_a_template_that_may_be_inherited(tmp_path: Path) -> None:
    """An unknown template, and one without the inherit permission, create nothing."""
    table = loaded(tmp_path)
    table.put(TopicConfig(topic_name="Plain"))
    assert table.auto_create("T", "Nothing", 4) is None
    assert table.auto_create("T", "Plain", 4) is None
    assert table.get("T") is None


def test_auto_creation_can_be_switched_off(tmp_path: Path) -> None:
    """A TBW102 left in the file by an earlier start does not switch it on again."""
    loaded(tmp_path).put(TopicConfig(topic_name=names.TEMPLATE_TOPIC, perm=PERM_RW | PERM_INHERIT))
    table = loaded(tmp_path, autoCreateTopicEnable=False)
    assert table.get(names.TEMPLATE_TOPIC) is not None
    assert table.auto_create("T", names.TEMPLATE_TOPIC, 4) is None


@pytest.mark.row("S228")
def test_ensure_creates_once(tmp_path: Path) -> None:
    """A retry topic comes into being with its queues; one that is there stays as it is."""
    table = loaded(tmp_path)
    created = table.ensure("%RETRY%g", 1)
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (1, 1, PERM_RW)
    assert table.ensure("%RETRY%g", 5) is created


def test_clients_create_so_many_topics_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile client cannot fill the disk with names; topics made by hand are not counted."""
    monkeypatch.setattr(module, "MAX_AUTO_CREATED_TOPICS", 2)
    table = loaded(tmp_path)
    table.auto_create("T1", names.TEMPLATE_TOPIC, 1)
    table.ensure("%RETRY%g", 1)
    with pytest.raises(RequestRefused) as refusal:
        table.auto_create("T2", names.TEMPLATE_TOPIC, 1)
    assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert re.search("create topics by hand", str(refusal.value))
    assert table.put(TopicConfig(topic_name="T3"))


def test_the_table_for_registration_is_a_copy(tmp_path: Path) -> None:
    """What is being sent does not change under the sender."""
    table = loaded(tmp_path)
    copy = table.table()
    table.put(TopicConfig(topic_name="T"))
    assert "T" not in copy.topic_config_table
    assert copy.data_version.counter == 0


def test_broken_files_stop_the_start(tmp_path: Path) -> None:
    """A broker does not start with an empty table over a broken one."""
    loaded(tmp_path).put(TopicConfig(topic_name="T"))
    (tmp_path / "topics.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        loaded(tmp_path)


def test_topics_of_the_store_that_the_table_lacks_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By name, as far as there is room for names; not those that every broker has, and nothing when all are known."""
    table = loaded(tmp_path)
    table.put(TopicConfig(topic_name="Known", read_queue_nums=1, write_queue_nums=1))
    table.warn_of_unknown(["Known", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
    assert not caplog.records
    table.warn_of_unknown(["Known", "Gone", "Back"])
    assert "the store has 2 topics that are not in topics.json and are not served: Back, Gone. " in caplog.text
    table.warn_of_unknown(f"T{number:02}" for number in range(30))
    assert "30 topics" in caplog.text
    assert "T18, T19, ..." in caplog.text
    assert "T20" not in caplog.text
