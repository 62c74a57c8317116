"""What a slave has of its master besides the log, and what happens when one of them was away."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from rmqkit.model.sysflag import PULL_SUBSCRIPTION
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqkit.testing.broker import running_namesrv
from rmqkit.testing.calls import calling_broker
from tests.plugins.ha.pair import (
    TOPIC,
    caught_up,
    linked,
    raw_log,
    running_master,
    running_slave,
    send,
    send_request,
    until,
)
from tests.plugins.ha.test_pair import bodies


def pull_request() -> Command:
    """A pull of queue 0 from its beginning."""
    header = PullMessageRequestHeader(
        consumer_group="consumers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        sys_flag=PULL_SUBSCRIPTION,
        subscription="*",
    )
    return request(RequestCode.PULL_MESSAGE, header)


@pytest.mark.row("S034", "S067", "S084", "S273")
async def test_the_tables_are_copied(tmp_path: Path) -> None:
    """Topics, groups and consumer offsets of the master become the slave's, and deletions follow."""
    async with running_master(tmp_path / "m") as master, running_slave(tmp_path / "s", master) as slave:
        here, there = master.context, slave.context
        await here.topics.put(TopicConfig(topic_name="Orders", read_queue_nums=3, write_queue_nums=3))
        here.offsets.commit("billing", "Orders", 2, 41)
        await until(lambda: there.topics.configs == here.topics.configs)
        await until(lambda: there.groups.configs == here.groups.configs)
        await until(lambda: there.offsets.get("billing", "Orders", 2) == 41)
        await until(lambda: there.topics.data_version.same(here.topics.data_version))
        assert await here.topics.delete("Orders")
        await until(lambda: "Orders" not in there.topics.configs)


@pytest.mark.row("S268", "S269", "S270")
async def test_the_name_server_says_where_the_master_is(tmp_path: Path) -> None:
    """A slave without haMasterAddress finds the master's replication port and its tables by the name
    server."""
    async with running_namesrv(tmp_path / "n", scheme="memory") as namesrv:
        keys = {"namesrvAddr": str(namesrv)}
        none = {"haMasterAddress": "", "plugins.ha.masterAddress": ""}
        async with (
            running_master(tmp_path / "m", **keys) as master,
            running_slave(tmp_path / "s", master, **keys | none) as slave,
        ):
            await linked(master)
            assert slave.context.replication.master_ha == master.context.replication.own
            assert slave.context.replication.master == master.context.address
            (answer,) = await send(master, b"one")
            assert answer.code == ResponseCode.SUCCESS
            await until(lambda: TOPIC in slave.context.topics.configs)


@pytest.mark.parametrize("may_read", [True, False])
async def test_a_slave_refuses_sends_and_serves_pulls_if_it_may(tmp_path: Path, may_read: bool) -> None:
    """A send is refused with SYSTEM_BUSY, as by Apache's slave; a pull as well, unless slaveReadEnable."""
    async with (
        running_master(tmp_path / "m") as master,
        running_slave(tmp_path / "s", master, slaveReadEnable=may_read) as slave,
        calling_broker(slave) as call,
    ):
        await linked(master)
        await send(master, b"one")
        await until(lambda: TOPIC in slave.context.topics.configs)
        assert (await call(send_request(b"two"))).code == ResponseCode.SYSTEM_BUSY
        pulled = await call(pull_request())
        assert pulled.code == (ResponseCode.SUCCESS if may_read else ResponseCode.SYSTEM_BUSY)
        assert (b"one" in pulled.body) == may_read


@pytest.mark.row("S115")
async def test_old_messages_are_to_be_read_from_a_slave(tmp_path: Path) -> None:
    """A master with slaveReadEnable suggests the slave for messages outside the part of the log that counts
    as in memory, and itself otherwise."""
    for ratio, suggested in ((0, 1), (40, 0)):
        keys = {"slaveReadEnable": True, "accessMessageInMemoryMaxRatio": ratio, "brokerRole": "ASYNC_MASTER"}
        async with running_master(tmp_path / str(ratio), **keys) as master, calling_broker(master) as call:
            await send(master, *[b"x"] * 50)
            pulled = await call(pull_request())
            assert pulled.header(PullMessageResponseHeader).suggest_which_broker_id == suggested


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_both_continue_after_restarts(tmp_path: Path, store: str) -> None:
    """After a restart of either end the slave goes on where its log ends, and the logs are equal."""
    for seed in range(3):
        async with running_master(tmp_path / "m", store=store) as master:
            for part in range(2):
                async with running_slave(tmp_path / "s", master, store=store) as slave:
                    await linked(master)
                    await send(master, *bodies(10 * seed + part, 15))
                    await caught_up(master, slave)
                    assert raw_log(master.context.store) == raw_log(slave.context.store)
                await linked(master, 0)
                await send(master, *bodies(100 + 10 * seed + part, 15), properties="WAIT\x01false\x02")


@pytest.mark.row("S272")
@pytest.mark.parametrize("from_last", [True, False])
async def test_a_new_slave_begins_with_the_first_or_the_last_file(tmp_path: Path, from_last: bool) -> None:
    """A slave that asks for offset 0 gets the whole log, or its last file with syncFromLastFile, as from
    Apache's master."""
    keys = {"store": "mmap", "brokerRole": "ASYNC_MASTER", "syncFromLastFile": from_last}
    async with running_master(tmp_path / "m", **keys) as master:
        await send(master, *bodies(1, 60))
        end, file_bytes = master.context.store.end_offset, 131_072
        assert end > file_bytes
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await linked(master)
            await caught_up(master, slave)
            begin = end - end % file_bytes if from_last else 0
            assert slave.context.store.start_offset == begin
            assert raw_log(slave.context.store, begin) == raw_log(master.context.store, begin)


async def test_a_slave_that_was_away_for_too_long_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave whose log ends before the master's begins says so, removes its log and gets the master's."""
    keys = {"store": "mmap", "brokerRole": "ASYNC_MASTER"}
    async with running_master(tmp_path / "m", **keys) as master:
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await linked(master)
            await send(master, *bodies(1, 5))
            await caught_up(master, slave)
        await linked(master, 0)
        await send(master, *bodies(2, 60))
        store = master.context.store
        with trio.fail_after(60):
            while store.start_offset == 0:
                await store.trim(store.end_offset - store.end_offset % 131_072)
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await caught_up(master, slave)
            assert raw_log(slave.context.store, store.start_offset) == raw_log(store)
        assert [each for each in caplog.records if "starts over" in each.getMessage()]
        assert max(each.levelno for each in caplog.records) == logging.ERROR


async def test_a_connected_slave_holds_the_log(tmp_path: Path) -> None:
    """The master's log is not trimmed beyond what a connected slave has reported, up to pinLimitBytes."""
    keys = {"store": "memory", "brokerRole": "ASYNC_MASTER", "plugins.ha.pinLimitBytes": 50_000}
    async with running_master(tmp_path / "m", **keys) as master:
        await send(master, *bodies(1, 60))
        store = master.context.store
        async with running_slave(tmp_path / "s", master, store="memory") as slave:
            await linked(master)
            await caught_up(master, slave)
            await until(lambda: store.pins.limit(1 << 60) >= store.end_offset - 50_000)
            assert store.pins.limit(1 << 60) <= store.end_offset
        await until(lambda: store.pins.limit(1 << 60) == 1 << 60)
