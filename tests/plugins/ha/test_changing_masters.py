"""An elected group whose master changes: what was confirmed stays, and what only the old master has goes."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import StaleEpoch
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.run import MessageRun
from rmqkit.model.topic import ConsumerOffsetFile
from rmqkit.plugin.role import Role
from rmqkit.protocol import record
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.store import message
from rmqkit_ha.group import ElectedGroup
from tests.plugins.ha.pair import (
    PATIENCE_S,
    SMALL,
    TOPIC,
    caught_up,
    follow,
    group_of,
    ha_slave,
    lead,
    linked,
    raw_log,
    running_master,
    running_member,
    running_slave,
    send,
    until,
)
from tests.plugins.ha.test_pair import bodies
from tests.plugins.ha.test_slave import pull_request

STORES = pytest.mark.parametrize("store", ["mmap", "lmdb", "memory"])


def epochs_of(directory: Path) -> list[list[int]]:
    found: list[list[int]] = json.loads((directory / "config" / "replicaEpochs.json").read_text())["epochs"]
    return found


def stored(broker: RunningBroker) -> list[bytes]:
    """The bodies in the log."""
    log, at, found = raw_log(broker.context.store), 0, []
    while at < len(log):
        size, magic = record.peek_size_and_magic(log, at)
        if magic != record.MAGIC_BLANK:
            found.append(record.unpack(log, at).body)
        at += size
    return found


async def joined(master: RunningBroker, slave: RunningBroker, epoch: int) -> None:
    """Let a slave follow a master, and be its in-sync set with it."""
    await follow(slave, master, epoch)
    name = group_of(slave).name
    group = group_of(master)
    await until(lambda: name in group.members() and group.members()[name].is_caught_up)
    group.set_in_sync({group.name, name})


async def paired(directory: Path) -> None:
    """Let a master in `a` and a slave in `b`, without elections, write five messages and stop."""
    keys: dict[str, Any] = {"brokerName": "group", "store": "mmap"}
    async with (
        running_master(directory / "a", brokerRole="ASYNC_MASTER", **keys) as master,
        running_slave(directory / "b", master, **keys) as slave,
    ):
        await linked(master)
        await send(master, *bodies(1, 5))
        await caught_up(master, slave)


async def fenced(broker: RunningBroker) -> None:
    await broker.context.role.set(Role.FENCED, broker.context.role.epoch)


@STORES
async def test_a_slave_takes_over(tmp_path: Path, store: str) -> None:
    """Everything acknowledged is at the new master, the old one follows it, and both know who wrote what."""
    async with (
        running_member(tmp_path / "a", "a", store=store) as a,
        running_member(tmp_path / "b", "b", store=store) as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        first = bodies(1, 30)
        assert {each.code for each in await send(a, *first)} == {ResponseCode.SUCCESS}
        await fenced(a)
        await lead(b, 2)
        assert stored(b) == first
        begins = group_of(b).log_end()
        await joined(b, a, 2)
        second = bodies(2, 30)
        assert {each.code for each in await send(b, *second)} == {ResponseCode.SUCCESS}
        await caught_up(b, a)
        assert stored(b) == [*first, *second]
        assert raw_log(a.context.store) == raw_log(b.context.store)
        assert epochs_of(tmp_path / "a") == epochs_of(tmp_path / "b") == [[1, 0], [2, begins]]
        assert (group_of(a).log_epoch(), group_of(b).log_epoch()) == (2, 2)


@STORES
async def test_the_unconfirmed_end_of_an_old_master_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """What the old master stored without its slave was not acknowledged; it is removed, also from queues and
    consumer offsets, before the old master copies anything."""
    async with (
        running_member(tmp_path / "a", "a", store=store) as a,
        running_member(tmp_path / "b", "b", store=store) as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        kept = bodies(1, 5)
        assert {each.code for each in await send(a, *kept)} == {ResponseCode.SUCCESS}
        await fenced(b)
        a.context.appender.append(MessageRun([message(TOPIC, body=each) for each in bodies(2, 30)]))
        offsets = ConsumerOffsetFile(offset_table={f"{TOPIC}@g": {0: 35}})
        a.context.offsets.merge(offsets)
        await fenced(a)
        await lead(b, 2)
        end = group_of(b).log_end()
        await follow(a, b, 2)
        await linked(b)
        await caught_up(b, a)
        assert stored(a) == kept
        assert a.context.store.max_offset(TOPIC, 0) == 5
        assert a.context.offsets.get("g", TOPIC, 0) == 5
        assert f"in common with the master {b.context.replication.own} up to {end}" in caplog.text
        group_of(b).set_in_sync({"a", "b"})
        new = bodies(3, 20)
        assert {each.code for each in await send(b, *new)} == {ResponseCode.SUCCESS}
        assert stored(a) == stored(b) == [*kept, *new]
    if store == "memory":
        return
    async with running_member(tmp_path / "a", "a", store=store) as a:
        assert stored(a) == [*kept, *new]
        assert a.context.role.epoch == 2


async def test_an_unconfirmed_message_is_not_seen(tmp_path: Path) -> None:
    """Consumers see a message when the in-sync set has it, for a successor may not have it before."""
    async with running_member(tmp_path, "a", slaveTimeout=50) as a:
        await lead(a, 1)
        await send(a, b"alone")
        group_of(a).set_in_sync({"a", "b"})
        assert (await send(a, b"unconfirmed"))[0].code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        store = a.context.store
        assert store.max_offset(TOPIC, 0) == 1
        await fenced(a)
        assert store.max_offset(TOPIC, 0) == 1
        await lead(a, 2)
        assert store.max_offset(TOPIC, 0) == 2


async def test_messages_are_read_from_a_broker_that_knows_what_is_confirmed(tmp_path: Path) -> None:
    """Neither from a member that was just started, nor from a slave, nor from a new master whose set lacks
    something of its log; also from a former master that is fenced."""
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "b", "b") as b:

        async def code(broker: RunningBroker) -> int:
            async with calling_broker(broker) as call:
                return (await call(pull_request())).code

        await a.context.topics.ensure(TOPIC, 1)
        assert await code(a) == ResponseCode.SERVICE_NOT_AVAILABLE
        await lead(a, 1)
        await joined(a, b, 1)
        await send(a, *bodies(1, 3))
        await until(lambda: TOPIC in b.context.topics.configs)
        assert [await code(a), await code(b)] == [0, ResponseCode.SERVICE_NOT_AVAILABLE]
        await fenced(a)
        assert await code(a) == 0
        group_of(b).lead_with({"a", "b"})
        await lead(b, 2)
        assert await code(b) == ResponseCode.SERVICE_NOT_AVAILABLE
        await follow(a, b, 2)
        await until(lambda: group_of(b).knows_confirmed)
        assert [await code(a), await code(b)] == [ResponseCode.SERVICE_NOT_AVAILABLE, 0]
        await fenced(b)
        assert await code(b) == 0


async def test_a_slave_is_read_up_to_what_is_confirmed(tmp_path: Path) -> None:
    """With slaveReadEnable, and once its master has told it; what the set lacks is not seen anywhere."""
    async with (
        running_member(tmp_path / "a", "a", slaveTimeout=50) as a,
        running_member(tmp_path / "b", "b", slaveReadEnable=True) as b,
    ):
        await lead(a, 1)
        await follow(b, a, 1)
        await send(a, *bodies(1, 3))
        await until(lambda: group_of(b).knows_confirmed and b.context.store.max_offset(TOPIC, 0) == 3)
        group_of(a).set_in_sync({"a", "b", "absent"})
        (answer,) = await send(a, b"not confirmed")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await until(lambda: group_of(b).log_end() == group_of(a).log_end())
        async with calling_broker(b) as call:
            pulled = await call(pull_request())
        assert pulled.code == 0
        assert len([*record.unpack_all(pulled.body)]) == 3
        assert [each.context.store.max_offset(TOPIC, 0) for each in (a, b)] == [3, 3]
        group_of(a).set_in_sync({"a", "b"})
        await until(lambda: b.context.store.max_offset(TOPIC, 0) == 4)
        await fenced(b)
        assert group_of(b).knows_confirmed


async def test_a_new_master_tells_its_slaves_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    """While a member of the set has not said what it has, the next master may be that member."""
    async with (
        running_member(tmp_path / "a", "a", slaveReadEnable=True) as a,
        running_member(tmp_path / "b", "b", slaveTimeout=50) as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        await send(a, *bodies(1, 3))
        await until(lambda: group_of(b).log_end() == group_of(a).log_end())
        await fenced(a)
        group_of(b).lead_with({"a", "b", "absent"})
        await lead(b, 2)
        await follow(a, b, 2)
        # The frame with the confirmed position comes before the next messages.
        (answer,) = await send(b, b"not confirmed")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await until(lambda: group_of(a).log_end() == group_of(b).log_end())
        assert [group_of(each).knows_confirmed for each in (a, b)] == [False, False]
        group_of(b).set_in_sync({"a", "b"})
        await until(lambda: group_of(a).knows_confirmed)
        assert group_of(a).confirmed() == group_of(b).log_end()


async def test_who_nearly_became_master_shows_nothing_that_may_be_removed(tmp_path: Path) -> None:
    """It was prepared for an epoch that began too late: what it has beyond the set is not confirmed by
    that."""
    async with (
        running_member(tmp_path / "a", "a", slaveTimeout=50) as a,
        running_member(tmp_path / "b", "b") as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        await send(a, *bodies(1, 3))
        await until(lambda: group_of(a).confirmed() == group_of(a).log_end())
        group_of(a).set_in_sync({"a", "b", "absent"})
        (answer,) = await send(a, b"not confirmed")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        async with calling_broker(a) as call:
            assert (await call(pull_request())).code == 0
            await fenced(a)
            assert len([*record.unpack_all((await call(pull_request())).body)]) == 3
            group_of(a).lead_with({"a", "b"})
            with pytest.raises(StaleEpoch, match="its deadline passed"):
                await lead(a, 2, until_s=trio.current_time())
            assert a.context.role.current is Role.FENCED
            assert (await call(pull_request())).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_slave_follows_whom_the_elector_assigns(tmp_path: Path) -> None:
    """A slave leaves a master that lives on when another one is assigned, and keeps the common part."""
    async with AsyncExitStack() as stack:
        a, b, c = [await stack.enter_async_context(running_member(tmp_path / name, name)) for name in "abc"]
        await lead(a, 1)
        for slave in (b, c):
            await follow(slave, a, 1)
        await linked(a, 2)
        await send(a, *bodies(1, 5))
        await caught_up(a, b, c)
        await lead(b, 2)
        # The old master does not know yet.
        await send(a, b"of the old master")
        await caught_up(a, c)
        await follow(c, b, 2)
        await until(lambda: ha_slave(c).following == b.context.replication.own)
        await send(b, b"of the new one")
        await until(lambda: stored(c) == stored(b))
        assert stored(c)[-1] == b"of the new one"


async def test_a_slave_follows_a_new_epoch_at_once(tmp_path: Path) -> None:
    """A master that is elected again closes its connections; its slave comes back with the elector's word,
    not after the interval between two attempts."""
    slow = {"plugins.ha.retryIntervalMs": 3_600_000}
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "b", "b", **slow) as b:
        await lead(a, 1)
        await joined(a, b, 1)
        await lead(a, 2)
        await until(lambda: not ha_slave(b).following)
        await joined(a, b, 2)
        assert {each.code for each in await send(a, b"one")} == {ResponseCode.SUCCESS}


async def test_a_master_of_an_older_epoch_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave that knows a later epoch copies nothing from the old master, and one line says why."""
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "b", "b") as b:
        await lead(a, 1)
        await send(a, b"one")
        await follow(b, a, 3)
        await until(lambda: "it knows epoch 3, and this master is of epoch 1" in caplog.text)
        assert b.context.store.end_offset == 0


