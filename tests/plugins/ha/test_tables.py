"""The copies of the master's tables: whose they are, what they delete, and what a slave knows before."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import ConfigError
from rmqkit.model.sysflag import PULL_SUBSCRIPTION
from rmqkit.model.topic import DelayOffsetFile, SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmqkit.testing.calls import calling_broker
from rmqkit.toolkit.json_file import JsonFile
from rmqkit_ha.tables import MasterTables
from tests.plugins.ha.pair import (
    caught_up,
    follow,
    ha_slave,
    lead,
    linked,
    running_master,
    running_member,
    running_slave,
    until,
)

STORES = pytest.mark.parametrize("store", ["mmap", "lmdb"])
#: The tables are copied once at most during a test.
RARELY: dict[str, Any] = {"plugins.ha.tablesIntervalMs": 3_600_000}
MESSAGES = 5


def sent(topic: str, queue_id: int, body: bytes) -> Command:
    """A send whose topic is created with four queues."""
    header = SendMessageRequestHeader(
        producer_group="producers", topic=topic, queue_id=queue_id, default_topic_queue_nums=4
    )
    return request(RequestCode.SEND_MESSAGE, header, body)


async def fill(broker: RunningBroker, topic: str = "Orders", letter: bytes = b"x", queue_id: int = 0) -> None:
    """Send messages, with a group and its offset."""
    async with calling_broker(broker) as call:
        for _ in range(MESSAGES):
            await call(sent(topic, queue_id, letter * 100))
    broker.context.offsets.commit("billing", topic, queue_id, 3)
    await broker.context.groups.put(SubscriptionGroupConfig(group_name="billing", retry_queue_nums=7))


async def readable(broker: RunningBroker, topic: str = "Orders", queue_id: int = 0) -> ResponseCode:
    """The code of a pull from the beginning of a queue."""
    header = PullMessageRequestHeader(
        consumer_group="billing",
        topic=topic,
        queue_id=queue_id,
        queue_offset=0,
        sys_flag=PULL_SUBSCRIPTION,
        subscription="*",
    )
    async with calling_broker(broker) as call:
        return ResponseCode((await call(request(RequestCode.PULL_MESSAGE, header))).code)


async def has_everything(broker: RunningBroker, topic: str = "Orders") -> None:
    """What `fill` has made is there."""
    here = broker.context
    assert await readable(broker, topic) == ResponseCode.SUCCESS
    assert here.store.max_offset(topic, 0) == MESSAGES
    assert here.offsets.get("billing", topic, 0) == 3
    found = here.groups.get("billing")
    assert found is not None
    assert found.retry_queue_nums == 7


def is_equal(slave: RunningBroker, master: RunningBroker) -> bool:
    """Whether the slave has the tables of its master, and no queue of another topic."""
    here, there = slave.context, master.context
    return (
        here.topics.configs == there.topics.configs
        and here.groups.configs == there.groups.configs
        and here.store.queues() == there.store.queues()
        and here.offsets.table().offset_table == there.offsets.table().offset_table
    )


def tables_of(slave: RunningBroker) -> MasterTables:
    found = ha_slave(slave).tables
    assert found is not None
    return found


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


@STORES
async def test_a_refused_slave_keeps_its_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """A broker with a log of its own is started as the slave of another master, by mistake: topics, groups,
    offsets and the queues of its messages stay, also after a restart as a master."""
    keys: dict[str, Any] = {"store": store, "brokerRole": "ASYNC_MASTER", "slaveReadEnable": True}
    async with running_master(tmp_path / "s", **keys) as other:
        await fill(other, "Other", b"y")
    async with running_master(tmp_path / "m", **keys) as master:
        await fill(master)
        async with running_slave(tmp_path / "s", master, store=store, slaveReadEnable=True) as slave:
            await until(lambda: bool(said(caplog, "nothing is copied")))
            await tables_of(slave).round()
            await has_everything(slave, "Other")
            assert "Orders" not in slave.context.topics.configs
    async with running_master(tmp_path / "s", **keys) as other:
        await has_everything(other, "Other")


@STORES
async def test_a_master_with_an_empty_disk_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """The master's disk is lost and its broker starts with an empty directory: the slave keeps everything,
    and serves it when it is made the master."""
    keys: dict[str, Any] = {"store": store, "brokerRole": "ASYNC_MASTER"}
    async with (
        running_master(tmp_path / "m", **keys) as master,
        running_slave(tmp_path / "s", master, store=store) as slave,
    ):
        await fill(master)
        await caught_up(master, slave)
        await until(lambda: slave.context.offsets.get("billing", "Orders", 0) == 3)
        await until(lambda: slave.context.groups.configs == master.context.groups.configs)
    async with (
        running_master(tmp_path / "empty", **keys) as master,
        running_slave(tmp_path / "s", master, store=store, slaveReadEnable=True) as slave,
    ):
        await until(lambda: bool(said(caplog, "nothing is copied")))
        await tables_of(slave).round()
        await has_everything(slave)
    async with running_master(tmp_path / "s", **keys) as promoted:
        await has_everything(promoted)


@STORES
async def test_tables_of_a_second_master_are_not_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """A name server says the address of another broker with the master's name, whose log has records of the
    same lengths: the slave follows its master's log, copies no table, and says why."""
    keys: dict[str, Any] = {"store": store, "brokerRole": "ASYNC_MASTER"}
    async with (
        running_master(tmp_path / "m", **keys) as master,
        running_master(tmp_path / "o", **keys) as other,
        running_slave(tmp_path / "s", master, store=store, slaveReadEnable=True) as slave,
    ):
        await fill(master)
        await caught_up(master, slave)
        await until(lambda: slave.context.offsets.get("billing", "Orders", 0) == 3)
        await until(lambda: slave.context.groups.configs == master.context.groups.configs)
        await fill(other, "Others", b"y")
        other.context.offsets.commit("billing", "Orders", 0, 0)
        changed = {"plugins.ha.masterAddress": other.context.address}
        async with running_slave(tmp_path / "s2", master, store=store, **changed) as misled:
            await caught_up(master, misled)
            await until(lambda: bool(said(caplog, "is not the master that is followed")))
            await tables_of(misled).round()
            assert "Others" not in misled.context.topics.configs
            assert misled.context.offsets.get("billing", "Orders", 0) is None
        slave.context.replication.learned(other.context.address, "")
        await tables_of(slave).round()
        await has_everything(slave)


