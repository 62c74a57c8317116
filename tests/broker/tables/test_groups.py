"""Consumer-group settings."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.broker.tables import groups as module
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.journal import TableJournal
from rmqkit.errors import ConfigError, RequestRefused
from rmqkit.model import names
from rmqkit.model.topic import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit.toolkit.unsaved import Unsaved
from tests.broker.kit import config_of


@asynccontextmanager
async def at_work(directory: Path, **keys: object) -> AsyncIterator[GroupTable]:
    """A table that can be changed; left as by a stopping broker."""
    table = loaded(directory, **keys)
    async with trio.open_nursery() as nursery:
        await nursery.start(table.run)
        yield table
        nursery.cancel_scope.cancel()
    await table.close()


def loaded(directory: Path, **keys: object) -> GroupTable:
    table = GroupTable(config_of(**keys), FakeClock(), directory)
    table.load()
    return table


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_preset_groups(tmp_path: Path) -> None:
    """The groups of RocketMQ's own tools exist from the start."""
    table = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    assert set(table.configs) == set(names.PRESET_GROUPS)
    assert table.get("TOOLS_CONSUMER") is not None


@pytest.mark.row("S231")
async def test_defaults_of_a_group(tmp_path: Path) -> None:
    """A group has 16 retries, one retry queue, and everything enabled."""
    async with at_work(tmp_path) as table:
        group = await table.ensure("g")
    assert group is not None
    assert (group.retry_max_times, group.retry_queue_nums, group.which_broker_when_consume_slowly) == (
        16,
        1,
        1,
    )
    assert group.consume_enable
    assert group.consume_broadcast_enable
    assert group.consume_from_min_enable
    assert group.notify_consumer_ids_changed_enable


@pytest.mark.row("S061")
async def test_a_group_is_created_by_its_first_use_and_survives(tmp_path: Path) -> None:
    """An unknown legal name becomes a group once it is on the disk; a second use changes nothing."""
    async with at_work(tmp_path) as table:
        with pytest.raises(Unsaved):
            table.get("g")
        created = await table.ensure("g")
        assert table.get("g") is created
        assert table.data_version.counter == 1
        again = loaded(tmp_path, autoCreateSubscriptionGroup=False)
        assert again.get("g") == created
        assert again.data_version.counter == 1


async def test_a_group_in_use_needs_no_disk(tmp_path: Path) -> None:
    """While nothing can be written, a new group is created by its first use, and an administrator's is
    refused, also the same one; once it can, the new group is in the file."""
    async with at_work(tmp_path) as table:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableJournal, "append", no_space)
            patch.setattr(TableJournal, "rotate", no_space)
            with pytest.raises(Unsaved):
                table.get("asked")
            with pytest.raises(RequestRefused, match="nothing was changed"):
                await table.put(SubscriptionGroupConfig(group_name="asked"))
            assert await table.ensure("g") == SubscriptionGroupConfig(group_name="g")
            assert set(table.configs) == {"g", *names.PRESET_GROUPS}
    assert "g" in loaded(tmp_path, autoCreateSubscriptionGroup=False).configs


def test_creation_by_use_can_be_switched_off(tmp_path: Path) -> None:
    """With the setting off an unknown group stays unknown."""
    table = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    assert table.get("g") is None
    assert "g" not in table.configs


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a\0b", "a.b", "x" * 121])
async def test_illegal_names_are_no_groups(tmp_path: Path, name: str) -> None:
    """Neither use nor an administrator creates a group with a name that could become a path."""
    async with at_work(tmp_path) as table:
        assert table.get(name) is None
        with pytest.raises(RequestRefused) as refusal:
            await table.put(SubscriptionGroupConfig(group_name=name))
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert os.listdir(tmp_path) == []


async def test_every_change_moves_the_version(tmp_path: Path) -> None:
    """Creating, changing and deleting increment the version; requests without effect do not."""
    async with at_work(tmp_path) as table:
        assert await table.put(SubscriptionGroupConfig(group_name="g"))
        assert not await table.put(SubscriptionGroupConfig(group_name="g"))
        assert await table.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
        assert await table.delete("g")
        assert not await table.delete("g")
        assert table.data_version.counter == 3
    assert "g" not in loaded(tmp_path).configs


async def test_clients_create_so_many_groups_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit an unknown group stays unknown; an administrator may still create one."""
    monkeypatch.setattr(module, "MAX_AUTO_CREATED_GROUPS", 1)
    async with at_work(tmp_path) as table:
        assert await table.ensure("g1") is not None
        assert table.get("g2") is None
        assert await table.put(SubscriptionGroupConfig(group_name="g2"))


async def test_broken_files_stop_the_start(tmp_path: Path) -> None:
    """A broker does not start with an empty table in place of a damaged one."""
    async with at_work(tmp_path) as table:
        await table.ensure("g")
    (tmp_path / "subscriptionGroup.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"subscriptionGroup\.json"):
        loaded(tmp_path)


async def test_what_java_keeps_beside_the_groups_stays(tmp_path: Path) -> None:
    """The table of forbidden topics is written unchanged."""
    (tmp_path / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{},"forbiddenTable":{"g":{"T":1}}}'
    )
    async with at_work(tmp_path) as table:
        await table.ensure("g")
    assert loaded(tmp_path).table().forbidden_table == {"g": {"T": 1}}


def test_groups_with_offsets_and_without_settings_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without automatic creation they could not consume, and the reason would be hard to find."""
    loaded(tmp_path).warn_of_unknown(["g", "h"])
    assert not caplog.records
    table = loaded(tmp_path, autoCreateSubscriptionGroup=False)
    table.warn_of_unknown(["TOOLS_CONSUMER"])
    assert not caplog.records
    table.warn_of_unknown(["h", "g", "TOOLS_CONSUMER"])
    assert (
        "2 groups have offsets and are not in subscriptionGroup.json, so they cannot consume: g, h. "
        in caplog.text
    )


async def test_a_copy_deletes_only_what_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A group that the other table lacks stays and is named, unless the table has its deletion; deletions are
    remembered over a restart."""
    async with at_work(tmp_path) as table:
        for name in ("gone", "kept"):
            await table.put(SubscriptionGroupConfig(group_name=name))
        other = SubscriptionGroupTable(
            data_version=DataVersion(counter=7),
            subscription_group_table={"new": SubscriptionGroupConfig(group_name="new", retry_max_times=3)},
            deletions={"gone": 0},
        )
        await table.replace(other)
        assert table.configs.keys() == {"new", "kept", *names.PRESET_GROUPS}
        assert "lacks 1 entries of this one and does not say that they were deleted" in caplog.text
        assert table.data_version.same(other.data_version)
    found = loaded(tmp_path)
    assert found.deletions == found.table().deletions == {"gone": 0}
