"""What SEND_OK means under SYNC_MASTER and ASYNC_MASTER."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.calls import calling_broker
from rmqkit_ha.frames import report
from tests.plugins.ha.pair import (
    caught_up,
    dialed,
    ha_master,
    linked,
    running_master,
    running_slave,
    send,
    send_request,
    until,
)


async def test_without_a_slave_nothing_is_acknowledged(tmp_path: Path) -> None:
    """SYNC_MASTER alone stores a message and answers SLAVE_NOT_AVAILABLE, never SUCCESS."""
    async with running_master(tmp_path) as master:
        answers = await send(master, b"one", b"two")
        assert {answer.code for answer in answers} == {ResponseCode.SLAVE_NOT_AVAILABLE}
        assert master.context.store.max_offset("TopicTest", 0) == 2


@pytest.mark.row("S274", "S280", "S332")
async def test_success_means_two_copies(tmp_path: Path) -> None:
    """Each send answered with SUCCESS is on the slave at that moment."""
    async with (
        running_master(tmp_path / "m") as master,
        running_slave(tmp_path / "s", master) as slave,
        calling_broker(master) as call,
    ):
        await linked(master)
        for number in range(50):
            answer = await call(send_request(b"%d" % number))
            assert answer.code == ResponseCode.SUCCESS
            assert slave.context.store.max_offset("TopicTest", 0) > number


@pytest.mark.row("S277", "S280")
async def test_the_report_of_the_slave_is_the_acknowledgement(tmp_path: Path) -> None:
    """A send is answered once a slave reports an offset behind it; one that reports less is not enough."""
    async with running_master(tmp_path, slaveTimeout=60_000) as master, dialed(master) as slave:
        await slave.send(report(0))
        await linked(master)
        answers: list[int] = []

        async def sending() -> None:
            answers.extend(answer.code for answer in await send(master, b"waits"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending)
            store = master.context.store
            await until(lambda: store.end_offset > 0)
            await slave.send(report(store.end_offset - 1))
            await until(lambda: ha_master(master).replicas.moved.offset == store.end_offset - 1)
            assert answers == []
            await slave.send(report(store.end_offset))
        assert answers == [ResponseCode.SUCCESS]


@pytest.mark.row("S280")
async def test_a_silent_slave_is_a_time_out(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A slave that takes the log and does not report is waited for `slaveTimeout` ms, and the message is
    stored."""
    async with running_master(tmp_path, slaveTimeout=2_000) as master, dialed(master) as slave:
        await slave.send(report(0))
        await linked(master)
        began_s = trio.current_time()
        (answer,) = await send(master, b"waits")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert 2 <= trio.current_time() - began_s < 3
        assert master.context.store.max_offset("TopicTest", 0) == 1


async def test_wait_false_is_answered_at_once(tmp_path: Path) -> None:
    """A sender that does not want to wait is answered when the master has the message."""
    async with running_master(tmp_path) as master:
        answers = await send(master, b"one", properties="WAIT\x01false\x02")
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]


async def test_min_in_sync_replicas(tmp_path: Path) -> None:
    """With minInSyncReplicas a message is refused, and not stored, while the slave is away."""
    async with running_master(tmp_path / "m", minInSyncReplicas=2) as master:
        (refused,) = await send(master, b"one")
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "in-sync replicas not enough: 1, and minInSyncReplicas is 2",
        )
        assert master.context.store.end_offset == 0
        async with running_slave(tmp_path / "s", master):
            await linked(master)
            (accepted,) = await send(master, b"one")
            assert accepted.code == ResponseCode.SUCCESS


async def test_three_copies(tmp_path: Path) -> None:
    """With inSyncReplicas = 3 two slaves have to have a message."""
    async with (
        running_master(tmp_path / "m", inSyncReplicas=3) as master,
        running_slave(tmp_path / "s1", master) as one,
    ):
        await linked(master)
        (answer,) = await send(master, b"one")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        async with running_slave(tmp_path / "s2", master, brokerId=2) as two:
            await linked(master, 2)
            (answer,) = await send(master, b"two")
            assert answer.code == ResponseCode.SUCCESS
            for slave in (one, two):
                assert slave.context.store.max_offset("TopicTest", 0) == 2


@pytest.mark.row("S274", "S282")
async def test_async_master(tmp_path: Path) -> None:
    """ASYNC_MASTER waits for nobody, and a slave gets the messages as well."""
    async with running_master(tmp_path / "m", brokerRole="ASYNC_MASTER") as master:
        (answer,) = await send(master, b"one")
        assert answer.code == ResponseCode.SUCCESS
        async with running_slave(tmp_path / "s", master) as slave:
            await linked(master)
            await send(master, b"two")
            await caught_up(master, slave)
            assert slave.context.store.max_offset("TopicTest", 0) == 2


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_sync_flush_on_the_slave(tmp_path: Path, store: str) -> None:
    """A slave with SYNC_FLUSH reports what is flushed, so SUCCESS means two copies on devices."""
    keys = {"store": store, "flushDiskType": "SYNC_FLUSH"}
    async with (
        running_master(tmp_path / "m", **keys) as master,
        running_slave(tmp_path / "s", master, **keys) as slave,
        calling_broker(master) as call,
    ):
        await linked(master)
        for number in range(10):
            answer = await call(send_request(b"%d" % number))
            assert answer.code == ResponseCode.SUCCESS
            end = master.context.store.end_offset
            assert slave.context.store.positions.flushed.offset >= end