async def test_a_log_without_a_common_epoch_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A member that was the master of a group of its own copies nothing, and says what to do."""
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "b", "b") as b:
        await lead(a, 5)
        await send(a, *bodies(1, 5))
        await lead(b, 1)
        await send(b, *bodies(2, 3))
        log = raw_log(b.context.store)
        await follow(b, a, 5)
        await until(lambda: "no epoch in common" in caplog.text)
        assert "Empty this broker's directory" in caplog.text
        assert raw_log(b.context.store) == log


async def test_a_pair_becomes_an_elected_group(tmp_path: Path) -> None:
    """Master and slave with equal logs from before the first election go on as members."""
    await paired(tmp_path)
    async with (
        running_member(tmp_path / "a", "a", store="mmap") as a,
        running_member(tmp_path / "b", "b", store="mmap") as b,
    ):
        await lead(a, 1)
        await joined(a, b, 1)
        await send(a, b"elected")
        await caught_up(a, b)
        assert stored(b) == [*bodies(1, 5), b"elected"]
        assert epochs_of(tmp_path / "b")[0] == [0, 0]


async def test_records_from_before_the_elections_are_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such records have no epoch that would say that they were not confirmed: the slave is refused, and keeps
    them."""
    await paired(tmp_path)
    async with running_master(
        tmp_path / "b", brokerName="group", brokerRole="ASYNC_MASTER", store="mmap"
    ) as other:
        await send(other, b"only here")
        log = raw_log(other.context.store)
    async with (
        running_member(tmp_path / "a", "a", store="mmap") as a,
        running_member(tmp_path / "b", "b", store="mmap") as b,
    ):
        await lead(a, 1)
        await send(a, b"elected")
        await follow(b, a, 1)
        await until(lambda: "from before the first election" in caplog.text)
        assert raw_log(b.context.store) == log


