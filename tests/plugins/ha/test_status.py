"""What a master says of its slaves, and a slave of its master: GET_BROKER_HA_STATUS, `rmqkit broker ha`, the
log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.replication import ReplicationStatus
from rmqkit.plugin.flush import Level
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.testing.calls import calling_broker
from rmqkit_ha.frames import report
from rmqkit_ha.status import HaInfoHeader
from tests.plugins.ha.pair import (
    caught_up,
    dialed,
    ha_slave,
    linked,
    running_master,
    running_slave,
    send,
    until,
)


async def status_of(broker: RunningBroker) -> ReplicationStatus:
    async with calling_broker(broker) as call:
        found = await call(request(RequestCode.GET_BROKER_HA_STATUS))
    assert found.code == ResponseCode.SUCCESS
    return found.decode_body(ReplicationStatus)


@pytest.mark.row("S035", "S085", "S267")
async def test_master_and_slave_say_how_far_they_are(tmp_path: Path) -> None:
    """The master names its slave with its offset, the slave its master; the ends of the logs are equal."""
    async with running_master(tmp_path / "m") as master, running_slave(tmp_path / "s", master) as slave:
        await linked(master)
        await send(master, b"one", b"two")
        await caught_up(master, slave)
        end = master.context.store.end_offset
        of_master, of_slave = await status_of(master), await status_of(slave)
        assert of_master.master
        assert of_master.master_commit_log_max_offset == end
        assert of_master.in_sync_slave_nums == 1
        (seen,) = of_master.ha_connection_info
        assert (seen.slave_ack_offset, seen.diff, seen.in_sync, seen.lag_ms) == (end, 0, True, 0)
        assert seen.transfer_from_where == end
        assert not of_slave.master
        said = of_slave.ha_client_runtime_info
        assert said.master_addr == master.context.replication.own
        assert said.activated
        assert said.max_offset == end
        assert said.last_read_timestamp > 0


@pytest.mark.row("S035", "S085")
async def test_a_slave_that_is_behind_is_seen(tmp_path: Path) -> None:
    """Bytes and age of what a silent slave does not have, in the answer and in `Replication.replicas`."""
    async with running_master(tmp_path, brokerRole="ASYNC_MASTER") as master, dialed(master) as slave:
        await slave.send(report(0))
        await linked(master)
        await send(master, b"one")
        (seen,) = (await status_of(master)).ha_connection_info
        assert seen.diff == master.context.store.end_offset
        (progress,) = master.context.replication.replicas()
        assert progress.lag_bytes == seen.diff
        assert progress.address == seen.addr


@pytest.mark.row("S035", "S085", "S267")
async def test_the_lag_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master logs the lag of each slave at an interval."""
    monkeypatch.setattr("rmqkit_ha.master._LAG_LOG_S", 0.01)
    caplog.set_level(logging.INFO)
    async with running_master(tmp_path) as master, dialed(master) as slave:
        await slave.send(report(0))
        await linked(master)
        await until(lambda: "0 bytes and 0 ms behind" in caplog.text)


async def told(broker: RunningBroker, header: HaInfoHeader | None = None) -> Command:
    """The answer to EXCHANGE_BROKER_HA_INFO."""
    async with calling_broker(broker) as call:
        return await call(request(RequestCode.EXCHANGE_BROKER_HA_INFO, header or HaInfoHeader()))


@pytest.mark.row("S035")
async def test_what_brokers_tell_each_other(tmp_path: Path) -> None:
    """A master gives its addresses and what is on its device; a slave gives nothing, and stays with its
    master whatever a request names."""
    async with running_master(tmp_path / "m") as master, running_slave(tmp_path / "s", master) as slave:
        await linked(master)
        await send(master, b"one")
        await master.context.store.settled(master.context.store.end_offset, Level.FLUSHED)
        answer = await told(master)
        assert answer.header(HaInfoHeader) == HaInfoHeader(
            master_ha_address=master.context.replication.own,
            master_flush_offset=master.context.store.end_offset,
            master_address=master.context.address,
        )
        asked = []
        slave.context.replication.on_wanted.append(lambda: asked.append(1))
        answer = await told(slave, HaInfoHeader(master_ha_address="127.0.0.1:1"))
        assert answer.code == ResponseCode.SUCCESS
        assert asked
        assert slave.context.replication.master_ha != "127.0.0.1:1"
        assert ha_slave(slave).following == master.context.replication.own
        assert (await told(slave)).header(HaInfoHeader) == HaInfoHeader()


async def test_a_broker_without_replication_says_so(tmp_path: Path) -> None:
    """A broker alone is a master without slaves, in the members that mqadmin reads."""
    async with running_master(tmp_path) as master:
        found = json.loads(msgspec.json.encode(await status_of(master)))
    assert found == {
        "master": True,
        "masterCommitLogMaxOffset": 0,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {
            "masterAddr": "",
            "transferredByteInSecond": 0,
            "maxOffset": 0,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "activated": False,
        },
    }
