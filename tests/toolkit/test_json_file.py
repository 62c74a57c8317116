"""Table files: what is written, and what is read after damage."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from rmqkit.errors import ConfigError
from rmqkit.model.topic import ConsumerOffsetFile, DelayOffsetFile, SubscriptionGroupTable, TopicConfigTable
from rmqkit.toolkit.json_file import JsonFile


def table(offset: int) -> ConsumerOffsetFile:
    return ConsumerOffsetFile(offset_table={"T@g": {0: offset}})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerOffset.json"


@pytest.fixture
def file(path: Path) -> JsonFile[ConsumerOffsetFile]:
    return JsonFile(path, ConsumerOffsetFile)


def backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def test_missing_files_are_no_table(file: JsonFile[ConsumerOffsetFile]) -> None:
    """Without the file and its backup `load` returns None, as on a first start."""
    assert file.load() is None


@pytest.mark.row("S226")
def test_what_was_saved_is_loaded(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """Save makes the directory, load gives the same table, and no temporary file stays."""
    file.save(table(7))
    assert file.load() == table(7)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.row("S226")
def test_the_former_table_becomes_the_backup(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """After a second save the file holds the new table and `.bak` the one before."""
    file.save(table(1))
    file.save(table(2))
    assert file.load() == table(2)
    assert JsonFile(backup(path), ConsumerOffsetFile).load() == table(1)


@pytest.mark.parametrize(
    "damage",
    [b"", b"  \n", b'{"offsetTable":{"T@g":{"0":', b"\x00" * 200, b"\xff\xfe", b"[]", b'{"offsetTable":7}'],
)
def test_a_damaged_file_falls_back_to_the_backup(
    file: JsonFile[ConsumerOffsetFile], path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """When the file is empty, cut short, zeroed, not UTF-8 or of another shape, the backup's table is used
    and the log says so."""
    file.save(table(1))
    file.save(table(2))
    path.write_bytes(damage)
    assert file.load() == table(1)
    assert "its backup is used" in caplog.text


def test_a_missing_file_falls_back_to_the_backup(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """A stop between the two renames of a save leaves only the backup: nothing is lost."""
    file.save(table(1))
    os.replace(path, backup(path))
    assert file.load() == table(1)


def test_both_broken_is_an_error_that_names_the_file(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """Starting with an empty table would lose the groups' progress silently."""
    file.save(table(1))
    path.write_bytes(b"{half")
    backup(path).write_bytes(b"{half")
    with pytest.raises(ConfigError, match=r"consumerOffset\.json and its backup cannot be read"):
        file.load()


@pytest.mark.parametrize("damage", [b"{half", b"", b" \n"])
def test_a_broken_file_without_backup_is_an_error(
    file: JsonFile[ConsumerOffsetFile], path: Path, damage: bytes
) -> None:
    """A file that exists but cannot be read, or is empty, is not treated as missing; the error says what to
    do."""
    file.save(table(1))
    path.write_bytes(damage)
    with pytest.raises(
        ConfigError, match=r"consumerOffset\.json .*restore it, or delete it to start with an empty table"
    ):
        file.load()


def test_a_directory_in_the_place_of_the_file_is_an_error(
    file: JsonFile[ConsumerOffsetFile], path: Path
) -> None:
    """The error names the directory, and nothing is written over it."""
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"consumerOffset\.json"):
        file.load()


def test_saving_after_a_fallback_keeps_the_good_backup(
    file: JsonFile[ConsumerOffsetFile], path: Path
) -> None:
    """A broken file never replaces the backup that was read in its place."""
    file.save(table(1))
    file.save(table(2))
    path.write_bytes(b"{half")
    assert file.load() == table(1)
    file.save(table(3))
    assert file.load() == table(3)
    assert JsonFile(backup(path), ConsumerOffsetFile).load() == table(1)
    file.save(table(4))
    assert JsonFile(backup(path), ConsumerOffsetFile).load() == table(3)