async def test_a_new_master_has_the_topics_of_its_messages(tmp_path: Path) -> None:
    """A topic whose messages were copied before the table is there when the slave becomes the master."""
    interval = {"plugins.ha.tablesIntervalMs": 3_600_000}
    async with running_member(tmp_path / "a", "a") as a, running_member(tmp_path / "b", "b", **interval) as b:
        await lead(a, 1)
        await joined(a, b, 1)
        # The slave has copied the tables once, and does not again.
        await send(a, b"one")
        await send(a, b"delayed", properties="DELAY\x011\x02")
        await caught_up(a, b)
        b.context.topics.configs.pop(TOPIC, None)
        # The delay service of the new master creates its topic if the copied table did not have it yet.
        own = set(b.context.topics.configs) | {SCHEDULE_TOPIC}
        await fenced(a)
        await lead(b, 2)
        assert b.context.topics.configs.keys() - own == {TOPIC}
        found = b.context.topics.get(TOPIC)
        assert found is not None
        assert found.write_queue_nums >= 1
        assert (await send(b, b"two"))[0].code == ResponseCode.SUCCESS


async def test_the_epoch_is_written_before_the_first_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after the first message finds its epoch: the file has it before messages are taken."""
    seen: list[tuple[list[list[int]], bool]] = []
    async with running_member(tmp_path, "a") as a:
        group = group_of(a)
        assert isinstance(group, ElectedGroup)
        begin = group.epochs.begin

        async def noted(epoch: int, start: int, log_begin: int) -> None:
            await begin(epoch, start, log_begin)
            seen.append((epochs_of(tmp_path), a.context.role.is_fenced))

        monkeypatch.setattr(group.epochs, "begin", noted)
        await lead(a, 4)
        assert seen == [([[4, 0]], True)]


async def trimmed_member(a: RunningBroker) -> int:
    """Let a member lead the epochs 2 and 3; its log begins in epoch 2 then. Returns where that began."""
    await lead(a, 2)
    store, began = a.context.store, group_of(a).log_end()
    await send(a, *bodies(2, 60))
    with trio.fail_after(PATIENCE_S):
        while store.start_offset <= began:
            await store.trim(store.end_offset - store.end_offset % SMALL["mappedFileSizeCommitLog"])
    await lead(a, 3)
    return began


async def test_epochs_of_a_trimmed_log_are_forgotten(tmp_path: Path) -> None:
    """The next election drops them from the file; what is left still says what an old master must remove."""
    async with (
        running_member(tmp_path / "a", "a", store="mmap") as a,
        running_member(tmp_path / "b", "b", store="mmap") as b,
    ):
        await lead(a, 1)
        await send(a, *bodies(1, 60))
        second = await trimmed_member(a)
        third = group_of(a).log_end()
        assert epochs_of(tmp_path / "a") == [[2, second], [3, third]]
        await joined(a, b, 3)
        assert {each.code for each in await send(a, *bodies(3, 5))} == {ResponseCode.SUCCESS}
        await fenced(b)
        kept = stored(b)
        a.context.appender.append(MessageRun([message(TOPIC, body=b"unconfirmed")]))
        await fenced(a)
        await lead(b, 4)
        await joined(b, a, 4)
        await caught_up(b, a)
        assert stored(a) == stored(b) == kept
        wanted = [[2, second], [3, third], [4, group_of(b).log_end()]]
        assert epochs_of(tmp_path / "a") == epochs_of(tmp_path / "b") == wanted


async def test_a_member_whose_epochs_are_forgotten_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log ends before the master's begins, so there is nothing to compare; it says so, and copies all."""
    async with running_member(tmp_path / "a", "a", store="mmap") as a:
        async with running_member(tmp_path / "b", "b", store="mmap") as b:
            await lead(a, 1)
            await joined(a, b, 1)
            await send(a, *bodies(1, 5))
        group_of(a).set_in_sync({"a"})
        second = await trimmed_member(a)
        async with running_member(tmp_path / "b", "b", store="mmap") as b:
            await joined(a, b, 3)
            await caught_up(a, b)
            assert raw_log(b.context.store) == raw_log(a.context.store)
            assert [each for each in caplog.records if "starts over" in each.getMessage()]
            await fenced(a)
            await lead(b, 4)
            assert epochs_of(tmp_path / "b")[0] == [2, second]