@STORES
async def test_members_copy_from_the_broker_that_has_their_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """In an elected group, too, the tables come from the broker whose log is followed."""
    async with (
        running_member(tmp_path / "a", "a", store=store) as a,
        running_member(tmp_path / "b", "b", store=store) as b,
        running_master(tmp_path / "o", store=store, brokerRole="ASYNC_MASTER") as other,
    ):
        await lead(a, 1, "b")
        await follow(b, a, 1)
        await fill(a)
        await until(lambda: b.context.offsets.get("billing", "Orders", 0) == 3)
        await fill(other, "Others", b"y")
        b.context.replication.assign(other.context.address, a.context.replication.own)
        await until(lambda: bool(said(caplog, "is not the master that is followed")))
        assert "Others" not in b.context.topics.configs
        assert "Orders" in b.context.topics.configs
        b.context.replication.assign(a.context.address, a.context.replication.own)
        await a.context.topics.put(TopicConfig(topic_name="New"))
        await until(lambda: "New" in b.context.topics.configs)


@STORES
async def test_deletions_reach_a_slave_that_was_away(tmp_path: Path, store: str) -> None:
    """The master says what it has deleted, and at which place of the log. A slave that was away, and a new
    one that copies the old records, delete it, too; a topic that was made again keeps its new messages."""
    keys: dict[str, Any] = {"store": store, "brokerRole": "ASYNC_MASTER"}
    both: dict[str, Any] = {"store": store, "slaveReadEnable": True}
    async with running_master(tmp_path / "m", **keys) as master:
        here = master.context
        async with running_slave(tmp_path / "s", master, **both) as slave:
            for topic in ("Gone", "Again", "Orders"):
                await fill(master, topic)
            await caught_up(master, slave)
            await until(lambda: slave.context.groups.configs == here.groups.configs)
            await until(lambda: slave.context.topics.configs == here.topics.configs)
        await linked(master, 0)
        for topic in ("Gone", "Again"):
            await here.topics.delete(topic)
        await here.groups.delete("billing")
        await fill(master, "Again", b"z")
    async with (
        running_master(tmp_path / "m", **keys) as master,
        running_slave(tmp_path / "s", master, **both) as slave,
        running_slave(tmp_path / "new", master, **both) as new,
    ):
        for each in (slave, new):
            await caught_up(master, each)
            await until(partial(is_equal, each, master))
            assert {"Orders", "Again"} <= each.context.topics.configs.keys()
            await has_everything(each, "Again")
    async with running_slave(tmp_path / "new", master, **both) as new:
        assert "Gone" not in new.context.topics.configs


@STORES
async def test_what_a_table_lacks_is_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """The master has the log and has lost its tables, which only lack entries: nothing is deleted, and one
    line names what is kept."""
    keys: dict[str, Any] = {"store": store, "brokerRole": "ASYNC_MASTER"}
    async with (
        running_master(tmp_path / "m", **keys) as master,
        running_slave(tmp_path / "s", master, store=store, slaveReadEnable=True) as slave,
    ):
        here = master.context
        await fill(master)
        await caught_up(master, slave)
        await until(lambda: slave.context.offsets.get("billing", "Orders", 0) == 3)
        await until(lambda: slave.context.groups.configs == here.groups.configs)
        for table in (here.topics, here.groups):
            del table.configs["Orders" if table is here.topics else "billing"]
            table.data_version.next(1)
        await until(lambda: len(said(caplog, "does not say that they were deleted")) == 2)
        await has_everything(slave)