def test_a_save_that_fails_leaves_the_old_table(
    file: JsonFile[ConsumerOffsetFile], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk is full while the new table is written, the old table is untouched."""
    file.save(table(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.save(table(2))
    assert file.load() == table(1)


@pytest.mark.row("S230")
def test_fastjson_writes_integer_keys_without_quotes(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """A table written by a Java broker is read; rmqkit writes strict JSON."""
    path.parent.mkdir()
    path.write_bytes(
        b'{\n\t"offsetTable":{\n\t\t"T@g":{0:11,1:12\n\t\t},\n\t\t"%RETRY%g@g":{0:0\n\t\t}\n\t}\n}'
    )
    found = file.load()
    assert found is not None
    assert found.offset_table == {"T@g": {0: 11, 1: 12}, "%RETRY%g@g": {0: 0}}
    file.save(found)
    assert msgspec.json.decode(path.read_bytes())["offsetTable"]["T@g"] == {"0": 11, "1": 12}


def test_delay_offsets_as_fastjson_writes_them(tmp_path: Path) -> None:
    """delayOffset.json has bare integer keys at its first level."""
    (tmp_path / "delayOffset.json").write_bytes(
        b'{"offsetTable":{1:10,18:3},"dataVersion":{"counter":2,"stateVersion":0,"timestamp":5}}'
    )
    found = JsonFile(tmp_path / "delayOffset.json", DelayOffsetFile).load()
    assert found is not None
    assert found.offset_table == {1: 10, 18: 3}
    assert found.data_version.counter == 2


@pytest.mark.row("S224", "S227", "S231")
def test_java_tables_with_fields_we_do_not_know(tmp_path: Path) -> None:
    """Further fields of another version are ignored, missing ones take their defaults."""
    (tmp_path / "topics.json").write_text(
        '{"dataVersion":{"counter":3,"timestamp":4},"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,'
        '"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8,"fresh":1}}}'
    )
    topics = JsonFile(tmp_path / "topics.json", TopicConfigTable).load()
    assert topics is not None
    assert (topics.data_version.counter, topics.data_version.state_version) == (3, 0)
    assert (topics.topic_config_table["T"].read_queue_nums, topics.topic_config_table["T"].perm) == (8, 6)
    (tmp_path / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"g":{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":false,"consumeFromMinEnable":true,'
        '"groupName":"g","retryMaxTimes":5,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1,"groupRetryPolicy":{"type":"CUSTOMIZED"}}}}'
    )
    groups = JsonFile(tmp_path / "subscriptionGroup.json", SubscriptionGroupTable).load()
    assert groups is not None
    group = groups.subscription_group_table["g"]
    assert (group.retry_max_times, group.consume_enable, group.notify_consumer_ids_changed_enable) == (
        5,
        False,
        True,
    )


def test_a_byte_order_mark_is_passed_over(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """Editors on Windows write one."""
    file.save(table(7))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert file.load() == table(7)


def test_text_that_is_not_utf8(file: JsonFile[ConsumerOffsetFile], path: Path) -> None:
    """A table of RocketMQ with a name in another encoding is read with replacement, as by Java, and can be
    saved again."""
    file.save(table(1))
    odd = path.read_bytes().replace(b"{\n", b'{\n "note": "\xb1\xe0",', 1)
    path.write_bytes(odd)
    found = file.load()
    assert found == table(1)
    file.save(table(1))
    assert file.load() == table(1)


def test_two_writers_of_one_file_take_turns(path: Path) -> None:
    """Each whole table replaces the one before; neither finds the other's temporary file gone."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        writes = [
            threads.submit(JsonFile(path, ConsumerOffsetFile).save, table(offset)) for offset in range(100)
        ]
    assert [write.exception() for write in writes] == [None] * 100
    assert JsonFile(path, ConsumerOffsetFile).load() in [table(offset) for offset in range(100)]
