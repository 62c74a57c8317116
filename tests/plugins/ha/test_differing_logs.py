"""A slave never overwrites a log that is not its master's: it refuses, keeps it, and says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import ProtocolError
from rmqkit.testing.broker import running_broker
from rmqkit_ha.comparison import Comparison, last_record
from tests.plugins.ha.pair import (
    SMALL,
    caught_up,
    ha_master,
    linked,
    raw_log,
    running_master,
    running_slave,
    send,
    until,
)
from tests.plugins.ha.test_pair import bodies

ASYNC: dict[str, Any] = {"brokerRole": "ASYNC_MASTER"}


async def written(directory: Path, store: str, *texts: bytes) -> bytes:
    """The log of a master of its own that has stopped again."""
    async with running_master(directory, store=store, **ASYNC) as master:
        await send(master, *texts)
        return raw_log(master.context.store)


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The log lines of the slave that contain a text."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == "rmqkit_ha.slave" and text in each.getMessage()
    ]


async def refused(caplog: pytest.LogCaptureFixture, slave: RunningBroker, log: bytes, text: str) -> None:
    """Wait until the slave has said a text; its log is what it was."""
    await until(lambda: bool(said(caplog, text)))
    assert raw_log(slave.context.store) == log
    assert "Empty this broker's directory" in said(caplog, text)[0]


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_a_log_that_ends_inside_another_one_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """The log of another broker has records of the same lengths and ends inside the master's: the slave
    notices, appends nothing, acknowledges nothing, and says so once."""
    log = await written(tmp_path / "s", store, *[b"x" * 100] * 3)
    async with running_master(tmp_path / "m", store=store, **ASYNC) as master:
        await send(master, *[b"y" * 100] * 5)
        reported: list[int] = []
        replicas = ha_master(master).replicas
        acknowledge = replicas.acknowledge

        def counted(replica: Any, offset: int) -> None:
            reported.append(offset)
            acknowledge(replica, offset)

        replicas.acknowledge = counted  # type: ignore[method-assign]
        async with running_slave(tmp_path / "s", master, store=store) as slave:
            await refused(caplog, slave, log, "its log differs from this one")
            await until(lambda: len(reported) > 3)
            assert len(said(caplog, "differs")) == 1
        # A connection begins at the last record, and nothing behind it was reported.
        assert max(reported) < len(log)


async def test_a_log_with_records_elsewhere_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No record of the master begins where the slave's last one does: the master closes, and the slave says
    what that may mean."""
    log = await written(tmp_path / "s", "mmap", *bodies(1, 3))
    async with running_master(tmp_path / "m", store="mmap", **ASYNC) as master:
        await send(master, *bodies(2, 20))
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await refused(caplog, slave, log, "before the end of this log")


async def test_a_log_longer_than_the_masters_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave that has more than the master keeps it."""
    log = await written(tmp_path / "s", "mmap", *bodies(1, 9))
    async with running_master(tmp_path / "m", store="mmap", **ASYNC) as master:
        await send(master, b"short")
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await refused(caplog, slave, log, "before the end of this log")


@pytest.fixture
def unchecked_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters that do not check a slave's offset, as Apache's does not."""
    monkeypatch.setattr("rmqkit_ha.master._Connection._checked", lambda _, offset: offset)


@pytest.mark.usefixtures("unchecked_offsets")
async def test_the_heartbeats_of_a_shorter_log_are_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that has fewer messages and does not check what it is asked for sends heartbeats alone."""
    async with running_master(tmp_path / "m", store="mmap", haSendHeartbeatInterval=10, **ASYNC) as master:
        await send(master, *bodies(1, 3))
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await linked(master)
            await caught_up(master, slave)
        longer = await continued(tmp_path / "s")
        async with running_slave(tmp_path / "s", master, store="mmap") as slave:
            await refused(caplog, slave, longer, "before this one, which ends at")


async def continued(directory: Path) -> bytes:
    """The log of a slave's directory after another message."""
    async with running_master(directory, store="mmap", **ASYNC) as broker:
        await send(broker, b"more")
        return raw_log(broker.context.store)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"plugins.ha.masterAddress": ""}, "this slave was away for too long, or"),
        ({"brokerClusterName": "Other"}, "it is not a slave of that master"),
        ({"brokerName": "other"}, "it is not a slave of that master"),
    ],
    ids=["nobody says who it is", "another cluster", "another name"],
)
async def test_a_log_before_that_of_an_unknown_master_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: dict[str, Any], text: str
) -> None:
    """A slave starts over only with the master of its group, not with one whose log happens to begin behind
    its own."""
    log = await written(tmp_path / "s", "mmap", *bodies(1, 3))
    async with running_master(tmp_path / "m", store="mmap", **ASYNC) as master:
        await send(master, *bodies(2, 60))
        store = master.context.store
        with trio.fail_after(60):
            while store.start_offset == 0:
                await store.trim(store.end_offset - store.end_offset % SMALL["mappedFileSizeCommitLog"])
        async with running_slave(tmp_path / "s", master, store="mmap", **keys) as slave:
            await until(lambda: bool(said(caplog, text)))
            assert raw_log(slave.context.store) == log


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_a_name_server_alone_lets_no_slave_start_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """A broker has registered the slave's name, and its log begins behind the slave's: it may be a stranger,
    so the slave keeps its log and says what to set."""
    log = await written(tmp_path / "s", store, *bodies(1, 3))
    async with running_master(tmp_path / "m", store="mmap", **ASYNC) as master:
        await send(master, *bodies(2, 60))
        other = master.context.store
        with trio.fail_after(60):
            while other.start_offset == 0:
                await other.trim(other.end_offset - other.end_offset % SMALL["mappedFileSizeCommitLog"])
        none = {"haMasterAddress": "", "plugins.ha.masterAddress": ""}
        async with running_slave(tmp_path / "s", master, store=store, **none) as slave:
            slave.context.replication.learned(master.context.address, master.context.replication.own)
            await refused(caplog, slave, log, "what a name server alone says is not enough")


async def test_an_empty_slave_of_another_name_copies_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong haMasterAddress is noticed before the first byte."""
    async with (
        running_master(tmp_path / "m") as master,
        running_slave(tmp_path / "s", master, brokerName="other") as slave,
    ):
        await send(master, b"one")
        await until(lambda: bool(said(caplog, "it is not a slave of that master")))
        assert slave.context.store.end_offset == 0
        assert not ha_master(master).replicas.connected


async def test_the_last_record_is_that_of_any_queue(tmp_path: Path) -> None:
    """The place from which logs are compared is the last record, and the beginning of an empty log."""
    async with running_broker(tmp_path, scheme="memory", store="mmap") as broker:
        store = broker.context.store
        assert await last_record(store) == 0
        await send(broker, b"one")
        first = store.end_offset
        assert await last_record(store) == 0
        await send(broker, b"two")
        assert await last_record(store) == first


async def test_pieces_are_compared_record_by_record(tmp_path: Path) -> None:
    """What is equal passes, what follows the end of the log is left, and one different byte is noticed."""
    async with running_broker(tmp_path, scheme="memory", store="memory") as broker:
        store = broker.context.store
        await send(broker, b"one", b"two", b"three")
        log = raw_log(store)
        comparison = Comparison(store, 0)
        assert await comparison.rest(0, log + b"next") == (len(log), b"next")
        assert comparison.is_complete
        for at in range(0, len(log), 7):
            changed = bytearray(log)
            changed[at] ^= 1
            with pytest.raises(ProtocolError, match="its log differs"):
                await Comparison(store, 0).rest(0, bytes(changed))
