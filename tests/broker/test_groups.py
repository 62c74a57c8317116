"""Consumer-group settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.broker import groups as module
from rmqkit.broker.groups import GroupTable
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.model import names
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from tests.broker.kit import config_of


def loaded(directory: Path, **keys: object) -> GroupTable:
    table = GroupTable(config_of(**keys), FakeClock(), directory)
    table.load()
    return table


def test_preset_groups(tmp_path: Path) -> None:
    """The groups of RocketMQ's own tools are there without being created."""
    table = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    assert set(table.configs) == set(names.PRESET_GROUPS)
    assert table.get("TOOLS_CONSUMER") is not None


@pytest.mark.row("S231")
def test_defaults_of_a_group(tmp_path: Path) -> None:
    """16 retries, one retry queue, everything enabled."""
    group = loaded(tmp_path).get("g")
    assert group is not None
    assert (group.retry_max_times, group.retry_queue_nums, group.which_broker_when_consume_slowly) == (16, 1, 1)
    assert group.consume_enable
    assert group.consume_broadcast_enable
    assert group.consume_from_min_enable
    assert group.notify_consumer_ids_changed_enable


@pytest.mark.row("S061")
def test_a_group_is_created_by_its_first_use_and_survives(tmp_path: Path) -> None:
    """An unknown legal name becomes a group, written at once; a second look changes nothing."""
    table = loaded(tmp_path)
    created = table.get("g")
    assert table.get("g") is created
    assert table.data_version.counter == 1
    again = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    assert again.get("g") == created
    assert again.data_version.counter == 1


def test_creation_by_use_can_be_switched_off(tmp_path: Path) -> None:
    """Then an unknown group stays unknown."""
    table = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    assert table.get("g") is None
    assert "g" not in table.configs


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a\0b", "a.b", "x" * 121])
def test_illegal_names_are_no_groups(tmp_path: Path, name: str) -> None:
    """Neither use nor an administrator makes a group of a name that could become a path."""
    table = loaded(tmp_path)
    assert table.get(name) is None
    with pytest.raises(RequestRefused) as refusal:
        table.put(SubscriptionGroupConfig(group_name=name))
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert not (tmp_path / "subscriptionGroup.json").exists()


def test_every_change_moves_the_version(tmp_path: Path) -> None:
    """Create, change, delete; what stands so already does not count."""
    table = loaded(tmp_path)
    assert table.put(SubscriptionGroupConfig(group_name="g"))
    assert not table.put(SubscriptionGroupConfig(group_name="g"))
    assert table.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    assert table.delete("g")
    assert not table.delete("g")
    assert table.data_version.counter == 3
    assert "g" not in loaded(tmp_path).configs


def test_clients_create_so_many_groups_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit an unknown group stays unknown; an administrator may still make one."""
    monkeypatch.setattr(module, "MAX_AUTO_CREATED_GROUPS", 1)
    table = loaded(tmp_path)
    assert table.get("g1") is not None
    assert table.get("g2") is None
    assert table.put(SubscriptionGroupConfig(group_name="g2"))


def test_broken_files_stop_the_start(tmp_path: Path) -> None:
    """A broker does not start with an empty table over a broken one."""
    loaded(tmp_path).get("g")
    (tmp_path / "subscriptionGroup.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"subscriptionGroup\.json"):
        loaded(tmp_path)