@STORES
async def test_a_slave_knows_a_topic_from_its_first_record(tmp_path: Path, store: str) -> None:
    """The master fails before its tables are copied: the slave serves what it has, in the topics and queues
    that its records name, also after a restart, and as a master."""
    keys: dict[str, Any] = {"store": store, "slaveReadEnable": True, **RARELY}
    async with running_master(tmp_path / "m", store=store, brokerRole="ASYNC_MASTER") as master:
        async with running_slave(tmp_path / "s", master, **keys) as slave:
            await linked(master)
            await until(lambda: slave.context.topics.data_version.same(master.context.topics.data_version))
            await fill(master, "Late", queue_id=3)
            await master.context.topics.put(
                TopicConfig(topic_name="Wide", read_queue_nums=20, write_queue_nums=20)
            )
            await fill(master, "Wide", queue_id=19)
            await caught_up(master, slave)
            await until(lambda: {"Late", "Wide"} <= slave.context.topics.configs.keys())
            for topic, queue_id in (("Late", 3), ("Wide", 19)):
                assert await readable(slave, topic, queue_id) == ResponseCode.SUCCESS
            # A known topic gets more queues.
            await master.context.topics.put(
                TopicConfig(topic_name="Late", read_queue_nums=30, write_queue_nums=30)
            )
            await fill(master, "Late", queue_id=29)
            await caught_up(master, slave)
            await until(lambda: slave.context.topics.configs["Late"].read_queue_nums == 30)
            assert await readable(slave, "Late", 29) == ResponseCode.SUCCESS
        again = {"haMasterAddress": "memory://127.0.0.1:9", "plugins.ha.masterAddress": ""}
    async with running_slave(tmp_path / "s", master, **keys | again) as slave:
        assert await readable(slave, "Late", 29) == ResponseCode.SUCCESS
    async with running_master(tmp_path / "s", store=store, brokerRole="ASYNC_MASTER") as promoted:
        assert await readable(promoted, "Late", 29) == ResponseCode.SUCCESS


@STORES
async def test_a_member_knows_a_topic_from_its_first_record(tmp_path: Path, store: str) -> None:
    """The same in an elected group: before its election and after it."""
    keys: dict[str, Any] = {"store": store, "slaveReadEnable": True, **RARELY}
    async with running_member(tmp_path / "b", "b", **keys) as b:
        async with running_member(tmp_path / "a", "a", **keys) as a:
            await lead(a, 1, "b")
            await follow(b, a, 1)
            await linked(a)
            await until(lambda: b.context.topics.data_version.same(a.context.topics.data_version))
            await fill(a, "Late", queue_id=3)
            await until(lambda: "Late" in b.context.topics.configs)
            await until(lambda: b.context.replication.group.confirmed() == a.context.store.end_offset)  # type: ignore[union-attr]
            assert await readable(b, "Late", 3) == ResponseCode.SUCCESS
        await b.context.role.set(Role.MASTER, 2)
        assert await readable(b, "Late", 3) == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(b'{"offsetTable":{"3":7,"18":5}}', {3: 2, 4: 9, 18: 5}), (b"{", {3: 2, 4: 9})],
    ids=["read", "damaged"],
)
async def test_delay_levels_that_the_master_lacks_stay(
    tmp_path: Path, stored: bytes, expected: dict[int, int]
) -> None:
    """Delay offsets are those of the master; a level of which it says nothing keeps its own."""
    master_file, slave_file = (tmp_path / each / "config" / "delayOffset.json" for each in "ms")
    for path, text in ((master_file, b'{"offsetTable":{"3":2,"4":9}}'), (slave_file, stored)):
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
    async with running_master(tmp_path / "m") as master, running_slave(tmp_path / "s", master) as slave:
        await linked(master)
        file = JsonFile(slave_file, DelayOffsetFile)

        def copied() -> bool:
            try:
                found = file.load()
            except ConfigError:
                return False
            return found is not None and found.offset_table == expected

        await until(copied)
        assert slave.context.role.current is Role.SLAVE


async def test_a_topic_that_cannot_be_written_yet_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the slave's disk takes no topic, its log goes on; later the topic is served."""
    caplog.set_level(logging.INFO)
    keys: dict[str, Any] = {"store": "mmap", "slaveReadEnable": True, **RARELY}
    async with (
        running_master(tmp_path / "m", store="mmap") as master,
        running_slave(tmp_path / "s", master, **keys) as slave,
    ):
        await linked(master)
        await until(lambda: slave.context.topics.data_version.same(master.context.topics.data_version))
        with monkeypatch.context() as patch:
            patch.setattr(slave.context.topics._journal, "append", full)
            await fill(master)
            assert "Orders" not in slave.context.topics.configs
            assert said(caplog, "topics of copied messages are not served yet")
        await tables_of(slave).round()
        await has_everything(slave)


def full(_: object) -> None:
    raise OSError(28, "No space left on device")
